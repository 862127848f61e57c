"""Repetitions, order and epochs of idempotent producers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.plan.producers.building import Log, data, marker
from tiered.errors import ConfigError, InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from tiered.format.batch import BatchProducer, encode_batch, read_header
from tiered.format.control import ControlType
from tiered.format.control import marker as control_record
from tiered.format.kernels import Record
from tiered.model import NewRecord
from tiered.plan.producer import SEQUENCES, Marker, Origin, producer_batch
from tiered.plan.producer_state import Duplicate, PreparedBatches, ProducerState

LAST = SEQUENCES - 1


def test_a_new_epoch_begins_at_zero_and_the_old_one_is_fenced() -> None:
    log = Log()
    log.append(data(41))  # nobody knows this producer: its history may have expired
    with pytest.raises(OutOfOrderSequenceError, match="expected 0"):
        log.append(data(42, epoch=1))
    log.append(data(0, epoch=1))
    with pytest.raises(ProducerFencedError):
        log.append(data(42, epoch=0))
    with pytest.raises(ProducerFencedError):  # also with the sequence of a batch that is known
        log.append(data(0, epoch=0))
    assert log.append(data(0, epoch=1)) == Duplicate(1, 1, 1000)


def test_the_group_coordinator_repeats_sequence_zero() -> None:
    log = Log()
    for sequence in (0, 0, -1):
        log.append(data(sequence, txn=True), origin=Origin.COORDINATOR)
    assert log.end == 3


def test_a_set_of_which_only_a_part_is_known_is_not_answered_with_success() -> None:
    log = Log()
    log.append(data(0, 2), data(2, 2))
    assert log.append(data(0, 2), data(2, 2)) == Duplicate(0, 3, 1000)
    with pytest.raises(OutOfOrderSequenceError) as caught:
        log.append(data(2, 2), data(4, 2))
    assert caught.value.index == 0
    with pytest.raises(OutOfOrderSequenceError) as caught:
        log.append(data(4, 3), data(4, 3))  # twice in one set
    assert caught.value.index == 3
    with pytest.raises(OutOfOrderSequenceError):  # also right after an unknown producer's first batch
        log.append(data(9, pid=8), data(11, pid=8))
    assert log.end == 4


def test_what_was_checked_before_another_append_is_not_applied() -> None:
    log = Log()
    first = log.state.prepare([data(0)])
    log.append(data(0))
    assert isinstance(first, PreparedBatches)
    with pytest.raises(ConfigError, match="has changed"):
        log.state.apply(first, [1])
    changes: list[Callable[[ProducerState], object]] = [
        lambda state: state.expire(10**9),
        lambda state: state.replay(data(0, base=1)),
        lambda state: state.load(None, log_start=0, now_ms=0),
    ]
    for change in changes:
        stale = log.state.prepare([data(1)])
        change(log.state)
        assert isinstance(stale, PreparedBatches)
        with pytest.raises(ConfigError, match="has changed"):
            log.state.apply(stale, [1])
    now = log.state.prepare([data(1)])
    assert isinstance(now, PreparedBatches)
    with pytest.raises(ConfigError, match="2 base offsets for 1 batches"):
        log.state.apply(now, [1, 2])


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (data(-1), "no sequence"),
        (data(0, epoch=-1), "no epoch"),
        (marker(), "control batches"),
    ],
)
def test_a_client_sends_data_with_epoch_and_sequence(batch: object, what: str) -> None:
    with pytest.raises(InvalidRecordError, match=what):
        Log().append(batch)  # type: ignore[arg-type]  # parametrized values are objects


def test_idle_producers_are_forgotten_at_the_millisecond() -> None:
    log = Log(ProducerState(expiration_ms=100))
    log.append(data(0, pid=1, ts=1000))
    log.append(data(0, pid=2, ts=1000, txn=True))
    assert log.state.expire(1099) == []
    assert log.state.expire(1100) == [1]  # an open transaction keeps 2
    log.append(data(33, pid=1))
    log.mark(marker(pid=2, ts=1100))
    assert log.state.expire(1199) == [1]
    assert log.state.expire(1200) == [2]
    assert len(log.state) == 0


def test_from_headers() -> None:
    plain = read_header(encode_batch([NewRecord(b"v", timestamp=5)]))
    assert producer_batch(plain) is None
    values = [NewRecord(b"v", timestamp=5), NewRecord(b"v", timestamp=9)]
    header = read_header(encode_batch(values, base_offset=3, producer=BatchProducer(7, 2, LAST)))
    assert producer_batch(header) == data(LAST, 2, epoch=2, base=3, ts=9)
    assert producer_batch(header, timestamp=77) == data(LAST, 2, epoch=2, base=3, ts=77)
    record = control_record(ControlType.ABORT, 9, 2000)
    ending = encode_batch([record], producer=BatchProducer(7, 2, transactional=True, control=True))
    read = Record(0, 2000, record.key, record.value, [])
    found = producer_batch(read_header(ending), read)
    assert found is not None
    assert found.marker == Marker(True, 9, 2000)
    cleaned = producer_batch(read_header(ending), None)
    assert cleaned is not None
    assert cleaned.control
    assert cleaned.marker is None
