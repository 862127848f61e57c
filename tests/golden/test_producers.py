"""The broker's own batches, fed one by one, end in the broker's own producer snapshots, transaction indexes and LSO."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.fixtures import MAIN, ROOTS, base_offset, expected_offsets, partition_dir, partitions
from tests.golden.producers import CLEANED, LEFT_ALONE, MADE_MS, is_cleaned, snapshots_of
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader
from tiered.format.batch_scanner import walk_headers
from tiered.format.producer_snapshot import decode_snapshot, encode_snapshot
from tiered.format.segment_indexes import decode_txns, encode_txns
from tiered.model import AbortedTxn
from tiered.plan.producer import ProducerBatch, read_producer
from tiered.plan.producer_state import ProducerSnapshot, ProducerState


def batches_of(log: Path) -> Iterator[tuple[BatchHeader, ProducerBatch | None]]:
    """Each batch of a segment, as far as it can be read."""
    data = log.read_bytes()
    try:
        for position, header in walk_headers(data):
            yield header, read_producer(header, memoryview(data)[position : position + header.size_bytes])
    except CorruptionError:
        assert "trailing-zeros" in log.parent.name


class Replayed:
    """A partition replayed from one of its bases: the state at each offset, the index of each segment."""

    def __init__(self, logs: list[Path], state: ProducerState, *, wanted: set[int]) -> None:
        self.states: dict[int, bytes] = {}
        self.aborted: dict[Path, list[AbortedTxn]] = {}
        epoch = -1
        for log in logs:
            aborted = self.aborted[log] = []
            for header, batch in batches_of(log):
                if epoch not in (-1, header.leader_epoch):  # a restart loads what it had just written
                    state.load(ProducerSnapshot(header.base_offset, state.entries()), log_start=0, now_ms=MADE_MS)
                epoch = header.leader_epoch
                if header.base_offset in wanted:
                    self.states[header.base_offset] = encode_snapshot(state.entries())
                if batch is not None:
                    completed = state.replay(batch)
                    if completed is not None and completed.index_entry is not None:
                        aborted.append(completed.index_entry)
                state.advance(header.next_offset)
        self.end = state.map_end_offset
        self.states[self.end] = encode_snapshot(state.entries())
        self.lso = state.last_stable_offset(self.end)


@pytest.mark.parametrize("root", ROOTS)
def test_snapshots_and_transaction_indexes_are_the_brokers_byte_for_byte(kafka_fixtures: Path, root: str) -> None:
    for partition in partitions(kafka_fixtures, root):
        if partition in LEFT_ALONE or is_cleaned(root, partition):
            continue
        directory = partition_dir(kafka_fixtures, partition, root)
        snapshots = snapshots_of(directory)
        logs = sorted(directory.glob("*.log"))
        replayed = Replayed(logs, ProducerState(base_offset(logs[0])), wanted=set(snapshots))
        for offset, expected in snapshots.items():
            if replayed.states.get(offset) != expected:
                # Written by a recovery that began at the snapshot before, where idle producers were left behind.
                assert root.endswith("/after"), (partition, offset)
                assert recovered(logs, snapshots, offset) == expected, (partition, offset)
        for log, aborted in replayed.aborted.items():
            index = log.with_suffix(".txnindex")
            assert encode_txns(aborted) == (index.read_bytes() if index.exists() else b""), log
        answer = expected_offsets(kafka_fixtures, partition, root)
        if answer is not None and answer.latest == replayed.end:
            assert replayed.lso == answer.lso, partition


def recovered(logs: list[Path], snapshots: dict[int, bytes], offset: int) -> bytes:
    """The state at ``offset`` for a broker that started at the newest snapshot at a base below."""
    base = max(b for b in map(base_offset, logs) if b in snapshots and b < offset)
    state = ProducerState()
    entries = tuple(decode_snapshot(snapshots[base]))
    state.load(ProducerSnapshot(base, entries), log_start=0, now_ms=MADE_MS)
    return Replayed([log for log in logs if base_offset(log) >= base], state, wanted={offset}).states[offset]


@pytest.mark.parametrize("root", [*CLEANED, MAIN])
def test_the_tail_of_a_cleaned_log_continues_its_snapshot(kafka_fixtures: Path, root: str) -> None:
    """The active segment is never cleaned: loaded at its base and replayed, it ends as the broker's did."""
    compared = 0
    for partition in partitions(kafka_fixtures, root):
        if not is_cleaned(root, partition):
            continue
        directory = partition_dir(kafka_fixtures, partition, root)
        snapshots = snapshots_of(directory)
        tail = max(directory.glob("*.log"))
        base = base_offset(tail)
        if base not in snapshots:
            continue
        state = ProducerState()
        state.load(ProducerSnapshot(base, tuple(decode_snapshot(snapshots[base]))), log_start=0, now_ms=0)
        replayed = Replayed([tail], state, wanted=set())
        if replayed.end in snapshots:
            assert replayed.states[replayed.end] == snapshots[replayed.end], partition
            compared += 1
        index = tail.with_suffix(".txnindex")
        assert encode_txns(replayed.aborted[tail]) == (index.read_bytes() if index.exists() else b"")
    assert compared >= 4


def test_the_same_entries_are_read_back(kafka_fixtures: Path) -> None:
    """The broker's snapshots, loaded without expiry, are stored again in the same bytes."""
    opened = 0
    for path in sorted((kafka_fixtures / MAIN).rglob("*.snapshot")):
        if path.parent.name in LEFT_ALONE:
            continue
        state = ProducerState()
        entries = tuple(decode_snapshot(path.read_bytes()))
        state.load(ProducerSnapshot(base_offset(path), entries), log_start=0, now_ms=0)
        assert encode_snapshot(state.entries()) == path.read_bytes(), path
        assert [p for _, p in state.open_txns()] == [
            e.producer_id for e in sorted(entries, key=lambda e: e.txn_first_offset) if e.txn_first_offset >= 0
        ]
        opened += len(list(state.open_txns()))
    assert opened > 3


def test_aborted_entries_say_what_the_index_says(kafka_fixtures: Path) -> None:
    directory = partition_dir(kafka_fixtures, "txn-0")
    logs = sorted(directory.glob("*.log"))
    replayed = Replayed(logs, ProducerState(), wanted=set())
    found = [txn for log in logs for txn in replayed.aborted[log]]
    stored = [t for p in sorted(directory.glob("*.txnindex")) for t in decode_txns(p.read_bytes())]
    assert found == stored
    assert any(txn.last_stable_offset != txn.last_offset + 1 for txn in found)
