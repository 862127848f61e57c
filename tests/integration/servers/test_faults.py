"""Over a real server and a bad network: every commit happens exactly once, every record arrives exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import tiered
from tests.integration.servers.commands import BUCKET, S3Server
from tests.integration.servers.conftest import OpenPrefix
from tests.support.proxy import Fault, FaultKind, FaultProxy
from tests.unit.remote.building import TOPIC_ID, batches, seal
from tiered.errors import RemoteUnavailableError
from tiered.format.keys import Role
from tiered.format.root import Root
from tiered.model import NewRecord
from tiered.plan.lifecycle import VolumeProof
from tiered.remote.catalog import Catalog
from tiered.remote.upload import upload_segment
from tiered.store.base import Steps, Store
from tiered.store.driver import drive
from tiered.store.probe import probe
from tiered.testing.clock import FakeClock, SeededIds

COMMITS = 12
T = TypeVar("T")
ROOT = "*/root"
VOLUME = VolumeProof("volume-a", empty=False, end_offset=COMMITS * 10)


@pytest.fixture
def proxy(minio: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(minio.url) as one:
        yield one


class Writer:
    """One partition's writer: claims, then commits one uploaded segment at a time."""

    def __init__(self, store: Store, seed: int = 1) -> None:
        self.store, self.clock, self.ids = store, FakeClock(), SeededIds(seed)
        self.kept: dict[str, str] = {}
        self.catalog = Catalog(TOPIC_ID, 0, "orders", persist=self.keep)
        self.capabilities = self.run(probe())
        self.claim = self.run(self.catalog.claim(Role.WRITER, "test", VOLUME))

    def keep(self, token: str | None, last_append: str | None) -> None:
        self.kept.update({k: v for k, v in (("token", token), ("last_append", last_append)) if v is not None})

    def run(self, steps: Steps[T]) -> T:
        return drive(self.store, steps, clock=self.clock, ids=self.ids)

    def commit(self, number: int) -> Root:
        """Uploads and commits records ``10 * number`` to ``10 * number + 10``."""
        segment = seal(batches(number * 10, number * 10 + 10))
        upload = upload_segment(
            segment,
            topic_id=TOPIC_ID,
            partition=0,
            claim_epoch=self.catalog.claim_epoch,
            capabilities=self.capabilities,
        )
        return self.run(self.catalog.append([self.run(upload)]))


def committed(store: Store) -> Root:
    """The root as a stranger reads it, past the proxy."""
    root = drive(store, Catalog(TOPIC_ID, 0, "orders").load())
    assert root is not None
    return root


@pytest.mark.parametrize(
    ("fault", "met"),
    [
        (Fault(FaultKind.LOST_RESPONSE, method="PUT", path=ROOT, every=2, times=-1), COMMITS),
        (Fault(FaultKind.RESET_BEFORE, method="PUT", path=ROOT, skip=2, times=3), 3),
        (Fault(FaultKind.ERROR, method="PUT", path=ROOT, skip=2, times=3, status=503), 3),
        (Fault(FaultKind.ERROR, method="PUT", path=ROOT, times=2, status=409, code="ConditionalRequestConflict"), 2),
        (Fault(FaultKind.ERROR, method="PUT", path=ROOT, times=2, status=500, code="InternalError"), 2),
        (Fault(FaultKind.LOST_RESPONSE, method="PUT", path="*/s/*", times=5), 5),
        (Fault(FaultKind.RESET_BEFORE, method="PUT", path="*/s/*", times=5), 5),
    ],
    ids=lambda value: f"{value.kind.value}-{value.path}-{value.status}" if isinstance(value, Fault) else None,
)
def test_every_append_is_committed_exactly_once(
    minio: S3Server, proxy: FaultProxy, open_prefix: OpenPrefix, fault: Fault, met: int
) -> None:
    writer = Writer(open_prefix(proxy.url))
    before = committed(open_prefix(minio.url))
    proxy.add(fault)
    roots = [writer.commit(number) for number in range(COMMITS)]
    assert [root.next_offset for root in roots] == [10 * (number + 1) for number in range(COMMITS)]
    after = committed(open_prefix(minio.url))
    assert after.version - before.version == COMMITS
    assert [(row.base, row.next) for row in map(after.rows.row, range(len(after.rows)))] == [
        (10 * number, 10 * number + 10) for number in range(COMMITS)
    ]
    assert len(proxy.faults_met()) >= met


