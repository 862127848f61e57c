"""What tasks tell of themselves while they run, and what the driver makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.jobs.building import bucket, inline, log, records, run
from tiered.errors import RemotePermissionError
from tiered.program.progress import Progress
from tiered.spark.jobs import status
from tiered.spark.jobs.receipts import JobFolder
from tiered.spark.jobs.status import LOOK_AGAIN_SECONDS, STATUS_SECONDS, CountedStore, PhaseStatus
from tiered.store.base import (
    ABSENT,
    Get,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StoreAround,
    StoreRequest,
    list_all,
)
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock

__all__ = ["inline"]

KEY = "data"


class Puts(StoreAround):
    """Answers PUTs as it is told to."""

    answer: PutResult | Exception | None = None

    def execute(self, request: StoreRequest) -> Outcome:
        """Reads go on to the store inside."""
        if not isinstance(request, Put) or self.answer is None:
            return self.inner.execute(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        self.inner.execute(request)
        return self.answer


def filled() -> MemoryStore:
    store = MemoryStore()
    store.execute(Put(KEY, b"x" * 1000, ABSENT))
    return store


def keys(store: MemoryStore) -> list[str]:
    return [entry.key for entry in drive(store, list_all("jobs/"))]


def told(store: MemoryStore) -> list[bytes]:
    found = [store.execute(Get(key)) for key in keys(store)]
    return [got.data for got in found if isinstance(got, Object)]


def test_an_attempt_tells_what_it_has_read_and_not_too_often() -> None:
    store, clock = filled(), FakeClock()
    counted = CountedStore(store, JobFolder(store, "mine").status_stem("tasks", 3, "run"), clock=clock)
    clock.advance(STATUS_SECONDS / 2)
    counted.execute(Get(KEY, 0, 100))
    assert told(store) == []
    clock.advance(STATUS_SECONDS / 2)
    counted.execute(Get("nothing"))
    counted.execute(Get(KEY, 0, 200))
    assert told(store) == [b'{"bytes": 300}']
    assert keys(store)[0].startswith("jobs/mine/tasks/000003.run.")
    counted.execute(Get(KEY, 0, 50))
    clock.advance(STATUS_SECONDS)
    counted.execute(Get(KEY))
    assert told(store) == [b'{"bytes": 1350}']


@pytest.mark.parametrize("answer", [PutResult(PutStatus.UNKNOWN), RemotePermissionError("no", hint="ask")])
def test_what_cannot_be_told_is_no_error(answer: PutResult | Exception) -> None:
    store, clock = filled(), FakeClock()
    puts = Puts(store)
    counted = CountedStore(puts, JobFolder(store, "mine").status_stem("tasks", 3, "run"), clock=clock)
    puts.answer = answer
    clock.advance(STATUS_SECONDS)
    assert isinstance(counted.execute(Get(KEY)), Object)
    puts.answer = None
    clock.advance(STATUS_SECONDS)
    counted.execute(Get(KEY))
    assert JobFolder(store, "mine").statuses("tasks", "run") == (set(), {3: 2000})


def tell(folder: JobFolder, store: MemoryStore, number: int, run_id: str, read_bytes: int) -> None:
    """As an attempt of its own."""
    clock = FakeClock()
    store.execute(Put(f"of-{number}-{run_id}-{read_bytes}", b"x" * read_bytes, ABSENT))
    counted = CountedStore(store, folder.status_stem("tasks", number, run_id), clock=clock)
    clock.advance(STATUS_SECONDS)
    counted.execute(Get(f"of-{number}-{run_id}-{read_bytes}"))


def test_the_furthest_attempt_of_this_run_counts_and_a_receipt_says_all() -> None:
    store, clock = filled(), FakeClock()
    folder = JobFolder(store, "mine")
    tasks = [{"size_bytes": 1000}, {"size_bytes": 500}, {"size_bytes": 100}]
    phase = PhaseStatus(folder, "tasks", "now", tasks, done=[2], clock=clock)
    assert phase.total_bytes == 1600
    assert phase.shown(1) == (100, 1600, "1 of 3 tasks")
    tell(folder, store, 0, "now", 700)
    tell(folder, store, 0, "now", 300)  # a second attempt, which began later
    tell(folder, store, 1, "before", 400)  # of a run that was killed
    assert phase.shown(1) == (100, 1600, "1 of 3 tasks")  # it is not time to look yet
    clock.advance(LOOK_AGAIN_SECONDS)
    assert phase.shown(1) == (800, 1600, "1 of 3 tasks")
    tell(folder, store, 1, "now", 900)  # it reads more than was planned
    folder.keep_receipt("tasks", 0, {})
    clock.advance(LOOK_AGAIN_SECONDS)
    assert phase.shown(2) == (1600, 1600, "2 of 3 tasks")
    assert folder.done("tasks") == {0}


def test_tasks_without_sizes_are_counted() -> None:
    phase = PhaseStatus(JobFolder(MemoryStore(), "mine"), "tasks", "now", [{}, {}], done=[0], clock=FakeClock())
    assert phase.shown(1) == (1, 2, "")


def test_a_bucket_that_does_not_answer_stops_nothing() -> None:
    class Refusing(StoreAround):
        def execute(self, request: StoreRequest) -> Outcome:
            raise RemotePermissionError("no", hint="ask")

    clock = FakeClock()
    phase = PhaseStatus(
        JobFolder(Refusing(MemoryStore()), "mine"), "tasks", "now", [{"size_bytes": 5}], done=[], clock=clock
    )
    clock.advance(LOOK_AGAIN_SECONDS)
    assert phase.shown(0) == (0, 5, "0 of 1 task")


@pytest.mark.parametrize("line", [["scrub"], ["merge"]], ids=lambda line: line[0])
def test_every_job_tells_the_bytes_of_its_tasks(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: None
) -> None:
    with log(tmp_path, {"t": {"merge.min.bytes": "10000", "merge.target.bytes": "100000"}}) as opened:
        for at in range(0, 200, 20):
            opened.topic("t").append_many(records(at, 20))
    shown: list[tuple[int, int]] = []
    show = Progress.show

    def seen(self: Progress, done: int, total: int = 0, note: str = "") -> None:
        shown.append((done, total))
        show(self, done, total, note)

    monkeypatch.setattr(Progress, "show", seen)
    monkeypatch.setattr(status, "STATUS_SECONDS", 0.0)
    monkeypatch.setattr(status, "LOOK_AGAIN_SECONDS", 0.0)
    to = [f"file://{tmp_path}/parquet"] if line[-1] == "--to" else []
    done = run(*line, *to, "--remote", bucket(tmp_path), "--json", "--job", "told")
    assert done.code == 0, done.err
    names = [entry.key for entry in drive(open_store(bucket(tmp_path)), list_all("jobs/told/"))]
    assert any(name.count(".") == 3 for name in names), names
    assert shown[-1][0] == shown[-1][1] > 0
