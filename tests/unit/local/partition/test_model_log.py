"""The checks of the model can fail: each is broken on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.model_cleaning import Cleaned, clean
from tests.support.model_log import ModelLog, ModelStamp
from tests.unit.local.bench import Bench
from tiered.config import TopicConfig
from tiered.errors import InvalidTimestampError, OutOfOrderSequenceError, ProducerFencedError
from tiered.format.batch import encode_batch
from tiered.format.control import ControlType
from tiered.model import AbortedTxn, NewRecord
from tiered.testing.clock import START_MS


@pytest.mark.parametrize(("end", "complaint"), [(1, "promised 2"), (4, "middle of a call"), (6, "appended 5")])
def test_a_log_that_comes_back_wrong_is_noticed(end: int, complaint: str) -> None:
    model = ModelLog()
    model.append([NewRecord(b"a"), NewRecord(b"b")], 0)
    model.flush()
    model.append([NewRecord(b"c")] * 3, 0)
    with pytest.raises(AssertionError, match=complaint):
        model.power_cut(end)


def test_a_log_that_comes_back_at_a_call_is_accepted() -> None:
    model = ModelLog()
    model.append([NewRecord(b"a"), NewRecord(b"b")], 0)
    model.append([NewRecord(b"c")] * 3, 0)
    model.power_cut(2)
    assert (model.end, len(model.records)) == (2, 2)


def test_offsets_that_a_cut_left_without_records_may_be_lost() -> None:
    model = ModelLog()
    model.append([NewRecord(b"a")], 0)
    model.append([NewRecord(b"b")] * 3, 0)
    model.truncate_to(3)  # in the middle of the second batch, which goes whole
    model.power_cut(1)
    assert (model.end, len(model.records)) == (1, 1)


@pytest.mark.parametrize(("remote_start", "log_start"), [(-1, 9), (0, 0), (5, 9)])
def test_an_empty_log_that_begins_further_up_keeps_what_its_bucket_holds(remote_start: int, log_start: int) -> None:
    model = ModelLog(start=5, end=5, flushed=5, remote_start=remote_start)
    model.begin_at(9)
    assert (model.start, model.end, model.log_start) == (9, 9, log_start)


def test_a_bad_time_is_told_before_a_missing_key(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "log", cleanup_policy="compact")
    future = START_MS + 2 * 3_600_000
    refused = [NewRecord(b"v", None, future)]
    for append in (bench.partition.append, lambda records: bench.partition.append_batches(encode_batch(records))):
        with pytest.raises(InvalidTimestampError):
            append(refused)
    with pytest.raises(InvalidTimestampError):
        ModelLog(config=TopicConfig(cleanup_policy="compact")).append(refused, START_MS)


def test_a_producer_of_the_model_is_refused_as_kafka_does() -> None:
    model = ModelLog()
    one = [NewRecord(b"v", b"k", START_MS)]
    assert [model.append(one, START_MS, stamp=ModelStamp(7, 0, sequence)) for sequence in (0, 1, 0)] == [0, 1, 0]
    with pytest.raises(OutOfOrderSequenceError):
        model.append(one, START_MS, stamp=ModelStamp(7, 0, 3))
    assert model.append(one, START_MS, stamp=ModelStamp(7, 1, 0), transactional=True) == 2
    assert (model.stable_offset(), model.read_committed(0)) == (2, model.read(0, 2))
    assert model.append_marker(ModelStamp(7, 1), ControlType.ABORT, 0, START_MS, START_MS) == 3
    assert (model.stable_offset(), model.aborted) == (4, [AbortedTxn(7, 2, 3, 4)])
    assert model.read_committed(0) == model.read(0, 2)
    with pytest.raises(ProducerFencedError):
        model.append(one, START_MS, stamp=ModelStamp(7, 0, 2))


def test_a_round_of_the_model_keeps_the_newest_and_what_must_stay() -> None:
    model = ModelLog(config=TopicConfig(cleanup_policy="compact"))
    for value in (b"1", None, b"3"):
        model.append([NewRecord(value, b"a", START_MS), NewRecord(value, b"b" if value else b"c", START_MS)], START_MS)
    clean(model, Cleaned(0, 4, 4, 4, START_MS))
    assert [(b.base, [r.offset for r in b.records]) for b in model.batches] == [(0, [1]), (2, [2, 3]), (4, [4, 5])]
    assert model.batches[1].horizon_ms == START_MS + model.config.delete_retention_ms
    clean(model, Cleaned(4, 6, 6, 6, START_MS + model.config.delete_retention_ms))
    assert [r.offset for r in model.records] == [4, 5]
