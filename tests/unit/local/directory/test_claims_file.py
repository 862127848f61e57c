"""``tiered-claims.json``: one short, durable line per claim, shared by those who claim at once, whole after a crash."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import pytest

from tiered.errors import CorruptionError, DiskFullError, LocalIOError
from tiered.local.disk.claims import CLAIMS_NAME, REWRITE_BYTES, ClaimProof, Claims
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import PartitionUpload, root_bounds_by_partition, root_bounds_of_topic
from tiered.model import TopicPartition
from tiered.plan.root_lower_bounds import RootLowerBounds


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


class Counting(PosixFiles):
    """``written``: bytes; ``syncs``: fsyncs of files, not carried out; ``full``: the next write meets a full disk."""

    def __init__(self) -> None:
        self.written = self.syncs = 0
        self.full = False

    def write_at(self, handle: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self.written += len(data)
        if self.full:
            self.full = False
            super().write_at(handle, data[: len(data) // 2], position)
            raise DiskFullError("no space")
        super().write_at(handle, data, position)

    def sync(self, handle: int) -> None:
        self.syncs += 1

    def sync_directory(self, path: Path) -> None:
        pass


def test_what_was_kept_is_read_by_another_process(tmp_path: Path) -> None:
    ours, theirs = Claims(tmp_path, PosixFiles()), Claims(tmp_path, PosixFiles())
    assert (theirs.read(), theirs.proof(tp(0))) == ({}, ClaimProof())
    ours.keep(tp(0), "t1", "a1")
    assert theirs.proof(tp(0)) == ClaimProof("t1", "a1")
    theirs.keep(tp(0), "t2", None)
    theirs.write(tp(1), restored_from=(3, 40))
    assert ours.read() == {tp(0): ClaimProof("t2", "a1"), tp(1): ClaimProof(restored_from=(3, 40))}
    ours.write(tp(0), token=None)
    ours.forget([tp(1), tp(7)])
    assert theirs.read() == {tp(0): ClaimProof(None, "a1")}
    assert Claims(tmp_path, PosixFiles()).read() == theirs.read()


def test_what_is_known_of_one_topic_is_made_of_its_own_partitions_alone() -> None:
    uploads = {tp(0): PartitionUpload(7, 3, start_offset=2), tp(0, "u"): PartitionUpload(9, 4)}
    claims = {tp(0): ClaimProof("a,b"), tp(1): ClaimProof(restored_from=(5, 40)), tp(2, "u"): ClaimProof("c")}
    known = root_bounds_of_topic("t", uploads, claims)
    assert known == {
        0: RootLowerBounds(start_offset=2, next_offset=7, writer_epoch=3, tokens=("a", "b")),
        1: RootLowerBounds(version=5, next_offset=40),
    }
    every = root_bounds_by_partition(uploads, claims)
    assert {at: what for at, what in every.items() if at.topic == "t"} == {tp(n): what for n, what in known.items()}
    assert sorted(every) == [tp(0), tp(1), tp(0, "u"), tp(2, "u")]


@pytest.mark.parametrize("partitions", [1, 3_000])
def test_a_claim_writes_one_line_and_fsyncs_once_however_many_partitions_there_are(
    tmp_path: Path, partitions: int
) -> None:
    files = Counting()
    claims = Claims(tmp_path, files)
    claims._write({tp(n): lambda _: ClaimProof("0" * 32, "1" * 32) for n in range(partitions)})
    files.written = files.syncs = 0
    claims.keep(tp(0), "2" * 32, "3" * 32)
    assert files.syncs == 1
    assert 100 < files.written < 250


def test_the_file_is_written_anew_only_when_it_has_doubled(tmp_path: Path) -> None:
    files = Counting()
    claims = Claims(tmp_path, files)
    for number in range(2_000):
        claims.keep(tp(number % 10), f"{number:032x}", None)
        assert (tmp_path / CLAIMS_NAME).stat().st_size <= REWRITE_BYTES
    assert files.written < 2_000 * 250
    assert claims.proof(tp(9)).token == f"{1_999:032x}"
    assert Claims(tmp_path, PosixFiles()).read() == claims.read()


class CountedLock:
    """Tells how often it was let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.passed = threading.Semaphore(0)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        self.passed.release()


@pytest.mark.parametrize("full", [False, True])
def test_threads_that_claim_at_once_share_one_write(tmp_path: Path, full: bool) -> None:
    files = Counting()
    claims = Claims(tmp_path, files)
    claims.keep(tp(99), "x", None)
    files.syncs, files.full = 0, full
    lock = claims._queue_lock = CountedLock()  # type: ignore[assignment]  # a lock that counts
    errors: list[DiskFullError] = []

    def keep(number: int) -> None:
        try:
            claims.keep(tp(number), f"token{number}", None)
        except DiskFullError as error:
            errors.append(error)

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(6)]
    with claims._busy:
        for thread in threads:
            thread.start()
        for _ in threads:
            lock.passed.acquire()
    for thread in threads:
        thread.join()
    assert (files.syncs, len(errors)) == ((0, 6) if full else (1, 0))  # nobody believes a write that failed
    known = {tp(99): ClaimProof("x")} | ({} if full else {tp(n): ClaimProof(f"token{n}") for n in range(6)})
    assert claims.read() == known
    claims.keep(tp(50), "later", None)  # whatever the failed write left
    assert Claims(tmp_path, PosixFiles()).read() == {**known, tp(50): ClaimProof("later")}


