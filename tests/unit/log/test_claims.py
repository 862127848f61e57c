"""Whose a partition is: claimed when it is adopted, proven by the volume's own disk, kept through answers that lie."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.support.admin import plan_rejoin, rejoin
from tests.support.engine import sealed_in
from tiered.clock import SystemClock, SystemIds
from tiered.config import LogConfig, TopicConfig
from tiered.engine.bucket import Bucket
from tiered.engine.disk import LogDirectory
from tiered.engine.journal import Journal
from tiered.engine.tiering import Tiering
from tiered.errors import (
    ConfigError,
    FencedError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.local_names import snapshot_name
from tiered.format.producer_snapshot import decode_snapshot
from tiered.local.directory.log_directory import LocalLog
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.claims import CLAIMS_NAME, Claims
from tiered.local.disk.files import FileState, PosixFiles
from tiered.local.disk.uploader_files import OFFSET_CHECKPOINT_NAME, uploader_lock
from tiered.log import Log
from tiered.model import NewRecord, TopicPartition
from tiered.remote.catalog import Catalog
from tiered.store.base import Get, Outcome, Put, PutResult, PutStatus, Store, StoreRequest
from tiered.store.driver import drive
from tiered.store.location import ThreadedAioStore
from tiered.store.memory import MemoryStore
from tiered.store.unique_upload import PartSizes
from tiered.testing.clock import FakeClock

TP = TopicPartition("t", 0)
TOPIC = TopicConfig(segment_bytes=3000)


class HookedStore:
    """A memory store; ``on_root_put`` decides what becomes of the next PUT of a root."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.on_root_put: Callable[[Put], PutResult] | None = None
        self.on_bundle_get: Callable[[], object] | None = None

    @property
    def url(self) -> str:
        return self.inner.url

    def execute(self, request: StoreRequest) -> Outcome:
        if self.on_root_put is not None and isinstance(request, Put) and request.key.endswith("/root"):
            hook, self.on_root_put = self.on_root_put, None
            return hook(request)
        if self.on_bundle_get is not None and isinstance(request, Get) and request.key.endswith(".idx"):
            self.on_bundle_get, told = None, self.on_bundle_get
            told()
        return self.inner.execute(request)

    def close(self) -> None:
        pass

    def deny_after_the_effect(self, put: Put) -> PutResult:
        self.inner.execute(put)
        raise RemotePermissionError("a gateway refuses the answer", operation="Put", resource=put.key)

    def acknowledge_and_drop(self, put: Put) -> PutResult:
        """A store, or what stands before it, that lies."""
        return PutResult(PutStatus.LANDED, '"0123456789abcdef0123456789abcdef"')


def open_log(directory: Path, store: Store, *, clock: SystemClock | None = None) -> Log:
    clock, ids = clock or SystemClock(), SystemIds()
    local = LocalTier.open([directory], clock=clock, ids=ids, config=LogConfig(remote=True))
    return Log(local, store, clock=clock, ids=ids)


def topic(log: Log) -> tiered.Topic:
    return log.topic("t", create="t" not in log.topics(), config=None if "t" in log.topics() else TOPIC)


def write(log: Log, *values: str) -> int:
    return topic(log).append_many([NewRecord(v.encode()) for v in values], partition=0, durability="disk")[0].offset


class Daemon:
    """The uploader's orders for one partition, one by one, without its loop."""

    def __init__(self, directory: Path, store: Store) -> None:
        self.directory = LogDirectory(directory, clock=SystemClock(), ids=SystemIds())
        self.directory.acquire()
        self._journal = Journal(directory, self.directory.files)
        self._store = store

    def release(self) -> None:
        self._journal.close()
        self.directory.release()

    def claim(self) -> None:
        asyncio.run(self._work(upload=False))

    def upload_all(self) -> None:
        asyncio.run(self._work(upload=True))

    def bucket(self) -> Bucket:
        return Bucket(
            ThreadedAioStore(self._store),
            self.directory,
            self._journal,
            clock=SystemClock(),
            ids=SystemIds(),
            owner="daemon",
            sizes=PartSizes(1 << 30, 1 << 30),
        )

    async def _work(self, *, upload: bool) -> None:
        bucket = self.bucket()
        look = self.directory.scan()
        assert look.seen
        await bucket.drive(bucket.steps.register("t"))
        granted = await bucket.drive(bucket.steps.claim(TP))
        left = [segment for segment in sealed_in(look) if segment.end > granted.next_offset]
        if upload and left:
            rows = [await bucket.drive(bucket.steps.upload(TP, segment, granted.claim_epoch)) for segment in left]
            await bucket.drive(bucket.steps.commit(TP, granted.claim_epoch, rows))


