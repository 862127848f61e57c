"""What processes do: real steps of the engine and of maintenance, and what they tell of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from tests.explore.machine import TOPIC_ID, TP, Machine, values
from tests.explore.process import Mark, Program, Report
from tiered.config import TopicConfig
from tiered.engine.steps import BucketSteps
from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    FencedError,
    LockedError,
    NotFoundError,
    OffsetOutOfRangeError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.batch import decode_records
from tiered.format.keys import join_uid, parse_segment_key
from tiered.plan.commit import SHAPE, Shape
from tiered.plan.maintenance import MaintenanceAction, MaintenanceKind
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.remote.maintain import Maintainer
from tiered.remote.pins import Pin
from tiered.remote.reader import RemotePartition
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import create_snapshot, delete_snapshot
from tiered.remote.topics import TopicEntry
from tiered.store.base import Capabilities, Emit, Missing, Put, Steps
from tiered.store.unique_upload import PartSizes

TRUSTED = Capabilities(conditional_writes=True, ranges=True, returns_crc32c=True, verifies_crc32c=True)
PASSING = (CommitUnknownError, RemoteUnavailableError, RemotePermissionError, LockedError)
"""Errors after which a process does the same again, under a new claim."""


def without_grace(config: TopicConfig) -> TopicConfig:
    """Everything in the trash is old enough at once: the explorer gives no credit for time."""
    object.__setattr__(config, "gc_grace_ms", -(10**15))
    return config


class Engine(BucketSteps):
    """The engine's steps with pages of another size."""

    def __init__(self, machine: Machine, owner: str, shape: Shape) -> None:
        super().__init__("memory://", machine, lambda: machine, owner=owner, sizes=PartSizes())  # type: ignore[arg-type, return-value]
        self.capabilities = TRUSTED
        self.registered[TP.topic] = TopicEntry(TP.topic, TOPIC_ID, 1)
        self._shape = shape

    def catalog(self, tp: Any) -> Any:
        catalog = yield from super().catalog(tp)
        catalog._shape = self._shape
        return catalog


def writer(segments: int, *, owner: str = "w", trims: Sequence[int] = (), shape: Shape = SHAPE) -> Program:
    """Claims, uploads what the bucket lacks, until it has made ``segments`` of its own; then trims."""

    def run(machine: Machine) -> Generator[Any, Any, None]:
        engine = Engine(machine, owner, shape)
        while True:
            yield Mark(("claim",), (engine,))
            try:
                granted = yield from engine.claim(TP)
                yield Report("claimed", ("w", granted.claim_epoch))
                yield from _uploaded(machine, granted.next_offset)
                yield from engine.sweep_dead_uploads(TP, granted.claim_epoch, granted.next_offset)
                yield from _upload(engine, machine, granted.claim_epoch, granted.next_offset, segments)
                for trim in trims:
                    catalog = engine.held(TP)
                    if catalog is None:
                        raise FencedError("taken over")
                    yield Mark(("trim", trim), (engine,))
                    yield from catalog.trim(trim)
                    yield Report("trimmed", (trim,))
                return
            except FencedError as error:
                yield Report("fenced", (machine.disk.volume, error.message))
                return
            except PASSING:
                continue
            except TieredError as error:
                yield _unexpected(error)
                return

    return run


def _unexpected(error: TieredError) -> Report:
    """What may be said to who was fenced long ago: what it has just uploaded was swept."""
    if isinstance(error, CorruptionError) and "is absent although the store acknowledged it" in error.message:
        return Report("orphaned", (error.path_or_key,))
    return Report("broken", (f"{type(error).__name__}: {error}",))


def _uploaded(machine: Machine, end: int) -> Generator[Any, Any, None]:
    """What a volume under a claim holds below the committed end counts as uploaded, and may leave its disk."""
    for base, next_base, who in machine.disk.segments:
        if next_base <= end:
            yield Report("acked", (tuple(values(base, next_base, who).items()),))


def _upload(engine: Engine, machine: Machine, epoch: int, end: int, most: int) -> Generator[Any, Any, None]:
    machine.note(end, epoch)
    while (ref := machine.next_segment(end, most)) is not None:
        yield Mark(("append", epoch, end), (engine,))
        row = yield from engine.upload(TP, ref, epoch)
        uid = join_uid(row.id_hi, row.id_lo)
        try:
            root = yield from engine.commit(TP, epoch, [row])
        except FencedError:
            if TP not in engine._unseen:  # else it was acknowledged before it was looked at
                yield Report("failed", ((uid,),))
            raise
        who = next(who for base, _, who in machine.disk.segments if base == ref.base)
        yield Report("acked", (tuple(values(row.base, row.next, who).items()),))
        end = root.next_offset
        if end != row.next:
            raise CommitUnknownError("the engine claims again: the root that it read back ends elsewhere")
        machine.note(end, epoch)


