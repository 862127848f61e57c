"""Lives of processes: writers, maintainers, who takes snapshots, who deletes topics, readers: the product's steps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tests.sim.bucket.in_parts import compact_in_parts
from tests.sim.bucket.ledger import Log, Said, Violated, said_of
from tests.sim.bucket.process import SteppedProcess
from tests.unit.remote.building import TRUSTED, MemorySegment, seal
from tiered.config import TopicConfig
from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    FencedError,
    LogDestroyedError,
    NotFoundError,
    OffsetOutOfRangeError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.batch import decode_records, encode_batch
from tiered.format.keys import join_uid
from tiered.format.root import STATE_DELETING, STATE_OPEN
from tiered.model import NewRecord, TopicPartition
from tiered.plan.maintenance import PIN_MS, ROUTINE, MaintenanceKind
from tiered.plan.ownership import VolumeProof
from tiered.remote.catalog import Catalog
from tiered.remote.gc.deletion import resume_topic_deletion, start_deletion
from tiered.remote.gc.orphans import sweep_strays
from tiered.remote.gc.sink_orphans import sweep_decisions
from tiered.remote.maintain import Maintainer
from tiered.remote.pins import BEGUN_MS, Pin
from tiered.remote.reader import RemotePartition
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, Past, create_snapshot, delete_snapshot, list_snapshots
from tiered.remote.topics import STATE_DELETED, TopicEntry, list_topics, load_topic, register_topic
from tiered.remote.upload import upload_segment
from tiered.store.base import Steps

if TYPE_CHECKING:
    from tests.sim.bucket.ledger import Ledger


class World(Protocol):
    """What a life needs of the world that it is lived in."""

    rng: random.Random
    ledger: Ledger
    counts: Counter[str]
    sweeps: float
    """Share of rounds of maintenance that end with a sweep."""
    deletes: bool
    """Whether every round ends with a look for strays; else those of the end do."""
    partitions: dict[str, int]
    """Of topics that are made again."""
    sinks: bool
    """Whether Spark sinks write here: then decisions are swept, too."""
    rewrites: bool
    """Whether maintainers also write in other codecs, and compact in two phases."""

    def some_log(self) -> Log | None:
        """A partition that is registered just now."""

    def new_number(self) -> int:
        """One that nobody had."""

    def next_topic_id(self, name: str, config: TopicConfig) -> UUID:
        """Of the next topic of that name: the same until it is registered."""

    def tolerate(self, process: SteppedProcess, error: TieredError, topic: str) -> None:
        """What is no bad weather has to have a reason."""

    def note(self, actor: object, what: str) -> None:
        """One line for whoever replays it."""


PASSING = (CommitUnknownError, RemoteUnavailableError, RemotePermissionError)
"""Anybody may meet these under such weather, and comes again."""
KEYS = 5
"""Different keys of a compacted log."""
SNAPSHOT_NAMES = tuple([f"snap{number}" for number in range(12)])
MAP_BYTES = 2_000
"""Of a compaction's map of keys: some rounds have to be made twice."""


# -- writers -----------------------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """A volume: what survives a crash. Sealed segments of its log, and the proof of its claims."""

    volume_id: str
    token: str = ""
    last_append: str = ""
    start: int = 0
    segments: list[MemorySegment] = field(default_factory=list)
    copied: bool = False
    short: bool = False
    """It has lost records: a log that ends below what it has noted as committed takes no append."""
    snapshot: Disk | None = None

    @property
    def end(self) -> int:
        """Of its log."""
        return self.segments[-1].descriptor.end_offset if self.segments else self.start

    def persist(self, token: str | None, last_append: str | None) -> None:
        """What is handed to it is durable."""
        self.token = self.token if token is None else token
        self.last_append = self.last_append if last_append is None else last_append

    def proof(self) -> VolumeProof:
        """As a claim is judged by."""
        empty = not self.segments
        return VolumeProof(self.volume_id, empty, self.end, self.token, self.last_append, start_offset=self.start)

    def clone(self) -> Disk:
        """An older copy, to be put back some day."""
        return replace(self, segments=list(self.segments), copied=True, snapshot=None)