# ---------------------------------------------------------------------- a claim is proven


class WaitingClock(SystemClock):
    """Runs ``instead`` at the first sleep of more than nothing, which then takes no time."""

    def __init__(self, instead: Callable[[], None]) -> None:
        self.instead = instead
        self.slept = 0

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self.slept == 1:
            self.instead()


class ShiftedClock(SystemClock):
    """The machine's clock, set wrong by ``shift_ms``; a sleep only moves the monotonic one."""

    def __init__(self) -> None:
        self.shift_ms = 0
        self.slept_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms

    def monotonic(self) -> float:
        return super().monotonic() + self.slept_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def rejoined_snapshot(tmp_path: Path, store: Store) -> Path:
    """An older snapshot of a volume that was refused and rejoined; the root still names the volume."""
    path = tmp_path / "log"
    with open_log(path, store) as log:
        write(log, *(f"a{i}" for i in range(10)))
        log.sync()
    shutil.copytree(path, tmp_path / "snapshot")
    with open_log(path, store) as log:
        write(log, *(f"b{i}" for i in range(10)))
        log.sync()
    shutil.rmtree(path)
    shutil.move(tmp_path / "snapshot", path)
    with open_log(path, store) as log:
        write(log, "stale")
        with pytest.raises(FencedError, match="older snapshot"):
            log.sync()
    rejoin(plan_rejoin(path, clock=SystemClock()), clock=SystemClock())
    return path


def root_of(log: Log, store: Store) -> tiered.format.root.Root:
    root = drive(store, Catalog(log.topics()["t"].topic_id, 0, "t").load())
    assert root is not None
    return root


def test_a_claim_from_before_a_rejoin_is_no_grant(tmp_path: Path) -> None:
    store = HookedStore()
    path = rejoined_snapshot(tmp_path, store)
    daemon = Daemon(path, store)  # it has started, its first claim is not through yet
    with open_log(path, store, clock=WaitingClock(daemon.claim)) as log:
        assert write(log, *(f"acked{i}" for i in range(5))) == 20
        lineage = root_of(log, store).lineage
        assert log._local.partition(TP).leader_epochs()[-1] == lineage[-1]
        log._local.partition(TP).roll()
        daemon.upload_all()
        daemon.release()
        assert root_of(log, store).next_offset == 25
    with open_log(path, store) as log:
        log.sync()
        assert write(log, "later") == 25


def test_who_waits_for_an_uploader_that_goes_claims_by_itself(tmp_path: Path) -> None:
    store = HookedStore()
    path = rejoined_snapshot(tmp_path, store)
    daemon = Daemon(path, store)
    with open_log(path, store, clock=WaitingClock(daemon.release)) as log:
        assert write(log, "acked") == 20
        log.sync()
        assert root_of(log, store).next_offset == 21


def test_while_a_newer_claim_of_the_volume_is_under_way_its_leader_epoch_is_waited_for(tmp_path: Path) -> None:
    store, path = HookedStore(), tmp_path / "log"
    with open_log(path, store) as log:
        topic(log)  # a first claim, which the root carries
    daemon = Daemon(path, store)
    claims = Claims(path, PosixFiles())
    claims.keep(TP, f"{claims.proof(TP).token},{'e' * 32}", None)  # a second one, on the disk and not yet in the root
    clock = WaitingClock(daemon.claim)
    with open_log(path, store, clock=clock) as log:
        write(log, "x")
        assert clock.slept == 1
        assert log._local.partition(TP).leader_epochs()[-1] == root_of(log, store).lineage[-1]
    daemon.release()


