"""What mends each damage: the verb, and what is left afterwards. The third column of the table in ``damages``."""

from __future__ import annotations

from typing import NamedTuple

from tests.damage.bucket.actions import EXPECTED, Values
from tests.damage.bucket.place import HIT, TPS, Place
from tiered.care.check import CheckOptions
from tiered.care.run import (
    check,
    mend,
    plan_entry,
    plan_mend,
    plan_rebuild,
    plan_return,
    put_entry,
    rebuild,
)
from tiered.findings import Severity
from tiered.model import TopicPartition
from tiered.read.bucket import BucketReads
from tiered.reader import Reader
from tiered.store.base import List, Page
from tiered.store.options import StoreOptions

INDEX, DROP, ENTRY, CATALOG, ROOT = VERBS = ("index", "drop-segment", "registry", "rebuild-catalog", "root")
"""Of ``tiered repair``."""


class Repair(NamedTuple):
    """``verbs`` in order, of the damaged partition or those named. ``lost``: offsets that are gone afterwards."""

    verbs: tuple[str, ...] = ()
    lost: tuple[int, int] = (0, 0)
    partitions: tuple[TopicPartition, ...] = (HIT,)


SWAPPED = Repair((INDEX,), partitions=TPS[:2])
WHOLE_SEGMENT = Repair((DROP,), (5, 10))
ONE_BATCH = Repair((DROP,), (5, 6))
TWO_BATCHES = Repair((DROP,), (5, 7))
"""A batch that tells no length, and the one that the offset index has no entry for."""

REPAIRS = {
    ".log swapped between two partitions": SWAPPED,
    ".log and .idx swapped between two partitions": SWAPPED,
    ".log swapped between two topics": Repair((INDEX,), partitions=(TPS[0], TPS[2])),
    ".log swapped between two segments": Repair((INDEX,)),
    ".log and .idx swapped between two segments": Repair((INDEX,)),
    ".log gone, and its bytes under the name of another": Repair((DROP, INDEX), (10, 12)),
    ".log is another segment of its partition": WHOLE_SEGMENT,
    ".log of the same shape, other records, right batch CRCs": WHOLE_SEGMENT,
    ".log truncated in a batch": Repair((DROP,), (9, 10)),
    ".log truncated at a batch border": Repair((DROP,), (6, 10)),
    ".log with bytes appended": Repair((INDEX,)),
    ".log empty": WHOLE_SEGMENT,
    ".log gone": WHOLE_SEGMENT,
    "first .log gone": Repair((DROP,), (0, 5)),
    "last .log gone": Repair((DROP,), (22, 24)),
    ".log: a bit of a record": ONE_BATCH,
    ".log: a bit of a base offset": ONE_BATCH,
    ".log: a high bit of a base offset": ONE_BATCH,
    ".log: a bit of a batch length": TWO_BATCHES,
    ".log: a high bit of a batch length": TWO_BATCHES,
    ".log: a bit of a leader epoch": ONE_BATCH,
    ".log: a bit of the magic": TWO_BATCHES,
    ".log: a bit of a CRC": ONE_BATCH,
    ".log: a bit of the record count": ONE_BATCH,
    ".log zeroed": WHOLE_SEGMENT,
    ".log and .idx of two neighbours gone": Repair((DROP,), (5, 12)),
    ".idx gone": Repair((INDEX,)),
    "all .idx gone": Repair((INDEX,)),
    "last .idx gone": Repair((INDEX,)),
    ".idx empty": Repair((INDEX,)),
    ".idx truncated": Repair((INDEX,)),
    ".idx of another segment": Repair((INDEX,)),
    ".idx of another partition": Repair((INDEX,)),
    ".idx swapped between two segments": Repair((INDEX,)),
    ".idx ends as that of another segment": Repair((INDEX,)),
    ".log and .idx empty": WHOLE_SEGMENT,
    ".log named in capitals": Repair((INDEX,)),
    "roots of two partitions swapped": Repair((CATALOG,), partitions=TPS[:2]),
    "root and topic entry gone": Repair((ENTRY, CATALOG)),
    ".idx: a bit of a section": Repair((INDEX,)),
    ".idx: a bit of the head": Repair((INDEX,)),
    ".idx: a section of 4 GB": Repair((INDEX,)),
    "root gone": Repair((CATALOG,)),
    "root, its copies and an .idx gone": Repair((CATALOG, INDEX)),
    "root, its copies and three .idx gone": Repair((CATALOG, INDEX)),
    "root empty": Repair((CATALOG,)),
    "root truncated": Repair((CATALOG,)),
    "root: a bit": Repair((CATALOG,)),
    "root of the other partition": Repair((CATALOG,)),
    "root of another topic": Repair((CATALOG,)),
    "root: a body that is a bomb": Repair((CATALOG,)),
    "root: a body of 4 GB": Repair((CATALOG,)),
    "root: 2**40 rows": Repair((CATALOG,)),
    "root row of 10 GB": Repair((INDEX,)),
    "root row names an object that is not there": Repair((INDEX,)),
    "root row with another checksum": Repair((INDEX,)),
    "root row without an index": Repair((INDEX,)),
    "root row with wrong timestamps": Repair((INDEX,)),
    "last root row with wrong timestamps": Repair((INDEX,)),
    "root rows with a hole": Repair((CATALOG,)),
    "topic entry gone": Repair((ENTRY,)),
    "topic entry empty": Repair((ENTRY,)),
    "topic entry is no JSON": Repair((ENTRY,)),
    "topic entry of another topic": Repair((ENTRY,)),
    "topic entry with another id": Repair((ENTRY,)),
    "topic entry with 2,000,000 partitions": Repair((ENTRY,)),
    "topic entry with 0 partitions": Repair((ENTRY,)),
    "topic entry with 1 partition of 2": Repair((ENTRY,)),
    "topic entry of 1 MB": Repair((ENTRY,)),
    "topic entry says deleted": Repair((ENTRY,)),
    "topic entry says that it is being deleted": Repair((ENTRY,)),
    "topic entries with each other's ids": Repair((ENTRY,), partitions=(TPS[0], TPS[2])),
    "topic entry from before roots, root gone": Repair((CATALOG,)),
    "root row that tells of aborted transactions": Repair((INDEX,)),
    ".log with a batch that is a bomb, and a row that agrees": Repair((DROP,), (5, 6)),
    # Only somebody who has seen a newer one, or a newer release, knows; or it is as it was asked for.
    "root older": Repair(),
    "root of a newer reader": Repair(),
    "root of a newer format, same reader": Repair(),
    "root with an unknown feature": Repair(),
    "root state deleting": Repair(),
    "topic entry of a newer format": Repair(),
    "strangers with odd names": Repair(),
    "strangers with names that are nearly ours": Repair(),
}


