"""What roles are made for: samples of each kind of key, who may do what to it, and the work of each role."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import tiered
from tests.spark.staging import batch_of, schema_of
from tiered.format import keys
from tiered.format.keys import PageName, Role, SegmentName
from tiered.group.driver import BucketTopics
from tiered.group.member import GroupSettings, Member
from tiered.model import Position
from tiered.read.bucket import BucketReads
from tiered.remote.positions import refuse_logged
from tiered.spark.sink import WritePlan
from tiered.spark.source import TieredDataSource
from tiered.spark.staging import Job
from tiered.spark.write_options import WriteOptions
from tiered.store.base import MIN_PART_BYTES
from tiered.store.driver import drive
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from tiered.testing.clock import FakeClock
from uploader.config import Settings

TOPIC_ID, UID = UUID(int=7), "0f" * 16
VALUES = [b"%04d" % number + b"x" * 100 for number in range(120)]
READ_RECORDS = 7
"""Records that the group ``accounting`` has read."""
SMALL = {"segment.bytes": 4096, "retention.bytes": 10_000}
PARTS = Settings(http=None, scan=200, multipart_above=MIN_PART_BYTES, part_size=MIN_PART_BYTES)


def samples() -> dict[str, list[str]]:
    """Keys of each kind, made by the product."""
    writer, maintainer = (SegmentName(role, 5, 42, UID) for role in Role)
    return {
        "topic": [keys.topic_key("orders")],
        "root": [keys.root_key(TOPIC_ID, 12)],
        "copied": [keys.positions_key(TOPIC_ID, 12)],
        "segment": [make(TOPIC_ID, 12, writer) for make in (keys.segment_key, keys.index_key)],
        "page": [keys.page_key(TOPIC_ID, 12, PageName(Role.WRITER, 5, UID))],
        "maintainer's segment": [make(TOPIC_ID, 12, maintainer) for make in (keys.segment_key, keys.index_key)],
        "maintainer's page": [keys.page_key(TOPIC_ID, 12, PageName(Role.MAINTAINER, 5, UID))],
        "staged": [make(keys.staged_key(TOPIC_ID, 12, UID)) for make in (str, keys.index_key_of)],
        "pin": [keys.pin_key(TOPIC_ID, 12, UID)],
        "snapshot": [keys.snap_key(TOPIC_ID, 12, "release-1")],
        "history": [keys.hist_key(TOPIC_ID, 12, 9)],
        "aside": [keys.aside_key(TOPIC_ID, 12, UID)],
        "audit": [keys.gc_audit_key(TOPIC_ID, 12, 9, UID)],
        "decision": [keys.decision_key("nightly", 7), keys.decision_key("nightly", 7, 2)],
        "erasure": [
            keys.erasure_receipt_key(TOPIC_ID, 12, "nightly"),
            keys.erasure_note_key(TOPIC_ID, 12, "nightly", 42, UID),
        ],
        "member": [keys.group_member_key("billing", f"host~{UID}")],
        "plan": [keys.group_plan_key("billing")],
        "position": [keys.group_partition_key("billing", TOPIC_ID, 12)],
        "probe": [keys.probe_key(UID)],
    }


LOG = {"topic", "root", "segment", "staged", "page", "maintainer's segment", "maintainer's page"}
READ = LOG | {"copied"}
PAST = {"snapshot", "history"}
GROUP = {"member", "plan", "position"}
ALL = LOG | PAST | {"pin"}
OWN = {"segment", "page"}
MINE = {"maintainer's segment", "maintainer's page"}
ALLOWED = {
    ("reader", "s3:GetObject"): READ | PAST | {"erasure"},
    ("consumer", "s3:GetObject"): READ | PAST | GROUP | {"erasure"},
    ("consumer", "s3:PutObject"): GROUP,
    ("consumer", "s3:DeleteObject"): {"member"},
    ("spark", "s3:GetObject"): READ | PAST | {"position"},
    ("auditor", "s3:GetObject"): READ | ALL | GROUP | {"decision", "audit", "erasure"},
    ("writer", "s3:GetObject"): READ | {"history", "plan", "probe"},
    ("writer", "s3:PutObject"): OWN | {"topic", "root", "copied", "history", "probe"},
    ("writer", "s3:PutObjectTagging"): {"segment"},
    ("writer", "s3:AbortMultipartUpload"): {"segment"},
    ("writer", "s3:DeleteObject"): {"probe"},
    ("sink", "s3:GetObject"): {"topic", "root", "staged", "decision", "history", "probe"},
    ("sink", "s3:PutObject"): {"staged", "decision", "topic", "root", "page", "history", "probe"},
    ("sink", "s3:PutObjectTagging"): {"staged"},
    ("sink", "s3:AbortMultipartUpload"): {"staged"},
    ("sink", "s3:DeleteObject"): {"probe"},
    ("maintainer", "s3:GetObject"): READ | ALL | GROUP | {"erasure", "aside", "probe", "decision", "audit"},
    ("maintainer", "s3:PutObject"): MINE
    | PAST
    | {"topic", "root", "pin", "audit", "aside", "erasure", "probe", "decision", "position"},
    ("maintainer", "s3:PutObjectTagging"): {"maintainer's segment"},
    ("maintainer", "s3:AbortMultipartUpload"): {"segment", "maintainer's segment"},
    ("maintainer", "s3:DeleteObject"): OWN
    | MINE
    | PAST
    | GROUP
    | {"staged", "decision", "root", "copied", "pin", "aside", "probe"},
    ("repair", "s3:GetObject"): ALL | {"decision", "audit", "erasure", "aside", "probe"},
    ("repair", "s3:GetObjectVersion"): ALL | {"decision", "audit", "erasure", "aside"},
    ("repair", "s3:PutObject"): ALL | {"decision", "aside", "probe"},
    ("repair", "s3:PutObjectTagging"): {"segment", "maintainer's segment", "staged"},
    ("repair", "s3:AbortMultipartUpload"): {"segment", "maintainer's segment", "staged"},
    ("repair", "s3:DeleteObject"): PAST | {"pin", "probe"},
}
ACTIONS = sorted(
    {action for _, action in ALLOWED} | {"s3:DeleteObjectVersion", "s3:PutBucketPolicy", "s3:PutObjectAcl"}
)


def write(directory: Path, url: str) -> None:
    """Small segments of a topic of two partitions, and a transaction."""
    with tiered.open(directory, url) as log:
        topic = log.topic("orders", partitions=2, create=True, config=SMALL)
        for at in range(0, len(VALUES), 20):
            topic.append_many(VALUES[at : at + 20], partition=0)
        with topic.transaction("billing") as txn:
            txn.append(b"never", partition=1)
            txn.abort()
        with log.consumer("accounting", "orders") as consumer:
            consumer.poll(READ_RECORDS)
            consumer.commit()
        log.sync(timeout=60)


def read(url: str) -> None:
    """All of it, in every way."""
    with tiered.open_reader(url) as reader:
        assert [record.value for record in reader.topic("orders").read(partition=0)] == VALUES
        assert reader.to_arrow("orders", partition=0).num_rows == len(VALUES)
        assert len(list(reader.find("orders", key=b"none"))) == 0


def consume(url: str) -> None:
    """As a member of a group: joins, takes, commits, leaves."""
    reads = BucketReads(StoreLocation.parse(url).open(StoreOptions(create=False)))
    clock = FakeClock()
    drive(reads.store, refuse_logged("billing", ["orders"], clock.now_ms()))
    member = Member("billing", "host", ["orders"], BucketTopics(reads, "latest", None), GroupSettings())
    for _ in range(3):
        clock.advance(drive(reads.store, member.round(), clock=clock))
    assert member.failure is None
    owned = member.poll([], clock.monotonic()).assigned
    assert drive(reads.store, member.commit({tp: Position(1) for tp in owned}), clock=clock) == {}
    drive(reads.store, member.leave(), clock=clock)


def write_in_parts(directory: Path, url: str) -> None:
    """By an uploader, as a multipart upload."""
    with tiered.open(directory, url, uploader=tiered.uploader.Uploader(PARTS)) as log:
        topic = log.topic("big", create=True)
        for _ in range(6):
            topic.append(b"x" * 1_000_000)
        log.sync(timeout=60)


def read_by_spark(url: str, records: int = len(VALUES), **options: str) -> None:
    """As driver and workers do it, without a session."""
    given = {"path": url, "subscribePattern": "ord.*", "isolation.level": "read_committed"}
    source = TieredDataSource(given | options)
    reader = source.reader(source.schema())
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == records


def write_by_spark(url: str) -> None:
    """As planner, task and driver do it, without a session, into a topic that is made on the way; by a stream that had
    to repeat its batch, too."""
    source = TieredDataSource({"path": url, "topic": "copies", "createTopic": "2"})
    rows = [(value, b"key") for value in VALUES]
    plan = WritePlan.from_options(
        WriteOptions.parse(source.options, streaming=False), schema_of("value binary, key binary"), overwrite=False
    )
    for batch in range(2):
        staged = plan.stage(iter([batch_of("value binary, key binary", rows)]), Job("nightly", batch, 0))
        for _ in range(2):
            plan.commit("nightly", batch, [staged])
    plan.commit("nightly", 2, [])
