"""Limits of an inline sync: memory, requests and bytes a second, as the daemon's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import tiered
import tiered.aio
import tiered.uploader
from tiered.config import MEMORY_BYTES, MIN_MEMORY_BYTES, LogConfig, StoreLimits
from tiered.errors import ConfigError
from tiered.remote.catalog import COMMIT_PAGES_BYTES
from tiered.store.base import Get, Outcome, Put, StoreRequest
from tiered.store.limit import Limits, Slots
from tiered.store.memory import MemoryStore
from tiered.store.sources import PIECE_BYTES
from tiered.testing.clock import FakeClock
from uploader.config import Settings

TOPIC = {"segment.bytes": 1000}


class Clock(FakeClock):
    """Time passes while a request waits for its turn, not while the log's own thread waits for its next look."""

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return event.wait() if threading.current_thread().name == "tiered-tick" else super().wait(event, seconds)


def fill(log: tiered.Log) -> None:
    topic = log.topic("t", create=True, config=TOPIC)
    for number in range(40):
        topic.append(b"%02d" % number + b"x" * 100)
    log.sync()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """What of each budget was out at each PUT, by what was put."""
    seen: dict[str, list[int]] = {"log": [], "root": []}
    budgets: list[Slots] = []
    of, execute = Limits.from_config, MemoryStore.execute

    def made(limits: StoreLimits, **more: object) -> Limits:
        found = of(limits, **more)  # type: ignore[arg-type]
        budgets.append(found.memory)
        return found

    def noting(self: MemoryStore, request: StoreRequest) -> Outcome:
        kind = request.key.rpartition("/")[2].rpartition(".")[2] if isinstance(request, Put) else ""
        if kind in seen and budgets:
            seen[kind].append(budgets[-1].taken)
        return execute(self, request)

    monkeypatch.setattr(Limits, "from_config", made)
    monkeypatch.setattr(MemoryStore, "execute", noting)
    return seen


def test_uploads_and_commits_of_a_sync_are_counted(tmp_path: Path, taken: dict[str, list[int]]) -> None:
    config = LogConfig(limits=StoreLimits(memory=MIN_MEMORY_BYTES))
    with tiered.open(tmp_path / "log", remote="memory://limits-memory", config=config) as log:
        fill(log)
        assert log.topic("t").positions(0).uploaded_offset == 40
    assert len(taken["log"]) > 3
    assert min(taken["log"]) > PIECE_BYTES
    assert max(taken["root"]) > COMMIT_PAGES_BYTES  # a claim's root is small and not counted
    assert max(taken["log"] + taken["root"]) <= MIN_MEMORY_BYTES


@pytest.mark.parametrize(
    ("limits", "least_seconds"),
    [(StoreLimits(requests_per_second=1), 10), (StoreLimits(bytes_per_second=200), 10), (StoreLimits(), 0)],
)
def test_a_sync_keeps_to_its_rates(tmp_path: Path, limits: StoreLimits, least_seconds: int) -> None:
    """Forty records of 100 bytes in some six segments: above 12 requests, above 4,000 bytes."""
    clock = Clock()
    remote = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=remote, config=LogConfig(limits=limits), clock=clock) as log:
        begun = clock.monotonic()
        fill(log)
        assert (clock.monotonic() - begun >= least_seconds) is True
        assert log.topic("t").positions(0).uploaded_offset == 40


def test_limits_have_the_names_and_defaults_of_the_daemon() -> None:
    assert Settings().store_limits == StoreLimits()
    assert StoreLimits().memory == MEMORY_BYTES
    for wrong in ({"memory": 1}, {"memory": None}, {"bytes_per_second": 0}, {"requests_per_second": True}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            StoreLimits(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="limits must be"):
        LogConfig(limits=3)  # type: ignore[arg-type]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Limits, StoreRequest]]:
    """Every request that was held against limits, and against which."""
    seen: list[tuple[Limits, StoreRequest]] = []
    before = Limits.before

    def noting(self: Limits, request: StoreRequest) -> float:
        seen.append((self, request))
        return before(self, request)

    monkeypatch.setattr(Limits, "before", noting)
    return seen


WIDE = LogConfig(limits=StoreLimits(requests_per_second=100_000))


async def test_reads_of_an_asyncio_log_keep_to_its_limits(
    tmp_path: Path, waits: list[tuple[Limits, StoreRequest]]
) -> None:
    remote = f"file://{tmp_path / 'store'}"
    async with tiered.aio.open(tmp_path / "log", remote, config=WIDE) as log:
        topic = await log.topic("t", create=True)
        await topic.append(b"v")
        await log.sync()
    async with tiered.aio.open(tmp_path / "other", remote, config=WIDE) as log:
        topic = await log.topic("t")
        waits.clear()
        assert [record.value async for record in topic.read()] == [b"v"]
        assert [request.key.rpartition(".")[2] for _, request in waits if isinstance(request, Get)][-1] == "log"
        assert {limits for limits, _ in waits} == {log._log.store_options.limits}


def test_an_uploader_in_the_process_keeps_to_the_limits_of_its_log(
    tmp_path: Path, waits: list[tuple[Limits, StoreRequest]]
) -> None:
    uploader = tiered.uploader.Uploader()
    with tiered.open(tmp_path / "log", f"file://{tmp_path}/store", config=WIDE, uploader=uploader) as log:
        log.topic("t", create=True).append(b"v")
        log.sync(timeout=60)
        status = log._uploader._parts[0].status()  # type: ignore[union-attr, attr-defined]  # an Uploader was given
        assert status["store"]["requests_per_second"] == 100_000
        assert {limits for limits, _ in waits} == {log.store_options.limits}
    assert any(isinstance(request, Put) and request.key.endswith(".log") for _, request in waits)


def test_a_limit_that_would_be_ignored_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.limits needs a remote"):
        tiered.open(tmp_path / "log", config=WIDE)
    assert not (tmp_path / "log").exists()
    for opens in (tiered.open, lambda path, **words: tiered.open_reader(log_dir=path, **words)):
        with pytest.raises(ConfigError, match="deadline_seconds needs a remote"):
            opens(tmp_path, deadline_seconds=1.0)
    both = tiered.uploader.Uploader(Settings(http=None, requests_per_second=5))
    with pytest.raises(ConfigError, match="limits are given twice"):
        tiered.open(tmp_path / "log", f"file://{tmp_path}/store", config=WIDE, uploader=both)
    for ignored in ({"remote": "memory://x"}, {"log_dir": tmp_path}, {"region": "us-east-1"}, {"sidecar": tmp_path}):
        with pytest.raises(ConfigError, match=f"no setting {next(iter(ignored))}"):
            tiered.uploader.Uploader(Settings(**ignored))
