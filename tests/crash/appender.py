"""The program that is killed: appends calls of several records, flushes now and then, says on stdout what is safe.

Lines: ``open <end>``, then ``call <id> <offset> <end>`` before the next call, and ``safe <end>`` after a flush.
Every record's value is ``<call id>:<index>:<filler>``; a call id is never used twice.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tiered.config import LogConfig, TopicConfig
from tiered.local.directory.log_directory import LocalLog
from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("crash", 0)
CONFIG = TopicConfig(segment_bytes=20_000, index_interval_bytes=500, segment_index_bytes=4096)


def main(directory: str, first_id: int, seed: int) -> None:
    """Appends until killed."""
    dice = random.Random(seed)
    log = LocalLog.open(Path(directory), config=LogConfig(disk_reserve_bytes=0))
    if TP.topic not in log.topics():
        log.create_topic(TP.topic, 1, CONFIG)
    partition = log.partition(TP)
    say = sys.stdout
    say.write(f"open {partition.positions().end_offset}\n")
    call = first_id
    while True:
        count = dice.choice((1, 1, 2, 7, 40))
        filler = b"." * dice.randrange(120)
        metadata = partition.append([NewRecord(b"%d:%d:%s" % (call, i, filler), key=b"k") for i in range(count)])
        say.write(f"call {call} {metadata.offset} {metadata.end_offset}\n")
        call += 1
        if dice.random() < 0.1:
            partition.flush()
            say.write(f"safe {partition.positions().flushed_offset}\n")
            say.flush()
        if dice.random() < 0.02:
            log.tick()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