def test_a_claim_that_comes_while_the_grant_is_taken_is_not_the_one_that_was_granted(tmp_path: Path) -> None:
    """Whoever takes a grant asks for the producers of the log, too: by then the root may be of a claim before."""
    store = HookedStore()
    path = rejoined_snapshot(tmp_path, store)
    daemon = Daemon(path, store)
    claims = Claims(path, PosixFiles())

    def claim() -> None:
        daemon.claim()
        granted = claims.proof(TP).token
        store.on_bundle_get = lambda: claims.keep(TP, f"{granted},{'e' * 32}", None)

    with open_log(path, store, clock=WaitingClock(claim)) as log:
        topic(log)
        assert store.on_bundle_get is None
        assert log._local.partition(TP).positions().end_offset == 20
        with pytest.raises(FencedError, match="an uploader has claimed it"):
            write(log, "x")
    daemon.release()


def test_an_uploader_that_never_claims_is_named(tmp_path: Path) -> None:
    store, clock = HookedStore(), ShiftedClock()
    with LocalLog.open(tmp_path / "log", config=LogConfig(remote=True)) as log:
        log.create_topic("t", 1, TOPIC)
    lock = uploader_lock(tmp_path / "log", PosixFiles())
    lock.acquire(clock)
    try:
        with (
            open_log(tmp_path / "log", store, clock=clock) as opened,
            pytest.raises(RemoteUnavailableError, match="60 s"),
        ):
            opened.topic("t")
    finally:
        lock.release()


def test_the_claim_of_a_snapshot_s_future_is_no_grant(tmp_path: Path) -> None:
    """The snapshot holds the token that the root carries, and neither the records nor the append behind it."""
    store, clock = HookedStore(), FakeClock()
    with open_log(tmp_path / "log", store) as log:
        topic(log)
        shutil.copytree(tmp_path / "log", tmp_path / "older")
        write(log, "one")
        log.sync()
    lock = uploader_lock(tmp_path / "older", PosixFiles())
    lock.acquire(clock)
    try:
        with (
            open_log(tmp_path / "older", store, clock=clock) as older,
            pytest.raises(RemoteUnavailableError, match="60 s"),
        ):
            older.topic("t")
    finally:
        lock.release()


def test_an_inline_sync_claims_again_after_another_process_of_its_volume_has(tmp_path: Path) -> None:
    store = HookedStore()
    with open_log(tmp_path / "log", store) as log:
        write(log, "one")
        log.sync()
        write(log, "two")
        log._local.partition(TP).roll()
        daemon = Daemon(tmp_path / "log", store)  # it comes and goes: `tiered-uploader sync --wait`
        daemon.upload_all()
        daemon.release()
        write(log, "three")
        log.sync()
        root = root_of(log, store)
        assert (root.next_offset, root.writer.epoch) == (3, 3)
        assert topic(log).positions(0).uploaded_offset == 3


# ---------------------------------------------------------------------- a claim is made when a partition is adopted


def test_of_two_fresh_directories_the_first_is_fenced_and_the_second_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = HookedStore()
    with open_log(tmp_path / "1", store) as first, open_log(tmp_path / "2", store) as second:
        assert write(first, "first") == 0
        volume = first._local.volume_id
        with caplog.at_level(logging.WARNING, "tiered.engine"):
            assert write(second, "second") == 0
        assert f"t-0 resumes at offset 0: if volume {volume}, claimed by " in caplog.text
        with pytest.raises(
            FencedError, match=rf"offsets 0\.\.1 of t-0, acknowledged by this log, are only on .*{tmp_path}/1"
        ):
            first.sync()
        with pytest.raises(FencedError):
            write(first, "more")
        second.sync()
        assert [record.value for record in second.topic("t").read()] == [b"second"]


def test_an_uploader_need_not_wait_for_its_next_scan_to_see_a_new_topic(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path / "log", config=LogConfig(remote=True)) as local:
        local.create_topic("t", 1, TOPIC)
        directory = LogDirectory(tmp_path / "log", clock=SystemClock(), ids=SystemIds())
        directory.scan()
        seen = [directory.has_news()]
        local.create_topic("u", 1, TOPIC)
        seen.append(directory.has_news())
        directory.scan()
        seen.append(directory.has_news())
    assert seen == [False, True, False]


