"""The directory store: nothing leaves its folder, nothing half-written is seen, and processes do not lose updates."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiered.errors import (
    ClosedError,
    ConfigError,
    CorruptionError,
    NotFoundError,
    RemotePermissionError,
    RemoteUnavailableError,
)
from tiered.model import BytesSource
from tiered.store.base import (
    ABSENT,
    AbortUpload,
    CompleteUpload,
    Delete,
    Deleted,
    Get,
    Head,
    List,
    ListPage,
    Match,
    Missing,
    Object,
    PartStored,
    Put,
    PutResult,
    PutStatus,
    StartUpload,
    StoreRequest,
    UploadPart,
    UploadStarted,
)
from tiered.store.directory import DirectoryStore
from tiered.store.directory_files import DirectoryFiles, object_path
from tiered.testing.clock import FakeClock, SeededIds


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryStore]:
    opened = DirectoryStore(tmp_path / "s", clock=FakeClock(), ids=SeededIds())
    yield opened
    opened.close()


def put(store: DirectoryStore, key: str, body: bytes) -> PutResult:
    result = store.execute(Put(key, body, ABSENT))
    assert isinstance(result, PutResult)
    assert result.status is PutStatus.LANDED
    return result


def keys(store: DirectoryStore, prefix: str = "", start_after: str = "", limit: int = 1000) -> list[str]:
    page = store.execute(List(prefix, start_after, limit))
    assert isinstance(page, ListPage)
    return [entry.key for entry in page.entries]


HOSTILE = ["", "/abs", "../up", "a/../../b", "a//b", "a/", "./a", "a/.", "nul\0", "new\nline", "\ud800", "x" * 256]


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_keys_are_refused_before_anything_is_touched(store: DirectoryStore, tmp_path: Path, key: str) -> None:
    for request in (Get(key), Head(key), Put(key, b"x", ABSENT), Delete((key,)), StartUpload(key)):
        with pytest.raises(ConfigError):
            store.execute(request)
    assert list(tmp_path.rglob("*")) == [tmp_path / "s"]


@pytest.mark.parametrize("upload_id", ["../../x", "/etc", "..", "", "x" * 32, "0" * 33])
def test_upload_ids_from_a_journal_never_become_paths(store: DirectoryStore, tmp_path: Path, upload_id: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "key").write_bytes(b"k")
    with pytest.raises(NotFoundError):
        store.execute(UploadPart("k", upload_id, 1, BytesSource(b"x"), 0, 1))
    result = store.execute(CompleteUpload("k", upload_id, (PartStored(1, '"e"'),)))
    assert isinstance(result, PutResult)
    assert result.status is PutStatus.UNKNOWN
    assert store.execute(AbortUpload("k", upload_id)) is None
    assert (tmp_path / "x" / "key").exists()


def test_keys_that_would_meet_on_disk_do_not(store: DirectoryStore) -> None:
    long = "L" * 255
    names = [
        "a",
        "a.obj",
        "a.obj/b",
        "a/b",
        "a/b.obj/c",
        "~x",
        ".x",
        ".tiered/tmp/y",
        ".tiered",
        long,
        f"{long}/{long}",
    ]
    for key in names:
        put(store, key, key.encode())
    for key in names:
        got = store.execute(Get(key))
        assert isinstance(got, Object)
        assert got.data == key.encode()
    assert keys(store) == sorted(names, key=str.encode)
    assert keys(store, long) == [long, f"{long}/{long}"]
    assert keys(store, start_after="a.obj", limit=3) == ["a.obj/b", "a/b", "a/b.obj/c"]


def test_listing_walks_in_utf8_order_whatever_the_folders(store: DirectoryStore) -> None:
    names = ["b", "b!", "b-1/x", "b/", "b/1", "b/1/2", "b/10", "b0", "é", "z", "￿x", "𐀀"]
    names = [name for name in names if not name.endswith("/") and "￿" not in name]
    for key in names:
        put(store, key, b"")
    ordered = sorted(names, key=str.encode)
    assert keys(store) == ordered
    for at, after in enumerate(ordered):
        assert keys(store, start_after=after) == ordered[at + 1 :]
        assert keys(store, prefix=after) == [key for key in ordered if key.startswith(after)]


def test_the_folder_is_a_bucket(tmp_path: Path) -> None:
    absent = DirectoryStore(tmp_path / "no", create=False)
    for request in (Get("k"), Head("k"), List(""), Put("k", b"", ABSENT), Delete(("k",))):
        with pytest.raises(NotFoundError, match="does not exist"):
            absent.execute(request)
    assert not (tmp_path / "no").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((ConfigError, RemoteUnavailableError)):
        DirectoryStore(tmp_path / "file" / "below")
    absent.close()
    with pytest.raises(ClosedError):
        absent.execute(Get("k"))


def test_readers_write_nothing(tmp_path: Path) -> None:
    reader = DirectoryStore(tmp_path / "s")
    assert reader.execute(Get("k")) == Missing()
    assert keys(reader) == []
    assert list((tmp_path / "s").iterdir()) == []


def hurt(path: Path, damage: str) -> None:
    data = path.read_bytes()
    trailer, key = bytearray(data), bytearray(data)
    trailer[-30] ^= 1
    key[-66] ^= 1
    other = path.with_name("other.obj").read_bytes()
    path.unlink()
    match damage:
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "pipe":
            os.mkfifo(path)
        case _:
            flips = {"flip trailer": bytes(trailer), "flip key": bytes(key)}
            path.write_bytes({"cut": data[:-1], "grow": b"x" + data, "empty": b"", "swap": other, **flips}[damage])


TORN = ["cut", "flip trailer", "flip key", "grow", "empty"]
ANOTHER = ["swap"]
IN_THE_WAY = ["folder", "loop", "pipe"]


def hurt_object(store: DirectoryStore, damage: str) -> Path:
    put(store, "a/k", b"0123456789")
    put(store, "a/other", b"0")
    path = Path(object_path(Path(store.url.removeprefix("file://")), "a/k"))
    hurt(path, damage)
    return path


@pytest.mark.parametrize("damage", TORN)
def test_what_is_left_of_a_torn_file_never_passes_for_what_was_stored(
    store: DirectoryStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Formats judge it, as they judge damaged bytes in S3: all of the file is the body, and it has no checksum."""
    etag = put(store, "a/before", b"").etag
    path = hurt_object(store, damage)
    for request in (Get("a/k"), Head("a/k"), Get("a/k", 2, 5)):
        got = store.execute(request)
        assert isinstance(got, Object)
        assert (got.size, got.crc32c) == (path.stat().st_size, None)
        assert got.etag not in {etag, ""}
        if isinstance(request, Get):
            assert got.data == path.read_bytes()[request.start : request.end]
            assert got.data != b"0123456789"
    (told,) = [record for record in caplog.records if record.levelname == "WARNING"]  # once
    assert "a/k.obj" in told.getMessage()


