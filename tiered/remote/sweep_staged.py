"""What sinks staged and no catalog names: dead, still to be committed, or aborted here so that it is dead.

A staged object has no claim epoch in its key: what proves it dead is its batch. In this order::

    txns[id] >= its batch           the batch is committed in this partition, without it: dead
    a decision names it             it is to be committed, or was aborted before: alive, or dead
    a decision to commit, not it    another attempt at the batch was chosen: dead
    no decision                     one is made, create-only, that aborts it: dead, unless somebody was faster

Only ids that are named by a decision can be committed (``plan.stage``), an abort names what it deletes, and a sink that
meets an abort never commits what it names: so no clock decides what is true. Listed first, the root read after. The
``.log`` goes before its bundle, which alone tells the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tiered.errors import ConfigError, CorruptionError
from tiered.format.bundle import MAX_BUNDLE_BYTES, decode_bundle
from tiered.format.decision import ABORTED, COMMITTED, Decision
from tiered.format.keys import (
    DECISIONS_PREFIX,
    FLAG_STAGED,
    STEM_CHARS,
    DecisionKey,
    decision_key,
    index_key_of,
    is_stem_of,
    parse_decision_key,
    parse_staged_key,
    root_key,
    split_uid,
    staged_batch,
    staged_key,
    staged_prefix,
)
from tiered.format.root import Root, decode_root
from tiered.model import Row
from tiered.plan.maintenance import MAX_DELETE_KEYS, ORPHAN_MS
from tiered.plan.stage import forgotten_up_to, is_once, passed_batch
from tiered.remote.audit import announce_decisions
from tiered.remote.catalog import Catalog
from tiered.remote.conditional_put import COMMIT_DEADLINE_MS, deadline_after
from tiered.remote.root_view import root_get
from tiered.remote.snapshot import Snapshot
from tiered.remote.stage import MAX_GENERATIONS, put_decision, read_decision
from tiered.store.base import Delete, Deleted, Get, ListEntry, Missing, Now, Object, Steps, list_all, list_page

DECISION_KEPT_MS = 30 * 24 * 3_600_000
"""How long the newest decision of a transaction id is kept at least: as long, the same id adds nothing again."""


Listed = dict[str, list[ListEntry]]
"""By uid the objects of what was staged, the ``.idx`` and the ``.log``."""


def staged_objects(catalog: Catalog, after: str, most: int, grace_ms: int) -> Steps[tuple[Listed, str, int]]:
    """Some of what is staged, for longer than the grace; where the next begins (``""``: nowhere), strange keys."""
    found: Listed = {}
    strange = 0
    while len(found) < most:
        page = yield from list_page(staged_prefix(catalog.topic_id, catalog.partition), after)
        date_ms = page.date_ms or (yield Now()).now_ms
        for entry in page.entries:
            parsed = parse_staged_key(entry.key)
            if parsed is None:
                strange += 1
            # mutant staged-objects-have-grace
            elif date_ms - entry.last_modified_ms >= grace_ms:
                found.setdefault(parsed.uid, []).append(entry)
        after = page.entries[-1].key if page.entries else ""
        if not page.more or not page.entries:
            return found, "", strange
    return found, after, strange


def dead_of(root: Root, unnamed: Listed, *, abort: bool) -> Steps[list[ListEntry]]:
    """Of what no catalog names that which can never be committed. Without ``abort`` nothing is written: what is not
    decided counts as dead, as if it were.

    Raises CorruptionError for a decision that cannot be read: what it names is not known then.
    """
    dead: list[ListEntry] = []
    batches: dict[tuple[str, int], Listed] = {}
    known: dict[str, str] = {}
    decided: list[DecisionKey] | None = None
    for uid, entries in unnamed.items():
        if passed_batch(root, uid) is not None:
            dead += entries
            continue
        stem = uid[:STEM_CHARS]
        if not known.get(stem):
            known[stem] = yield from _transaction(root.topic_id, root.partition, uid)
        if not known[stem]:
            if decided is None:
                decided = yield from _decided()
            known[stem] = _decided_as(uid, decided)
        if known[stem]:
            batches.setdefault((known[stem], staged_batch(uid)), {})[uid] = entries
    for (txn, batch), listed in batches.items():
        gone = yield from _undecided(root, txn, batch, listed, abort=abort)
        dead += [entry for uid in gone for entry in listed[uid]]
    return dead


def delete_staged(entries: Sequence[ListEntry]) -> Steps[list[tuple[str, str]]]:
    """Deletes them, each ``.log`` before its bundle; gives what the store refused."""
    failed: list[tuple[str, str]] = []
    for suffix in (".log", ".idx"):
        keys = [entry.key for entry in entries if entry.key.endswith(suffix)]
        for at in range(0, len(keys), MAX_DELETE_KEYS):
            outcome: Deleted = yield Delete(tuple(keys[at : at + MAX_DELETE_KEYS]))
            failed += outcome.failed
        if failed:
            return failed
    return failed


def _transaction(topic_id: UUID, partition: int, uid: str) -> Steps[str]:
    """The id that staged it, as its bundle says; ``""`` without one."""
    key = index_key_of(staged_key(topic_id, partition, uid))
    got = yield Get(key, max_bytes=MAX_BUNDLE_BYTES)
    if not isinstance(got, Object):
        return ""
    try:
        txn = decode_bundle(got.data, key=key).txn
    except (CorruptionError, ConfigError):
        return ""
    return txn if txn and is_stem_of(txn, staged_batch(uid), uid) else ""


def _decided() -> Steps[list[DecisionKey]]:
    """All decisions of all sinks, by their keys. Lists ``txn/``."""
    listed = yield from list_all(DECISIONS_PREFIX)
    return [parsed for entry in listed if (parsed := parse_decision_key(entry.key)) is not None]


def _decided_as(uid: str, decided: Sequence[DecisionKey]) -> str:
    """The id whose decision may name a ``.log`` without a bundle; ``""`` if none does: it is left alone.

    A task that stands still between its two objects may store the second after a sweep has aborted its batch and taken
    the first. Two ids of one stem prove nothing.
    """
    found = {each.txn for each in decided if is_stem_of(each.txn, staged_batch(uid), uid)}
    return found.pop() if len(found) == 1 else ""


def _undecided(root: Root, txn: str, batch: int, listed: Listed, *, abort: bool) -> Steps[set[str]]:
    """Of what a batch staged in this partition that which its decisions leave out, or kill; the rest is killed now."""
    left, dead, target = set(listed), set[str](), (root.topic_id, root.partition)
    deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
    generation = 0
    while left and generation <= MAX_GENERATIONS:
        found = yield from read_decision(decision_key(txn, batch, generation))
        if found is None:
            if not abort:
                return dead | left
            rows = tuple([_named(uid) for uid in sorted(left)])
            mine = Decision(txn, batch, ABORTED, {target: rows}, {target: root.version}, generation)
            # mutant abort-is-decided-first
            found = yield from put_decision(mine, deadline)
        named = {uid for uid in left if split_uid(uid) in found.uids}
        if found.state == COMMITTED:
            # mutant decided-objects-stay
            return dead | (left - named)
        dead, left, generation = dead | named, left - named, generation + 1
    return dead


def _named(uid: str) -> Row:
    high, low = split_uid(uid)
    return Row(0, 0, 0, 0, 0, 0, high, low, 0, 0, 0, FLAG_STAGED, -1)


# -- decisions -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class OldDecisions:
    """``keys``: what nobody can need any more; ``kept``: how many others there are; ``damaged``: of these what cannot
    be read, and why."""

    keys: list[str] = field(default_factory=list)
    kept: int = 0
    damaged: dict[str, CorruptionError] = field(default_factory=dict)
    failed: list[tuple[str, str]] = field(default_factory=list)


def sweep_decisions(*, delete: bool) -> Steps[OldDecisions]:
    """Decisions of all sinks that nobody can need any more; with ``delete`` they go. Lists ``txn/``.

    A sink begins a batch when the one before is in every partition: so a decision is needed no longer, a day after it
    was made, once a later batch of its id was decided to be committed, and every partition that it names has committed
    that or a later one. The newest of an id stays for :data:`DECISION_KEPT_MS`, an abort of it for ever: what it killed
    must not be committed. One that cannot be read stays, too: what it names is not known. So does what a partition has
    forgotten, but for a decision of one write of which nothing waits there (:meth:`_Partitions.is_over`).

    Raises:
        RemotePermissionError, RemoteUnavailableError: the audit line cannot be stored. Nothing was deleted.
    """
    found = OldDecisions()
    partitions = _Partitions()
    by_id: dict[str, list[tuple[DecisionKey, ListEntry]]] = {}
    after, more, date_ms = "", True, 0
    while more:
        page = yield from list_page(DECISIONS_PREFIX, after)
        date_ms = page.date_ms or (yield Now()).now_ms
        for entry in page.entries:
            parsed = parse_decision_key(entry.key)
            if parsed is not None:
                by_id.setdefault(parsed.txn, []).append((parsed, entry))
        after, more = (page.entries[-1].key if page.entries else ""), page.more and bool(page.entries)
    for listed in by_id.values():
        listed.sort(key=lambda each: (each[0].batch, each[0].generation))
        later = yield from _newest_committed(listed, found)
        for parsed, entry in listed:
            age_ms = date_ms - entry.last_modified_ms
            due = age_ms >= (ORPHAN_MS if parsed.batch < later else DECISION_KEPT_MS)
            try:
                due = due and (yield from _is_passed(parsed, partitions, later))
            except CorruptionError as damage:
                found.damaged[damage.path_or_key or entry.key], due = damage, False
            if due:
                found.keys.append(entry.key)
            else:
                found.kept += 1
    if delete and found.keys:
        yield from announce_decisions(found.keys)
    for at in range(0, len(found.keys) if delete else 0, MAX_DELETE_KEYS):
        outcome: Deleted = yield Delete(tuple(found.keys[at : at + MAX_DELETE_KEYS]))
        found.failed += outcome.failed
    return found


def _newest_committed(listed: Sequence[tuple[DecisionKey, ListEntry]], found: OldDecisions) -> Steps[int]:
    """The batch of the newest decision that can be read, if it is one to commit; else -1."""
    for parsed, entry in reversed(listed):
        try:
            newest = yield from read_decision(entry.key)
        except CorruptionError as damage:
            found.damaged[entry.key] = damage
            continue
        return parsed.batch if newest is not None and newest.state == COMMITTED else -1
    return -1


def _is_passed(parsed: DecisionKey, partitions: _Partitions, later: int) -> Steps[bool]:
    """Whether each partition that a decision names has committed it or one after it, is gone, or expects no more."""
    found = yield from read_decision(decision_key(*parsed))
    if found is None:
        return True
    if found.state != COMMITTED and parsed.batch >= later:
        return False
    for target in found.partitions:
        root = yield from partitions.root(target)
        if root is not None and root.last_batch(parsed.txn) < parsed.batch:
            over = yield from partitions.is_over(found, target, root)
            if not over:
                return False
    return True


class _Partitions:
    """What the partitions tell that decisions name: each is asked once."""

    def __init__(self) -> None:
        self._roots: dict[tuple[UUID, int], Root | None] = {}
        self._staged: dict[tuple[UUID, int], tuple[set[tuple[int, int]], set[tuple[int, int]]]] = {}

    def root(self, target: tuple[UUID, int]) -> Steps[Root | None]:
        """None for a partition that is gone."""
        if target not in self._roots:
            self._roots[target] = yield from _root(*target)
        return self._roots[target]

    def is_over(self, decision: Decision, target: tuple[UUID, int], root: Root) -> Steps[bool]:
        """Whether a partition that has forgotten the id of a decision has nothing to expect of it any more.

        Only of an id of one write: nobody replays it. A stream that comes back after a year replays its last batch, and
        finds by the decision alone that it is not to be decided anew. The partition refuses the batch for ever
        (``plan.stage``), so nobody can carry it out. What it does not tell is whether that was done before. It was if
        the catalog names something of it, since a batch comes whole. Else nothing of it may be left among what is
        staged: of what waits there nothing but the decision tells that it was decided.
        """
        forgotten = is_once(decision.txn) and root.last_batch(decision.txn) < 0
        forgotten = forgotten and decision.seen.get(target, 0) < forgotten_up_to(root, decision.txn)
        if decision.state != COMMITTED or not forgotten:
            return False
        if target not in self._staged:
            self._staged[target] = (yield from _named_staged(root)), (yield from _stored_staged(*target))
        named, stored = self._staged[target]
        ours = {(row.id_hi, row.id_lo) for row in decision.partitions[target]}
        return bool(ours & named) or not ours & stored


def _named_staged(root: Root) -> Steps[set[tuple[int, int]]]:
    """Ids of what sinks have staged and a catalog names."""
    found: set[tuple[int, int]] = set()
    pinned, at = Snapshot.of(root), 0
    while len(rows := (yield from pinned.flagged(FLAG_STAGED, at))):
        found.update((row.id_hi, row.id_lo) for row in rows)
        at = rows.end_offset
    return found


def _stored_staged(topic_id: UUID, partition: int) -> Steps[set[tuple[int, int]]]:
    """Ids of all that lies below ``s/t/``."""
    listed = yield from list_all(staged_prefix(topic_id, partition))
    return {split_uid(parsed.uid) for entry in listed if (parsed := parse_staged_key(entry.key)) is not None}


def _root(topic_id: UUID, partition: int) -> Steps[Root | None]:
    key = root_key(topic_id, partition)
    got = yield root_get(key)
    return None if isinstance(got, Missing) else decode_root(got.data, key=key)
