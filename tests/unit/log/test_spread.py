"""A log over several directories and a bucket: each directory is a volume of its own, and fails alone."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

import tiered
from tests.support.faulty_files import FaultyFiles
from tiered.clock import SystemClock, SystemIds
from tiered.engine.drain import DrainMode
from tiered.errors import DataLocalError, FencedError, LocalIOError, TieredError
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import uploader_lock
from tiered.log import Log
from tiered.model import TopicPartition
from tiered.store.location import StoreLocation, open_store
from tiered.store.options import StoreOptions
from uploader import Settings, Uploader
from uploader.service import Service, ServicePlace, serve

TPS = [TopicPartition("t", p) for p in range(4)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


def paths(root: Path) -> list[Path]:
    return [root / "a", root / "b"]


class MovedByWaits(SystemClock):
    """A clock that stands still but for the waits of the thread that made it: uploads have all the time they need."""

    def __init__(self) -> None:
        self._maker, self._passed = threading.get_ident(), 0.0

    def monotonic(self) -> float:
        return self._passed

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        if threading.get_ident() != self._maker or seconds is None:
            return super().wait(event, seconds)
        self._passed += seconds
        return event.is_set()


def put(log: Log, text: str) -> None:
    topic = log.topic("t", partitions=4, create=True)
    for tp in TPS:
        topic.append(f"{text}{tp.partition}".encode(), partition=tp.partition)


def remote_values(url: str) -> list[list[bytes | None]]:
    with tiered.open_reader(url) as reader:
        topic = reader.topic("t")
        return [[record.value for record in topic.read(p)] for p in range(4)]


def test_sync_commits_what_every_directory_holds(tmp_path: Path, url: str) -> None:
    for text in ("x", "y"):
        with tiered.open(paths(tmp_path), remote=url) as log:
            put(log, text)
            log.sync()
            assert {at.uploaded_offset for at in log.positions().values()} == {1 if text == "x" else 2}
    assert remote_values(url) == [[b"x%d" % p, b"y%d" % p] for p in range(4)]
    assert [len(list(path.glob("t-*"))) for path in paths(tmp_path)] == [2, 2]
    ids = {path: (path / "meta.properties").read_text() for path in paths(tmp_path)}
    assert len(set(ids.values())) == 2


def test_fresh_directories_go_on_where_the_bucket_ended(tmp_path: Path, url: str) -> None:
    with tiered.open(paths(tmp_path / "first"), remote=url) as log:
        put(log, "x")
        log.sync()
    with tiered.open(paths(tmp_path / "second"), remote=url) as log:
        topic = log.topic("t")
        assert [topic.append(b"z", partition=p).offset for p in range(4)] == [1, 1, 1, 1]
        assert [record.value for record in topic.read(2)] == [b"x2", b"z"]
        log.sync()
    assert remote_values(url)[3] == [b"x3", b"z"]
    with tiered.open(paths(tmp_path / "first"), remote=url) as log:
        put(log, "late")
        with pytest.raises(FencedError):
            log.sync()


def test_a_directory_with_a_daemon_is_left_to_it_and_the_other_is_not(tmp_path: Path, url: str) -> None:
    a, b = paths(tmp_path)
    clock, ids = MovedByWaits(), SystemIds()
    with Log(
        LocalTier.open([a, b], clock=clock, ids=ids),
        open_store(url, StoreOptions(clock=clock, ids=ids)),
        clock=clock,
        ids=ids,
    ) as log:
        put(log, "x")
        log.sync()
        put(log, "y")
        with uploader_lock(a, PosixFiles()).held_while(clock):
            with pytest.raises(DataLocalError, match="t-0 at offset 1 of 2"):
                log.sync(timeout=0.2)
            uploaded = [at.uploaded_offset for _, at in sorted(log.positions().items())]
        held = {path: {int(found.name[-1]) for found in path.glob("t-*")} for path in (a, b)}
        assert [uploaded[p] for p in sorted(held[a])] == [1, 1]
        assert [uploaded[p] for p in sorted(held[b])] == [2, 2]
        log.sync()
    assert remote_values(url)[0] == [b"x0", b"y0"]


def test_a_directory_that_fails_keeps_the_other_from_nothing(tmp_path: Path, url: str) -> None:
    files = FaultyFiles()
    a, b = paths(tmp_path)
    clock, ids = SystemClock(), SystemIds()
    local = LocalTier.open([a, b], clock=clock, ids=ids, files=files)
    log = Log(local, open_store(url, StoreOptions(clock=clock, ids=ids)), clock=clock, ids=ids)
    put(log, "x")
    files.fail = lambda operation, path: errno.EIO if operation == "sync" and a in path.parents else 0
    with pytest.raises(LocalIOError):
        log.flush()
    with pytest.raises(LocalIOError, match="offline"):
        log.sync()
    held = {int(found.name[-1]) for found in b.glob("t-*")}
    assert {p: local.partition(TPS[p]).positions().uploaded_offset for p in held} == dict.fromkeys(held, 1)
    with pytest.raises(LocalIOError, match="offline"):
        local.partition(TPS[min({*range(4)} - held)])
    try:
        log.close()
    except TieredError as error:
        pytest.fail(f"the directory in service closes well: {error}")


def test_an_uploader_for_each_directory(tmp_path: Path, url: str) -> None:
    with tiered.open(paths(tmp_path), remote=url, uploader=Uploader()) as log:
        put(log, "x")
        log.sync(timeout=60)
        assert {at.uploaded_offset for at in log.positions().values()} == {1}
        for path in paths(tmp_path):
            assert not uploader_lock(path, PosixFiles()).try_acquire(SystemClock())
    for path in paths(tmp_path):
        lock = uploader_lock(path, PosixFiles())
        assert lock.try_acquire(SystemClock())
        lock.release()
    assert remote_values(url) == [[b"x%d" % p] for p in range(4)]


def test_a_one_shot_uploader_serves_each_directory(tmp_path: Path, url: str) -> None:
    with tiered.open(paths(tmp_path)) as log:
        put(log, "x")
    for path in paths(tmp_path):
        service = Service(ServicePlace(path, StoreLocation.parse(url)), Settings(http=None))
        assert asyncio.run(serve(service, oneshot=DrainMode.ALL)).code == 0
        assert set(service.committed) == {TPS[int(found.name[-1])] for found in path.glob("t-*")}
    assert remote_values(url) == [[b"x%d" % p] for p in range(4)]
