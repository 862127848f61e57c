"""Group worker: several of these share the partitions of a topic in the bucket. There is no broker.

    $ python examples/group_worker.py                  # on as many machines as you like, until SIGTERM
    $ python examples/group_worker.py --until-end      # what there is, then stop

Each order is handled at least once. After a crash before the commit it is handled again, and the handler must allow
for that. This one does: each total remembers the offset of its last order, and ignores orders up to there.
"""

import argparse
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Collection, Iterable

import tiered

REMOTE = os.environ.get("TIERED_REMOTE", "file:///tmp/tieredlog-bucket")
RESULTS = os.environ.get("RESULTS", "totals.db")  # in production: a database that all workers share

TABLE = "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, cents INTEGER, place INTEGER)"
# The orders of a customer are in one partition, so their offsets grow. An offset up to `place` is a repetition.
ADD = """
INSERT INTO totals VALUES (:customer, :cents, :offset)
ON CONFLICT DO UPDATE SET cents = cents + :cents, place = :offset WHERE place < :offset
"""


def handle(batch: Iterable[tiered.ConsumerRecord], results: sqlite3.Connection) -> None:
    """Add the orders of a batch to the totals, in one transaction."""
    with results:
        for record in batch:
            order = json.loads(record.value or b"{}")
            results.execute(ADD, {"customer": order["customer"], "cents": order["cents"], "offset": record.offset})


def lost(partitions: Collection[tiered.TopicPartition]) -> None:
    """Report partitions that other workers have now. A program with a cache of them empties it here."""
    print("lost", *sorted(partitions), file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", default="billing")
    parser.add_argument("--until-end", dest="stop_at", action="store_const", const="end")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # leaves both blocks below: the partitions are free at once
    results = sqlite3.connect(RESULTS)
    results.execute(TABLE)
    handled = 0
    with (
        tiered.open_reader(REMOTE) as reader,
        reader.consumer(options.group, "orders", stop_at=options.stop_at, on_lost=lost) as consumer,
    ):
        for batch in consumer.batches(max_records=1000):
            handle(batch, results)
            consumer.commit()  # after the results: the next start goes on after this batch
            handled += len(batch)
    print(f"handled {handled} orders")


if __name__ == "__main__":
    main()
