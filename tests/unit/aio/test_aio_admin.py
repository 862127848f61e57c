"""check, restore, rejoin and repair for asyncio: what the sync functions give, the disk on threads, nothing left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin import check, plan_repair, restore
from tests.support.faulty_files import FaultyFiles
from tests.unit.aio.on_the_loop import OnTheLoop
from tests.unit.check.building import RECORDS, TOPIC, Scenario, scenario
from tiered import aio
from tiered.check.check import CheckOptions
from tiered.check.findings import Finding
from tiered.errors import CorruptionError, DiskFullError, FencedError
from tiered.model import TopicPartition
from tiered.testing.clock import SeededIds


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path) as built:
        yield built


class Threads(FaultyFiles):
    """A disk that knows which threads changed it, or looked at it whole."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.fail = self._note

    def _note(self, *_: object) -> int:
        self.threads.add(threading.get_ident())
        return 0

    def read(self, path: Path) -> bytes:
        self._note()
        return super().read(path)

    def read_at(self, handle: int, position: int, length: int) -> bytes:
        self._note()
        return super().read_at(handle, position, length)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """The disk of the asyncio face."""
    files = Threads()
    monkeypatch.setattr("tiered.aio.admin.PosixFiles", lambda: files)
    return files


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_check_finds_the_same(log: Scenario, files: Threads, damaged: bool) -> None:
    if damaged:
        log.delete(log.index_key(log.rows()[0]))
        log.replace(log.log_key(log.rows()[1]), b"x" * log.rows()[1].size)
        log.path("00000000000000000000.log").write_bytes(b"y" * 500)
    options = CheckOptions(read_data=True)
    told: list[tuple[int, int]] = []
    seen: list[tuple[int, int]] = []
    found: list[Finding] = []
    expected = check(log.directory, log.store, options, progress=lambda done, total, _: told.append((done, total)))
    store = OnTheLoop(log.store)
    report = await aio.admin.check(
        log.directory,
        store,
        read_data=True,
        progress=lambda done, total, _: seen.append((done, total)),
        on_finding=found.append,
    )
    assert report == expected
    assert tuple(found) == report.findings
    assert report.exit_code == (13 if damaged else 0)
    assert seen == told
    assert store.threads == {threading.get_ident()}
    assert files.threads
    assert threading.get_ident() not in files.threads


async def test_a_restore_makes_the_same_directory(log: Scenario, tmp_path: Path, files: Threads) -> None:
    expected = restore(log.store, tmp_path / "a", ids=SeededIds(1))
    told: list[tuple[int, int]] = []
    report = await aio.admin.restore(
        tmp_path / "b",
        OnTheLoop(log.store),
        ids=SeededIds(1),
        progress=lambda done, total, _: told.append((done, total)),
    )
    assert ([plan.rows for plan in report.plans], report.volume_id) == ([tuple(log.rows())], expected.volume_id)
    assert told[-1] == (report.size_bytes, report.size_bytes)
    assert {p.relative_to(tmp_path / "b"): p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file()} == {
        p.relative_to(tmp_path / "a"): p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()
    }
    assert threading.get_ident() not in files.threads


async def test_a_restore_that_fails_or_is_cancelled_leaves_nothing(
    log: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.iterdir())
    store = OnTheLoop(log.store)

    def cancel(*_: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(aio.admin.restore(tmp_path / "new", store, progress=cancel))
    assert sorted(tmp_path.iterdir()) == before
    files = FaultyFiles()
    files.free_bytes = 0
    with monkeypatch.context() as patched:
        patched.setattr("tiered.aio.admin.PosixFiles", lambda: files)
        with pytest.raises(DiskFullError):
            await aio.admin.restore(tmp_path / "new", store)
    log.delete(log.log_key(log.rows()[1]))
    with pytest.raises(CorruptionError, match="is gone"):
        await aio.admin.restore(tmp_path / "new", store)
    assert sorted(tmp_path.iterdir()) == before
    assert (await aio.admin.restore(tmp_path / "new", store, dry_run=True)).segments == len(log.rows())


async def test_a_fenced_log_rejoins(log: Scenario, tmp_path: Path) -> None:
    async with aio.open(tmp_path / "other", log.url) as other:
        await (await other.topic(TOPIC)).append(b"other", partition=0)
        await other.sync(timeout=30)
    async with aio.open(log.directory, log.url) as fenced:
        await (await fenced.topic(TOPIC)).append(b"only here", partition=0)
        with pytest.raises(FencedError):
            await fenced.sync(timeout=30)
    plan = await aio.admin.rejoin(log.directory)
    tp = TopicPartition(TOPIC, 0)
    assert [(a.tp, a.committed_end, a.end_offset) for a in plan.details.partitions] == [(tp, RECORDS, RECORDS + 1)]
    await plan.apply()
    async with aio.open(log.directory, log.url) as again:
        assert (await (await again.topic(TOPIC)).append(b"new", partition=0)).offset == RECORDS + 1


async def test_a_repair_is_the_same(log: Scenario) -> None:
    store = OnTheLoop(log.store)
    assert (await aio.admin.repair(None, store)).details.actions == ()
    log.delete(log.root_key())
    plan = await aio.admin.repair(None, store)
    assert [action.where for action in plan.details.actions] == [log.root_key()]
    assert [action.remedy for action in plan_repair(log.store).actions] == [plan.details.actions[0].remedy]
    assert await plan.apply() == 1
    assert plan_repair(log.store).actions == ()
