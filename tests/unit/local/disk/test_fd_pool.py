"""Few descriptors for many partitions: given up, taken back, and never at the price of a forgotten error."""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.support.faulty_files import FaultyFiles
from tests.unit.local.bench import started
from tiered.config import LogConfig, TopicConfig
from tiered.errors import LocalIOError, NotDurableError, TooManyOpenFilesError
from tiered.format.batch import decode_records
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.fd_pool import PooledFiles, default_open_files
from tiered.local.disk.files import PosixFiles, translate
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds

LIMIT = 8


def pooled(tmp_path: Path, count: int, inner: FaultyFiles | None = None) -> tuple[PooledFiles, list[int]]:
    files = PooledFiles(inner or FaultyFiles(), LIMIT)
    return files, [files.open_write(tmp_path / f"{i}.log") for i in range(count)]


def crowd(files: PooledFiles, folder: Path) -> None:
    """So many other files are opened that those of before lose their descriptors."""
    for i in range(1, 20):
        files.open_write(folder / f"{i}.log")


def test_more_handles_than_descriptors_all_work(tmp_path: Path) -> None:
    files, handles = pooled(tmp_path, 50)
    for turn in range(3):
        for handle in handles:
            files.write_at(handle, b"%d" % turn, turn)
            assert files.open_count <= LIMIT
    for handle in handles:
        assert files.size(handle) == 3
        files.sync(handle)
        files.close(handle)
    assert files.open_count == 0
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"012"}
    assert files.reopened >= 3 * 50 - 2 * LIMIT


def test_those_in_use_keep_their_descriptor(tmp_path: Path) -> None:
    files, handles = pooled(tmp_path, 4)
    for i in range(4, 40):
        files.write_at(handles[0], b"x", i)
        files.write_at(files.open_write(tmp_path / f"{i}.log"), b"y", 0)
    before = files.reopened
    files.write_at(handles[0], b"x", 0)
    assert files.reopened == before
    files.write_at(handles[1], b"x", 0)
    assert files.reopened == before + 1


def test_a_dirty_file_is_fsynced_before_its_descriptor_goes(tmp_path: Path) -> None:
    inner = FaultyFiles()
    files, handles = pooled(tmp_path, 1, inner)
    files.write_at(handles[0], b"x", 0)
    crowd(files, tmp_path)
    synced = [path.name for operation, path in inner.effects if operation == "sync"]
    assert synced == ["0.log"]


def test_an_fsync_that_fails_at_that_moment_is_not_forgotten(tmp_path: Path) -> None:
    inner = FaultyFiles(lambda operation, _: errno.EIO if operation == "sync" else 0)
    files, handles = pooled(tmp_path, 1, inner)
    files.write_at(handles[0], b"x", 0)
    crowd(files, tmp_path)
    for use in (lambda: files.write_at(handles[0], b"y", 1), lambda: files.sync(handles[0])):
        with pytest.raises(LocalIOError, match="earlier fsync"):
            use()


def test_a_file_that_was_changed_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    files, handles = pooled(tmp_path, 1)
    files.write_at(handles[0], b"mine", 0)
    crowd(files, tmp_path)
    (tmp_path / "0.log").unlink()
    with pytest.raises(LocalIOError, match="changed, replaced or removed by another program"):
        files.write_at(handles[0], b"x", 4)
    assert not (tmp_path / "0.log").exists()


