"""A memory store whose answers to PUTs follow a script, and small builders."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from tiered.errors import RemotePermissionError, RemoteUnavailableError
from tiered.format.keys import split_uid
from tiered.model import Row
from tiered.plan.ownership import RestoredFrom, VolumeProof
from tiered.remote.catalog import Catalog
from tiered.remote.committer import Claim
from tiered.remote.roots import TopicIds, make_roots
from tiered.store.base import Get, Outcome, Put, PutResult, PutStatus, Steps, StoreRequest
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.testing.clock import FakeClock, SeededIds

TOPIC_ID = UUID(int=0x1234567890ABCDEF1234567890ABCDEF)
T = TypeVar("T")
Action = str | Callable[[], object]


class ScriptedStore:
    """Each PUT takes the next word of ``script``; without one it is simply carried out.

    ``ok``; ``lost`` applied, the answer is lost; ``drop`` never arrives; ``late`` arrives at :meth:`deliver`;
    ``conflict`` 409; ``denied`` refused; ``denied-late`` applied, then refused; ``down`` raised as unavailable. A
    callable runs first and consumes no PUT. ``fail_gets``: how many GETs are answered by 503.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.script: deque[Action] = deque()
        self.late: list[Put] = []
        self.puts: list[Put] = []
        self.gets = 0
        self.fail_gets = 0

    @property
    def url(self) -> str:
        return self.inner.url

    def close(self) -> None:
        self.inner.close()

    def deliver(self) -> list[PutStatus]:
        """Delayed PUTs arrive now, under their original conditions."""
        waiting, self.late = self.late, []
        return [self._apply(put).status for put in waiting]

    def _apply(self, put: Put) -> PutResult:
        result = self.inner.execute(put)
        assert isinstance(result, PutResult)
        return result

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, Get):
            self.gets += 1
            if self.fail_gets:
                self.fail_gets -= 1
                raise RemoteUnavailableError("503")
        if not isinstance(request, Put):
            return self.inner.execute(request)
        self.puts.append(request)
        while self.script and callable(self.script[0]):
            action = self.script.popleft()
            assert callable(action)
            action()
        word = self.script.popleft() if self.script else "ok"
        unknown = PutResult(PutStatus.UNKNOWN, cause="timeout")
        match word:
            case "ok":
                return self._apply(request)
            case "lost":
                self._apply(request)
                return unknown
            case "drop":
                return unknown
            case "late":
                self.late.append(request)
                return unknown
            case "conflict":
                return PutResult(PutStatus.CONFLICT)
            case "denied" | "denied-late":
                if word == "denied-late":
                    self._apply(request)
                raise RemotePermissionError("denied", operation="PUT", resource=request.key)
            case "down":
                raise RemoteUnavailableError("503")
        raise AssertionError(word)


class World:
    """A bucket, a clock and ids."""

    def __init__(self) -> None:
        self.clock, self.ids = FakeClock(), SeededIds(1)
        self.store = ScriptedStore(self.clock)
        self.is_rooted = False

    def desk(self, volume_id: str = "v1", owner: str = "") -> Desk:
        if not self.is_rooted:
            self.make_root()
        return Desk(self, volume_id, owner or f"host-{volume_id}:1")

    def make_root(self, topic_id: UUID = TOPIC_ID, partition: int = 0) -> None:
        """Make the root of a partition, as the registration of its topic does."""
        self.is_rooted = True
        steps = make_roots(TopicIds("flights", topic_id), [partition], "registration")
        drive(self.store.inner, steps, clock=self.clock, ids=SeededIds(0))

    def run(self, steps: Steps[T]) -> T:
        return drive(self.store, steps, clock=self.clock, ids=self.ids)


class Desk:
    """One process: a catalog, its volume's kept values and a way to run steps."""

    def __init__(self, world: World, volume_id: str, owner: str) -> None:
        self.world, self.volume_id, self.owner = world, volume_id, owner
        self.token = self.last_append = ""
        self.kept: list[tuple[str | None, str | None]] = []
        self.catalog = Catalog(TOPIC_ID, 0, "flights", persist=self._persist)

    def _persist(self, token: str | None, last_append: str | None) -> None:
        self.kept.append((token, last_append))
        self.token = self.token if token is None else token
        self.last_append = self.last_append if last_append is None else last_append

    def proof(
        self,
        *,
        empty: bool = False,
        end_offset: int = 1 << 40,
        restored_from: RestoredFrom | None = None,
        start_offset: int = 0,
        leader_epoch: int = -1,
    ) -> VolumeProof:
        return VolumeProof(
            self.volume_id,
            empty,
            end_offset,
            self.token,
            self.last_append,
            restored_from,
            start_offset,
            leader_epoch,
        )

    def claim(self, proof: VolumeProof | None = None) -> Claim:
        return self.world.run(self.catalog.claim("w", self.owner, proof or self.proof()))

    def maintain(self) -> Claim:
        return self.world.run(self.catalog.claim("m", self.owner))

    def row(self, base: int, end: int, **changes: int) -> Row:
        high, low = split_uid(self.world.ids.uid())
        row = Row(
            base, end, base, end, (end - base) * 10, 7, high, low, 600, self.catalog.claim_epoch, end - base, 0, 0
        )
        return row._replace(**changes)
