"""One ``txnId`` for several writes, a batch of a stream that meets other topics: right, or an error that says so."""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.spark.staging import TEXT, batch_of, schema_of
from tiered.cli.main import run
from tiered.errors import ConditionalWritesUnsupportedError, ConfigError, LogDestroyedError
from tiered.format.decision import COMMITTED, Decision
from tiered.remote.sink_commit import Sink
from tiered.remote.topics import load_topic, register_topic
from tiered.spark.sink import TaskStaged, WritePlan, rows_in_order
from tiered.spark.staging import Job
from tiered.spark.worker import WorkerHandler, capabilities_of, log_warnings
from tiered.spark.write_options import WriteOptions
from tiered.store.base import ABSENT, Delete, Outcome, Put, StoreAround, StoreRequest
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.faults import FaultStore

NAMED = f"{TEXT}, topic string"


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return str(tmp_path / "bucket")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


class Attempt:
    """One run of a job, or of a batch of a stream, up to its commit."""

    def __init__(
        self, url: str, rows: int, topics: tuple[str, ...] = ("flights",), *, job: bool = True, partitions: int = 2
    ) -> None:
        given = {"path": url, "createTopic": str(partitions)} | ({"txnId": "nightly"} if job else {})
        if len(topics) == 1:
            given["topic"] = topics[0]
        columns = TEXT if len(topics) == 1 else NAMED
        made = [
            (f"{topic}-{at}", topic, *([topic] if len(topics) > 1 else [])) for topic in topics for at in range(rows)
        ]
        self.plan = WritePlan.from_options(
            WriteOptions.parse(given, streaming=not job), schema_of(columns), overwrite=False
        )
        self.staged = [self.plan.stage(iter([batch_of(columns, made)]), Job("nightly", 0, 0))]

    def commit(self) -> None:
        self.plan.commit("nightly", 0, self.staged)

    def die_behind_the_decision(self) -> None:
        """As a driver that is killed there."""

        class Killed(BaseException):
            pass

        def killed(*_: object) -> None:
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sink, "commit_staged", killed)
            with pytest.raises(Killed):
                self.commit()


def held(url: str) -> Counter[str]:
    with tiered.open_reader(url) as reader:
        return Counter({topic: len(list(reader.topic(topic).read())) for topic in reader.topics()})


def test_another_frame_adds_nothing_and_is_told(url: str, caplog: pytest.LogCaptureFixture) -> None:
    Attempt(url, 10).commit()
    Attempt(url, 25).commit()
    assert held(url) == Counter(flights=10)
    assert warnings(caplog) == ["txnId nightly was committed before: none of the 25 rows of this run were added"]


def test_a_run_that_had_not_ended_is_finished_by_the_next(url: str, caplog: pytest.LogCaptureFixture) -> None:
    Attempt(url, 10).die_behind_the_decision()
    Attempt(url, 25).commit()
    assert held(url) == Counter(flights=10)
    (said,) = warnings(caplog)
    assert said.startswith("txnId nightly was decided by a run that had not ended, whose rows were added now: none of")


@pytest.mark.parametrize("ended", [True, False])
def test_another_topic_is_an_error_that_names_both(url: str, ended: bool) -> None:
    first = Attempt(url, 10)
    if ended:
        first.commit()
    else:
        first.die_behind_the_decision()
    with pytest.raises(ConfigError) as error:
        Attempt(url, 25, ("weather",)).commit()
    assert error.value.message == (
        "the 25 rows for topic weather were not added: txnId nightly was used before for topic flights"
    )
    assert "a txnId of its own" in str(error.value.hint)
    assert held(url) == Counter(flights=10, weather=0)


def test_of_several_topics_those_that_the_first_run_had_count(url: str, caplog: pytest.LogCaptureFixture) -> None:
    Attempt(url, 10, ("a", "b")).commit()
    Attempt(url, 10, ("b", "c")).commit()
    assert held(url) == Counter(a=10, b=10, c=0)
    assert warnings(caplog) == [
        "txnId nightly was committed before: none of the 20 rows of this run were added; "
        "that run wrote nothing to topic c"
    ]


def test_a_frame_without_rows_and_a_first_run_without_rows(url: str, caplog: pytest.LogCaptureFixture) -> None:
    Attempt(url, 0).commit()
    Attempt(url, 0).commit()
    assert warnings(caplog) == []
    Attempt(url, 10).commit()
    assert held(url) == Counter(flights=0)
    assert warnings(caplog) == [
        "txnId nightly was committed before: none of the 10 rows of this run were added; "
        "that run wrote nothing to topic flights"
    ]


