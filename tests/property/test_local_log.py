"""One partition of the real log beside a list that is always right, through kills, power cuts, deletion and time."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tiered.config import LogConfig, TopicConfig
from tiered.format.batch import assign_offsets, decode_records, encode_batch
from tiered.format.codecs import Codec
from tiered.format.kernels import Record
from tiered.local.directory.manager import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds
from tiered.testing.disk import FaultyFiles
from tiered.testing.model import ModelLog

TP = TopicPartition("t", 0)
CONFIG = TopicConfig(
    segment_bytes=2000, index_interval_bytes=150, segment_index_bytes=96, seal_ms=60_000, file_delete_delay_ms=5_000
)
SETTINGS = LogConfig(disk_reserve_bytes=0)

values = st.one_of(st.none(), st.binary(max_size=60))
offsets_in_time = st.integers(min_value=-50_000, max_value=50_000)
new_records = st.lists(st.tuples(values, values, st.one_of(st.none(), offsets_in_time)), min_size=1, max_size=6)


class LocalLogMachine(RuleBasedStateMachine):
    """Rules are what an application, a clock and bad luck do to a partition."""

    @initialize()
    def create(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tiered-property-"))
        self.clock = FakeClock()
        self.model = ModelLog()
        self.uploaded = 0
        self.files = FaultyFiles()
        self.open()
        self.log.create_topic(TP.topic, 1, CONFIG)
        self.partition = self.log.partition(TP)

    def open(self) -> None:
        self.log = LocalLog.open(
            self.directory / "log", clock=self.clock, ids=SeededIds(1), files=self.files, config=SETTINGS
        )
        if TP.topic in self.log.topics():
            self.partition = self.log.partition(TP)

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.log.close()
            shutil.rmtree(self.directory)

    def records(self, drawn: list[tuple[bytes | None, bytes | None, int | None]]) -> list[NewRecord]:
        now = self.clock.now_ms()
        return [
            NewRecord(value, key, -1 if delta is None else now + delta, [("h", key)] if key else None)
            for value, key, delta in drawn
        ]

    @rule(drawn=new_records)
    def append(self, drawn: list[tuple[bytes | None, bytes | None, int | None]]) -> None:
        records = self.records(drawn)
        metadata = self.partition.append(records)
        assert metadata.offset == self.model.append(records, self.clock.now_ms())
        assert metadata.end_offset == self.model.end

    @rule(drawn=new_records, again=new_records, codec=st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD]))
    def append_batches(
        self,
        drawn: list[tuple[bytes | None, bytes | None, int | None]],
        again: list[tuple[bytes | None, bytes | None, int | None]],
        codec: Codec,
    ) -> None:
        now = self.clock.now_ms()
        stamped = [[r._replace(timestamp=max(r.timestamp, now)) for r in self.records(d)] for d in (drawn, again)]
        data = b"".join(encode_batch(records, codec=codec) for records in stamped)
        metadata = self.partition.append_batches(data)
        assert metadata.offset == self.model.append(stamped[0], now)
        self.model.append(stamped[1], now)  # a power cut may come between two batches of one call

    @rule()
    def flush(self) -> None:
        self.partition.flush()
        self.model.flush()

    @rule()
    def roll(self) -> None:
        before = self.partition.sealed_segments()
        rolled = self.partition.roll()
        assert len(self.partition.sealed_segments()) == len(before) + rolled
        assert not self.partition.roll()

    @rule(seconds=st.integers(min_value=0, max_value=90))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.log.tick()

    @rule(share=st.floats(min_value=0, max_value=1))
    def upload(self, share: float) -> None:
        sealed = self.partition.sealed_segments()
        if sealed:
            self.uploaded = max(self.uploaded, sealed[int(share * (len(sealed) - 1))].end_offset)
            self.partition.set_uploaded(self.uploaded, 1, False)

    @precondition(lambda self: self.uploaded > 0)
    @rule(share=st.floats(min_value=0, max_value=1.2))
    def delete_local(self, share: float) -> None:
        self.partition.set_uploaded(self.uploaded, 1, False)
        asked = int(share * self.model.end)
        bases = self.partition.delete_local_before(asked)
        start = self.partition.positions().local_start_offset
        assert start <= max(min(asked, self.uploaded), self.model.start)
        assert (start > self.model.start) == bool(bases)
        self.model.delete_before(start)

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.open()
        self.model.flush()

    @rule()
    def kill(self) -> None:
        self.abandon()
        self.open()
        assert self.partition.positions().end_offset == self.model.end

    @rule(seed=st.integers(min_value=0, max_value=2**32 - 1))
    def cut_power(self, seed: int) -> None:
        self.model.flushed = max(self.model.flushed, self.partition.positions().flushed_offset)
        self.abandon()
        self.files.cut_power(random.Random(seed))
        self.open()
        self.model.power_cut(self.partition.positions().end_offset)

    def abandon(self) -> None:
        """What a killed process leaves: the files as they are, and no lock."""
        lock = self.log._directory_lock
        assert lock is not None
        assert lock._handle is not None
        lock._release()
        for writer in self.log.roster.awake():
            for segment in (*writer.segments.closing, writer.segments.active):
                segment.close()

    @invariant()
    def reads_are_what_was_appended(self) -> None:
        if not hasattr(self, "partition"):
            return
        positions = self.partition.positions()
        assert (positions.local_start_offset, positions.end_offset) == (self.model.start, self.model.end)
        assert positions.end_offset >= positions.flushed_offset >= min(self.model.flushed, positions.end_offset)
        assert self.read(self.model.start) == self.model.records

    @rule(start=st.floats(min_value=0, max_value=1), length=st.integers(min_value=0, max_value=30))
    def read_some(self, start: float, length: int) -> None:
        first = self.model.start + int(start * (self.model.end - self.model.start))
        assert self.read(first, first + length) == self.model.read(first, first + length)

    @rule(delta=offsets_in_time)
    def find_by_time(self, delta: int) -> None:
        timestamp = self.clock.now_ms() + delta
        assert self.partition.offset_for_time(timestamp) == self.model.offset_for_time(timestamp)

    @rule()
    def read_from_outside(self) -> None:
        with LocalLog.open(self.directory / "log", clock=self.clock, read_only=True) as outside:
            partition = outside.partition(TP)
            found = [r for b in partition.read_batches(self.model.start) for r in decode_records(b)]
            assert found == self.model.records
            ours = [s.descriptor for s in self.partition.sealed_segments()]
            assert [s.descriptor for s in partition.sealed_segments()] == ours
            assert partition.offset_for_time(self.clock.now_ms()) == self.model.offset_for_time(self.clock.now_ms())

    def read(self, start: int, end: int | None = None) -> list[Record]:
        return [
            record
            for batch in self.partition.read_batches(start, end)
            for record in decode_records(batch)
            if start <= record.offset < (self.model.end if end is None else end)
        ]


TestLocalLog = LocalLogMachine.TestCase
TestLocalLog.settings = settings(max_examples=30, stateful_step_count=30, phases=(Phase.generate,))


def test_offsets_are_assigned_in_place() -> None:
    data = bytearray(encode_batch([NewRecord(b"v", None, 5)]))
    assign_offsets(data, 77, 3)
    assert [r.offset for r in decode_records(data)] == [77]
