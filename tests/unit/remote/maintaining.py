"""A partition of the bucket that is maintained, and a process that ends between two requests."""

from __future__ import annotations

from tests.support.remote_face import RemoteFace
from tests.unit.remote import building
from tests.unit.remote.building import TOPIC_ID, TRUSTED, RemoteLog
from tests.unit.remote.recording import RecordingStore
from tiered.config import TopicConfig
from tiered.format.keys import partition_prefix
from tiered.format.root import Root
from tiered.model import TopicPartition
from tiered.plan.invariants import check_root
from tiered.plan.maintenance import ROUTINE, MaintenanceAction, MaintenanceKind, MaintenancePlan
from tiered.remote.maintain import ActionResult, Maintainer
from tiered.store.base import List, ListPage
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock


class Bucket:
    """A partition of five small segments, a clock that is a month behind them, and who maintains it."""

    def __init__(self, end: int = 500) -> None:
        self.clock = FakeClock()
        self.store = RecordingStore(MemoryStore(clock=self.clock))
        self.log = RemoteLog(self.store, clock=self.clock)
        if end:
            self.log.fill(end)
        self.clock.advance(31 * 86_400)

    def maintainer(self, config: TopicConfig | None = None, owner: str = "m:1") -> Maintainer:
        tp = TopicPartition(self.log.topic, 0)
        return Maintainer(tp, TOPIC_ID, config or TopicConfig(), owner=owner)

    def plan(self, maintainer: Maintainer, *kinds: MaintenanceKind, begin_at: int | None = None) -> MaintenancePlan:
        plan = drive(
            self.store, maintainer.plan(kinds or ROUTINE, begin_at=begin_at), clock=self.clock, ids=self.log.ids
        )
        assert plan is not None
        return plan

    def run(self, maintainer: Maintainer, action: MaintenanceAction) -> ActionResult:
        return drive(self.store, maintainer.run(action, TRUSTED), clock=self.clock, ids=self.log.ids)

    def face(self) -> RemoteFace:
        return RemoteFace(self.store, self.log.topic, TOPIC_ID, 0, clock=self.clock)

    @property
    def root(self) -> Root:
        root = self.log.root
        assert root is not None
        assert check_root(root) == []
        return root

    def objects(self, folder: str) -> set[str]:
        """Keys below a folder of the partition."""
        page = self.store.inner.execute(List(partition_prefix(TOPIC_ID, 0) + folder))
        assert isinstance(page, ListPage)
        return {entry.key for entry in page.entries}

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(row.base, row.next) for row in self.root.rows]


def offsets(face: RemoteFace, start: int = 0) -> list[int]:
    return building.offsets(face.read_batches(start))
