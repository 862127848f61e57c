"""Acceptance cases of compaction that need a producer, a broker's files and a reload; the number is the case's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.local.bench import TP
from tests.unit.local.cleaning.cleaning_bench import CleaningBench
from tests.unit.local.partition.producer_bench import end
from tiered.errors import OutOfOrderSequenceError
from tiered.format.batch import BatchProducer, encode_batch, read_header
from tiered.format.control import ControlType, marker
from tiered.local.cleaning.rounds import BUFFER_BYTES
from tiered.model import AbortedTxn, NewRecord, RecordMetadata
from tiered.testing.clock import START_MS

HOUR_S = 3600


class TxnBench(CleaningBench):
    """Batches of numbered keys by numbered producers, each with its own sequence."""

    def __init__(self, directory: Path, **config: Any) -> None:
        super().__init__(directory, **{"segment_bytes": 4000, "delete_retention_ms": 1000, **config})
        self.sequences: dict[int, int] = {}

    def keyed(self, pid: int, *keys: int, txn: bool = False) -> bytes:
        """The next batch of a producer; sent it has the offsets that follow."""
        sequence = self.sequences.get(pid, 0)
        self.sequences[pid] = sequence + len(keys)
        records = [NewRecord(b"v", b"%d" % key, self.clock.now_ms()) for key in keys]
        return encode_batch(records, producer=BatchProducer(pid, 0, sequence, transactional=txn))

    def send(self, pid: int, *keys: int, txn: bool = False) -> RecordMetadata:
        return self.partition.append_batches(self.keyed(pid, *keys, txn=txn))

    def mark(self, pid: int, *, abort: bool = False) -> int:
        return self.partition.append_as_coordinator(end(abort=abort, pid=pid, ts=self.clock.now_ms())).offset

    def round(self) -> None:
        """One cleaning of all that there is, from the start; the clock goes on."""
        self.partition.flush()
        self.log.cleaner.checkpoint.lower(TP, 0)
        self.clean()

    @property
    def batches(self) -> list[bytes]:
        return [bytes(found) for found in self.partition.read_batches(0)]

    @property
    def ends(self) -> list[int]:
        """Last offset of every batch."""
        return [read_header(found).last_offset for found in self.batches]

    @property
    def keys(self) -> list[tuple[int, int]]:
        """(offset, key) of every record of users."""
        control = {read_header(b).base_offset for b in self.batches if read_header(b).is_control}
        return [(r.offset, int(r.key or b"-1")) for r in self.records(0) if r.offset not in control]

    @property
    def markers(self) -> list[int]:
        return [read_header(b).base_offset for b in self.batches if read_header(b).is_control]


@pytest.fixture
def bench(tmp_path: Path) -> TxnBench:
    return TxnBench(tmp_path / "log")


@pytest.mark.parametrize("unclean", [False, True])
def test_case_68_the_batches_that_are_left_tell_every_repetition(bench: TxnBench, unclean: bool) -> None:
    sent = [bench.keyed(1, 1, 2, 3), bench.keyed(2, 3, 1, 4), bench.keyed(3, 1, 4)]
    for data in sent:
        bench.partition.append_batches(data)
    bench.seal()
    bench.clean()
    assert bench.keys == [(1, 2), (3, 3), (6, 1), (7, 4)]
    assert bench.ends == [2, 5, 7]
    if unclean:
        bench.kill()
        for name in bench.names(".snapshot"):
            (bench.folder / name).unlink()
        (bench.directory / "recovery-point-offset-checkpoint").unlink()
        bench.open()
    else:
        bench.reopen()
    answers = [bench.partition.append_batches(data) for data in sent]
    assert [(answer.offset, answer.end_offset) for answer in answers] == [(0, 3), (3, 6), (6, 8)]
    assert bench.partition.positions().end_offset == 8
    with pytest.raises(OutOfOrderSequenceError):
        bench.partition.append_batches(encode_batch([NewRecord(b"v", b"1", START_MS)], producer=BatchProducer(1, 0, 4)))
    assert bench.send(4, 2).offset == 8
    bench.seal()
    bench.round()
    assert bench.keys == [(3, 3), (6, 1), (7, 4), (8, 2)]
    assert bench.ends == [2, 5, 7, 8]
    assert [read_header(found).records_count for found in bench.batches] == [0, 1, 2, 1]


def test_case_69_aborted_data_goes_committed_data_and_every_marker_stay(bench: TxnBench) -> None:
    bench.send(1, 1, 2, txn=True)
    bench.send(2, 2, 3, txn=True)
    bench.send(1, 3, 4, txn=True)
    assert (bench.mark(1, abort=True), bench.mark(2)) == (6, 7)
    bench.send(1, 2, txn=True)
    assert bench.mark(1) == 9
    aborted = bench.partition.aborted_txns(0, 10)
    assert aborted == [AbortedTxn(1, 0, 6, 2)]
    bench.seal()
    bench.clean()
    assert bench.keys == [(3, 3), (8, 2)]
    assert bench.markers == [6, 7, 9]
    assert bench.partition.aborted_txns(0, 10) == aborted
    bench.reopen()
    assert bench.partition.aborted_txns(0, 10) == aborted
    assert bench.partition.last_stable_offset() == 10


def test_case_72_a_users_key_that_looks_like_a_marker(bench: TxnBench) -> None:
    key = marker(ControlType.COMMIT, 0, 0).key
    bench.send(1, 1, txn=True)
    bench.mark(1)
    for value in (b"old", b"new"):
        bench.partition.append([NewRecord(value, key)])
    bench.seal()
    bench.round()
    assert bench.markers == [1]
    assert [r.value for r in bench.records() if r.key == key and r.offset != 1] == [b"new"]


def test_case_73_what_was_appended_without_keys_before_goes(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log", cleanup_policy="delete", segment_bytes=4000)
    bench.append(b"a", b"b")
    bench.partition.append([NewRecord(b"c", b"k"), NewRecord(b"d", None)])
    bench.seal()
    bench.log.alter_topic("t", {"cleanup.policy": "compact"})
    bench.clean()
    assert [(r.offset, r.value) for r in bench.records()] == [(2, b"c")]


def test_case_76_a_batch_larger_than_the_buffer_and_the_limit_is_cleaned(tmp_path: Path) -> None:
    bench = CleaningBench(tmp_path / "log", segment_bytes=8 * BUFFER_BYTES, max_message_bytes=4 * BUFFER_BYTES)
    large = bytes(3 * BUFFER_BYTES)
    bench.partition.append([NewRecord(large, b"a"), NewRecord(b"old", b"b")])
    bench.partition.append([NewRecord(b"new", b"b")])
    bench.seal()
    bench.log.alter_topic("t", {"max.message.bytes": 1000})
    bench.clean()
    assert [(r.offset, len(r.value or b"")) for r in bench.records()] == [(0, len(large)), (2, 3)]
