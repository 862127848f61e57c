"""A stream whose trigger is too frequent is told so, once, in figures; nobody else is."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest

from tiered.model import Row
from tiered.spark import sink
from tiered.spark.sink import SEGMENTS_A_DAY, TINY_BYTES, WINDOW_BATCHES, TriggerPace


def said(pace: TriggerPace, every_seconds: float, segments: list[tuple[str, int, int]], batches: int) -> list[str]:
    return [pace.add(at * every_seconds, segments) for at in range(batches)]


def test_tiny_segments_every_few_seconds() -> None:
    pace = TriggerPace()
    told = said(pace, 5.0, [("flights", 0, 4000), ("flights", 1, 4000), ("flights", 1, 2500)], WINDOW_BATCHES + 100)
    assert [at for at, text in enumerate(told) if text] == [WINDOW_BATCHES - 1]
    text = told[WINDOW_BATCHES - 1]
    assert text.startswith(
        "the trigger is too frequent: the last 19 batches wrote 38 segments into flights-1 in 95 s, 3,500 bytes each "
        "on average; that is 34,560 a day"
    )
    assert "processingTime='1 minute'" in text
    assert "tiered spark maintain flights --only merge" in text


@pytest.mark.parametrize(
    ("every_seconds", "size", "tasks"),
    [
        (60.0, 4000, 3),  # a trigger a minute: 4,320 a day
        (5.0, TINY_BYTES, 1),  # much is written
        (86_400 / SEGMENTS_A_DAY, 10, 1),
    ],
)
def test_others_are_told_nothing(every_seconds: float, size: int, tasks: int) -> None:
    assert not any(said(TriggerPace(), every_seconds, [("flights", 0, size)] * tasks, 100))


def test_partitions_are_judged_alone_and_idle_triggers_do_not_count() -> None:
    spread = [("flights", partition, 4000) for partition in range(100)]
    assert not any(said(TriggerPace(), 60.0, spread, 100))
    assert not any(said(TriggerPace(), 1.0, [], 100))
    pace = TriggerPace()
    for at in range(WINDOW_BATCHES - 1):
        assert not pace.add(float(at), [("flights", 0, 10)])
    assert not pace.add(100_000.0, [("flights", 0, 10)])  # a stream that stood still


def test_the_sink_says_it_once_of_each_stream(caplog: pytest.LogCaptureFixture) -> None:
    row = Row(*[0] * len(Row._fields))._replace(size=100)
    staged = sink.Staged("flights", UUID(int=1), 0, row)
    messages: sink.Messages = [sink.TaskStaged(sink.Job("query-1", 0, 0), (staged,) * 3), None]
    with caplog.at_level(logging.WARNING, "tiered.spark"):
        for txn in ("query-1", "query-2"):
            for _ in range(3 * WINDOW_BATCHES):
                sink._say_pace(txn, messages)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["stream query-1", "stream query-2"]