def filled(tmp_path: Path) -> bytes:
    claims = Claims(tmp_path, PosixFiles())
    for number in range(3):
        claims.keep(tp(number), f"token{number}", f"append{number}")
    return (tmp_path / CLAIMS_NAME).read_bytes()


def test_a_line_torn_at_any_byte_was_never_kept_and_is_written_over(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    last = whole[:-1].rfind(b"\n") + 1
    known = {tp(n): ClaimProof(f"token{n}", f"append{n}") for n in range(3)}
    before = {tp(n): known[tp(n)] for n in range(2)}
    for cut in range(last, len(whole)):
        for tail in (b"", b"\0" * 40, b"\0" * 40 + b"\n"):  # a power cut may leave zeros for what was not written
            (tmp_path / CLAIMS_NAME).write_bytes(whole[:cut] + tail)
            assert Claims(tmp_path, PosixFiles()).read() == (before if tail or cut < len(whole) else known)
    (tmp_path / CLAIMS_NAME).write_bytes(whole[: last + 9])
    Claims(tmp_path, PosixFiles()).keep(tp(3), "token3", None)
    assert Claims(tmp_path, PosixFiles()).read() == {**before, tp(3): ClaimProof("token3")}
    long = whole[:last] + whole[last:-1] + b"." * 400 + b"\n"
    (tmp_path / CLAIMS_NAME).write_bytes(long)
    Claims(tmp_path, PosixFiles()).keep(tp(3), "token3", None)
    written = (tmp_path / CLAIMS_NAME).read_bytes()
    assert written[:last] == whole[:last]
    assert written[last:].count(b"\n") == 1  # nothing of the torn line stays behind the new one
    assert Claims(tmp_path, PosixFiles()).read() == {**before, tp(3): ClaimProof("token3")}


@pytest.mark.parametrize(
    "data",
    [
        b'{"version": 3, "partitions": []}',
        b'{"version": 2, "partitions": []}',
        b'{"version": 0, "partitions": []}',
        b'{"version": 1}',
        b'{"version": 1, "partitions": []}',
        b'{"version": 3, "rewritten": 1}\n',
        b'{"partitions": []}',
        b"[]",
        b"{}",
        b"",
        b"\0" * 64,
    ],
)
def test_a_file_of_no_known_version_is_not_taken_for_never_claimed(tmp_path: Path, data: bytes) -> None:
    (tmp_path / CLAIMS_NAME).write_bytes(data)
    said = "newer release" if b'"version": 3' in data else "cannot be read"
    for ask in (Claims.read, lambda claims: claims.proof(tp(0)), lambda claims: claims.keep(tp(0), "t", "a")):
        with pytest.raises(CorruptionError, match=said):
            ask(Claims(tmp_path, PosixFiles()))
    assert (tmp_path / CLAIMS_NAME).read_bytes() == data


class SyncFails(PosixFiles):
    """The first fsync fails, the others do not."""

    failed = False

    def sync(self, handle: int) -> None:
        if not self.failed:
            self.failed = True
            raise LocalIOError("cannot fsync")
        super().sync(handle)


def test_after_an_fsync_that_failed_the_file_is_written_anew(tmp_path: Path) -> None:
    """The content of that file is unknown, and another fsync of it would report success."""
    filled(tmp_path)
    path, claims = tmp_path / CLAIMS_NAME, Claims(tmp_path, SyncFails())
    before = path.stat().st_ino
    with pytest.raises(LocalIOError):
        claims.keep(tp(0), "lost", None)
    assert path.stat().st_ino == before
    claims.keep(tp(1), "kept", None)
    assert path.stat().st_ino != before
    assert Claims(tmp_path, PosixFiles()).proof(tp(1)).token == "kept"


def test_a_file_that_another_process_wrote_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    ours = Claims(tmp_path, PosixFiles())
    ours.keep(tp(0), "t0", "a0")
    (tmp_path / "theirs").mkdir()
    theirs = Claims(tmp_path / "theirs", PosixFiles())
    for number in range(5):
        theirs.keep(tp(number), f"other{number}", None)
    other = theirs.path.read_bytes().replace(b'"rewritten":1', b'"rewritten":2')
    PosixFiles().replace(ours.path, other)
    assert ours.read() == {tp(number): ClaimProof(f"other{number}") for number in range(5)}


def test_damage_before_the_last_line_is_an_error_never_an_older_proof(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    last = whole[:-1].rfind(b"\n") + 1
    for at in range(last - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        (tmp_path / CLAIMS_NAME).write_bytes(damaged)
        claims = Claims(tmp_path, PosixFiles())
        try:
            found = claims.read()
        except CorruptionError as error:
            assert "tiered-claims.json" in error.message  # noqa: PT017 - either outcome is right
        else:  # a flip in the number of rewrites changes no proof
            assert len(found) == 3, f"byte {at}"