class HeldSync(FaultyFiles):
    """Holds the first fsync until the test lets it end, with ``number``; notes fsyncs and closes as they end."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(self._ask)
        self.reached, self.let = threading.Event(), threading.Event()
        self.ended: list[str] = []
        self._number = number

    def _ask(self, operation: str, _: Path) -> int:
        if operation != "sync" or self.reached.is_set():
            return 0
        self.reached.set()
        self.let.wait()
        return self._number

    def sync(self, handle: int) -> None:
        try:
            super().sync(handle)
        finally:
            self.ended.append("sync")

    def close(self, handle: int) -> None:
        self.ended.append("close")
        super().close(handle)


def in_an_fsync(tmp_path: Path) -> tuple[HeldSync, PooledFiles, int, threading.Thread]:
    """A file with a byte in it, and the thread whose fsync of it is under way."""
    inner = HeldSync()
    files, handles = pooled(tmp_path, 1, inner)
    files.write_at(handles[0], b"a", 0)
    syncing = started(lambda: files.sync(handles[0]))
    inner.reached.wait()
    return inner, files, handles[0], syncing


def test_a_write_beside_an_fsync_goes_on_and_the_next_fsync_covers_it(tmp_path: Path) -> None:
    inner, files, handle, syncing = in_an_fsync(tmp_path)
    files.write_at(handle, b"b", 1)
    assert files.size(handle) == 2
    inner.let.set()
    syncing.join()
    crowd(files, tmp_path)  # it is dirty: fsynced before its descriptor goes
    assert [path.name for operation, path in inner.effects if operation == "sync"] == ["0.log", "0.log"]


def test_a_file_keeps_its_descriptor_while_it_is_fsynced(tmp_path: Path) -> None:
    inner, files, handle, syncing = in_an_fsync(tmp_path)
    crowd(files, tmp_path)
    files.write_at(handle, b"b", 1)
    inner.let.set()
    syncing.join()
    assert (files.reopened, (tmp_path / "0.log").read_bytes()) == (0, b"ab")


def test_a_close_waits_for_the_fsync(tmp_path: Path) -> None:
    inner = HeldSync()
    files, handles = pooled(tmp_path, 1, inner)
    syncing = started(lambda: files.sync(handles[0]))
    inner.reached.wait()
    closing = started(lambda: files.close(handles[0]))
    closing.join(0.1)  # in vain
    inner.let.set()
    for thread in (syncing, closing):
        thread.join()
    assert inner.ended == ["sync", "close"]


def test_who_waits_for_an_fsync_that_fails_begins_no_other(tmp_path: Path) -> None:
    inner = HeldSync(errno.EIO)
    files, handles = pooled(tmp_path, 1, inner)
    found: list[str] = []

    def sync() -> None:
        try:
            files.sync(handles[0])
        except LocalIOError as error:
            found.append(error.message)

    first = started(sync)
    inner.reached.wait()
    second = started(sync)
    second.join(0.1)  # in vain
    inner.let.set()
    for thread in (first, second):
        thread.join()
    assert (len(found), "earlier fsync" in found[1], inner.ended) == (2, True, ["sync"])


def test_after_an_fsync_that_was_interrupted_the_file_is_as_dirty_as_before(tmp_path: Path) -> None:
    inner = FaultyFiles()
    files, handles = pooled(tmp_path, 1, inner)
    files.write_at(handles[0], b"x", 0)

    def interrupt(operation: str, _: Path) -> int:
        raise KeyboardInterrupt

    inner.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        files.sync(handles[0])
    inner.fail = None
    crowd(files, tmp_path)
    assert [path.name for operation, path in inner.effects if operation == "sync"] == ["0.log", "0.log"]


def test_a_closed_handle_is_an_error(tmp_path: Path) -> None:
    files, handles = pooled(tmp_path, 1)
    files.close(handles[0])
    files.close(handles[0])
    with pytest.raises(LocalIOError, match="closed before"):
        files.write_at(handles[0], b"x", 0)


def test_threads_share_few_descriptors(tmp_path: Path) -> None:
    files, handles = pooled(tmp_path, 40)

    def work(own: list[int]) -> None:
        for turn in range(20):
            for handle in own:
                files.write_at(handle, b"%02d" % turn, 2 * turn)

    threads = [threading.Thread(target=work, args=(handles[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = b"".join(b"%02d" % turn for turn in range(20))
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {whole}
    assert files.open_count <= LIMIT + 4


def test_a_failed_fsync_of_an_idle_partition_takes_its_directory_offline(tmp_path: Path) -> None:
    config = LogConfig(max_open_files=LIMIT, disk_reserve_bytes=0)
    inner = FaultyFiles()
    log = LocalLog.open(tmp_path / "log", clock=FakeClock(), ids=SeededIds(1), files=inner, config=config)
    log.create_topic("t", 30)
    log.partition(TopicPartition("t", 0)).append([NewRecord(b"x")])
    inner.fail = lambda operation, path: errno.EIO if operation == "sync" and path.parent.name == "t-0" else 0
    for p in range(1, 30):
        log.partition(TopicPartition("t", p)).append([NewRecord(b"x")])
    with pytest.raises(LocalIOError):
        log.partition(TopicPartition("t", 0)).flush()
    with pytest.raises(LocalIOError, match="offline"):
        log.partition(TopicPartition("t", 0)).append([NewRecord(b"y")])
    with pytest.raises(LocalIOError, match="offline"):  # the others of its directory go with it
        log.partition(TopicPartition("t", 1)).flush()
    with pytest.raises(LocalIOError, match="not everything is durable"):
        log.close()


class CrowdedFiles(FaultyFiles):
    """The system has ``most`` descriptors for the log; ``refused``: the names of directories that it opens no more."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[int] = set()
        self.most = 1000
        self.refused: set[str] = set()

    def _check(self, path: Path) -> None:
        if len(self.held) >= self.most or path.name in self.refused:
            raise translate(OSError(errno.EMFILE, "Too many open files"), "open", path)

    def open_write(self, path: Path) -> int:
        self._check(path)
        handle = super().open_write(path)
        self.held.add(handle)
        return handle

    def open_read(self, path: Path) -> int:
        self._check(path)
        handle = super().open_read(path)
        self.held.add(handle)
        return handle

    def close(self, handle: int) -> None:
        super().close(handle)
        self.held.discard(handle)

    def sync_directory(self, path: Path) -> None:
        self._check(path)
        super().sync_directory(path)


