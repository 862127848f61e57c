"""What the bucket has ever held and what its users were told: every invariant of the cold tier, judged as it changes.

Fed by ``store.WatchedStore``: each root that lands, each object that goes. What a root names, what lives in it and what
was taken away is worked out here from the bytes alone, apart from the code that is judged.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tests.sim.bucket.batches import Batch, Batches
from tests.sim.bucket.store import WatchedStore
from tests.sim.bucket.violation import Violated
from tiered.config import TopicConfig
from tiered.format.batch import decode_records, read_header
from tiered.format.decision import Decision, decode_decision
from tiered.format.keys import (
    DECISIONS_PREFIX,
    ERASURES_PREFIX,
    FLAG_HOLE,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    MAX_INT64,
    index_key,
    index_key_of,
    join_uid,
    parse_decision_key,
    parse_erasure_note_key,
    parse_hist_key,
    parse_page_key,
    parse_partition_key,
    parse_root_key,
    parse_segment_key,
    parse_snap_key,
    parse_staged_key,
    parse_topic_key,
    root_key,
    segment_key,
)
from tiered.format.page import PageKind, Pointer, Pointers, verified_page
from tiered.format.root import DROPPED_BYTES, STATE_DELETING, STATE_OPEN, Root, decode_root
from tiered.format.rows import Rows
from tiered.model import TRASH_LIST, Row, TopicPartition
from tiered.plan.commit import Shape
from tiered.plan.invariants import check_root
from tiered.remote.root_history import HIST_AGE_MS, HIST_KEPT
from tiered.remote.topics import STATE_DELETED, TopicEntry, decode_topic

HIST_ABOVE = 40
"""Copies of roots beyond those that a maintainer leaves: it prunes once in the life of a claim."""

ANSWER_MS = 1000
"""How long an answer is under way at most: a clock that is far off is replaced by the store's as an answer told it."""


class Held(NamedTuple):
    """A record; where its batch stood a tombstone goes from ``horizon_ms`` on, None: it has no such time yet."""

    key: bytes | None
    value: bytes | None
    horizon_ms: int | None = None

    @property
    def said(self) -> tuple[bytes | None, bytes | None]:
        """What a reader is given of it."""
        return self.key, self.value


Said = Mapping[int, tuple[bytes | None, bytes | None]]
"""Key and value by offset, as a reader has them."""


class Version(NamedTuple):
    """What a version of a log held: its bounds, the offsets of its records, its rows."""

    start: int
    end: int
    alive: frozenset[int]
    rows: tuple[Row, ...]


@dataclass
class Log:
    """One partition of one topic id."""

    tp: TopicPartition
    topic_id: UUID
    config: TopicConfig
    root: Root | None = None
    named: frozenset[str] = frozenset()
    rows: dict[str, Row] = field(default_factory=dict)
    ever: dict[str, int] = field(default_factory=dict)
    """The uid of each row that it ever had, with its first offset."""
    records: dict[int, Held] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    versions: dict[int, Version] = field(default_factory=dict)
    newest: dict[bytes, int] = field(default_factory=dict)
    snapshots: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)
    """Those that somebody was told of: version, and what it names. Until its deletion begins."""
    may_begin_at: int = 0
    """The highest start that an operator or the rules of retention have asked for."""
    may_be_deleted: bool = False
    deleting_ms: int = 0
    """When its root was marked for destruction. Later commits do not put that off for who has seen it."""
    erasable: dict[bytes, int] = field(default_factory=dict)
    """Keys that somebody erases, each with the offset below which its records may go."""
    erases_at_once: bool = False
    replaced: set[str] = field(default_factory=set)
    """Objects that an erasure has noted: they need not wait for their grace where that was asked for."""
    left_ms: dict[str, int] = field(default_factory=dict)
    """When each key left the catalog, as the root says that no longer names it."""
    set_aside: bool = False
    """Its root is damaged on purpose just now."""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.tp} ({self.topic_id.hex[:6]})"

    @property
    def start(self) -> int:
        """Where it begins."""
        return self.root.start_offset if self.root else 0

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.root.next_offset if self.root else 0


