"""A partitioned, append-only log: Kafka's files on local disk, tiered onto S3-compatible storage. No broker.

::

    import tiered

    with tiered.open("data/log", remote="s3://acme-logs/prod") as log:
        flights = log.topic("flights", partitions=3, create=True)
        md = flights.append(b'{"id": 4711}', key=b"N14228")   # in the page cache; its offset is known
        log.flush()                                           # fsynced: survives a power cut
        log.sync(timeout=60)                                  # sealed, uploaded, committed: survives the machine
        for record in flights.read(since="-1h"):              # one stream over the bucket and the disk
            ...

    with tiered.open_reader("s3://acme-logs/prod") as reader: # read-only, no local state
        table = reader.to_arrow("flights", since="-7d")

Importing this module starts no thread and touches no network. ``import tiered`` also gives ``tiered.aio`` (the same
names for asyncio), ``tiered.admin`` (check, repair, restore, rejoin, erase, snapshot), ``tiered.errors`` (all errors)
and ``tiered.uploader`` (the uploader for ``open``).
``tiered.testing`` holds fakes for tests.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiered import admin, aio, errors, uploader
    from tiered.appending.appender import Appender
    from tiered.appending.receipt import Receipt
    from tiered.errors import TieredError
    from tiered.format.kernels import ConsumerRecord
    from tiered.log import Log, open  # noqa: A004  (the word that users expect)
    from tiered.model import NewRecord, Positions, RecordMetadata, TopicPartition
    from tiered.reader import Reader, open_reader
    from tiered.topic import Topic
    from tiered.transaction import Transaction

__version__ = "1.0.0rc1"

__all__ = [
    "Appender",
    "ConsumerRecord",
    "Log",
    "NewRecord",
    "Positions",
    "Reader",
    "Receipt",
    "RecordMetadata",
    "TieredError",
    "Topic",
    "TopicPartition",
    "Transaction",
    "__version__",
    "admin",
    "aio",
    "errors",
    "open",
    "open_reader",
    "uploader",
]

_HOMES = {
    "Appender": "tiered.appending.appender",
    "ConsumerRecord": "tiered.format.kernels",
    "Log": "tiered.log",
    "NewRecord": "tiered.model",
    "Positions": "tiered.model",
    "Reader": "tiered.reader",
    "Receipt": "tiered.appending.receipt",
    "RecordMetadata": "tiered.model",
    "TieredError": "tiered.errors",
    "Topic": "tiered.topic",
    "TopicPartition": "tiered.model",
    "Transaction": "tiered.transaction",
    "open": "tiered.log",
    "open_reader": "tiered.reader",
}

_MODULES = frozenset({"admin", "aio", "errors", "uploader"})

logging.getLogger("tiered").addHandler(logging.NullHandler())


if not TYPE_CHECKING:  # with it a type checker would accept every misspelt name

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use. Importing the package alone thus loads neither numpy nor an SDK."""
        if name in _MODULES:
            return importlib.import_module(f"tiered.{name}")  # this also sets the attribute
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
