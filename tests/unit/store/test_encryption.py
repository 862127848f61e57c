"""Every object that the product makes asks for its encryption: counted over a log's whole life, request by request."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.admin import apply_repair, check, plan_repair
from tests.unit.remote.building import TRUSTED
from tiered.check.check import CheckOptions
from tiered.clock import SystemClock, SystemIds
from tiered.config import LogConfig, TopicConfig
from tiered.format.keys import index_key
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.log import Log
from tiered.model import BytesSource, TopicPartition
from tiered.plan.maintenance import MaintenanceKind
from tiered.remote.maintain import Maintainer
from tiered.remote.topics import load_topic
from tiered.store.base import ABSENT, MIN_PART_BYTES, Delete, Get, Object, Outcome, Put, StartUpload, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.store.s3_requests import S3Target, call_for
from tiered.store.unique_upload import PartSizes, upload_object

TP = TopicPartition("t", 0)
KEY = "arn:aws:kms:eu-central-1:123456789012:key/1111"
TARGET = S3Target("bucket", "log", sse="aws:kms", sse_kms_key_id=KEY)
BEGINS = {"put_object", "create_multipart_upload"}
"""S3 takes the encryption of an object from the request that begins it; parts and completion have none of their own."""


class Asked:
    """A store that counts the calls of S3 that its requests would be, by whether they carry the key."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.url = self.inner.url
        self.calls: Counter[tuple[str, bool]] = Counter()
        self.kinds: set[str] = set()

    def execute(self, request: StoreRequest) -> Outcome:
        call = call_for(TARGET, request)
        sse = (call.parameters.get("ServerSideEncryption"), call.parameters.get("SSEKMSKeyId"))
        assert sse in {("aws:kms", KEY), (None, None)}
        self.calls[call.method, sse[0] is not None] += 1
        if isinstance(request, Put | StartUpload):
            self.kinds |= {kind for kind in ("root", "/s/", "/pin/", "/aside/", "topics/") if kind in request.key}
        return self.inner.execute(request)

    def close(self) -> None:
        """Nothing is open."""


def test_no_object_of_a_log_is_made_without_its_key(tmp_path: Path) -> None:
    """Registration, claims, segments in one piece and in parts, merges, pins, repairs: counted."""
    store, clock, ids = Asked(), SystemClock(), SystemIds()
    config = LogConfig(remote=True, disk_reserve_bytes=0)
    local = LocalTier.open([tmp_path / "log"], clock=clock, ids=ids, config=config)
    settings = TopicConfig.from_properties({"segment.bytes": 8192})
    with Log(local, store, clock=clock, ids=ids) as log:
        topic = log.topic("t", create=True, config=settings)
        for number in range(6):
            topic.append(b"%d" % number, timestamp=1)
            log.sync()
    drive(
        store, upload_object("large", BytesSource(bytes(MIN_PART_BYTES + 1)), sizes=PartSizes(multipart_above_bytes=1))
    )
    entry = drive(store, load_topic("t"))
    assert entry is not None
    maintainer = Maintainer(TP, entry.topic_id, settings, owner="m")
    plan = drive(store, maintainer.plan((MaintenanceKind.MERGE,)))
    assert plan is not None
    for action in plan.actions:
        drive(store, maintainer.run(action, TRUSTED))
    snapshot = drive(store, maintainer._catalog.pin())
    assert snapshot is not None
    (row, *_) = snapshot.root.rows
    key = index_key(entry.topic_id, 0, row)
    found = store.inner.execute(Get(key))
    assert isinstance(found, Object)
    store.inner.execute(Delete((key,)))
    store.inner.execute(Put(key, found.data[:-1] + b"x", ABSENT))
    apply_repair(store, plan_repair(store, [TP]))
    assert check(None, store, CheckOptions(read_data=True)).exit_code == 0
    begun = {method: count for (method, carries), count in store.calls.items() if carries}
    assert begun.keys() == BEGINS
    assert not [method for (method, carries) in store.calls if method in BEGINS and not carries]
    assert store.calls["create_multipart_upload", True] == 1
    assert store.calls["upload_part", False] == 1
    assert store.kinds == {"root", "/s/", "/pin/", "/aside/", "topics/"}
