"""The program that is killed in the middle of transactions: each writes one number into every partition.

Lines: ``begin <number>`` before a transaction, ``commit <number>`` or ``abort <number>`` after it.
"""

from __future__ import annotations

import random
import sys

import tiered
from tiered.config import LogConfig

PARTITIONS = 3
CONFIG = {"segment.bytes": 4000, "index.interval.bytes": 300, "segment.index.bytes": 4096}


def main(directory: str, first: int, seed: int) -> None:
    """Transactions until killed; some abort, ids change, some bystander appends without a transaction."""
    dice = random.Random(seed)
    log = tiered.open(directory, config=LogConfig(disk_reserve_bytes=0))
    orders = log.topic("orders", partitions=PARTITIONS, create=True, config=CONFIG)
    number = first
    while True:
        sys.stdout.write(f"begin {number}\n")
        sys.stdout.flush()
        commit = dice.random() < 0.7
        txn = orders.transaction(dice.choice(("a", "b", "c")))
        for partition in dice.sample(range(PARTITIONS), PARTITIONS):
            txn.append(b"%d" % number, partition=partition)
            if dice.random() < 0.2:
                orders.append(b"bystander", partition=partition)
        if commit:
            txn.commit()
        else:
            txn.abort()
        sys.stdout.write(f"{'commit' if commit else 'abort'} {number}\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
