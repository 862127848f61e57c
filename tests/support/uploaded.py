"""Small logs of forty records, uploaded to a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import tiered

RETAINED = {"segment.bytes": 1000, "retention.bytes": 4000}
"""Small segments, of which retention takes the first ones."""
COMPACTED = {"segment.bytes": 1000, "cleanup.policy": "compact", "gc.grace.ms": 0, "merge.min.bytes": 0}
"""Small segments, compacted by key. What that replaces may be collected at once."""


def upload_topics(
    root: Path, config: dict[str, object], names: Iterable[str] = "t", *, partitions: int = 1, log: str = "log"
) -> str:
    """Upload topics of forty records of four keys from ``root/log`` to ``root/store``. Return the URL of the store."""
    url = f"file://{root / 'store'}"
    with tiered.open(root / log, remote=url) as opened:
        for name in names:
            topic = opened.topic(name, create=True, partitions=partitions, config=config)
            for number in range(40):
                value = b"%02d" % number + b"x" * 100
                topic.append(value, key=b"%d" % (number % 4), partition=number % partitions)
        opened.sync(timeout=60)
    return url