def test_a_claim_whose_answer_is_lost_is_granted_once(
    minio: S3Server, proxy: FaultProxy, open_prefix: OpenPrefix
) -> None:
    proxy.add(Fault(FaultKind.LOST_RESPONSE, method="PUT", path=ROOT, every=2, times=-1))
    writer = Writer(open_prefix(proxy.url))
    root = committed(open_prefix(minio.url))
    assert (root.version, root.writer.epoch, writer.catalog.claim_epoch) == (2, 1, 1)
    assert writer.kept["token"].endswith(root.writer.token)


def test_an_outage_is_an_error_that_says_retry_and_nothing_is_lost(
    minio: S3Server, proxy: FaultProxy, open_prefix: OpenPrefix
) -> None:
    writer = Writer(open_prefix(proxy.url, deadline_seconds=0.5))
    writer.commit(0)
    proxy.add(Fault(FaultKind.RESET_BEFORE, times=-1))
    with pytest.raises(RemoteUnavailableError):
        writer.commit(1)
    proxy.clear()
    assert writer.commit(1).next_offset == 20


@pytest.mark.parametrize("kind", [FaultKind.LOST_RESPONSE, FaultKind.RESET_BEFORE, FaultKind.ERROR])
def test_a_log_synced_through_faults_reads_back_once(
    minio: S3Server, proxy: FaultProxy, tmp_path: Path, kind: FaultKind
) -> None:
    url = f"s3://{BUCKET}/synced-{kind.value}"
    sent = [b"%06d" % number * 40 for number in range(300)]
    for method in ("PUT", "GET", "POST", "HEAD"):
        proxy.add(Fault(kind, method=method, skip=1, times=2))
    with tiered.open(tmp_path / "log", remote=url, endpoint_url=proxy.url) as log:
        topic = log.topic("orders", create=True, config={"segment.bytes": 16_384, "index.interval.bytes": 512})
        for at in range(0, len(sent), 25):
            topic.append_many([NewRecord(value) for value in sent[at : at + 25]])
        log.sync(timeout=60)
        assert topic.positions(0).uploaded_offset == len(sent)
    assert kind in proxy.faults_met()
    with tiered.open_reader(url, endpoint_url=minio.url) as reader:
        assert [record.value for record in reader.topic("orders").read()] == sent


@pytest.mark.parametrize("kind", [FaultKind.TRUNCATE, FaultKind.LOST_RESPONSE, FaultKind.ERROR])
def test_a_reader_gets_every_record_through_faults(
    minio: S3Server, proxy: FaultProxy, tmp_path: Path, kind: FaultKind
) -> None:
    url = f"s3://{BUCKET}/read-{kind.value}"
    sent = [b"%06d" % number * 40 for number in range(300)]
    with tiered.open(tmp_path / "log", remote=url, endpoint_url=minio.url) as log:
        topic = log.topic("orders", create=True, config={"segment.bytes": 16_384})
        for at in range(0, len(sent), 25):
            topic.append_many([NewRecord(value) for value in sent[at : at + 25]])
        log.sync(timeout=60)
    proxy.add(Fault(kind, method="GET", path="*.log", times=3))
    with tiered.open_reader(url, endpoint_url=proxy.url) as reader:
        assert [record.value for record in reader.topic("orders").read()] == sent
    assert proxy.faults_met() == [kind] * 3
