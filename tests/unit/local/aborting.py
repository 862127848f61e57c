"""A log with aborted transactions, and what can be lost or damaged beside its segments."""

from __future__ import annotations

import shutil
from pathlib import Path

import tiered
from tiered.format.segment_indexes import decode_txns, encode_txns
from tiered.local.directory.read_only_log import LogView
from tiered.model import SealedIndexes, TopicPartition
from tiered.read.stream import ReadRange
from tiered.read.topic import PartitionStream

TP = TopicPartition("t", 0)
ROUNDS = 20


def fill(directory: Path, *, undecided: bool = False) -> None:
    """Aborted and committed records in three segments and more, closed cleanly; a transaction may stay open."""
    log = tiered.open(directory)
    topic = log.topic("t", create=True, config={"segment.bytes": 2000})
    for i in range(ROUNDS):
        txn = topic.transaction("tx")
        txn.append(b"aborted%d" % i + b"." * 150)
        txn.abort()
        topic.append(b"good%d" % i + b"." * 100)
    if undecided:
        topic.transaction("open").append(b"undecided")
        for i in range(ROUNDS):
            topic.append(b"late%d" % i + b"." * 300)
    log.flush()
    if undecided:  # an open transaction is aborted by a close: the directory is that of a process that was killed
        shutil.copytree(directory, directory.with_name("copy"))
    log.close()
    if undecided:
        shutil.rmtree(directory)
        directory.with_name("copy").rename(directory)


def sealed_indexes(directory: Path) -> list[SealedIndexes]:
    """As the daemon prepares them: a reader of somebody else's directory."""
    with LogView.open(directory) as log:
        return [segment.indexes() for segment in log.partition(TP).sealed_segments(0)]


def visible(directory: Path) -> list[bytes]:
    with LogView.open(directory) as log:
        stream = PartitionStream.open(TP, local=log.partition(TP), remote=None)
        return [record.value or b"" for record in stream.records(ReadRange(), isolation="read_committed")]


def good() -> list[bytes]:
    return [b"good%d" % i + b"." * 100 for i in range(ROUNDS)]


def forget_notes(directory: Path) -> None:
    """As a broker, or today's release, leaves it: nobody noted what a segment must have."""
    for path in (directory / "t-0").glob("*.seal"):
        path.unlink()


def cut_entry(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-34])


def flip_first_offset(path: Path) -> None:
    """What no check of the file alone can see: the entry hides other records."""
    entries = decode_txns(path.read_bytes(), int(path.stem))
    path.write_bytes(encode_txns([*entries[:-1], entries[-1]._replace(first_offset=entries[-1].first_offset + 1)]))
