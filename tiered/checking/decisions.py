"""What sinks decided, as ``check`` sees it: each decision can be read, and the catalogs hold what it names.

::

    roots       as new as the decision has seen them               else an older root was put back
    carried out its segments lie one after the other, as long      else the catalog differs from what was decided
                as it says, or a maintainer has rewritten them
    waiting     all that it names is staged, whole                  else nobody can carry it out any more
                no later batch of its id was carried out            else half of it was lost
    aborted     no catalog names what it killed

Only what is proven is told. A decision is swept once it is not needed, and an id may be forgotten and decide a batch
anew then: so a segment without a decision proves nothing, nor does a batch of which the catalog names no segment any
more (retention and rewrites take them), nor a newest batch that is in some partitions only (it is under way). Decisions
are read first, roots after.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tiered.checking.remote import ROWS_TOGETHER, ask_all
from tiered.errors import ConfigError, CorruptionError, LogDestroyedError, RemotePermissionError
from tiered.findings import NEWER_RELEASE, Finding, Findings, Severity
from tiered.format.decision import ABORTED, COMMITTED, Decision
from tiered.format.keys import (
    DECISIONS_PREFIX,
    FLAG_HOLE,
    FLAG_MAINTAINER,
    FLAG_STAGED,
    STEM_CHARS,
    DecisionKey,
    index_key,
    join_uid,
    parse_decision_key,
    root_key,
    segment_key,
    staged_stem,
)
from tiered.format.root import STATE_DELETING, Root
from tiered.model import Row, TopicPartition
from tiered.plan.stage import forgotten_up_to
from tiered.remote.root_view import RootView
from tiered.remote.snapshot import Snapshot
from tiered.remote.stage import read_decision
from tiered.remote.topics import TopicEntry
from tiered.store.base import Head, ListEntry, Object, Steps, list_all

WAVE_ROWS = 100_000
"""Staged segments whose decisions are in memory at once, but for those of one batch."""

_Target = tuple[UUID, int]
_Id = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Later:
    """The next batch of the same id that was decided to be committed; ``seen``: by partition that it adds to."""

    batch: int
    modified_ms: int
    seen: Mapping[_Target, int]


@dataclass(slots=True)
class _Told:
    """A decision. ``waiting``: partitions where all that it names is staged and not committed; ``passed``: a later
    batch, which its sink began once this one was everywhere, was carried out."""

    key: str
    modified_ms: int
    decision: Decision
    later: _Later | None
    waiting: list[_Target] = field(default_factory=list)
    passed: bool = False

    @property
    def stem(self) -> str:
        """What the ids of its segments begin with."""
        return staged_stem(self.decision.txn, self.decision.batch)

    @property
    def what(self) -> str:
        """For people."""
        return f"batch {self.decision.batch} of {self.decision.txn}"


def check_decisions(entries: Sequence[TopicEntry]) -> Steps[list[Finding]]:
    """What is wrong with the decisions of all sinks, and with what the catalogs of ``entries`` hold of them.

    Lists ``txn/`` and reads each; a root and its pages of each partition that one names, and a HEAD of each object
    that waits to be committed.
    """
    try:
        listed = yield from list_all(DECISIONS_PREFIX)
    except RemotePermissionError as refused:
        findings = Findings(DECISIONS_PREFIX)
        findings.add(Severity.INFO, "not_listed", f"decisions of sinks are not looked at: {refused.message}")
        return findings.items
    keys = [(parsed, entry) for entry in listed if (parsed := parse_decision_key(entry.key)) is not None]
    keys.sort(key=lambda each: (each[0].txn, -each[0].batch, each[0].generation))
    check = _Check({entry.topic_id: entry.name for entry in entries})
    wave: list[_Told] = []
    for _, batch in itertools.groupby(keys, key=lambda each: (each[0].txn, each[0].batch)):
        wave += yield from check.read(list(batch))
        if sum(len(rows) for told in wave for rows in told.decision.partitions.values()) >= WAVE_ROWS:
            yield from check.judge(wave)
            wave = []
    yield from check.judge(wave)
    return check.found


class _Check:
    """``found``: what is wrong. ``names``: of the topics whose catalogs are looked at."""

    def __init__(self, names: Mapping[UUID, str]) -> None:
        self._names = names
        self._newest: tuple[str, _Later] | None = None
        self.found: list[Finding] = []

    def read(self, keys: Sequence[tuple[DecisionKey, ListEntry]]) -> Steps[list[_Told]]:
        """The decisions of one batch. Later batches of an id come first."""
        told: list[_Told] = []
        for parsed, entry in keys:
            findings = Findings(entry.key)
            try:
                decision = yield from read_decision(entry.key)
            except CorruptionError as damage:
                findings.error("decision", f"{damage.message}; {damage.hint}", position=damage.position)
            except ConfigError as newer:
                findings.error(NEWER_RELEASE, newer.message)
            else:
                later = self._newest[1] if self._newest is not None and self._newest[0] == parsed.txn else None
                if decision is not None:
                    told.append(_Told(entry.key, entry.last_modified_ms, decision, later))
            self.found += findings.items
        for each in told:
            if each.decision.state == COMMITTED:
                adds = {target for target, rows in each.decision.partitions.items() if rows}
                seen = {target: version for target, version in each.decision.seen.items() if target in adds}
                self._newest = each.decision.txn, _Later(each.decision.batch, each.modified_ms, seen)
        return told

    def judge(self, wave: Sequence[_Told]) -> Steps[None]:
        """Holds decisions against the catalogs of their partitions."""
        targets = {target for told in wave for target, rows in told.decision.partitions.items() if rows}
        for target in sorted(targets, key=lambda each: (each[0].hex, each[1])):
            if target[0] in self._names:
                there = [told for told in wave if told.decision.partitions.get(target)]
                try:
                    yield from self._partition(target, there)
                except (CorruptionError, ConfigError, LogDestroyedError):
                    continue  # a root or a page that cannot be read: told where the partition is looked at
        for told in wave:
            for target in told.waiting if told.passed and told.later is not None else ():
                what = (
                    f"{told.what} is not in {self._tp(target)}: all that it staged there waits, although a later batch "
                    f"was carried out, which a sink begins once the one before is in every partition; an older root "
                    f"was put back, perhaps: see `tiered repair --dry-run`"
                )
                self._tell(told.key, target, "decision_half", what)

    def _partition(self, target: _Target, there: Sequence[_Told]) -> Steps[None]:
        view = RootView(*target, self._names[target[0]])
        pinned = yield from view.pin()
        if pinned is None:
            return
        seen = max(there, key=lambda told: told.decision.seen.get(target, 0))
        version = seen.decision.seen.get(target, 0)
        if pinned.version < version:
            what = f"an older root was put back: {seen.key} has seen version {version}, it has version {pinned.version}"
            what += f"; see `tiered repair {self._tp(target).topic}:{target[1]} --dry-run`"
            self._tell(root_key(*target), target, "went_back", what)
            return
        places = yield from _places(pinned, {told.stem for told in there})
        for told in there:
            held = (yield from _held(pinned, told.stem, places[told.stem])) if told.stem in places else []
            if told.decision.state == ABORTED:
                self._aborted(told, target, held)
                continue
            ours = {_id(row) for row in told.decision.partitions[target]}
            if any(_id(row) in ours for row in held):
                yield from self._carried_out(told, target, pinned, held, _named_by(there, told.stem, target))
            elif _is_behind(pinned.root, told.decision, target):
                yield from self._waiting(told, target, view)
            told.passed = told.passed or _has_passed(told, target, pinned.root)

    def _aborted(self, told: _Told, target: _Target, held: Sequence[Row]) -> None:
        killed = {_id(row) for row in told.decision.partitions[target]}
        for row in held:
            if _id(row) in killed:
                what = f"{told.what} was aborted, and {self._tp(target)} names {_key(target, row)}, which it killed"
                what += ": readers see what no sink has committed"
                self._tell(told.key, target, "decision_aborted", what, row.base)

    def _carried_out(
        self, told: _Told, target: _Target, pinned: Snapshot, held: Sequence[Row], named: Collection[_Id]
    ) -> Steps[None]:
        """The catalog names something of it: all of it was put there by one commit, one segment after the other."""
        rows = told.decision.partitions[target]
        index_of = {_id(row): index for index, row in enumerate(rows)}
        starts = [0, *itertools.accumulate(row.next for row in rows)]
        base = next(row.base - starts[index_of[_id(row)]] for row in held if _id(row) in index_of)
        there: set[int] = set()
        flaws: list[tuple[int, Row, str]] = []
        for row in held:
            index = index_of.get(_id(row))
            if index is not None:
                there.add(index)
                decided = rows[index]._replace(base=base + starts[index], next=base + starts[index + 1])
                if _what(row) != _what(decided):
                    flaws.append((row.base, row, f"is {_words(row)} in the catalog, decided was {_words(decided)}"))
            elif row.base >= base and _id(row) not in named:
                flaws.append((row.base, row, "stands in the catalog behind what was decided, as of the same batch"))
        for index, row in enumerate(rows):
            start, end = base + starts[index], base + starts[index + 1]
            if index in there or end <= pinned.start_offset:
                continue
            now = yield from pinned.at(start)
            if now is None:
                flaws.append((start, row, f"is not in the catalog, which has nothing of its offsets {start} to {end}"))
            elif not now.flags & (FLAG_MAINTAINER | FLAG_HOLE):
                where = f"its offsets {start} to {end} are those of {_key(target, now)}"
                flaws.append((start, row, f"is not in the catalog: {where}, which no rewrite has made"))
        for offset, row, flaw in flaws:
            self._tell(told.key, target, "decision_differs", f"{told.what}: {_key(target, row)} {flaw}", offset)

    def _waiting(self, told: _Told, target: _Target, view: RootView) -> Steps[None]:
        """The catalog has not got it: all that it names has to be there until it is committed."""
        rows = told.decision.partitions[target]
        flaws: list[str] = []
        for at in range(0, len(rows), ROWS_TOGETHER):
            asked: list[tuple[str, int, int | None]] = []
            for row in rows[at : at + ROWS_TOGETHER]:
                asked += [(_key(target, row), row.size, row.crc), (index_key(*target, row), row.idx_len, None)]
            outcomes = yield from ask_all([Head(key) for key, _, _ in asked])
            told_of = zip(asked, outcomes, strict=True)
            flaws += [flaw for (key, size, crc), seen in told_of if (flaw := _flaw(key, seen, size, crc))]
        if not flaws:
            told.waiting.append(target)
            return
        pinned = yield from view.pin()  # it may have been committed, rewritten and collected meanwhile
        if pinned is None or pinned.root.state == STATE_DELETING or not _is_behind(pinned.root, told.decision, target):
            return
        for flaw in flaws:
            what = f"{told.what} is decided and not in {self._tp(target)}: {flaw}, and is committed as it was decided"
            self._tell(
                told.key, target, "decision_segment", f"{what}: put it back from a version or a backup of the bucket"
            )

    def _tell(self, where: str, target: _Target, code: str, what: str, offset: int = -1) -> None:
        findings = Findings(where)
        findings.error(code, what, offset=offset)
        self.found += findings.about(*self._tp(target))

    def _tp(self, target: _Target) -> TopicPartition:
        return TopicPartition(self._names[target[0]], target[1])


def _places(pinned: Snapshot, stems: Collection[str]) -> Steps[dict[str, tuple[int, int]]]:
    """From which offset on, and up to which, the catalog names segments of each batch."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    while len(rows := (yield from pinned.flagged(FLAG_STAGED, at))):
        for row in rows:
            stem = _stem(row)
            if stem in stems:
                found[stem] = found.get(stem, (row.base, 0))[0], row.next
        at = rows.end_offset
    return found