class Writer:
    """One topic's partition 0, as a machine with one volume writes it, which may come back as an older copy."""

    def __init__(self, world: World, topic: str, number: int) -> None:
        self.world = world
        self.topic = topic
        self.name = f"writer {topic}{number}"
        self.disk = self._new_disk()
        self.of: UUID | None = None

    def _new_disk(self) -> Disk:
        return Disk(f"v{self.world.new_number()}")

    def crashed(self, rng: random.Random) -> None:
        """What becomes of the disk when the machine dies."""
        disk = self.disk
        if disk.snapshot is not None and rng.random() < 0.5:
            self.disk, disk.snapshot = disk.snapshot, None
        elif rng.random() < 0.5:
            disk.snapshot = disk.clone()
        elif rng.random() < 0.3 and len(disk.segments) > 1:  # its last records never reached the platter
            disk.segments, disk.copied = disk.segments[: rng.randrange(1, len(disk.segments))], True
            disk.short = True

    def life(self, process: SteppedProcess) -> Steps[None]:
        """Claims, appends and uploads until something is wrong, or for a while."""
        try:
            entry = yield from load_topic(self.topic)
            if entry is None or entry.state in {STATE_DELETED, STATE_DELETING}:
                return
            if entry.topic_id != self.of:
                self.disk, self.of = self._new_disk(), entry.topic_id
            disk = self.disk
            if disk.segments and not disk.short and self.world.rng.random() < 0.3:  # an append needs no bucket
                log, epoch = self.world.ledger.logs[entry.topic_id, 0], disk.segments[-1].descriptor.leader_epoch
                disk.segments.append(self._seal(process, log, disk.end, epoch))
            catalog = Catalog(entry.topic_id, 0, self.topic, persist=disk.persist, known=entry.known)
            yield from self._reign(process, entry, catalog, disk)
        except (*PASSING, FencedError):
            return
        except (LogDestroyedError, ConfigError, NotFoundError, CorruptionError) as error:
            self.world.tolerate(process, error, self.topic)

    def _reign(self, process: SteppedProcess, entry: TopicEntry, catalog: Catalog, disk: Disk) -> Steps[None]:
        log = self.world.ledger.logs[entry.topic_id, 0]
        try:
            claim = yield from catalog.claim("w", str(process), disk.proof())
        except FencedError:
            root = log.root
            if root is not None and root.writer.volume == disk.volume_id and not disk.copied:
                raise Violated(f"{process}: the rightful owner of {log.where} is locked out") from None
            self.disk = self._new_disk()
            return
        self.world.counts["claims"] += 1
        if claim.resumes or not disk.segments:
            disk.segments, disk.start, disk.copied, disk.short = [], claim.next_offset, False, False
        elif disk.end < claim.next_offset:
            raise Violated(f"{process} was granted {log.where}: its disk ends at {disk.end} of {claim.next_offset}")
        self._judge_grant(process, log, disk, claim.next_offset)
        for _ in range(self.world.rng.randrange(1, 9)):
            yield from self._append(process, log, catalog, disk)
            if self.world.rng.random() < 0.06 and log.end - log.start > 2:
                offset = self.world.rng.randrange(log.start, log.end - 1)
                log.may_begin_at = max(log.may_begin_at, offset)
                yield from catalog.trim(offset)

    def _judge_grant(self, process: SteppedProcess, log: Log, disk: Disk, end: int) -> None:
        """What a granted volume holds below the end that it was granted is the log's."""
        for segment in disk.segments:
            for offset, said in said_of(segment.data).items():
                if offset < end and offset in log.records and log.records[offset].said != said:
                    raise Violated(f"{process} was granted {log.where} and has {said} at {offset}")

    def _append(self, process: SteppedProcess, log: Log, catalog: Catalog, disk: Disk) -> Steps[None]:
        """One more segment on the disk, then all that the bucket does not have."""
        root = catalog.root
        assert root is not None
        if root.state != STATE_OPEN:
            return
        disk.segments.append(self._seal(process, log, disk.end, root.leader_epoch))
        fresh = [segment for segment in disk.segments if segment.descriptor.base_offset >= root.next_offset]
        epoch, rows = catalog.claim_epoch, []
        for segment in fresh:
            steps = upload_segment(segment, claim_epoch=epoch, capabilities=TRUSTED)
            try:
                rows.append((yield from steps))
            except CorruptionError:  # it stood still, and what it stored may be swept by who has the claim now
                yield from catalog.confirm()
                raise
        try:
            yield from catalog.append((yield from catalog.dated(rows)))
        except FencedError:
            for row in rows:
                self.world.ledger.proven_lost.add(join_uid(row.id_hi, row.id_lo))
                if join_uid(row.id_hi, row.id_lo) in log.ever:
                    raise Violated(f"{process} was told that {row} is not in {log.where}, and it is") from None
            raise CommitUnknownError("fenced") from None
        said: dict[int, tuple[bytes | None, bytes | None]] = {}
        for segment in fresh:
            said |= said_of(segment.data)
        self.world.ledger.acknowledge(log, said, process)

    def _seal(self, process: SteppedProcess, log: Log, base: int, leader_epoch: int) -> MemorySegment:
        rng = self.world.rng
        parts = []
        at = base
        for _ in range(rng.randrange(1, 3)):
            count = rng.randrange(1, 4)
            records = []
            for _ in range(count):
                gone = log.config.compacted and rng.random() < 0.2
                value = None if gone else f"{process} {self.world.new_number()}".encode()
                records.append(NewRecord(value, f"k{rng.randrange(KEYS)}".encode(), process.clock.now_ms()))
            parts.append(encode_batch(records, base_offset=at, leader_epoch=leader_epoch))
            at += count
        made = seal(parts, topic_id=log.topic_id)
        return replace(made, descriptor=replace(made.descriptor, appended_ms=process.clock.now_ms()))


