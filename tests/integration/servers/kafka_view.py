"""What we say of our directories, in the words of :mod:`tests.integration.servers.kafka`: a broker says the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.integration.servers.kafka import Heard, Seen
from tests.integration.servers.kafka_wire import ActiveProducer
from tiered.clock import SystemClock
from tiered.format.producer_snapshot import decode_snapshot
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.local.directory.read_only_log import LogView
from tiered.local.disk.files import Files
from tiered.local.partition.read_log import ReadLog
from tiered.model import TopicPartition
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream
from tiered.testing.clock import FakeClock, SeededIds


class Told(NamedTuple):
    """One partition as we read it: at both isolation levels, offsets of some times, the ends of its leader epochs."""

    everything: Heard
    committed: Heard
    times: dict[int, int]
    epochs: dict[int, tuple[int, int]]


def now_clock() -> FakeClock:
    """A clock that begins now: a broker forgets producers that were idle for a day."""
    return FakeClock(SystemClock().now_ms())


def open_for_writing(log_dirs: Sequence[Path], clock: FakeClock, files: Files | None = None) -> LocalTier:
    """The broker's directories are ours until the log is closed."""
    return LocalTier.open(log_dirs, clock=clock, ids=SeededIds(3), files=files)


def tell(log_dirs: Iterable[Path], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Told]:
    """Reads closed directories."""
    wanted = set(partitions)
    told: dict[TopicPartition, Told] = {}
    for directory in log_dirs:
        with LogView.open(directory, clock=FakeClock()) as log:
            for tp in wanted.intersection(log.partitions()):
                assert tp not in told, tp
                told[tp] = told_by(log.partition(tp))
    assert set(told) == wanted
    return told


def told_by(partition: ReadLog) -> Told:
    """Reads a partition."""
    stream = PartitionStream.open(partition.tp, local=partition, remote=None)
    start, end, stable = stream.earliest(), stream.latest(), stream.last_stable_offset()
    everything = Heard(start, end, _seen(stream, "read_uncommitted"))
    stamps = [record.timestamp for record in everything.records if record.timestamp >= 0]
    wanted = {0, *stamps[:: max(1, len(stamps) // 5)], max(stamps, default=0) + 1}
    times = {}
    for timestamp in wanted:
        found = partition.offset_for_time(timestamp)
        times[timestamp] = -1 if found is None else found[0]
    committed = Heard(start, stable, _seen(stream, "read_committed"))
    entries = partition.leader_epochs()
    ends = [*(entry.start_offset for entry in entries[1:]), end]
    epochs = {entry.epoch: (entry.epoch, last) for entry, last in zip(entries, ends, strict=False)}
    return Told(everything, committed, times, epochs)


def _seen(stream: PartitionStream, isolation: str) -> list[Seen]:
    return [
        Seen(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, list(r.headers))
        for r in stream.records(ReadRange(), isolation=isolation)
    ]


def logs_of(log_dirs: Iterable[Path], tp: TopicPartition) -> dict[str, bytes]:
    """The ``.log`` files of a partition that hold anything."""
    found = {path.name: path.read_bytes() for one in log_dirs for path in (one / str(tp)).glob("*.log")}
    return {name: found[name] for name in sorted(found) if found[name]}


def producers_of(log_dirs: Iterable[Path], tp: TopicPartition, end: int) -> list[ActiveProducer]:
    """The producers in the snapshot that a clean close left at the end of a partition."""
    for directory in log_dirs:
        path = directory / str(tp) / f"{end:020d}.snapshot"
        if path.exists():
            return sorted(
                ActiveProducer(
                    e.producer_id, e.producer_epoch, e.last_sequence, e.timestamp, e.coordinator_epoch, first
                )
                for e in decode_snapshot(path.read_bytes())
                for first in [e.txn_first_offset]
            )
    return []