def test_partitions_that_were_added_meanwhile_change_nothing(url: str) -> None:
    Attempt(url, 10).die_behind_the_decision()
    store = DirectoryStore(Path(url))
    entry = drive(store, load_topic("flights"))
    assert entry is not None
    assert drive(store, register_topic("flights", entry.topic_id, 5, entry.config)).partitions == 5
    Attempt(url, 25, partitions=5).commit()
    assert held(url) == Counter(flights=10)


def recreate(url: str) -> None:
    """The topic is gone, and another has its name."""
    assert run(["topic", "set", "flights", "gc.grace.ms=0", "--remote", url]) == 0
    assert run(["topic", "delete", "flights", "--remote", url, "--yes"]) == 0
    with pytest.raises(ConfigError, match="nothing can be written to topic flights: it is deleting"):
        Attempt(url, 1)
    assert run(["maintain", "--only", "collect", "flights", "--remote", url, "--yes"]) == 0
    assert run(["topic", "create", "flights", "--partitions", "2", "--remote", url]) == 0


@pytest.mark.parametrize("ended", [True, False])
def test_a_topic_that_was_made_again_is_another_one(url: str, ended: bool) -> None:
    first = Attempt(url, 10)
    if ended:
        first.commit()
    else:
        first.die_behind_the_decision()
    recreate(url)
    with pytest.raises(LogDestroyedError) as error:
        Attempt(url, 25).commit()
    assert "made again, write with another checkpoint or txnId" in str(error.value.hint)
    assert held(url) == Counter(flights=0)


def test_a_batch_of_a_stream_that_now_writes_to_another_topic_goes_where_it_was_decided(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    Attempt(url, 10, job=False).die_behind_the_decision()
    Attempt(url, 10, ("weather",), job=False).commit()
    assert held(url) == Counter(flights=10, weather=0)
    assert warnings(caplog) == []


def test_names_of_topics_that_only_a_decision_names_come_from_their_roots(url: str) -> None:
    Attempt(url, 10).die_behind_the_decision()
    other = Attempt(url, 10, ("weather",), job=False)
    staged = [(0, each.staged) for each in other.staged if isinstance(each, TaskStaged)]
    names = {one.topic_id: one.topic for _, of_task in staged for one in of_task}
    sink, store = Sink("driver", names), DirectoryStore(Path(url))
    decision = drive(store, sink.decide(Decision("nightly", 0, COMMITTED, rows_in_order(staged))))
    landed = drive(store, sink.commit_staged(decision))
    assert {each.root.topic for each in landed} == {"flights"}


@pytest.mark.parametrize(("started_as", "speaks"), [("pyspark.daemon", True), ("pytest.__main__", False)])
def test_warnings_of_a_worker_go_to_its_standard_error(
    started_as: str, speaks: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    main = types.ModuleType("__main__")
    main.__spec__ = importlib.util.spec_from_loader(started_as, None)
    logger, root = logging.getLogger("tiered"), logging.getLogger()
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", main)
        log_warnings()
        log_warnings()
    with monkeypatch.context() as patch:
        patch.setattr(root, "handlers", [])
        logging.getLogger("tiered.spark").warning("three offsets are %s", "gone")
        logging.getLogger("tiered.spark").info("nobody asked")
    told = capfd.readouterr().err
    assert told.endswith(" WARN tiered.spark: three offsets are gone\n") is speaks
    assert told.count("\n") == int(speaks)
    assert [type(each) for each in logger.handlers[1:]] == [WorkerHandler] * speaks
    logging.getLogger("tiered.spark").warning("Spark's own handler has it")
    assert capfd.readouterr().err == ""


def test_a_store_is_probed_once_and_one_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    store = FaultStore(MemoryStore())
    assert capabilities_of(store).conditional_writes
    asked = len(store.calls)
    assert capabilities_of(store).conditional_writes
    assert len(store.calls) == asked > 0

    class Careless(StoreAround):
        def execute(self, request: StoreRequest) -> Outcome:
            if isinstance(request, Put):
                self.inner.execute(Delete((request.key,)))
                request = replace(request, condition=ABSENT)
            return self.inner.execute(request)

    careless = Careless(MemoryStore())
    for _ in range(2):
        with pytest.raises(ConditionalWritesUnsupportedError):
            capabilities_of(careless)
