"""The time of the last append of a segment: in its note, else the time of its file."""

from __future__ import annotations

import os
from pathlib import Path

from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock

TP = TopicPartition("flights", 0)


def sealed_at(path: Path, clock: FakeClock) -> Path:
    """A log with one sealed segment, whose only record has timestamp 5. Its note."""
    with LocalLog.open(path, clock=clock) as log:
        log.create_topic(TP.topic)
        log.partition(TP).append([NewRecord(b"a", timestamp=5)])
        log.partition(TP).roll()
    return path / "flights-0" / "00000000000000000000.seal"


def test_it_stands_in_the_note_and_without_one_the_file_tells_it(tmp_path: Path) -> None:
    clock = FakeClock()
    at, later_ms = clock.now_ms(), 90_000
    note = sealed_at(tmp_path, clock)
    os.utime(note.with_suffix(".log"), (later_ms / 1000, later_ms / 1000))
    for appended_ms in (at, later_ms):
        with LocalLog.open(tmp_path, clock=clock) as log:
            (sealed,) = log.partition(TP).sealed_segments()
            assert (sealed.appended_ms, sealed.descriptor.appended_ms) == (appended_ms, appended_ms)
        note.unlink(missing_ok=True)