class Ledger:
    """One bucket. ``store_ms``: the store's clock."""

    def __init__(self, store: WatchedStore, store_ms: Callable[[], int], shape: Shape) -> None:
        self._store = store
        self._store_ms = store_ms
        self._shape = shape
        self._pages: dict[str, Rows | Pointers] = {}
        self._values: dict[bytes, tuple[Log, int]] = {}
        self._bodies: dict[str, int] = {}
        self.entries: dict[str, TopicEntry] = {}
        self.registered: set[UUID] = set()
        """Topic ids that an entry has ever named."""
        self.logs: dict[tuple[UUID, int], Log] = {}
        self.at_work: dict[str, tuple[int, Callable[[], int]]] = {}
        """When each maintainer began what it is at, and its clock, by its owner."""
        self.making: dict[str, str] = {}
        self.takers: dict[tuple[str, str], list[str]] = {}
        """Who began a snapshot of a log under a name, in order: a later one replaces what an earlier one began."""
        """The snapshot that each keeper takes just now, or was killed over, by who it is."""
        self.proven_lost: set[str] = set()
        self._destroyed: set[tuple[UUID, int]] = set()
        self.batches = Batches()
        self._staged_ms: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.settings = TopicConfig()
        """Of a topic whose roots come before anybody has told of it."""
        self.living_epochs = False
        """Whether what a living epoch has left may be there in the end: its own journal has it."""
        self.idle_pins = False
        """Whether a pin that has expired may be there in the end."""
        self.on_root: Callable[[Log, bytes], None] = lambda log, body: None
        store.watcher = self

    # -- what changes ----------------------------------------------------------------------------------------------

    def came(self, key: str, data: bytes) -> None:
        """An object landed."""
        if parse_hist_key(key) is not None:
            return
        if parse_root_key(key) is not None:
            root = decode_root(data, key=key)
            log = self._log(root.topic, root.topic_id, root.partition, self.settings)
            self._root(log, root)
            self.on_root(log, data)
        elif (name := parse_topic_key(key)) is not None:
            self._entry(name, decode_topic(data, key=key))
        elif parse_segment_key(key) or parse_page_key(key) or parse_staged_key(key):
            first = self._bodies.setdefault(key, hash(data))
            if first != hash(data):
                raise Violated(f"{key} was put with other bytes: a name is used twice")
            self._staged_ms.setdefault(key, self._store_ms())
        elif parse_decision_key(key) is not None:
            self.batches.decided(decode_decision(data, key=key))
        elif (name := parse_snap_key(key)) is not None:
            self._snapshot_came(key, name)
        elif parse_erasure_note_key(key) is not None:
            noted = json.loads(data)["before"]
            partition = parse_partition_key(noted)
            assert partition is not None
            self.logs[partition].replaced |= {noted, index_key_of(noted)}

    def _snapshot_came(self, key: str, name: str) -> None:
        """Something is put under a snapshot's name: never in the place of one that somebody was told of."""
        log = self.logs.get(parse_partition_key(key) or (UUID(int=0), 0))
        if log is not None and name in log.snapshots:
            raise Violated(f"{log.where}: snapshot {name} of version {log.snapshots[name][0]} was replaced")

    def went(self, key: str) -> None:
        """An object was deleted: nothing that a live or a kept root names."""
        partition = parse_partition_key(key)
        if partition is None:
            return
        log = self.logs.get(partition)
        if log is None or log.set_aside:
            return
        self.counts["deleted"] += 1
        condemned = log.may_be_deleted and log.root is not None and log.root.state == STATE_DELETING
        if condemned:
            self._judge_destruction(log, key)
        elif key in log.named:
            raise Violated(f"{log.where}: {key} was deleted, version {log.root and log.root.version} names it")
        at_once = condemned or (log.erases_at_once and key in log.replaced)
        if self._store_ms() - log.left_ms.get(key, 0) < log.config.gc_grace_ms and not at_once:
            raise Violated(f"{log.where}: {key} was deleted {self._store_ms() - log.left_ms[key]} ms after it left")
        staged = parse_staged_key(key)
        if staged is not None and not at_once and partition not in self._destroyed:
            self._judge_staged_went(log, key, staged.uid)
        for name, (version, named) in log.snapshots.items():
            if key in named or parse_snap_key(key) == name:
                raise Violated(f"{log.where}: {key} was deleted, snapshot {name} of version {version} holds it")
        if parse_root_key(key) is not None and parse_hist_key(key) is None:
            self._root_went(log, key)

    def _judge_staged_went(self, log: Log, key: str, uid: str) -> None:
        """Only what no sink can commit any more: never before it has had its time."""
        waited = self._store_ms() - self._staged_ms[key]
        if waited < log.config.gc_grace_ms:
            raise Violated(f"{log.where}: {key} was deleted {waited} ms after it was staged")
        batch = self.batches.of_uid(uid)
        if batch is not None and uid not in log.ever:
            raise Violated(f"{log.where}: {key} was deleted, and batch {batch} is decided and not committed")
        self.counts["unstaged"] += 1

    def _judge_destruction(self, log: Log, key: str) -> None:
        assert log.root is not None
        waited = self._store_ms() - log.deleting_ms
        if waited < log.config.gc_grace_ms and key in log.named:
            raise Violated(f"{log.where}: {key} was deleted {waited} ms after its topic, gc.grace.ms is not over")

    def _root_went(self, log: Log, key: str) -> None:
        if (log.topic_id, log.tp.partition) in self._destroyed or self._is_given_up(log):
            log.root = None
            return
        if not (log.may_be_deleted and log.root is not None and log.root.state == STATE_DELETING):
            raise Violated(f"{log.where}: the root is deleted, and nobody asked for that")
        left = sorted(each for each in log.named if self._store.peek(each) is not None and each != key)
        if left:
            raise Violated(f"{log.where}: the root went before {left[0]}")
        log.root, log.alive = None, set()
        self._destroyed.add((log.topic_id, log.tp.partition))
        self.counts["destroyed"] += 1

    def _is_given_up(self, log: Log) -> bool:
        """Whether it is empty, and can never be registered: another topic has its name."""
        entry = self.entries.get(log.tp.topic)
        taken = entry is not None and entry.topic_id != log.topic_id and entry.state != STATE_DELETED
        return taken and log.root is not None and log.root.version == 1

    def _entry(self, name: str, entry: TopicEntry) -> None:
        before = self.entries.get(name)
        if before is not None and before.topic_id == entry.topic_id and entry.version <= before.version:
            raise Violated(f"the entry of {name} went from version {before.version} to {entry.version}")
        self.entries[name] = entry
        self.registered.add(entry.topic_id)
        for number in range(entry.partitions):
            self._log(name, entry.topic_id, number, TopicConfig.from_properties(entry.config))

    def _log(self, topic: str, topic_id: UUID, number: int, config: TopicConfig) -> Log:
        return self.logs.setdefault((topic_id, number), Log(TopicPartition(topic, number), topic_id, config))

    def announce(self, topic: str, topic_id: UUID, partitions: int, config: TopicConfig) -> None:
        """Before it is registered: its roots come first."""
        for number in range(partitions):
            self._log(topic, topic_id, number, config)

    # -- a root ----------------------------------------------------------------------------------------------------

    def _root(self, log: Log, root: Root) -> None:
        before = log.root
        if log.set_aside:
            return
        flaws = [str(violation) for violation in check_root(root, before)]
        if flaws:
            raise Violated(f"{log.where}: {'; '.join(flaws)}")
        if before is not None and root.version != before.version + 1:
            raise Violated(f"{log.where}: version {before.version} became {root.version}")
        self._bounded(log, root)
        rows, named = self._expanded(root)
        self._there(log, named - log.named)
        removed = {uid: row for uid, row in log.rows.items() if uid not in rows}
        added = {uid: row for uid, row in rows.items() if uid not in log.rows}
        if again := [uid for uid in added if uid in log.ever]:
            raise Violated(f"{log.where}: {added[again[0]]} was taken out before, and is named again")
        if lied := self.proven_lost.intersection(added):
            raise Violated(f"{log.where}: {added[lied.pop()]} was reported as not committed, and is named")
        self._judge_start(log, root)
        if staged := [row for row in added.values() if row.flags & FLAG_STAGED]:
            self.batches.land(log.where, (log.topic_id, log.tp.partition), staged)
            self.counts["batches"] += 1
        was = log.alive
        came = [offset for row in added.values() for offset in self._records_of(log, root, row)]
        twice = Counter(came)
        if len(twice) < len(came):
            raise Violated(f"{log.where}: offset {twice.most_common(1)[0][0]} is in two rows")
        if root.state == STATE_DELETING and (before is None or before.state != STATE_DELETING):
            log.deleting_ms = root.commit.ts_ms
        log.root = root
        gone = {offset for offset in was for row in removed.values() if row.base <= offset < row.next}
        log.alive = {offset for offset in (was - gone) | set(came) if offset >= root.start_offset}
        for offset in sorted(was - log.alive):
            if offset >= root.start_offset:
                self._judge_loss(log, offset)
        for offset in log.alive - was:
            if before is not None and offset < before.next_offset:
                raise Violated(f"{log.where}: {offset} had gone, and is there again")
        log.left_ms |= dict.fromkeys(log.named - named, root.commit.ts_ms)
        log.rows, log.named = rows, named
        log.ever |= {uid: row.base for uid, row in added.items()}
        ordered = tuple(sorted(rows.values(), key=lambda row: row.base))
        log.versions[root.version] = Version(root.start_offset, root.next_offset, frozenset(log.alive), ordered)
        self.counts["commits"] += 1
        for op in root.commit.op.split(","):
            self.counts[op] += 1

    def _bounded(self, log: Log, root: Root) -> None:
        shape = self._shape
        sizes = {
            "rows": (len(root.rows), shape.tail_rows + 16),
            "leaves": (len(root.leaves), shape.root_leaves + 16),
            "trash": (int((root.trash.kinds != TRASH_LIST).sum()), shape.trash_entries + 16),
        }
        for what, (size, most) in sizes.items():
            if size > most:
                raise Violated(f"{log.where}: version {root.version} has {size} {what}, {most} are the most")

    def _expanded(self, root: Root) -> tuple[dict[str, Row], frozenset[str]]:
        """What lives in a root, by uid, and every key that it needs: pages and objects of rows."""
        named: set[str] = set()
        pointers: list[Pointer] = []
        for top in root.inner:
            pointers += self._page(root, top, PageKind.INNER, named)
        found: list[Row] = []
        for pointer in [*pointers, *root.leaves]:
            if pointer.next > root.start_offset:
                found += self._page(root, pointer, PageKind.LEAF, named)
        rows = [row for row in [*found, *root.rows] if row.next > root.start_offset]
        for row in rows:
            if not row.flags & FLAG_HOLE:
                named.add(segment_key(root.topic_id, root.partition, row))
                if row.idx_len:
                    named.add(index_key(root.topic_id, root.partition, row))
        return {join_uid(row.id_hi, row.id_lo): row for row in rows}, frozenset(named)

    def _page(self, root: Root, pointer: Pointer, kind: PageKind, named: set[str]) -> Iterable[object]:
        key = root.page_key(pointer)
        named.add(key)
        if key not in self._pages:
            data = self._store.peek(key)
            if data is None:
                raise Violated(f"version {root.version} of {root.where} names {key}, which is not there")
            self._pages[key] = verified_page(data, pointer, key=key, kind=kind)
        return self._pages[key]

    def _there(self, log: Log, keys: Iterable[str]) -> None:
        for key in keys:
            if self._store.peek(key) is None:
                raise Violated(f"{log.where}: the root names {key}, which is not there")

    def _records_of(self, log: Log, root: Root, row: Row) -> list[int]:
        """The offsets in a row that the catalog did not name before, each held to what it was."""
        if row.flags & FLAG_HOLE:
            return []
        data = self._store.peek(segment_key(log.topic_id, log.tp.partition, row))
        assert data is not None
        offsets: list[int] = []
        for offset, held in batches_of(data, base=row.base if row.flags & FLAG_STAGED else 0):
            if not row.base <= offset < row.next:
                continue
            offsets.append(offset)
            before = log.records.setdefault(offset, held)
            if before.said != held.said:
                raise Violated(f"{log.where}: {offset} was {before.said} and is {held.said}")
            if before is not held:
                self._judge_horizon(log, root, offset, before, held)
                log.records[offset] = held
            if held.key is not None:
                log.newest[held.key] = max(offset, log.newest.get(held.key, -1))
            if held.value is not None:
                place = self._values.setdefault(held.value, (log, offset))
                if place != (log, offset):
                    raise Violated(f"{log.where}: {held.value!r} is at {offset} and at {place[1]} of {place[0].where}")
        if not row.flags & FLAG_MAINTAINER and offsets != list(range(row.base, row.next)):
            raise Violated(f"{log.where}: {row} was uploaded with the offsets {offsets}")
        return offsets

    def _judge_horizon(self, log: Log, root: Root, offset: int, before: Held, now: Held) -> None:
        if before.horizon_ms is not None or now.horizon_ms is None:
            return
        began = self.at_work[root.commit.owner.partition(":")[0]][0]
        if now.horizon_ms < began - ANSWER_MS + log.config.delete_retention_ms:
            raise Violated(
                f"{log.where}: the tombstone at {offset} may go from {now.horizon_ms} on, delete.retention.ms "
                f"({log.config.delete_retention_ms}) counts from {began} at least"
            )

    def _judge_start(self, log: Log, root: Root) -> None:
        if root.start_offset > max(log.start, log.may_begin_at) and log.root is not None and log.root.next_offset:
            raise Violated(
                f"{log.where}: the log begins at {root.start_offset}, {log.may_begin_at} is the most that was asked for"
            )

    def _judge_loss(self, log: Log, offset: int) -> None:
        """A record that is there no more, in a log that begins below it."""
        held, config = log.records[offset], log.config
        if held.key is not None and offset < log.erasable.get(held.key, 0):
            self.counts["erased"] += 1
            return
        what = f"{log.where}: {offset} {held.said} is not in version {log.root and log.root.version} any more"
        if not config.compacted:
            raise Violated(f"{what}, and the log is not compacted")
        if held.key is None or log.newest[held.key] > offset:
            self.counts["superseded"] += 1
            return
        if held.value is not None:
            raise Violated(f"{what}: it is the newest of its key")
        assert log.root is not None
        now_ms = self.at_work[log.root.commit.owner.partition(":")[0]][1]()
        if held.horizon_ms is None or held.horizon_ms > now_ms:
            raise Violated(f"{what}: a tombstone that may go from {held.horizon_ms} on, at {now_ms}")
        self.counts["tombstones"] += 1

    # -- what users were told --------------------------------------------------------------------------------------

    def acknowledge(self, log: Log, values: Said, who: object) -> None:
        """Somebody was told that these are in the bucket."""
        for offset, said in values.items():
            held = log.records.get(offset)
            if held is None or held.said != said:
                raise Violated(f"{who}: {log.where}: {said} was acknowledged at {offset}, the bucket has {held}")
        self.counts["acknowledged"] += len(values)

    def acknowledge_batch(self, log: Log, batch: Batch, said: Said, who: object) -> None:
        """A sink was told that a batch is committed; ``said``: what it holds here, offsets from 0."""
        placed = self.batches.place(batch, (log.topic_id, log.tp.partition))
        if placed is None:
            raise Violated(f"{who}: batch {batch} was acknowledged, and {log.where} has nothing of it")
        base, end = placed
        found = [log.records[offset].said for offset in range(base, end)]
        if found != [*said.values()]:
            raise Violated(f"{who}: {log.where} has {found} at {base}, batch {batch} is {said}")
        self.counts["acknowledged"] += len(said)

    def unfinished(self) -> list[Decision]:
        """Decisions to commit that some partition lacks which is there."""
        logs = self.logs.items()
        return self.batches.unfinished(
            {at for at, log in logs if log.root is not None and log.root.state == STATE_OPEN}
        )

    def may_erase(self, log: Log, keys: Iterable[bytes], *, at_once: bool) -> None:
        """Somebody begins to erase them: until he ends all their records may go."""
        log.erasable |= dict.fromkeys(keys, MAX_INT64)
        log.erases_at_once |= at_once

    def check_erased(self, who: object, log: Log, keys: frozenset[bytes], end: int, there: Iterable[str]) -> None:
        """Somebody was told that no record of ``keys`` below ``end`` lives, and that none of ``there`` holds any.

        ``there``: what was in the bucket as he began; a segment on its way into the log is among it, and ends above. Of
        what a sink staged only its row tells the offsets: it may have come into the log since, and left it again.
        """
        log.erasable |= dict.fromkeys(keys, log.end)
        left = [offset for offset in sorted(log.alive) if offset < end and log.records[offset].key in keys]
        if left:
            raise Violated(f"{who}: {keys} were erased from {log.where}, and live at {left[:5]}")
        for name in there:
            data = self._store.peek(name) if name.endswith(".log") and name not in log.named else None
            staged = parse_staged_key(name)
            base = log.ever.get(staged.uid, 0) if staged is not None else 0
            if data is not None and any(at < end and held.key in keys for at, held in batches_of(data, base=base)):
                raise Violated(f"{who}: {keys} were erased from {log.where}, and {name} holds them, which is not told")
        self.counts["erasures"] += 1

    def all_keys(self) -> list[str]:
        """All keys of the bucket."""
        return self._store.all_keys()

    def planned_trim(self, log: Log, version: int, end: int, now_ms: int) -> None:
        """A plan of retention wants to trim to ``end``: held to the settings, row by row."""
        config, found = log.config, log.versions.get(version)
        if found is None:
            return
        left = sum(row.size for row in found.rows if row.next > found.start)
        if end == found.end > log.may_begin_at:
            raise Violated(f"{log.where}: retention takes the newest segment, which tells who wrote what")
        for row in found.rows:
            if row.next > end:
                break
            left -= row.size
            right = 0 <= row.max_ts <= row.appended_ms + config.message_timestamp_after_max_ms
            newest = row.max_ts if right or not row.size else row.appended_ms  # a hole holds nothing that is young
            old = config.retention_ms >= 0 and newest <= now_ms - config.retention_ms
            large = config.retention_bytes >= 0 and left >= config.retention_bytes
            if row.next > max(log.may_begin_at, found.start) and not (config.deletes and (old or large)):
                raise Violated(f"{log.where}: retention takes {row}, which is neither old nor too much")
        log.may_begin_at = max(log.may_begin_at, end)

    def took_snapshot(self, log: Log, name: str, root: Root) -> None:
        """Somebody was told that it is kept."""
        named = self._expanded(root)[1]
        self._there(log, named)
        log.snapshots[name] = root.version, named
        self.counts["snapshots"] += 1

    def check_read(self, who: object, log: Log, found: Said, bounds: tuple[int, int], before: frozenset[int]) -> None:
        """A read from ``bounds[0]`` to ``bounds[1]``: of what was there all the while nothing is missing."""
        low, high = bounds
        for offset, said in found.items():
            held = log.records.get(offset)
            if held is None or held.said != said:
                raise Violated(f"{who} reads {said} at {log.where} {offset}, the bucket had {held}")
        missing = sorted(at for at in before & log.alive if low <= at < high and at not in found)
        if missing:
            raise Violated(f"{who} reads {log.where} from {low} to {high} without {missing[:5]}, and without an error")
        self.counts["read"] += 1

    def check_past(self, who: object, log: Log, version: int, found: Said, low: int) -> None:
        """A read of a version: exactly what it held."""
        was = log.versions[version]
        expected = {offset: log.records[offset].said for offset in was.alive if offset >= low}
        # Its objects may since be a compaction's: no, a version names its own, so that nothing is missing.
        if dict(found) != expected:
            wrong = sorted(set(found) ^ set(expected)) or [at for at in expected if found[at] != expected[at]]
            raise Violated(f"{who} reads version {version} of {log.where}: {wrong[:5]} are not what it held")
        self.counts["read as of"] += 1

    # -- the end ---------------------------------------------------------------------------------------------------

    def leftover(self) -> list[str]:
        """Objects that nothing names any more, once all trash is collected."""
        needed: set[str] = set()
        for log in self.logs.values():
            entry = self.entries[log.tp.topic]
            if log.root is None or entry.topic_id != log.topic_id or entry.state == STATE_DELETED:
                continue
            needed |= {root_key(log.topic_id, log.tp.partition), *log.named}
            for version in log.snapshots.values():
                needed |= version[1]
        left = []
        for key in self._store.all_keys():
            known = parse_topic_key(key) is not None or key.startswith(
                ("jobs/", "probe/", DECISIONS_PREFIX, ERASURES_PREFIX)
            )
            if known or key in needed or parse_hist_key(key) is not None:
                continue
            if (name := parse_snap_key(key)) is not None:
                partition = parse_partition_key(key)
                if partition is not None and name in self.logs[partition].snapshots:
                    continue
                if len(self._store.peek(key) or b"") == DROPPED_BYTES:
                    continue  # the note of a deletion stays
            if self.living_epochs and self._is_of_living_epoch(key):
                continue
            if self.idle_pins and "/pin/" in key:
                continue  # of a reader that died: it goes with the next collection, if there is anything to collect
            left.append(key)
        return left

    def _is_of_living_epoch(self, key: str) -> bool:
        parsed = parse_segment_key(key) or parse_page_key(key)
        if parsed is None:
            return False
        root = self.logs[parsed.topic_id, parsed.partition].root
        return root is not None and parsed.name.epoch >= root.roles[parsed.name.role.value].epoch

    def at_rest(self) -> bool:
        """Whether there is nothing left to be collected."""
        waiting = any(log.root is not None and len(log.root.trash) for log in self.logs.values())
        dying = any(entry.state == STATE_DELETING for entry in self.entries.values())
        return not waiting and not dying and not self.leftover()

    def check_end(self) -> None:
        """After a rest without faults: the bucket holds what is named, and nothing else."""
        if left := self.leftover():
            raise Violated(f"{len(left)} objects are left that nothing names: {left[:3]}")
        for log in self.logs.values():
            if log.root is not None and len(log.root.trash) and log.root.state == STATE_OPEN:
                raise Violated(f"{log.where}: {len(log.root.trash)} entries of the trash were not collected")
        if left := self.batches.needless(self._store.all_keys()):
            raise Violated(f"decisions are left that nobody needs: {left[:3]}")
        times = self._store.times_ms()
        copies: defaultdict[object, list[int]] = defaultdict(list)
        for key in times:
            if parse_hist_key(key) is not None:
                copies[parse_partition_key(key)].append(times[key])
        for partition, made_ms in copies.items():
            old = sum(each < max(made_ms) - HIST_AGE_MS for each in made_ms)
            if old and len(made_ms) > HIST_KEPT + HIST_ABOVE:
                raise Violated(f"{partition}: {len(made_ms)} copies of roots, {old} of them old; {HIST_KEPT} are kept")


def batches_of(data: bytes, *, base: int = 0) -> Iterable[tuple[int, Held]]:
    """The records of a ``.log`` by offset; ``base`` is added to these."""
    at = 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        header = read_header(data[at:end])
        for record in decode_records(data[at:end]):
            yield base + record.offset, Held(record.key, record.value, header.delete_horizon_ms)
        at = end


def said_of(data: bytes) -> dict[int, tuple[bytes | None, bytes | None]]:
    """The same as a reader has it."""
    return {offset: held.said for offset, held in batches_of(data)}


__all__ = ["Held", "Ledger", "Log", "Said", "Version", "Violated", "batches_of", "said_of"]
