"""A member of a group: ``python -m tests.chaos.group_worker REMOTE NOTES``. It notes each record before its commit.

The notes have the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path

import tiered
from tests.chaos.notes import Notes
from tiered.clock import SystemClock
from tiered.errors import TieredError
from tiered.group.member import GroupSettings

TIMES = GroupSettings(heartbeat_ms=2_000, lease_ms=6_000, handover_ms=20_000, max_poll_interval_ms=120_000)
GROUP, TOPIC = "workers", "orders"
CLOCK = SystemClock()


class Noting(logging.Handler):
    """Notes what the member logs: its heartbeats, and why it lost something."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.DEBUG)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.add("log", at=CLOCK.monotonic(), text=record.getMessage())


def consume(remote: str, notes: Notes, stop: threading.Event) -> None:
    """Until ``stop`` is set, or an error: the next call begins again."""
    with tiered.open_reader(remote) as reader, reader.consumer(GROUP, TOPIC, times=TIMES) as consumer:
        while not stop.is_set():
            asked = CLOCK.monotonic()
            records = consumer.poll(max_records=50, timeout=0.5)
            if not records:
                continue
            handed = [[record.partition, record.offset] for record in records]
            notes.add("handed", asked=asked, at=CLOCK.monotonic(), records=handed)
            try:
                consumer.commit()
            except TieredError as error:
                notes.add("commit failed", at=CLOCK.monotonic(), error=error.code)


def main(remote: str, path: Path) -> int:
    notes = Notes(path)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    logger = logging.getLogger("tiered.group")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Noting(notes))
    notes.add("begun", at=CLOCK.monotonic())
    while not stop.is_set():
        try:
            consume(remote, notes, stop)
        except TieredError as error:
            notes.add("error", at=CLOCK.monotonic(), error=error.code)
            stop.wait(0.5)
    notes.add("ended", at=CLOCK.monotonic())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
