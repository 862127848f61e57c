"""The effects on the real disk: what is made durable, cut short, or too large to be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tiered.config import LogConfig
from tiered.errors import LocalIOError, LocalPermissionError
from tiered.local.disk.files import DiskSpace, PosixFiles, disk_failed, translate
from tiered.local.partition.context import DiskReserve
from tiered.local.segment.sealed import FileSource

pytestmark = pytest.mark.real_disk


class Durable(PosixFiles):
    """Remembers which names and which bytes were made durable."""

    def __init__(self) -> None:
        self.directories: list[Path] = []
        self.contents: list[bytes] = []

    def sync(self, handle: int) -> None:
        super().sync(handle)
        self.contents.append(os.pread(handle, 1_000, 0))

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.directories.append(path)


def test_a_replaced_file_and_its_name_are_durable(tmp_path: Path) -> None:
    files = Durable()
    files.replace(tmp_path / "note", b"new")
    assert (files.contents, files.directories) == ([b"new"], [tmp_path])


def test_a_patch_ends_the_file_with_its_data_and_is_durable_if_it_is_to_be(tmp_path: Path) -> None:
    files, path = Durable(), tmp_path / "claims"
    files.patch(path, b"one,two", 0, sync=False)
    files.patch(path, b"2", 4, sync=True)  # what stood behind is cut off: here a line that a crash tore
    files.patch(path, b",3", 5, sync=True)
    assert (path.read_bytes(), files.contents) == (b"one,2,3", [b"one,2", b"one,2,3"])


def test_the_names_of_new_directories_are_durable_from_the_top(tmp_path: Path) -> None:
    files = Durable()
    files.make_directory(tmp_path / "a" / "b")
    files.make_directory(tmp_path / "a" / "b")
    assert files.directories == [tmp_path, tmp_path / "a"]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.local.disk.files.MAX_SMALL_FILE_BYTES", 5)
    path = tmp_path / "note"
    path.write_bytes(b"12345")
    assert PosixFiles().read(path) == b"12345"
    path.write_bytes(b"123456")
    with pytest.raises(LocalIOError, match="larger than 5 bytes"):
        PosixFiles().read(path)


def test_a_write_that_is_cut_short_goes_on_and_ends_where_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, real, taken = PosixFiles(), os.pwrite, [3, 2, 5, 4, 0]

    def short(handle: int, data: bytes, position: int) -> int:
        return real(handle, bytes(data)[: taken.pop(0)], position)  # IndexError: it was asked once too often

    monkeypatch.setattr(os, "pwrite", short)
    handle = files.open_write(tmp_path / "log")
    try:
        files.write_at(handle, b"0123456789", 1)
        assert (tmp_path / "log").read_bytes() == b"\x000123456789"
        with pytest.raises(LocalIOError, match="nothing was written"):
            files.write_at(handle, b"abcdef", 0)
    finally:
        files.close(handle)
    assert taken == []


@pytest.mark.parametrize("sync", [True, False])
def test_what_a_reader_of_another_process_uploads_is_durable_first(tmp_path: Path, sync: bool) -> None:
    (tmp_path / "log").write_bytes(b"batches")
    files = Durable()
    source = FileSource(files, tmp_path / "log", 7, sync=sync)
    try:
        assert source.read_at(0, 7) == b"batches"
    finally:
        source.close()
    assert files.contents == ([b"batches"] if sync else [])


def test_a_file_system_that_is_read_only_is_told_as_a_permission_and_as_a_disk_that_failed() -> None:
    error = translate(OSError(errno.EROFS, "Read-only file system"), "open", "/d/.lock")
    assert isinstance(error, LocalPermissionError)
    assert (str(error).split(" (")[0], error.exit_code) == ("cannot open /d/.lock: Read-only file system", 12)
    assert error.hint.startswith("mount the file system for writing")
    assert disk_failed(error)


@pytest.mark.parametrize(
    ("operation", "name", "denies"),
    [
        ("read", "file", "file"),
        ("open", "missing", "."),
        ("mkdir", "missing/too", "."),
        ("rename", "file", "."),
    ],
)
def test_a_denied_operation_names_the_path_whose_mode_denies_it(
    tmp_path: Path, operation: str, name: str, denies: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    error = translate(PermissionError(errno.EACCES, "Permission denied"), operation, tmp_path / name)
    assert isinstance(error, LocalPermissionError)
    assert error.message == f"cannot {operation} {tmp_path / name}: Permission denied"
    assert error.hint == f"check owner and mode of {tmp_path / denies} (this process runs as uid {os.geteuid()})"


def test_what_a_file_system_keeps_for_root_is_neither_free_nor_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``df`` counts the same way: 60 of 80 blocks are used, 20 more are root's."""
    told = os.statvfs_result((4096, 4096, 100, 40, 20, 0, 0, 0, 0, 255))  # sizes; blocks, free, available
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    assert PosixFiles().space(tmp_path) == DiskSpace(20 * 4096, 80 * 4096)


def test_a_file_system_that_reports_no_blocks_has_an_unknown_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ramfs, a tmpfs without size and some of FUSE report no size: appends go on, no reserve is kept."""
    told = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    assert PosixFiles().space(tmp_path) is None
    reserve = DiskReserve(PosixFiles(), tmp_path, LogConfig(disk_reserve_bytes=1 << 40))
    reserve.account(1 << 20)
    assert reserve.check()


@pytest.mark.parametrize(
    ("operation", "code", "word"),
    [
        ("lock", errno.ENOLCK, "flock"),
        ("lock", errno.ENOSYS, "flock"),
        ("lock", errno.EOPNOTSUPP, "flock"),
        ("fsync the directory", errno.EINVAL, "power cut"),
    ],
)
def test_what_a_file_system_lacks_is_named_with_a_next_step(operation: str, code: int, word: str) -> None:
    error = translate(OSError(code, os.strerror(code)), operation, "/d")
    assert isinstance(error, LocalIOError)
    assert (word in error.hint, "name a directory" in error.hint) == (True, True)
