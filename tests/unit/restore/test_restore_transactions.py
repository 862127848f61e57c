"""Transaction indexes and producer snapshots that a broker wrote come back byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.admin import check, restore
from tiered.check.check import CheckOptions
from tiered.local.directory.read_only_log import LogView
from tiered.model import TopicPartition
from tiered.plan.ownership import VolumeProof
from tiered.remote.catalog import Catalog
from tiered.remote.topics import register_topic
from tiered.remote.upload import upload_segment
from tiered.restore.plan import RestoreOptions
from tiered.store.base import Capabilities
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("both_catalogs")
ALL = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)
TOPIC = "txn"


def upload(directory: Path, store: MemoryStore) -> int:
    """Commits the sealed segments of partition 0 of a broker's directory; gives the committed end."""
    with LogView.open(directory) as broker:
        log = broker.partition(TopicPartition(TOPIC, 0))
        segments = log.sealed_segments()
        topic_id = log.topic_id
        drive(store, register_topic(TOPIC, topic_id, 1, {"cleanup.policy": "delete"}))
        catalog = Catalog(topic_id, 0, TOPIC, persist=lambda _token, _append: None)
        proof = VolumeProof(str(broker.volume_id), False, segments[-1].end_offset, "", "", None)
        claim = drive(store, catalog.claim("w", "test", proof))
        rows = [
            drive(
                store,
                upload_segment(segment, claim_epoch=claim.epoch, capabilities=ALL),
            )
            for segment in segments
        ]
        drive(store, catalog.append(rows))
        return rows[-1].next


def test_they_come_back(kafka_fixtures: Path, tmp_path: Path) -> None:
    store = MemoryStore("restore-transactions")
    try:
        end = upload(kafka_fixtures / "main", store)
        assert check(None, store, CheckOptions(read_data=True)).findings == ()
        report = restore(store, tmp_path / "new", RestoreOptions())
    finally:
        MemoryStore.forget("restore-transactions")
    assert report.notes == ()
    theirs, ours = kafka_fixtures / "main" / f"{TOPIC}-0", tmp_path / "new" / f"{TOPIC}-0"
    compared = 0
    for path in sorted(theirs.iterdir()):
        base = path.name[:20]
        if not base.isdigit() or int(base) > end or (int(base) == end and path.suffix != ".snapshot"):
            continue
        if path.suffix in (".log", ".txnindex", ".snapshot"):
            assert (ours / path.name).read_bytes() == path.read_bytes(), path.name
            compared += 1
    assert compared > 6