def _held(pinned: Snapshot, stem: str, place: tuple[int, int]) -> Steps[list[Row]]:
    """The segments of one batch that the catalog names, in order."""
    found: list[Row] = []
    at, end = place
    while at < end and len(rows := (yield from pinned.flagged(FLAG_STAGED, at))):
        found += [row for row in rows if row.base < end and _stem(row) == stem]
        at = rows.end_offset
    return found


def _is_behind(root: Root, decision: Decision, target: _Target) -> bool:
    """Whether it is certain that the catalog has not committed a batch: it knows of its id, or has forgotten none since
    before the decision."""
    seen, last = decision.seen.get(target, 0), root.last_batch(decision.txn)
    if last < 0:
        return seen >= forgotten_up_to(root, decision.txn)
    names = [name for name, _ in root.txns]
    versions = dict(zip(names, root.txn_versions, strict=False))
    return last < decision.batch and versions.get(decision.txn, seen + 1) <= seen


def _has_passed(told: _Told, target: _Target, root: Root) -> bool:
    """Whether a later batch was decided after this one, and carried out here."""
    later = told.later
    if later is None or target not in later.seen or told.modified_ms > later.modified_ms:
        return False
    return told.decision.seen.get(target, 0) < later.seen[target] and root.last_batch(told.decision.txn) >= later.batch


