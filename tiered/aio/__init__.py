"""The same names for asyncio: ``async with aio.open(...) as log``, ``await topic.append(...)``, ``async for record``.

::

    from tiered import aio

    async with aio.open("data/log", remote="s3://acme-logs/prod") as log:
        orders = await log.topic("orders", create=True)
        await orders.append(b"hello", key=b"C-88", durability="disk")
        async for record in orders.read(since="-1h"):
            ...

Reads run the same steps as the synchronous API (``read.stream``) on the event loop. S3 requests go through aiobotocore
and need no thread. Files have no asynchronous interface, so disk operations run on a small pool of threads for each log
(``WORKER_THREADS``). Calls that wait for a commit have other threads (``WAITING_THREADS``), and so have ``sync`` and
``close``, which end such waits. Cancelling an ``await`` leaves no task behind. A step that runs on a thread ends there,
so a cancelled append may have landed. A log that a cancelled ``open`` has opened is closed at once. If the end
of a block is cancelled before it began, it still runs: it closes a log, reader or appender, and aborts a transaction.

Each class has a name of its own, such as ``AsyncLog``, and is exported under that of its synchronous pair.
"""

from __future__ import annotations

from tiered.aio import admin
from tiered.aio.appending import AsyncAppender as Appender
from tiered.aio.appending import AsyncReceipt as Receipt
from tiered.aio.appending import AsyncTransaction as Transaction
from tiered.aio.consumer import AsyncConsumer as Consumer
from tiered.aio.log import AsyncFindResult as FindResult
from tiered.aio.log import AsyncLog as Log
from tiered.aio.log import AsyncReader as Reader
from tiered.aio.log import (
    open,  # noqa: A004  (the word that users expect: aio.open)
    open_reader,
)
from tiered.aio.topic import AsyncPartitionStream as PartitionStream
from tiered.aio.topic import AsyncTopic as Topic
from tiered.aio.topic import AsyncTopicReads as TopicReads

__all__ = [
    "Appender",
    "Consumer",
    "FindResult",
    "Log",
    "PartitionStream",
    "Reader",
    "Receipt",
    "Topic",
    "TopicReads",
    "Transaction",
    "admin",
    "open",
    "open_reader",
]
