"""The repair of a damaged bucket by ``tiered repair``, and what is in it then."""

from __future__ import annotations

from tests.damage.bucket.actions import EXPECTED, Values
from tests.damage.bucket.damages import Lost
from tests.damage.bucket.place import TPS, Place, listed
from tests.support.admin import apply_repair, check, plan_repair
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.model import TopicPartition
from tiered.read.bucket import BucketReads
from tiered.reader import Reader
from tiered.repair.plan import RepairOptions, RepairPlan
from tiered.store.options import StoreOptions


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