def crowded(tmp_path: Path) -> tuple[CrowdedFiles, LocalLog]:
    files = CrowdedFiles()
    config = LogConfig(max_open_files=LIMIT, disk_reserve_bytes=0)
    log = LocalLog.open(tmp_path / "log", clock=FakeClock(), ids=SeededIds(1), files=files, config=config)
    log.create_topic("t", 1, TopicConfig(segment_bytes=150))
    return files, log


T0 = TopicPartition("t", 0)


def test_a_log_gives_descriptors_up_where_the_system_has_none_left(tmp_path: Path) -> None:
    files, log = crowded(tmp_path)
    with log:
        log.partition(T0).append([NewRecord(b"0")])
        files.most = len(files.held)  # the application has taken all others
        for i in range(1, 7):
            log.partition(T0).append([NewRecord(b"%d" % i)])
        log.partition(T0).flush()
        assert log.partition(T0).positions().flushed_offset == 7
        assert [s.end_offset for s in log.partition(T0).sealed_segments()] == [2, 4, 6]
        assert len(files.held) <= files.most


def test_an_append_without_a_descriptor_is_refused_and_the_next_goes_on(tmp_path: Path) -> None:
    files, log = crowded(tmp_path)
    with log:
        partition = log.partition(T0)
        partition.append([NewRecord(b"0")])
        assert isinstance(log.files, PooledFiles)
        log.files._make_room(spare=LIMIT)
        files.most = 0
        with pytest.raises(TooManyOpenFilesError, match="Too many open files"):
            partition.append([NewRecord(b"refused")])
        files.most = 1000
        assert partition.append([NewRecord(b"1")]).offset == 1
        partition.flush()
        log.files._make_room(spare=LIMIT)
        files.most = 0
        with pytest.raises(TooManyOpenFilesError):
            partition.append([NewRecord(b"refused")])
        files.most = 1000
        assert partition.positions().flushed_offset == 2
    with LocalLog.open(tmp_path / "log", clock=FakeClock(), ids=SeededIds(2)) as log:
        values = [r.value for batch in log.partition(T0).read_batches(0) for r in decode_records(batch)]
        assert values == [b"0", b"1"]