def test_adopting_many_partitions_writes_the_checkpoint_twice_however_many(tmp_path: Path) -> None:
    """Once at the first, once at the end: it names every partition."""
    written = []
    for partitions in (3, 18):
        files = Counting()
        clock = FakeClock()
        local = LocalLog.open(tmp_path / f"{partitions}", clock=clock, files=files, config=LogConfig(remote=True))
        local.create_topic("t", partitions, TOPIC)
        files.replaced.clear()
        tiering = Tiering(local, MemoryStore(), clock=clock, ids=SystemIds())
        tiering.adopt(local.topics()["t"])
        adopted = files.replaced.count(OFFSET_CHECKPOINT_NAME)
        ends = {}
        for tp in local.partitions():
            local.partition(tp).append([NewRecord(b"x")])
            local.partition(tp).roll()
            ends[tp] = 1
        files.replaced.clear()
        tiering.sync(ends, None)
        assert all(local.partition(tp).positions().uploaded_offset == 1 for tp in ends)
        written.append((adopted, files.replaced.count(OFFSET_CHECKPOINT_NAME), files.replaced.count(CLAIMS_NAME)))
        local.close()
    # What is noted while the first write is under way may all be in it, or be in the second.
    assert all(adopted in (1, 2) for adopted, _, _ in written)
    assert written[0][1:] == written[1][1:]


class Counting(PosixFiles):
    def __init__(self) -> None:
        self.replaced: list[str] = []

    def replace(self, path: Path, data: bytes) -> FileState:
        self.replaced.append(path.name)
        return super().replace(path, data)


def test_a_daemon_lets_a_log_resume_with_the_producers_that_the_bucket_knows(tmp_path: Path) -> None:
    store, path = HookedStore(), tmp_path / "log"
    with open_log(path, store) as log:
        with topic(log).transaction("tx") as transaction:
            transaction.append(b"v")
        log.sync()
        end = topic(log).positions(0).end_offset
    producers = decode_snapshot((path / "t-0" / snapshot_name(end)).read_bytes())
    rejoin(plan_rejoin(path, [TP], clock=SystemClock()), clock=SystemClock())
    with LocalLog.open(path, config=LogConfig(remote=True)):
        pass  # the partition's directory is made again
    daemon = Daemon(path, store)
    daemon.directory.scan()
    bucket = daemon.bucket()
    granted = asyncio.run(bucket.drive(bucket.steps.claim(TP)))
    assert all(daemon.directory.start_log(tp, granted) for tp in (TP, TopicPartition("gone", 0)))
    assert daemon.directory.resume()
    daemon.release()
    assert [producer.producer_id for producer in producers] != []
    assert decode_snapshot((path / "t-0" / snapshot_name(end)).read_bytes()) == producers
    with LogView.open(path) as local:
        positions = local.partition(TP).positions()
        assert (positions.local_start_offset, positions.end_offset) == (end, end)


# ---------------------------------------------------------------------- answers that lie


def test_local_bytes_stay_until_a_root_was_read_back(tmp_path: Path) -> None:
    store = HookedStore()
    with open_log(tmp_path / "log", store) as log:
        write(log, "a")
        log.sync()
        write(log, "b")
        store.on_root_put = store.acknowledge_and_drop
        with pytest.raises(TieredError):
            log.sync()
        assert topic(log).positions(0).uploaded_offset == 1
        assert log._local.logs()[log.directory].uploads.read()[TP].end_offset == 1
        log.sync()
        assert topic(log).positions(0).uploaded_offset == 2


def test_a_fast_clock_keeps_no_later_sync_out(tmp_path: Path) -> None:
    """``file://`` has the clock of its file system: commits far ahead of it are refused until the clock is right."""
    clock = ShiftedClock()
    url = f"file://{tmp_path / 'store'}"
    for days, value in ((0, b"a"), (3, b"b"), (0, b"c")):
        clock.shift_ms = days * 86_400_000
        with tiered.open(tmp_path / "log", remote=url, clock=clock) as log:
            log.topic("t", create=True).append(value)
            if days:
                with pytest.raises(ConfigError, match="later than the store's clock"):
                    log.sync()
            else:
                log.sync()
    with tiered.open_reader(url) as reader:
        assert [record.value for record in reader.topic("t").read()] == [b"a", b"b", b"c"]
