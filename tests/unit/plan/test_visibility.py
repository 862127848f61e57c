"""What ``read_committed`` shows: the ranges of aborted transactions, against Kafka's client, which goes by markers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.format.batch import BatchProducer, encode_batch
from tiered.format.header import BatchHeader, read_header
from tiered.format.producer_snapshot import ProducerEntry
from tiered.model import AbortedTxn, NewRecord
from tiered.plan.visibility import Hidden, open_firsts, stable_offset


def batch(producer_id: int, offset: int, *, records: int = 1, transactional: bool = True) -> BatchHeader:
    data = encode_batch(
        [NewRecord(b"v", timestamp=0)] * records,
        base_offset=offset,
        producer=BatchProducer(producer_id, 0, 0, transactional=transactional),
    )
    return read_header(data)


def test_ranges_of_aborted_transactions_are_hidden() -> None:
    hidden = Hidden([AbortedTxn(7, 10, 30, 31), AbortedTxn(7, 40, 50, 51), AbortedTxn(9, 0, 5, 6)])
    assert [at for at in range(60) if hidden.hides(batch(7, at))] == [*range(10, 30), *range(40, 50)]
    assert [at for at in range(60) if hidden.hides(batch(9, at))] == [*range(5)]
    assert not hidden.hides(batch(8, 15))
    assert not hidden.hides(batch(7, 15, transactional=False))
    assert not Hidden([]).hides(batch(7, 15))


def test_an_index_that_names_a_transaction_twice_hides_it_once() -> None:
    """Both tiers may name it, one of them from a later first record that compaction left."""
    hidden = Hidden([AbortedTxn(7, 10, 30, 31), AbortedTxn(7, 12, 30, 31)])
    assert [at for at in range(40) if hidden.hides(batch(7, at))] == [*range(10, 30)]


# Each: a producer, and what it does next: data (of so many records), a commit or an abort.
ACTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["data", "data", "long", "commit", "abort"])), max_size=40)


@given(ACTS)
def test_the_same_as_a_client_that_goes_by_markers(acts: list[tuple[int, str]]) -> None:
    log: list[tuple[BatchHeader, str]] = []
    open_: dict[int, int] = {}
    aborted: list[AbortedTxn] = []
    at = 0
    for producer, act in acts:
        records = 3 if act == "long" else 1
        if act in ("commit", "abort"):
            first = open_.pop(producer, None)
            if act == "abort" and first is not None:
                aborted.append(AbortedTxn(producer, first, at, 0))
        else:
            open_.setdefault(producer, at)
        log.append((batch(producer, at, records=records), act))
        at += records
    hidden, coming, hiding = Hidden(aborted), sorted(aborted, key=lambda txn: txn.first_offset), set[int]()
    for header, act in log:
        while coming and coming[0].first_offset <= header.last_offset:
            hiding.add(coming.pop(0).producer_id)
        if act in ("commit", "abort"):
            hiding -= {header.producer_id} if act == "abort" else set()
        else:
            assert hidden.hides(header) == (header.producer_id in hiding)


def test_nothing_is_stable_from_the_oldest_open_transaction_on() -> None:
    def entry(producer_id: int, first: int) -> ProducerEntry:
        return ProducerEntry(producer_id, 0, 0, 0, 0, 0, -1, first)

    assert open_firsts([entry(1, -1), entry(2, 7), entry(3, 4)]) == {2: 7, 3: 4}
    assert (stable_offset([7, 4], 0, 20), stable_offset([], 0, 20), stable_offset([4], 6, 20)) == (4, 20, 6)
