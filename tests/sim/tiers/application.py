"""An application: the product's facade on a machine's disk, over many processes that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.sim.tiers.machine import Machine, Process, SimStore
from tests.sim.tiers.truth import PARTITIONS, TOPIC, TPS, Truth, Values, Violated, values_of
from tests.support.admin import plan_rejoin, rejoin, restore
from tiered.config import LogConfig, TopicConfig
from tiered.engine.tiering import Tiering
from tiered.errors import (
    FencedError,
    LockedError,
    OffsetGapError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.local_names import partition_dir
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.log import Log
from tiered.model import TopicPartition
from tiered.read.stream import ReadRange
from tiered.store.layers import LayeredStore
from tiered.store.retry import Retries

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.sim.tiers.world import World

CONFIG = TopicConfig(
    segment_bytes=400,
    seal_ms=-1,
    file_delete_delay_ms=0,
    local_retention_bytes=500,
    local_retention_ms=3 * 86_400_000,
    index_interval_bytes=100,
    segment_index_bytes=1_200,  # far more than such a segment needs; the default is 10 MiB of zeros for each
)
SYNC_TIMEOUT_S = 40.0
KEYS = 6
"""Different keys of a compacted topic."""
RETRY_SECONDS = 5.0


class Copy(NamedTuple):
    """An older copy of a disk, and what was true of it."""

    files: dict[str, bytes]
    content: dict[TopicPartition, Values]
    durable: dict[TopicPartition, int]
    of: UUID | None


class Application:
    """``content``: what this disk was told to hold, by offset; ``durable``: the end that a flush has answered for.

    ``of``: the id of the topic that it holds, of which there may be none in the bucket any more.
    """

    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.process: Process | None = None
        self.log: Log | None = None
        self.content: dict[TopicPartition, Values] = {tp: {} for tp in TPS}
        self.durable: dict[TopicPartition, int] = dict.fromkeys(TPS, 0)
        self.fenced: set[TopicPartition] = set()
        self.copied: set[TopicPartition] = set()  # an older copy of the disk, and no commit has shown otherwise yet
        self.of: UUID | None = None
        self._counted = 0
        self._snapshot: Copy | None = None

    def __str__(self) -> str:
        return f"application {self.machine.root.name}"

    @property
    def truth(self) -> Truth:
        """Of the topic that this disk holds, or will."""
        return self.world.truth if self.of is None else self.world.truth_of(self.of)

    # -- what it does ----------------------------------------------------------------------------------------------

    def act(self) -> None:
        """One thing that applications do."""
        if self.log is None:
            if self.truth.deleted and self.of is not None and self.world.rng.random() < 0.4:
                self._try("drop-topic", self.drop_topic)
            elif self.fenced and self.world.rng.random() < 0.7:
                self._try("rejoin", self.rejoin)
            else:
                self._try("open", self.open)
            return
        assert self.process is not None
        self.process.fuse = self.world.fuse()
        acts: list[tuple[float, str, Callable[[], None]]] = [
            (8, "append", self.append),
            (2, "flush", self.flush),
            (4, "sync", self.sync),
            (3, "tick", self.tick),
            (2, "read", self.read),
            (5 if self.truth.deleted else 0.5, "close", self.close),
        ]
        _, name, act = self.world.rng.choices(acts, [each[0] for each in acts])[0]
        self._try(name, act)
        if self.process is not None:
            self.process.fuse = -1

    def _try(self, name: str, act: Callable[[], None]) -> None:
        self.world.note(self, name)
        try:
            act()
        except FencedError as error:
            self.world.note(self, f"FencedError {error}")
            self._refused()
        except LockedError:
            self.world.note(self, "LockedError")
        except TieredError as error:
            self.world.note(self, f"{type(error).__name__} {error}")
            self.world.tolerated(error, self.truth)
        finally:
            if self.process is not None and self.process.dead:
                self._lost()

    def open(self) -> None:
        """A new process: the log, its topic, what is there."""
        self.process = Process(self.world, self.machine, str(self))
        self.process.fuse = self.world.fuse()
        clock, ids = self.world.clock, self.process.ids
        store = LayeredStore(SimStore(self.process), Retries(clock=clock, ids=ids, deadline_seconds=RETRY_SECONDS))
        local: LocalTier | None = None
        try:
            reachable = Tiering.check_reachable(store, clock=clock, ids=ids)
            config = LogConfig(remote=True, disk_reserve_bytes=0)
            local = LocalTier.open([self.machine.path], clock=clock, ids=ids, files=self.process.files, config=config)
            self.log = Log(local, store, clock=clock, ids=ids, reachable=reachable)
            self._holds(local)
            self.log.topic(TOPIC, partitions=PARTITIONS, create=True, config=self.world.config)
            self._holds(local)
            self._recovered(local)
        except TieredError:
            if not self.process.dead:
                if local is not None:
                    self._holds(local)
                self._end_process(local)
            raise
        self.process.fuse = -1

    def _holds(self, local: LocalTier) -> None:
        """Of which topic this disk is."""
        info = local.topics().get(TOPIC)
        self.of = None if info is None else info.topic_id

    def _recovered(self, local: LocalTier) -> None:
        """What a flush answered for is there; what is there is what was told."""
        for tp in TPS:
            log = local.partition(tp)
            positions = log.positions()
            start, end = positions.local_start_offset, positions.end_offset
            there: Values = {}
            for batch in log.read_batches(start, end):
                there.update(values_of(bytes(batch)))
            told = self.content[tp]
            for offset, value in told.items():
                if there.get(offset, value) != value:
                    raise Violated(f"{self}: {tp} {offset} was {value!r} and is {there[offset]!r}")
                if start <= offset < min(end, self.durable[tp]) and offset not in there:
                    raise Violated(f"{self}: {tp} {offset} was flushed and is gone")
            if told and end < self.durable[tp] and end > start:
                raise Violated(f"{self}: {tp} was flushed up to {self.durable[tp]} and ends at {end}")
            self.content[tp] = {offset: value for offset, value in told.items() if offset < end} | there
            self.durable[tp] = min(self.durable[tp], end)

    def append(self, tp: TopicPartition | None = None) -> None:
        """Some records."""
        assert self.log is not None
        topic = self.log.topic(TOPIC)
        tp = tp or self.world.rng.choice(TPS)
        for _ in range(self.world.rng.randrange(1, 5)):
            self._counted += 1
            value = f"{self.machine.root.name} {self._counted} {self.world.rng.randrange(10**9)}".encode()
            key, sent = None, value
            if self.world.config.compacted:
                key = f"k{self.world.rng.randrange(KEYS)}".encode()
                value, sent = (b"", None) if self.world.rng.random() < 0.15 else (value, value)
            offset = topic.append(sent, key=key, partition=tp.partition).offset
            if self.content[tp].setdefault(offset, value) != value:
                raise Violated(f"{self}: {tp} {offset} is given out twice")

    def flush(self) -> None:
        """All of it."""
        assert self.log is not None
        ends = {tp: positions.end_offset for tp, positions in self.log.positions().items()}
        self.log.flush()
        for tp in TPS:
            self.durable[tp] = max(self.durable[tp], ends[tp])

    def sync(self) -> None:
        """What it acknowledges is in the bucket."""
        assert self.log is not None
        ends = {tp: positions.end_offset for tp, positions in self.log.positions().items()}
        told = {tp: {o: v for o, v in self.content[tp].items() if o < ends[tp]} for tp in TPS}
        committed = {tp for tp in TPS if ends[tp] > self.truth.committed_end(tp)}
        self.log.sync(timeout=SYNC_TIMEOUT_S)
        self.copied -= committed
        for tp in TPS:
            self.durable[tp] = max(self.durable[tp], ends[tp])
            self.truth.acknowledge(tp, told[tp])
        self.world.note(self, "synced")

    def tick(self) -> None:
        """Timers: local retention, checkpoints, what a daemon has committed."""
        assert self.log is not None
        self.world.clock.advance(self.world.rng.choice((1, 30, 400)))
        self.log._local.tick()

    def read(self) -> None:
        """Both tiers, as far as this volume is the one that writes."""
        if self.log is None:
            return
        for tp in TPS:
            expected, content = dict(self.truth.acked[tp]), dict(self.content[tp])
            if not self._owns(tp):
                continue
            try:
                records = list(self.log.topic(TOPIC).stream(tp.partition).records(ReadRange()))
            except TieredError as error:
                # A disk whose note of the committed end is behind a trim has a gap to the bucket, and says so.
                trimmed = isinstance(error, OffsetGapError) and self.truth.start(tp) > 0
                if trimmed or isinstance(error, RemoteUnavailableError) or tp in self.truth.damaged:
                    self.world.note(self, f"{type(error).__name__} {error}")
                    continue
                raise
            found = {record.offset: record.value or b"" for record in records}
            if len(found) != len(records):
                raise Violated(f"{self} reads an offset of {tp} twice")
            if self._owns(tp):
                self.truth.check_read(self, tp, expected | content, found)

    def _owns(self, tp: TopicPartition) -> bool:
        root = self.truth.root(tp)
        assert self.log is not None
        volume = str(self.log._local.volume_id)
        return root is not None and root.writer.volume == volume and tp not in self.fenced | self.copied

    def close(self) -> None:
        """A clean end."""
        assert self.process is not None
        self._end_process(None)

    def _end_process(self, local: LocalTier | None) -> None:
        log, self.log, process, self.process = self.log, None, self.process, None
        try:
            if log is not None:
                log.close()
            elif local is not None:
                local.close()
            if log is not None:
                for tp in TPS:
                    self.durable[tp] = max([self.durable[tp], *(offset + 1 for offset in self.content[tp])])
        finally:
            if process is not None and not process.dead:
                process.die()

    # -- what becomes of it ----------------------------------------------------------------------------------------

    def _refused(self) -> None:
        """A newer claim owns a partition; never the rightful owner's."""
        uploads = None
        if self.log is not None:
            uploads = self.log._local.logs()[self.machine.path].uploads.read()
            volume = str(self.log._local.volume_id)
        for tp in TPS:
            if uploads is None or (tp in uploads and uploads[tp].fenced):
                self.fenced.add(tp)
                root = self.truth.root(tp)
                ours = uploads is not None and root is not None and root.writer.volume == volume
                if ours and tp not in self.copied and tp not in self.truth.damaged:
                    raise Violated(f"{self}: the rightful owner of {tp} is locked out")

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None and not self.process.dead:
            self.process.die()
        self._lost()

    def _lost(self) -> None:
        """The process is gone; what it wrote is in the page cache."""
        if self.log is not None:
            self.log._closed.set()  # the thread of its timers ends
        self.log = self.process = None

    def lost_power(self) -> None:
        """What was not flushed may be gone."""
        self._lost()
        for tp in TPS:
            self.content[tp] = {o: v for o, v in self.content[tp].items() if o < self.durable[tp]}

    def forget(self) -> None:
        """The disk is gone."""
        self.kill()
        self.__init__(self.world, self.machine)  # type: ignore[misc]  # as new

    def snapshot(self) -> None:
        """A copy of the disk at this moment, kept until it is put back."""
        if self._snapshot is None and self.machine.path.exists() and not self.fenced and not self.copied:
            self.world.note(self, "snapshot")
            content = {tp: dict(values) for tp, values in self.content.items()}
            self._snapshot = Copy(self.machine.copy(), content, dict(self.durable), self.of)

    def put_back(self) -> None:
        """The older copy is the disk now."""
        if self._snapshot is None:
            return
        self.kill()
        self.world.note(self, "put-back")
        copy, content, self.durable, self.of = self._snapshot
        self.content = {tp: dict(values) for tp, values in content.items()}
        self._snapshot = None
        self.copied, self.fenced = set(TPS), set()
        self.machine.put_back(copy)

    def rejoin(self) -> None:
        """What a newer claim has fenced is set aside; the log goes on where the bucket ends."""
        if self.machine.processes:
            return
        self.process = Process(self.world, self.machine, str(self))
        try:
            plan = plan_rejoin(self.machine.path, sorted(self.fenced), clock=self.world.clock)
            rejoin(plan, clock=self.world.clock, files=self.process.files)
        finally:
            if not self.process.dead:
                self.process.die()
            self.process = None
            for tp in self.fenced:  # on a full disk it ends midway, for each partition before or after
                self.content[tp], self.durable[tp] = {}, 0
        self.copied -= self.fenced
        self.fenced.clear()

    def drop_topic(self, but: UUID | None = None) -> None:
        """The topic was deleted in the bucket: an operator deletes the copy on this disk, beside a daemon or not.

        ``but``: the topic that has the name now, which stays.
        """
        self.process = process = Process(self.world, self.machine, str(self))
        process.fuse = self.world.fuse()
        clock, ids = self.world.clock, process.ids
        local: LocalTier | None = None
        try:
            local = LocalTier.open([self.machine.path], clock=clock, ids=ids, files=process.files)
            self._holds(local)
            if self.of is not None and self.of != but:
                self.content, self.durable = {tp: {} for tp in TPS}, dict.fromkeys(TPS, 0)
                self.fenced, self.copied = set(), set()
                local.delete_topic(TOPIC)
                self.of = None
        finally:
            if not process.dead:
                self._end_process(local)

    def restore(self) -> None:
        """A new disk from the bucket alone: all that was acknowledged is in it."""
        truth = self.world.truth
        expected = {tp: dict(values) for tp, values in truth.acked.items()}
        self.process = Process(self.world, self.machine, str(self))
        clock, ids = self.world.clock, self.process.ids
        store = LayeredStore(SimStore(self.process), Retries(clock=clock, ids=ids, deadline_seconds=RETRY_SECONDS))
        restored = False
        self.world.note(self, "restore")
        try:
            restore(store, self.machine.path, clock=clock, ids=ids, files=self.process.files)
            restored = True
        except TieredError as error:
            self.world.note(self, f"{type(error).__name__} {error}")
            if type(error).__name__ != "NotFoundError":
                self.world.tolerated(error, truth)
            elif truth.log(TPS[0]) is not None and not truth.deleted:
                raise Violated(f"restore finds nothing: {error}") from error
        finally:
            if not self.process.dead:
                self.process.die()
            self.process = None
        if restored:
            self.world.note(self, "restored")
            self._check_restored(truth, expected)

    def _check_restored(self, truth: Truth, expected: dict[TopicPartition, Values]) -> None:
        for tp in TPS:
            found: Values = {}
            for path in sorted((self.machine.path / partition_dir(tp)).glob("*.log")):
                found.update(values_of(path.read_bytes()))
            if not truth.deleted:  # else it may have restored nothing, or the next topic of the name
                truth.check_read(f"restore {self.machine.root.name}", tp, expected[tp], found)
            self.content[tp] = found
            self.durable[tp] = max(found, default=-1) + 1

    def recover(self) -> None:
        """Faults are over: a volume that may write is opened and synced, a fenced one rejoins first."""
        self.kill()
        self.machine.kill_all()
        self.machine.room = None
        if self.world.deletes and self.machine.path.exists():
            self.drop_topic(self.world.truth.topic_id)
        for _ in range(4):
            if self.fenced:
                self.rejoin()
            try:
                self.open()
                self.sync()
            except FencedError:
                self._refused()
                self.kill()
            except TieredError as error:
                raise Violated(f"{self} does not come back: {type(error).__name__}: {error}") from error
            else:
                return
        raise Violated(f"{self} does not come back: fenced {self.fenced}")

    def check_disk(self) -> None:
        """Local bytes are gone only where the bucket has them."""
        if any(busy is self for busy in self.world.acting) and self.log is None:
            return  # it is being opened or rejoins
        for tp in TPS:
            folder = self.machine.path / partition_dir(tp)
            if tp in self.fenced | self.copied or tp in self.truth.damaged or not folder.exists():
                continue
            first = min((int(path.stem) for path in folder.glob("*.log")), default=None)
            if first is None:
                continue
            for offset, value in self.content[tp].items():
                gone = offset < first and offset < self.durable[tp]
                if gone and self.truth.served(tp, offset) != value:
                    raise Violated(f"{self}: {tp} {offset} left the disk and is not in the bucket")
