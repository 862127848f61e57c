"""The repair of each damage by ``tiered repair``, and what is left where no copy holds the bytes any more."""

from __future__ import annotations

from typing import NamedTuple

from tests.damage.bucket.actions import EXPECTED, Values
from tests.damage.bucket.place import HIT, TPS, Place, listed
from tests.support.admin import apply_repair, check, plan_repair
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.model import TopicPartition
from tiered.read.bucket import BucketReads
from tiered.reader import Reader
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.store.options import StoreOptions

Lost = dict[TopicPartition, tuple[int, int]]
SEGMENT, NEXT = (5, 10), (10, 12)
"""Offsets of the damaged segment, and of the one after it."""


class Repair(NamedTuple):
    """``lost``: offsets that are gone where neither a version nor a log directory holds them."""

    lost: Lost = {}  # noqa: RUF012 - never written to


def lost(start: int, end: int) -> Repair:
    """Offsets of the damaged partition."""
    return Repair({HIT: (start, end)})


NOTHING = Repair()
WHOLE_SEGMENT = lost(*SEGMENT)
ONE_BATCH = lost(5, 6)

REPAIRS = {
    ".log swapped between two partitions": Repair(dict.fromkeys(TPS[:2], SEGMENT)),
    ".log and .idx swapped between two partitions": Repair(dict.fromkeys(TPS[:2], SEGMENT)),
    ".log swapped between two topics": Repair(dict.fromkeys((TPS[0], TPS[2]), SEGMENT)),
    ".log swapped between two segments": lost(5, 12),
    ".log and .idx swapped between two segments": lost(5, 12),
    ".log gone, and its bytes under the name of another": lost(5, 12),
    ".log is another segment of its partition": WHOLE_SEGMENT,
    ".log of the same shape, other records, right batch CRCs": WHOLE_SEGMENT,
    ".log truncated in a batch": WHOLE_SEGMENT,
    ".log truncated at a batch border": WHOLE_SEGMENT,
    ".log with bytes appended": NOTHING,
    ".log empty": WHOLE_SEGMENT,
    ".log gone": WHOLE_SEGMENT,
    "first .log gone": lost(0, 5),
    "last .log gone": lost(22, 24),
    ".log: a bit of a record": ONE_BATCH,
    ".log: a bit of a base offset": ONE_BATCH,
    ".log: a high bit of a base offset": ONE_BATCH,
    ".log: a bit of a batch length": ONE_BATCH,
    ".log: a high bit of a batch length": ONE_BATCH,
    ".log: a bit of a leader epoch": ONE_BATCH,
    ".log: a bit of the magic": ONE_BATCH,
    ".log: a bit of a CRC": ONE_BATCH,
    ".log: a bit of the record count": ONE_BATCH,
    ".log zeroed": WHOLE_SEGMENT,
    ".log and .idx of two neighbours gone": lost(5, 12),
    ".idx gone": NOTHING,
    "all .idx gone": NOTHING,
    "last .idx gone": NOTHING,
    ".idx empty": NOTHING,
    ".idx truncated": NOTHING,
    ".idx of another segment": NOTHING,
    ".idx of another partition": NOTHING,
    ".idx swapped between two segments": NOTHING,
    ".idx ends as that of another segment": NOTHING,
    ".log and .idx empty": WHOLE_SEGMENT,
    ".log named in capitals": WHOLE_SEGMENT,
    "roots of two partitions swapped": NOTHING,
    "root and topic entry gone": NOTHING,
    ".idx: a bit of a section": NOTHING,
    ".idx: a bit of the head": NOTHING,
    ".idx: a section of 4 GB": NOTHING,
    "root gone": NOTHING,
    "root empty": NOTHING,
    "root truncated": NOTHING,
    "root: a bit": NOTHING,
    "root of the other partition": NOTHING,
    "root of another topic": NOTHING,
    "topic entry gone": NOTHING,
    "topic entry empty": NOTHING,
    "topic entry is no JSON": NOTHING,
    "topic entry of another topic": NOTHING,
    "topic entry with another id": NOTHING,
    "topic entry with 2,000,000 partitions": NOTHING,
    "topic entry with 0 partitions": NOTHING,
    "topic entry with 1 partition of 2": NOTHING,
    "topic entry of 1 MB": NOTHING,
}

UNCHANGED = {
    # Nothing in the bucket proves it, or it is not ours.
    "root older",
    "root with an unknown field",
    "root state deleting",
    "strangers with odd names",
    "strangers with names that are nearly ours",
    # Refused, or left: undo the move, upgrade, put a version of the object back.
    "root of a newer format",
    "topic entry of a newer format",
    "topic entry says deleted",
    "topic entry says that it is being deleted",
    "topic entries with each other's ids",
    "root, its copies and an .idx gone",
    "root, its copies and three .idx gone",
}
"""Damages that a repair leaves as they are, without versions of the objects."""


def plan(place: Place, **options: object) -> RepairPlan:
    """Of both topics."""
    topics = sorted({tp.topic for tp in TPS})
    return plan_repair(place.store(), topics, RepairOptions(**options))  # type: ignore[arg-type]


def repair(place: Place, **options: object) -> RepairPlan:
    """Plan and carry out; gives the plan. Afterwards nothing is found."""
    planned = plan(place, **options)
    apply_repair(place.store(), planned)
    assert plan(place, **options).actions == ()
    return planned


def everything(place: Place) -> dict[TopicPartition, Values]:
    """All records of all partitions, from the bucket alone."""
    found = {}
    with Reader(None, BucketReads(place.store()), StoreOptions(), clock=place.clock, ids=place.ids) as reader:
        for tp in TPS:
            topic = reader.topic(tp.topic)
            found[tp] = {record.offset: record.value or b"" for record in topic.read(partition=tp.partition)}
    return found


def left(gone: Lost) -> dict[TopicPartition, Values]:
    """What is to be read when some offsets are gone."""
    return {
        tp: {at: body for at, body in values.items() if tp not in gone or not gone[tp][0] <= at < gone[tp][1]}
        for tp, values in EXPECTED.items()
    }


def objects(place: Place) -> dict[str, bytes]:
    """All of them."""
    return {entry.key: place.get(entry.key) for entry in listed(place.inner)}


def findings(place: Place) -> list[str]:
    """What ``check --read-data`` says."""
    report = check(None, place.store(), CheckOptions(read_data=True))
    return [f"{one.code}: {one.message}" for one in report.findings if one.severity is not Severity.INFO]
