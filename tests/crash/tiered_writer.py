"""A child of ``test_both_tiers``: appends with durability "disk" for ever and prints each acknowledgement.

``python -m tests.crash.tiered_writer LOG_DIR REMOTE RUN``; one line per append call: ``partition offset end id...``.
"""

from __future__ import annotations

import sys
from random import Random

import tiered
from tiered.model import NewRecord

PARTITIONS = 2
CONFIG = {"segment.bytes": 16 * 1024, "index.interval.bytes": 512, "compression.type": "lz4"}


def main() -> None:
    """Appends until it is killed."""
    log_dir, remote, run = sys.argv[1], sys.argv[2], sys.argv[3]
    random = Random(run)
    with tiered.open(log_dir, remote=remote) as log:
        topic = log.topic("t", partitions=PARTITIONS, create=True, config=CONFIG)
        call = 0
        while True:
            call += 1
            partition = random.randrange(PARTITIONS)
            count = random.choice((1, 1, 3, 20))
            names = [f"{run}.{call}.{i}" for i in range(count)]
            records = [NewRecord(name.encode().ljust(random.randrange(20, 400), b"."), b"k") for name in names]
            written = topic.append_many(records, partition=partition, durability="disk")[0]
            print(written.partition, written.offset, written.end_offset, *names, flush=True)


if __name__ == "__main__":
    main()