@pytest.mark.parametrize("damage", ANOTHER + IN_THE_WAY)
def test_what_is_no_object_of_its_key_is_named(store: DirectoryStore, damage: str) -> None:
    """An object that was moved here by hand is whole, and another one: its body would pass for the requested one."""
    path = hurt_object(store, damage)
    with pytest.raises(CorruptionError, match=r"k\.obj"):
        store.execute(Get("a/k"))
    told = store.execute(Head("a/k"))
    assert isinstance(told, Object)
    assert (told.size, told.crc32c) == (path.stat().st_size if damage in ANOTHER else 0, None)


@pytest.mark.parametrize("damage", TORN + ANOTHER + IN_THE_WAY)
def test_damage_is_listed_and_in_the_way(store: DirectoryStore, damage: str) -> None:
    """Nobody takes it for nothing, and the others below the prefix are listed."""
    hurt_object(store, damage)
    for condition in (ABSENT, Match('"e"')):
        assert store.execute(Put("a/k", b"x", condition)) == PutResult(PutStatus.LOST)
    assert keys(store) == ["a/k", "a/other"]


@pytest.mark.parametrize("damage", TORN + ANOTHER)
def test_damage_is_replaced_by_whom_it_was_listed_to(store: DirectoryStore, damage: str) -> None:
    path = hurt_object(store, damage)
    page = store.execute(List("a/k"))
    assert isinstance(page, ListPage)
    (listed,) = page.entries
    assert listed.size == path.stat().st_size  # of a whole object it is the size of the body
    hurt_again = path.read_bytes() + b"?"
    path.write_bytes(hurt_again)
    replaced = store.execute(Put("a/k", b"anew", Match(listed.etag)))
    assert replaced == PutResult(PutStatus.LOST)  # another damage than the one that was seen
    page = store.execute(List("a/k"))
    assert isinstance(page, ListPage)
    landed = store.execute(Put("a/k", b"anew", Match(page.entries[0].etag)))
    assert isinstance(landed, PutResult)
    assert landed.status is PutStatus.LANDED
    got = store.execute(Get("a/k"))
    assert isinstance(got, Object)
    assert (got.data, got.etag) == (b"anew", landed.etag)