REENCODED = ("gzip", "producer", "zstd")
"""The codecs into which maintainers write anew. The log's end chooses, and no dice: seeds keep their stories."""


# -- maintainers -------------------------------------------------------------------------------------------------------


def maintain(world: World, process: SteppedProcess, *, trims: bool = True) -> Steps[None]:
    """A round over the bucket, as ``Upkeep`` makes it; now and then with an operator's trim, and a sweep."""
    try:
        entries = yield from list_topics()
        for entry in entries:
            if entry.state == STATE_DELETED:
                continue
            if entry.state == STATE_DELETING:
                yield from resume_topic_deletion(entry, str(process))
            for number in range(entry.partitions):
                yield from _maintain(world, process, entry, TopicPartition(entry.name, number), trims)
        if world.sinks and world.rng.random() < world.sweeps:
            yield from sweep_decisions(delete=True)
        if world.deletes or world.sweeps == 1.0:  # without dice: seeds keep their stories
            world.counts["strays"] += (yield from sweep_strays(delete=True)).count
    except PASSING:
        return
    except (LogDestroyedError, FencedError, ConfigError, NotFoundError, CorruptionError) as error:
        world.tolerate(process, error, "")


def _maintain(world: World, process: SteppedProcess, entry: TopicEntry, tp: TopicPartition, trims: bool) -> Steps[None]:
    ledger, rng = world.ledger, world.rng
    config = TopicConfig.from_properties(entry.config)
    log = ledger.logs[entry.topic_id, tp.partition]
    config = replace(config, compression_type=REENCODED[log.end // len(REENCODED) % len(REENCODED)])
    maintainer = Maintainer(tp, entry.topic_id, config, owner=str(process), known=entry.known)
    asked_ms = process.clock.counted_ms()
    sweeps = rng.random() < world.sweeps
    if sweeps:
        yield from maintainer.require_newest_root()
    begin_at = None
    if trims and rng.random() < 0.1 and log.end - log.start > 1:
        begin_at = rng.randrange(log.start, log.end)
        log.may_begin_at = max(log.may_begin_at, begin_at)
    kinds = ROUTINE if not trims or rng.random() < 0.7 else (rng.choice(ROUTINE),)
    if world.rewrites and log.end % len(REENCODED) == 1:
        kinds = (*kinds, MaintenanceKind.REENCODE)
    plan = yield from maintainer.plan(kinds, begin_at=begin_at)
    counted_ms = process.clock.counted_ms
    now_ms = counted_ms()
    for action in plan.actions if plan is not None else ():
        assert plan is not None
        if action.kind is MaintenanceKind.RETENTION:
            ledger.planned_trim(log, plan.version, action.end, now_ms)
        # The date of an answer is as old as its way back took, and a process may stand still meanwhile.
        ledger.at_work[str(process)] = now_ms if process.clock.is_right() else asked_ms, counted_ms
        world.note(process, f"{action.kind} {tp} {action.start} {action.end}")
        if world.rewrites and action.kind is MaintenanceKind.COMPACT and action.end % 3 == 1:
            try:
                world.counts["groups of parts"] += yield from compact_in_parts(process, entry, tp, config)
                world.counts["compact in parts"] += 1
            except NotFoundError as changed:
                if changed.__class__ is not NotFoundError:
                    raise
                world.counts["left"] += 1  # others rewrote it meanwhile: a later round plans anew
            return
        done = yield from maintainer.run(action, TRUSTED, memory_bytes=MAP_BYTES)
        world.counts[action.kind.value] += 1
        world.counts["left" if done.note else "done"] += 1
    if sweeps:
        swept = yield from maintainer.sweep(delete=True)
        world.counts["orphans"] += swept.count


# -- snapshots ---------------------------------------------------------------------------------------------------------


def take_snapshots(world: World, process: SteppedProcess) -> Steps[None]:
    """Keeps a version under a name that is free, which often was one's before, or lets one go."""
    rng, log = world.rng, world.some_log()
    if log is None:
        return
    view = RootView(log.topic_id, log.tp.partition, log.tp.topic)
    making = world.ledger.making
    making.pop(process.name, None)
    began_ms = world.clock.now_ms()
    takers, turn = list[str](), 0
    try:
        if log.snapshots and rng.random() < 0.5:
            name = rng.choice(sorted(log.snapshots))
            del log.snapshots[name]
            world.note(process, f"deletes {name}")
            yield from delete_snapshot(view, name)
            return
        if rng.random() < 0.3:
            yield from drop_doubtful(log, view, making.values())
        name = rng.choice([name for name in SNAPSHOT_NAMES if name not in log.snapshots])
        making[process.name] = name
        takers = world.ledger.takers.setdefault((log.where, name), [])
        takers.append(process.name)
        turn = len(takers)
        root = yield from create_snapshot(view, name)
        world.note(process, f"took {name} of version {root.version}")
        world.ledger.took_snapshot(log, name, root)
    except PASSING:
        return
    except (ConfigError, NotFoundError, CorruptionError) as error:
        replaced = world.clock.now_ms() - began_ms > BEGUN_MS or len(takers) > turn
        if "while it was made" in str(error) and replaced:
            world.counts["gave up"] += 1  # it stood still for so long that it was taken for dead, or another one began
            return
        world.tolerate(process, error, log.tp.topic)


def drop_doubtful(log: Log, view: RootView, making: Collection[str] = ()) -> Steps[None]:
    """Deletes snapshots that are made and nobody was told of: who took them did not learn that they are there.

    What is only begun goes by itself. ``making``: names that are taken just now.
    """
    for taken in (yield from list_snapshots(view)):
        name = taken.source.removeprefix("snapshot ")
        if not taken.begun and name not in log.snapshots and name not in making:
            yield from delete_snapshot(view, name)


# -- topics ------------------------------------------------------------------------------------------------------------


def delete_topics(world: World, process: SteppedProcess, name: str, config: TopicConfig) -> Steps[None]:
    """Deletes a topic; makes another one of its name once it is free."""
    try:
        entry = yield from load_topic(name)
        if entry is None or entry.state == STATE_DELETED:
            fresh = world.next_topic_id(name, config)
            yield from register_topic(name, fresh, world.partitions[name], config.to_text(changed_only=True))
            world.counts["registered"] += 1
        elif entry.state == STATE_OPEN and world.rng.random() < 0.4:
            for number in range(entry.partitions):
                world.ledger.logs[entry.topic_id, number].may_be_deleted = True
            world.note(process, f"deletes {name}")
            yield from start_deletion(entry, str(process))
            world.counts["marked"] += 1
        elif entry.state == STATE_DELETING:
            yield from resume_topic_deletion(entry, str(process))
    except PASSING:
        return
    except (LogDestroyedError, FencedError, ConfigError, NotFoundError, CorruptionError) as error:
        world.tolerate(process, error, name)


# -- readers -----------------------------------------------------------------------------------------------------------


def read_on(world: World, process: SteppedProcess) -> Steps[None]:
    """One reader for a long time: its catalog is pinned, read, refreshed now and then."""
    log = world.some_log()
    if log is None:
        return
    entry = world.ledger.entries[log.tp.topic]
    reader = RemotePartition(log.tp, log.topic_id, known=replace(entry).known)
    try:
        for _ in range(world.rng.randrange(1, 5)):
            if world.rng.random() < 0.5:
                yield from reader.refresh()
            snapshot = yield from reader.snapshot()
            if snapshot is None:
                return
            low, end = snapshot.start_offset, snapshot.next_offset
            low = world.rng.randrange(low, end) if low < end and world.rng.random() < 0.4 else low
            before = world.ledger.logs[log.topic_id, log.tp.partition].versions[snapshot.version].alive
            process.emitted = []
            yield from reader.read(low, end)
            world.ledger.check_read(process, log, _said(process, low, end), (low, end), before)
    except PASSING:
        return
    except OffsetOutOfRangeError as error:
        if log.may_begin_at <= 0 and not log.may_be_deleted:
            raise Violated(f"{process}: {error}") from error
    except (LogDestroyedError, NotFoundError, CorruptionError) as error:
        world.tolerate(process, error, log.tp.topic)


def read_pinned(world: World, process: SteppedProcess) -> Steps[None]:
    """With a pin: what the log was when it began, whatever is collected meanwhile, for as long as a pin counts."""
    log = world.some_log()
    if log is None or log.set_aside:
        return
    pin = Pin(log.tp.topic, log.topic_id, log.tp.partition, set())
    reader = RemotePartition(log.tp, log.topic_id, pin=pin)
    began = process.clock.monotonic()
    try:
        snapshot = yield from reader.snapshot()
        if snapshot is None:
            return
        process.emitted = []
        yield from reader.read(snapshot.start_offset)
    except (*PASSING, OffsetOutOfRangeError):
        return
    except (LogDestroyedError, NotFoundError, CorruptionError) as error:
        world.tolerate(process, error, log.tp.topic)
        return
    read = yield from reader.snapshot()  # the one that it has, without a request
    lasted_ms = (process.clock.monotonic() - began) * 1000
    if read is not None and lasted_ms < PIN_MS and not log.set_aside:
        if read.version != pin.version:
            raise Violated(f"{process} had pinned version {pin.version} of {log.where}, and was cut off")
        low, end = max(read.start_offset, snapshot.start_offset), read.next_offset
        world.ledger.check_past(process, log, read.version, _said(process, low, end), low)
        world.counts["read pinned"] += 1
    yield from reader.release()


def read_as_of(world: World, process: SteppedProcess) -> Steps[None]:
    """What a log was: of a snapshot exactly that, of a version exactly that or an error that says it is collected."""
    rng, log = world.rng, world.some_log()
    if log is None or log.root is None or not log.versions or log.set_aside:
        return
    names = sorted(log.snapshots)
    name = rng.choice(names) if names and rng.random() < 0.7 else ""
    version = log.snapshots[name][0] if name else rng.choice(list(log.versions))
    yield from read_kept(world, process, log, name, version)


def read_kept(world: World, process: SteppedProcess, log: Log, name: str, version: int) -> Steps[None]:
    """Reads snapshot ``name``, or for ``""`` a version, whole."""
    view = RootView(log.topic_id, log.tp.partition, log.tp.topic)
    past = Past(view, AsOf(name=name) if name else AsOf(version=version))
    taken = log.snapshots.get(name)
    reader = RemotePartition(log.tp, log.topic_id, past=past)
    try:
        snapshot = yield from reader.snapshot()
        assert snapshot is not None
        if snapshot.version != version and name and log.snapshots.get(name) is not taken:
            return  # it was deleted, and another one was taken under its name
        if snapshot.version != version:
            raise Violated(f"{process} asks for version {version} of {log.where} and gets {snapshot.version}")
        process.emitted = []
        yield from reader.read(snapshot.start_offset, snapshot.next_offset)
    except PASSING:
        return
    except TieredError as error:
        if log.set_aside:
            return
        if taken is not None and log.snapshots.get(name) is taken:
            raise Violated(f"{process} cannot read snapshot {name} of {log.where}: {error}") from error
        if isinstance(error, NotFoundError) or log.root is None:
            return
        raise Violated(f"{process} reads version {version} of {log.where}: {error}") from error
    found = _said(process, snapshot.start_offset, snapshot.next_offset)
    world.ledger.check_past(process, log, version, found, snapshot.start_offset)


def _said(process: SteppedProcess, low: int, end: int) -> Said:
    """What was emitted to a reader."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    batches: Sequence[tuple[object, memoryview]] = process.emitted
    for _, batch in batches:
        for record in decode_records(batch):
            if not low <= record.offset < end:
                continue
            if record.offset in found:
                raise Violated(f"{process} reads {record.offset} twice")
            found[record.offset] = record.key, record.value
    process.emitted = []
    return found