class Keeper:
    """A maintainer, and the uids of the objects that its action has put."""

    def __init__(self, shape: Shape, owner: str) -> None:
        self._maintainer = Maintainer(
            TP, TOPIC_ID, without_grace(TopicConfig()), owner=owner, known=RootLowerBounds(made=True)
        )
        self._maintainer._catalog._shape = shape
        self.uids: tuple[str, ...] = ()

    def spy(self, steps: Steps[Any]) -> Steps[Any]:
        """``steps``, with an eye on what they put."""
        self.uids = ()
        answer: Any = None
        error: TieredError | None = None
        while True:
            try:
                request = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            if isinstance(request, Put) and (parsed := parse_segment_key(request.key)) is not None:
                self.uids = tuple(dict.fromkeys((*self.uids, parsed.name.uid)))
            answer, error = None, None
            try:
                answer = yield request
            except TieredError as raised:
                error = raised

    def merge(self, start: int, end: int) -> Steps[None]:
        """Rows ``start`` to ``end`` become one."""
        snapshot = yield from self._maintainer._catalog.pin()
        assert snapshot is not None
        rows = yield from snapshot.piece(start)
        chosen = tuple(row for row in rows if start <= row.base and row.next <= end)
        if len(chosen) < 2:
            return
        action = MaintenanceAction(MaintenanceKind.MERGE, start, end, "small", rows=chosen)
        try:
            done = yield from self.spy(self._maintainer.run(action, TRUSTED))
        except FencedError:
            yield Report("failed", (self.uids,))
            raise
        yield Report("failed" if done.note else "replaced", (self.uids,))

    def trim(self, offset: int) -> Steps[None]:
        """The log begins at ``offset``."""
        yield from self._maintainer.plan(())
        yield from self._maintainer.run(MaintenanceAction(MaintenanceKind.RETENTION, 0, offset, "old"), TRUSTED)
        yield Report("trimmed", (offset,))

    def collect(self) -> Steps[None]:
        """What is in the trash goes."""
        yield from self._maintainer.plan((MaintenanceKind.COLLECT,))
        yield from self._maintainer.run(MaintenanceAction(MaintenanceKind.COLLECT, 0, 0, "garbage"), TRUSTED)

    def sweep(self) -> Steps[None]:
        """Orphans go."""
        yield from self._maintainer.sweep(delete=True)


def maintainer(acts: Sequence[tuple[Any, ...]], *, owner: str = "m", shape: Shape = SHAPE) -> Program:
    """Each act a method of :class:`Keeper` and its arguments; one claim for all of them."""

    def run(machine: Machine) -> Generator[Any, Any, None]:
        keeper, at = Keeper(shape, owner), 0
        while at < len(acts):
            yield Mark((at,), (keeper,))
            name, *arguments = acts[at]
            try:
                yield from getattr(keeper, name)(*arguments)
                at += 1
            except FencedError:
                yield Report("fenced")
                return
            except PASSING:
                keeper = Keeper(shape, owner)
            except OffsetOutOfRangeError:
                at += 1
            except TieredError as error:
                yield _unexpected(error)
                return

    return run


def reader(start: int, *, pinned: bool = False) -> Program:
    """Reads all that a root names. Without a pin it finds what was collected meanwhile in a newer root; with one,
    nothing that it reads may be collected.
    """

    def run(machine: Machine) -> Generator[Any, Any, None]:
        pin = Pin(TP.topic, TOPIC_ID, 0, set()) if pinned else None
        partition = RemotePartition(TP, TOPIC_ID, known=RootLowerBounds(made=True), pin=pin)
        found: list[tuple[int, bytes]] = []
        try:
            snapshot = yield from partition.snapshot()
            assert snapshot is not None
            end = snapshot.next_offset
            yield from _emitted(partition.read(max(start, snapshot.start_offset), end), found, pinned=pinned)
        except (RemoteUnavailableError, RemotePermissionError, OffsetOutOfRangeError):
            return
        except TieredError as error:
            yield Report("broken", (f"{type(error).__name__}: {error}",))
            return
        yield Report("read", (max(start, snapshot.start_offset), end, tuple(found)))
        yield from partition.release()

    return run


def _emitted(steps: Steps[None], found: list[tuple[int, bytes]], *, pinned: bool) -> Steps[None]:
    answer: Any = None
    error: TieredError | None = None
    while True:
        try:
            request = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        answer, error = None, None
        if isinstance(request, Emit):
            found += [(record.offset, record.value) for record in decode_records(bytes(request.value[1]))]
            continue
        try:
            answer = yield request
        except TieredError as raised:
            error = raised
        if pinned and isinstance(answer, Missing):
            yield Report("broken", (f"a reader with a pin misses {request}",))


def keeper_of(name: str, *, times: int = 1) -> Program:
    """Takes a snapshot; deletes it and takes it again, until it was taken so many times."""

    def run(machine: Machine) -> Generator[Any, Any, None]:
        view = RootView(TOPIC_ID, 0, TP.topic, RootLowerBounds(made=True))
        for turn in range(times):
            try:
                if turn:
                    yield Report("dropped", (name,))
                    yield from delete_snapshot(view, name)
                yield from create_snapshot(view, name)
            except (CommitUnknownError, RemoteUnavailableError, RemotePermissionError, ConfigError, NotFoundError):
                # ConfigError: somebody has made it, an earlier life perhaps, and was told so or not. NotFoundError:
                # here any time may pass between two requests, also that after which what is only begun is deleted.
                return
            except TieredError as error:
                yield Report("broken", (f"{type(error).__name__}: {error}",))
                return
            yield Report("kept", (name,))

    return run