@pytest.mark.parametrize("damage", TORN + ANOTHER + IN_THE_WAY)
def test_damage_can_be_deleted(store: DirectoryStore, damage: str) -> None:
    hurt_object(store, damage)
    done = store.execute(Delete(("a/k", "a/other")))
    assert isinstance(done, Deleted)
    if damage == "folder":
        assert [key for key, _ in done.failed] == ["a/k"]  # whatever is in it is not ours
        assert keys(store) == ["a/k"]
    else:
        assert (done, keys(store)) == (Deleted(()), [])


def test_a_file_in_the_place_of_a_folder_is_damage(store: DirectoryStore, tmp_path: Path) -> None:
    (tmp_path / "s" / "a").write_bytes(b"")
    for request in (Get("a/k"), Put("a/k", b"x", ABSENT)):
        with pytest.raises(CorruptionError, match="s/a"):
            store.execute(request)
    assert keys(store) == []


def test_names_that_are_not_utf8_are_none_of_ours(store: DirectoryStore, tmp_path: Path) -> None:
    put(store, "a/k", b"1")
    for name in (b"a/\xff.obj", b"\xff"):
        (tmp_path / "s" / os.fsdecode(name)).write_bytes(b"x")
    (tmp_path / "s" / os.fsdecode(b"a/\xfe")).mkdir()
    assert keys(store) == ["a/k"]


def test_a_read_is_one_version_while_it_is_replaced(store: DirectoryStore) -> None:
    etag = put(store, "k", b"one").etag
    with store._opened("k") as (fd, info):
        assert info is not None
        store.execute(Put("k", b"second", Match(etag)))
        assert (info.etag, info.size, os.pread(fd, 3, 0)) == (etag, 3, b"one")


def test_same_bytes_have_another_etag_each_time(store: DirectoryStore) -> None:
    """Else a body that comes back would let a stale writer win (ABA)."""
    first = put(store, "k", b"A")
    second = store.execute(Put("k", b"B", Match(first.etag)))
    assert isinstance(second, PutResult)
    third = store.execute(Put("k", b"A", Match(second.etag)))
    assert isinstance(third, PutResult)
    assert len({first.etag, second.etag, third.etag}) == 3
    stale = store.execute(Put("k", b"C", Match(first.etag)))
    assert isinstance(stale, PutResult)
    assert stale.status is PutStatus.LOST


def test_a_full_disk_is_unknown_for_a_put_and_leaves_nothing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "before", b"x")

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = store.execute(Put("k", b"y", ABSENT))
        with pytest.raises(RemoteUnavailableError, match="free some space"):
            store.execute(StartUpload("k"))
    assert isinstance(result, PutResult)
    assert (result.status, "No space left" in result.cause) == (PutStatus.UNKNOWN, True)
    assert (keys(store), store.execute(Get("k"))) == (["before"], Missing())


def test_no_permission(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "k", b"x")

    def refused(*_args: object, **_options: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "k.obj")

    monkeypatch.setattr(os, "open", refused)
    for request in (Get("k"), Put("j", b"", ABSENT)):
        with pytest.raises(RemotePermissionError, match="Permission denied"):
            store.execute(request)


