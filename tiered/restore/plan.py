"""Plan of a restore: topics, the version of each catalog, rows, and the end of each log.

::

    registry ── topics ── root, or the root ``as_of`` something ── rows up to ``until`` ── PartitionPlan

A restore up to an offset or a time ends between two batches. The batch with the first unwanted record is left out
whole, as Kafka truncates, so that restored bytes equal the written ones. A transaction that is open at the end is
aborted by a marker after it, because the copy has no coordinator that will decide it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tiered.check.registry import need_all_named, survey
from tiered.clock import IdSource
from tiered.config import TopicConfig, parse_bytes
from tiered.erase.notes import Undone, undone_steps
from tiered.errors import (
    ConfigError,
    CorruptionError,
    NotFoundError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from tiered.format.batch import BatchHeader
from tiered.format.coordinator_records import is_state_log
from tiered.format.keys import check_topic_name, root_key
from tiered.format.root import STATE_DELETING
from tiered.model import Row, TopicPartition
from tiered.plan.maintenance import WrongTimes
from tiered.plan.retention import has_wrong_times, row_age_from_ms
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.remote.catalog_view import CatalogView
from tiered.remote.reader import RemotePartition
from tiered.remote.root_history import find_proof_of_root, require_newest_root
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import AsOf, KeptRoot, Past, load_snapshot
from tiered.remote.topics import TopicEntry, list_topics, load_topic, no_topics
from tiered.store.base import Now, Steps
from tiered.times import Time, parse_time


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """Options of a restore. ``selected``: (topic, partition) pairs, empty: all topics; partition None: all of a topic.

    ``newest_bytes`` (of each partition) and ``since_ms`` leave older segments in the bucket, where a log opened with
    its remote tier still reads them. ``if_empty``: leave a non-empty directory alone, without an error. ``dry_run``:
    plan only. ``pin``: protect the objects to fetch from garbage collection by a lease in the bucket. ``as_of``: read
    an older state: a snapshot's name, a version of the catalog, a time.

    ``until_ms``: end each partition before the first record of
    that time or later. ``until_offset``: end the one selected partition there. Both end between two batches. ``name``:
    new name of the one selected topic, which gets a new id. With ``as_of``, ``until_ms``, ``until_offset`` or ``name``
    the directory is an independent log. It may be uploaded to another prefix, with ``name`` also to the same one.
    """

    selected: tuple[tuple[str, int | None], ...] = ()
    newest_bytes: int | None = None
    since_ms: int | None = None
    if_empty: bool = False
    dry_run: bool = False
    as_of: Time | None = None
    until_ms: int | None = None
    until_offset: int | None = None
    name: str = ""
    pin: bool = False

    @classmethod
    def checked(
        cls,
        selected: Iterable[str | TopicPartition],
        newest_bytes: int | str | None,
        since: Time | None,
        until: Time | None,
        now_ms: int,
        **others: Any,
    ) -> RestoreOptions:
        """Return checked options. Times and sizes may be texts.

        ``now_ms``: time to which relative times refer. ``others``: the other fields, which are not checked here. Raises
        ConfigError for a wrong size, InvalidTimestampError for a wrong time.
        """
        newest = None if newest_bytes is None else parse_bytes(newest_bytes)
        if newest is not None and newest < 1:
            raise ConfigError(
                f"newest_bytes={newest_bytes} keeps nothing", hint="give a size above zero, for example 10GiB"
            )
        return cls(
            tuple((each, None) if isinstance(each, str) else (each.topic, each.partition) for each in selected),
            newest,
            None if since is None else parse_time(since, now_ms=now_ms),
            until_ms=None if until is None else parse_time(until, now_ms=now_ms),
            **others,
        )

    @property
    def apart(self) -> bool:
        """Return True if the restored directory will be an independent log, which does not continue the bucket's."""
        return bool(self.name) or any(each is not None for each in (self.as_of, self.until_ms, self.until_offset))


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """Restore of one partition. ``rows`` are contiguous and reach ``end_offset``. ``pinned`` None: never uploaded.

    ``tp``, ``entry``: partition and topic in the directory. ``source``: that in the bucket. ``end``: where the log ends
    before the catalog does, between two batches of the last row. ``before``: the segment whose bundle has the producers
    before that row, None if the row before it is restored. ``taken``: the past root that is read, None for the newest.
    ``aborted``: number of open transactions that got a marker. ``undone``: erasures after ``taken``, whose records the
    copy contains again. ``notes``: wrong timestamps that are ignored.
    """

    tp: TopicPartition
    entry: TopicEntry
    source: TopicEntry
    pinned: CatalogView | None
    rows: tuple[Row, ...]
    before: Row | None = None
    end: int | None = None
    taken: KeptRoot | None = None
    aborted: int = 0
    undone: tuple[Undone, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def start_offset(self) -> int:
        """Return the first offset that the restored directory will have."""
        if self.pinned is None:
            return 0
        return max(self.rows[0].base, self.pinned.start_offset) if self.rows else self.end_offset

    @property
    def end_offset(self) -> int:
        """Return the offset of the next append in the restored directory."""
        if self.end is not None:
            return self.end
        return self.pinned.next_offset if self.pinned is not None else 0

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the ``.log`` objects to fetch. The last one counts as a whole."""
        return sum(row.size for row in self.rows)


def choose_rows(
    pinned: CatalogView,
    *,
    newest_bytes: int | None = None,
    since_ms: int | None = None,
    end: int | None = None,
    config: TopicConfig | None = None,
) -> Steps[tuple[Row, ...]]:
    """Return the newest rows that begin below offset ``end`` and have at most ``newest_bytes`` together.

    ``since_ms``: begin at the first row with a record of that time or later.

    ``newest_bytes`` never excludes the last row. A row with wrong timestamps counts as written at the time of its
    append. ``config``: settings of the topic, which say how wrong a timestamp may be.
    """
    config, at = config or TopicConfig(), 0
    chosen: deque[Row] = deque()
    total = 0
    while len(rows := (yield from pinned.piece(at))):
        for row in rows:
            if end is not None and row.base >= end:
                return tuple(chosen)
            if since_ms is not None and row_age_from_ms(row, config) < since_ms:
                continue
            since_ms = None
            chosen.append(row)
            total += row.size
            while newest_bytes is not None and total > newest_bytes and len(chosen) > 1:
                total -= chosen.popleft().size
        at = rows.end_offset
    return tuple(chosen)


def plan_steps(
    url: str, options: RestoreOptions, ids: IdSource
) -> Steps[tuple[tuple[PartitionRestore, ...], tuple[str, ...]]]:
    """Return the plan for each partition, and texts about skipped topics. Reads only.

    Raises ConfigError for wrong options, UnknownTopicError, NotFoundError if the bucket is empty or has no version
    ``as_of``. Raises OffsetOutOfRangeError if ``until_offset`` is below the log's start, CorruptionError for damage.
    """
    _check_options(options)
    plans: list[PartitionRestore] = []
    notes: list[str] = []
    as_of = None if options.as_of is None else AsOf.parse(options.as_of, now_ms=(yield Now()).now_ms)
    listed = yield from survey(notes)  # before the registry is read, which then names all that was listed
    entries = yield from _entries(url, options.selected, listed)
    yield from need_all_named(listed, [entry for entry, _ in entries], {topic for topic, _ in options.selected})
    if options.until_offset is not None:
        _need_one_partition(entries)
    for source, wanted in entries:
        if source.state == STATE_DELETING:
            notes.append(f"topic {source.name} is being deleted and was passed over")
            continue
        entry = (yield from _renamed(source, options.name, ids, url)) if options.name else source
        found = []
        for partition in range(source.partitions):
            one = _Partition(TopicPartition(entry.name, partition), entry, source, options, as_of)
            found.append((yield from one.plan(selected=wanted is None or partition in wanted)))
        absent = [plan.tp for plan in found if as_of is not None and plan.taken is None]
        if absent and len(absent) == len(found):
            if options.selected:
                raise NotFoundError(f"topic {source.name} was not there as of {options.as_of}", hint=_SNAPSHOTS)
            notes.append(f"topic {source.name} was not there as of {options.as_of} and was passed over")
            continue
        notes += [note for plan in found for note in plan.notes]
        notes += [f"{tp} was not there as of {options.as_of}: it is empty" for tp in absent]
        notes += [
            one.sentence(plan.tp, source.topic_id, "restore a newer version, or erase them from the copy")
            for plan in found
            for one in plan.undone
        ]
        plans += found
    if not plans and as_of is not None:
        raise NotFoundError(f"no topic of {url} was there as of {options.as_of}", hint=_SNAPSHOTS)
    return tuple(plans), tuple(notes)


_SNAPSHOTS = "`tiered snapshot list` shows the snapshots"


def _check_options(options: RestoreOptions) -> None:
    if options.until_ms is not None and options.until_offset is not None:
        raise ConfigError("until (a time) and end (an offset) exclude each other", hint="pass one of them")
    if options.until_offset is not None and options.until_offset < 0:
        raise ConfigError(f"{options.until_offset} is not an offset", hint="offsets begin at 0")
    if None not in (options.since_ms, options.until_ms) and options.until_ms <= options.since_ms:  # type: ignore[operator]
        raise ConfigError("the restore selects nothing: since is not before until", hint="swap them, or leave one out")
    if options.name:
        check_topic_name(options.name)
        if is_state_log(options.name) or len({topic for topic, _ in options.selected}) != 1:
            raise ConfigError(
                f"the name {options.name} needs a single topic, and several or none are selected",
                hint="select the topic that gets this name",
            )


def _need_one_partition(entries: Sequence[tuple[TopicEntry, frozenset[int] | None]]) -> None:
    wanted = [(entry, range(entry.partitions) if numbers is None else numbers) for entry, numbers in entries]
    if sum(len(numbers) for _, numbers in wanted) != 1:
        raise ConfigError(
            "offsets differ by partition, and more than one is to be restored",
            hint=f"select one: {entries[0][0].name}:0; or give a time, which is for all partitions",
        )


def _renamed(source: TopicEntry, name: str, ids: IdSource, url: str) -> Steps[TopicEntry]:
    """Return the topic under a new name and id. Raises ConfigError if the bucket has a topic of that name."""
    if (yield from load_topic(name)) is not None:
        raise ConfigError(f"there is a topic {name} in {url} already", hint="choose another name")
    return replace(source, name=name, topic_id=ids.uuid())


@dataclass(frozen=True, slots=True)
class _Partition:
    tp: TopicPartition
    entry: TopicEntry
    source: TopicEntry
    options: RestoreOptions
    as_of: AsOf | None

    def plan(self, *, selected: bool) -> Steps[PartitionRestore]:
        """Plan one partition. ``selected`` False: fetch no records; the log begins at the catalog's end."""
        options = self.options
        view = RootView(self.source.topic_id, self.tp.partition, self.source.name, RootLowerBounds(made=True))
        past = Past(view, self.as_of) if self.as_of is not None else None
        taken: KeptRoot | None = None
        pinned: CatalogView | None = None
        try:
            if past is None:
                yield from require_newest_root(view, must_list=False)  # under an old root the disk reassigns offsets
                pinned = yield from view.pin()
            elif not (yield from self._was_absent(view)):
                taken, pinned = (yield from past.choose()), (yield from past.pin())
        except CorruptionError as damage:
            damage.hint = (
                damage.hint or "name the other topics to restore them, and run `tiered check` for the whole picture"
            )
            raise
        if pinned is None and past is None:
            yield from self._need_untouched()
        if pinned is None or not selected:
            return PartitionRestore(self.tp, self.entry, self.source, pinned, (), taken=taken)
        wrong = WrongTimes(self.source.known_settings)
        end = yield from self._end(pinned, past, wrong)
        rows: tuple[Row, ...] = ()
        if end is None or end > pinned.start_offset:
            rows = yield from choose_rows(
                pinned,
                newest_bytes=options.newest_bytes,
                since_ms=options.since_ms,
                end=end,
                config=self.source.known_settings,
            )
        if options.since_ms is not None:
            wrong.add(rows)
        before = None
        if end is not None and rows and end < rows[-1].next:
            before = yield from _held_before(pinned, rows)
        undone: tuple[Undone, ...] = ()
        if taken is not None:
            topic_id, since_ms = self.source.topic_id, taken.root.commit.ts_ms
            undone = yield from undone_steps(topic_id, self.tp.partition, rows, since_ms)
        notes = tuple(f"{self.tp}: {note}" for note in wrong.notes)
        return PartitionRestore(
            self.tp, self.entry, self.source, pinned, rows, before, end, taken, undone=undone, notes=notes
        )

    def _need_untouched(self) -> Steps[None]:
        """Raise CorruptionError if objects of the partition prove that a root must have existed."""
        key = yield from find_proof_of_root(self.source.topic_id, self.tp.partition)
        if key:
            raise CorruptionError(
                f"{self.tp}: its root is missing, although {key} exists, which is written after it",
                path_or_key=root_key(self.source.topic_id, self.tp.partition),
                hint=f"`tiered repair {self.tp.topic}:{self.tp.partition}` repairs it; or name only the other topics",
            )

    def _was_absent(self, view: RootView) -> Steps[bool]:
        """Return True if the partition did not exist as of ``as_of``, False if it did or if that is unknown."""
        if self.as_of is None:
            return False
        if self.as_of.name:
            return (yield from load_snapshot(view, self.as_of.name)) is None
        root = yield from view.load()
        return root is None or (self.as_of.time_ms is not None and root.created_ms > self.as_of.time_ms)

    def _until(
        self, pinned: CatalogView, remote: RemotePartition, until_ms: int, wrong: WrongTimes
    ) -> Steps[int | None]:
        """Return the first offset written at ``until_ms`` or later, None if there is none.

        A segment with wrong timestamps counts, whole, as written at the time of its append.
        """
        at, config = pinned.start_offset, self.source.known_settings
        while len(rows := (yield from pinned.piece(at))):
            for row in rows:
                wrong.add([row])
                if row_age_from_ms(row, config) < until_ms:
                    continue
                if has_wrong_times(row, config):
                    return max(row.base, pinned.start_offset)
                found = yield from remote.offset_for_time(until_ms, row.base)
                if found is not None and found[0] < row.next:
                    return found[0]
            at = rows.end_offset
        return None

    def _end(self, pinned: CatalogView, past: Past | None, wrong: WrongTimes) -> Steps[int | None]:
        """Return the offset, between two batches, where the log is to end; None for the end of ``pinned``.

        ``wrong`` counts segments with impossible times. Raises OffsetOutOfRangeError for an end below the log's start.
        """
        options, number = self.options, self.tp.partition
        known = RootLowerBounds(made=True)
        tp = TopicPartition(self.source.name, number)
        remote = RemotePartition(tp, self.source.topic_id, known=known, past=past)
        wanted = options.until_offset
        if options.until_ms is not None:
            wanted = yield from self._until(pinned, remote, options.until_ms, wrong)
        if wanted is None or wanted >= pinned.next_offset:
            return None
        if wanted < pinned.start_offset:
            raise OffsetOutOfRangeError(
                f"{self.tp}: the log begins at offset {pinned.start_offset}, it cannot be restored until {wanted}",
                requested=wanted,
                earliest=pinned.start_offset,
                latest=pinned.next_offset,
                hint="name an older version with --as-of; `tiered snapshot list` shows the snapshots",
            )
        row = yield from pinned.at(wanted)
        if row is None or row.base == wanted:
            return wanted  # no batch spans it, so its object, which may be lost, is not read
        bases = [wanted]

        def note(header: BatchHeader, _: memoryview) -> None:
            bases.append(header.base_offset)

        yield from remote.read(wanted, wanted + 1, note)
        return max(min(bases), pinned.start_offset)


def _held_before(pinned: CatalogView, rows: Sequence[Row]) -> Steps[Row | None]:
    """Return the segment whose bundle has the producers before the last row, which will be cut.

    It is the newest earlier row that has objects. None: that row is restored anyway, or there is none.
    """
    row = yield from pinned.at(rows[-1].base - 1)
    if len(rows) > 1 and row is not None and row.size:
        return None
    while row is not None and not row.size:
        row = yield from pinned.at(row.base - 1)
    return row


def _entries(
    url: str, selected: Sequence[tuple[str, int | None]], listed: Collection[tuple[UUID, int]]
) -> Steps[list[tuple[TopicEntry, frozenset[int] | None]]]:
    """Return the topics to restore, each with its selected partitions (None: all).

    ``listed``: (topic id, partition) of all objects. Raises UnknownTopicError, and NotFoundError for an empty bucket.
    """
    if not selected:
        try:
            entries = yield from list_topics()
        except CorruptionError as damage:
            damage.hint = f"name the other topics to go on without it; {damage.hint}"
            raise
        if not entries:
            yield from need_all_named(listed, (), ())
            raise no_topics(url)
        return [(entry, None) for entry in entries]
    chosen: list[tuple[TopicEntry, frozenset[int] | None]] = []
    for name in dict.fromkeys(topic for topic, _ in selected):
        entry = yield from load_topic(name)
        if entry is None:
            raise UnknownTopicError(f"there is no topic {name!r} in {url}", hint="see `tiered topic list`")
        numbers = [partition for topic, partition in selected if topic == name]
        for partition in numbers:
            if partition is not None and partition >= entry.partitions:
                raise UnknownTopicError(
                    f"topic {name} has no partition {partition}", hint=f"its partitions are 0 to {entry.partitions - 1}"
                )
        wanted = None if None in numbers else frozenset(number for number in numbers if number is not None)
        chosen.append((entry, wanted))
    return chosen
