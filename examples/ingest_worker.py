"""Ingest worker: append each line of stdin to a topic, while an uploader in this process fills the bucket.

    $ echo '{"customer": "C-7", "cents": 1250}' | python examples/ingest_worker.py

`TIERED_REMOTE` is the bucket. `TIERED_LOG_DIR` is a directory that one process writes. A worker that was killed
starts again with the same two: it goes on at the end of the log, and uploads what its predecessor left.
"""

import json
import os
import signal
import sys
from collections.abc import Iterable

import tiered

REMOTE = os.environ.get("TIERED_REMOTE", "file:///tmp/tieredlog-bucket")
LOG_DIR = os.environ.get("TIERED_LOG_DIR", "data/ingest")
SETTINGS = {"compression.type": "zstd", "seal.ms": "1m"}  # records are in the bucket after about a minute


def customer_of(line: str) -> bytes | None:
    """Return the key of a line, None for a line that is no order."""
    try:
        order = json.loads(line)
        return order["customer"].encode() if isinstance(order["cents"], int) else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def ingest(lines: Iterable[str], orders: tiered.Topic) -> None:
    """Append lines until they end, or until SIGTERM or Ctrl-C."""
    appended = skipped = 0
    with orders.appender(linger_ms=5) as appender:  # collects records and writes them as batches
        try:
            for line in lines:
                key = customer_of(line)
                if key is None:
                    skipped += 1
                    continue
                appender.append(line.strip().encode(), key=key)  # orders of one customer stay in their order
                appended += 1
        except KeyboardInterrupt:
            print("stopping", file=sys.stderr)
    # The end of the block wrote what was buffered. An error of the disk would have been raised there.
    print(f"appended {appended} orders, skipped {skipped} other lines")


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop of systemd or Kubernetes is a KeyboardInterrupt
    with tiered.open(LOG_DIR, remote=REMOTE, uploader=tiered.uploader.Uploader()) as log:
        ingest(sys.stdin, log.topic("orders", partitions=3, create=True, config=SETTINGS))
        log.sync(timeout=60)  # waits until the bucket has all; without it the next start uploads the rest


if __name__ == "__main__":
    main()