COUNT = """
import sys
from tiered.store.base import Get, Match, Object, Put, PutStatus
from tiered.store.directory import DirectoryStore
store = DirectoryStore(sys.argv[1])
for _ in range(25):
    while True:
        now = store.execute(Get("n"))
        if store.execute(Put("n", b"%d" % (int(now.data) + 1), Match(now.etag))).status is PutStatus.LANDED:
            break
"""


def test_processes_lose_no_update(store: DirectoryStore, tmp_path: Path) -> None:
    put(store, "n", b"0")
    children = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path / "s")]) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    got = store.execute(Get("n"))
    assert isinstance(got, Object)
    assert got.data == b"75"


HANG = """
import sys, threading
from tiered.store.base import ABSENT, Put
from tiered.store.directory import DirectoryStore
class Stuck:
    size = 3 << 20
    def read_at(self, position, length):
        if position:
            print("under way", flush=True)
            threading.Event().wait()
        return bytes(length)
DirectoryStore(sys.argv[1]).execute(Put("k", Stuck(), ABSENT))
"""


def test_what_a_killed_process_left_is_invisible_and_swept(store: DirectoryStore, tmp_path: Path) -> None:
    temporary = tmp_path / "s" / ".tiered" / "tmp"
    with subprocess.Popen(
        [sys.executable, "-c", HANG, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "under way\n"
        left = list(temporary.iterdir())
        assert len(left) == 1
        put(store, "first", b"")  # the first write of a store sweeps, but not the file of a live process
        assert list(temporary.iterdir()) == left
        child.kill()
    assert (keys(store), store.execute(Get("k"))) == (["first"], Missing())
    assert list(temporary.iterdir()) == left
    put(DirectoryStore(tmp_path / "s"), "second", b"")
    assert list(temporary.iterdir()) == []


def test_folders_that_somebody_removed_are_made_again(store: DirectoryStore, tmp_path: Path) -> None:
    put(store, "a/b/c", b"1")
    store.execute(Delete(("a/b/c",)))
    (tmp_path / "s" / "a" / "b").rmdir()
    (tmp_path / "s" / "a").rmdir()
    put(store, "a/b/c", b"2")
    assert keys(store) == ["a/b/c"]


def test_effects_are_synced_before_they_are_acknowledged(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file before the rename, its folder after it: else a power cut loses an acknowledged object."""
    events: list[str] = []
    real_sync, real_publish = os.fsync, DirectoryFiles.publish

    def sync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        events.append("file" if path.is_file() else path.name)
        real_sync(fd)

    def publish(files: DirectoryFiles, path: Path, key: str) -> None:
        events.append("publish")
        real_publish(files, path, key)

    put(store, "warm", b"")
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(DirectoryFiles, "publish", publish)
    put(store, "dir/k", b"x")
    assert events == ["file", "publish", "s", "dir"]
    events.clear()
    store.execute(Delete(("dir/k",)))
    assert events == ["dir"]


def test_multipart_over_two_clients(tmp_path: Path) -> None:
    one, two = (DirectoryStore(tmp_path / "s", min_part_bytes=1) for _ in range(2))
    started = one.execute(StartUpload("m"))
    assert isinstance(started, UploadStarted)
    body = BytesSource(b"0123456789")
    stored = []
    for number, client in ((1, one), (2, two)):
        request: StoreRequest = UploadPart("m", started.upload_id, number, body, number * 5 - 5, number * 5)
        part = client.execute(request)
        assert isinstance(part, PartStored)
        stored.append(part)
    for wrong in (tuple(reversed(stored)), (), (stored[0], PartStored(2, stored[0].etag))):
        with pytest.raises(ConfigError):
            two.execute(CompleteUpload("m", started.upload_id, wrong))
    result = two.execute(CompleteUpload("m", started.upload_id, tuple(stored)))
    assert isinstance(result, PutResult)
    assert result.status is PutStatus.LANDED
    got = one.execute(Get("m"))
    assert isinstance(got, Object)
    assert got.data == body.data
    assert list((tmp_path / "s" / ".tiered" / "uploads").iterdir()) == []