def _named_by(there: Sequence[_Told], stem: str, target: _Target) -> set[_Id]:
    """What all decisions of one batch name: it has several after an abort."""
    return {_id(row) for told in there if told.stem == stem for row in told.decision.partitions[target]}


def _flaw(key: str, seen: object, size: int, crc: int | None) -> str:
    """What is wrong with a staged object, ``""`` for nothing."""
    if isinstance(seen, CorruptionError):
        return f"{key}: {seen.message}"
    if not isinstance(seen, Object):
        return f"{key} is gone"
    if seen.size != size:
        return f"{key} has {seen.size} bytes, {size} were decided"
    if None not in (crc, seen.crc32c) and seen.crc32c != crc:
        return f"{key} has CRC32C {seen.crc32c:#010x}, {crc:#010x} was decided"
    return ""


def _key(target: _Target, row: Row) -> str:
    return segment_key(*target, row)


def _id(row: Row) -> _Id:
    return row.id_hi, row.id_lo


def _stem(row: Row) -> str:
    return join_uid(row.id_hi, row.id_lo)[:STEM_CHARS]


def _what(row: Row) -> tuple[int, ...]:
    """What a commit leaves as it was decided, and where it puts it."""
    return row.base, row.next, row.records, row.size, row.crc, row.min_ts, row.max_ts


def _words(row: Row) -> str:
    return f"offsets {row.base} to {row.next}, {row.records} records, {row.size} bytes, CRC32C {row.crc:#010x}"