def carry_out(place: Place, verb: str, tp: TopicPartition = HIT) -> None:
    """One verb, planned and done."""
    store = place.store()
    if verb in (INDEX, DROP):
        mend(store, plan_mend(store, tp, drop=verb == DROP), "test")
    elif verb == ENTRY:
        put_entry(store, plan_entry(store, tp.topic))
    elif verb == CATALOG:
        rebuild(store, plan_rebuild(store, tp, "test"))
    elif verb == ROOT:
        rebuild(store, plan_return(store, tp, 1, "test"))


def everything(place: Place) -> dict[TopicPartition, Values]:
    """All records of all partitions, from the bucket alone."""
    found = {}
    with Reader(None, BucketReads(place.store()), StoreOptions(), clock=place.clock, ids=place.ids) as reader:
        for tp in TPS:
            topic = reader.topic(tp.topic)
            found[tp] = {record.offset: record.value or b"" for record in topic.read(partition=tp.partition)}
    return found


def left(lost: tuple[int, int], partitions: tuple[TopicPartition, ...]) -> dict[TopicPartition, Values]:
    """What is to be read when ``lost`` is gone from some partitions."""
    return {
        tp: {at: body for at, body in values.items() if tp not in partitions or not lost[0] <= at < lost[1]}
        for tp, values in EXPECTED.items()
    }


def objects(place: Place) -> dict[str, bytes]:
    """All of them."""
    page = place.inner.execute(List(""))
    assert isinstance(page, Page)
    return {entry.key: place.get(entry.key) for entry in page.entries}


def findings(place: Place) -> list[str]:
    """What ``check --read-data`` says."""
    report = check(None, place.store(), CheckOptions(read_data=True))
    return [f"{one.code}: {one.message}" for one in report.findings if one.severity is not Severity.INFO]