def test_what_a_torn_write_left_without_a_descriptor_is_no_end_to_go_on_from(tmp_path: Path) -> None:
    files, log = crowded(tmp_path)
    partition = log.partition(T0)
    partition.append([NewRecord(b"0")])
    active = log.roster.wake(T0).segments.active
    assert isinstance(log.files, PooledFiles)
    log.files.write_at(active._handle(), b"torn", active.size_bytes)
    log.files._make_room(spare=LIMIT)
    files.most = 0
    with pytest.raises(LocalIOError, match="Too many open files"):
        partition.append([NewRecord(b"1")])
    files.most = 1000
    with pytest.raises(LocalIOError, match="t-0 is offline"):
        partition.append([NewRecord(b"1")])
    with pytest.raises(LocalIOError, match="not everything is durable"):
        log.close()
    with LocalLog.open(tmp_path / "log", clock=FakeClock(), ids=SeededIds(2)) as log:
        assert log.partition(T0).append([NewRecord(b"1")]).offset == 1


def test_a_segment_whose_directory_cannot_be_opened_is_durable_with_the_next_flush(tmp_path: Path) -> None:
    files, log = crowded(tmp_path)
    with log:
        partition = log.partition(T0)
        files.refused = {"t-0"}
        assert [partition.append([NewRecord(b"%d" % i)]).offset for i in range(3)] == [0, 1, 2]
        assert partition.sealed_segments() == []
        with pytest.raises(NotDurableError, match="t-0: the records are in the log, but not durable yet"):
            partition.flush()
        assert partition.positions().flushed_offset == 0
        files.refused = set()
        partition.flush()
        assert partition.positions().flushed_offset == 3
        assert [s.end_offset for s in partition.sealed_segments()] == [2]


def test_a_directory_whose_name_could_not_be_flushed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, synced = PosixFiles(), list[Path]()
    sync, refused = files.sync_directory, [tmp_path]

    def sync_directory(path: Path) -> None:
        if path in refused:
            refused.remove(path)
            raise translate(OSError(errno.EMFILE, "Too many open files"), "open", path)
        sync(path)
        synced.append(path)

    monkeypatch.setattr(files, "sync_directory", sync_directory)
    PooledFiles(files, LIMIT).make_directory(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


def test_the_default_leaves_descriptors_for_others() -> None:
    assert LIMIT <= default_open_files() <= 16_384


def test_an_interrupt_at_any_instruction_leaves_no_file_locked(tmp_path: Path) -> None:
    """Giving descriptors up takes the locks of other files: each of them can be written afterwards."""
    code, at, ended = PooledFiles._make_room.__code__, 0, False
    while not ended:
        at += 1
        (tmp_path / f"{at}").mkdir()
        files, handles = pooled(tmp_path / f"{at}", LIMIT)
        left = [at]

        def step(frame: FrameType, event: str, arg: object, left: list[int] = left) -> Any:
            left[0] -= event == "opcode"
            if left[0] == 0 and event == "opcode":
                raise MemoryError
            return step

        def trace(frame: FrameType, event: str, arg: object, step: Any = step) -> Any:
            frame.f_trace_opcodes = frame.f_code is code
            return step if frame.f_code is code else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            files.open_write(tmp_path / f"{at}" / "new.log")
            ended = True
        except MemoryError:
            pass
        finally:
            sys.settrace(before)
        held = [handle for handle in handles if not files._leases[handle].lock.acquire(timeout=1)]
        assert held == [], at
        for handle in handles:
            files._leases[handle].lock.release()
            files.close(handle)
