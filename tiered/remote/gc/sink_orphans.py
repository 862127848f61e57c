"""Staged objects of sinks that no catalog names: dead, to be committed, or aborted here so that they are dead.

A staged object has no claim epoch in its key. Its batch decides whether it is dead, in this order::

    txns[id] >= its batch           the batch is committed in this partition, without it: dead
    a decision names it             it is to be committed, or was aborted before: alive, or dead
    a decision to commit, not it    another attempt at the batch was chosen: dead
    no decision                     one is made, create-only, that aborts it: dead, unless another process was first

No clock decides. Only ids that a decision names can be committed (``plan.sink_commit``), an abort names what it
deletes, and a sink that meets an abort never commits what it names. Objects are listed first, the root is read after.
The ``.log`` is deleted before its bundle, which alone holds the transaction id.
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
from tiered.plan.maintenance import ORPHAN_MS
from tiered.plan.sink_commit import is_once, passed_batch, txns_dropped_up_to
from tiered.remote.catalog_view import CatalogView
from tiered.remote.conditional_put import COMMIT_DEADLINE_MS, deadline_after
from tiered.remote.gc.audit import announce_decisions
from tiered.remote.gc.garbage import delete_all
from tiered.remote.root_view import root_get
from tiered.remote.sink_commit import MAX_GENERATIONS, put_decision, read_decision
from tiered.store.base import Get, ListEntry, Missing, Object, Steps
from tiered.store.steps import Listing, list_all

DECISION_KEPT_MS = 30 * 24 * 3_600_000
"""Least time that the newest decision of a transaction id is kept, during which the id adds nothing twice."""


Listed = dict[str, list[ListEntry]]
"""Staged objects by uid, the ``.idx`` and the ``.log``."""


def staged_objects(listing: Listing, most: int, grace_ms: int) -> Steps[Listed]:
    """Return staged segments whose objects are at least ``grace_ms`` old, by uid. Skips foreign objects.

    Reads pages of ``listing`` until there are ``most`` segments, or until its end.
    """
    found: Listed = {}
    while listing.more and len(found) < most:
        for entry in (yield from listing.page()):
            parsed = parse_staged_key(entry.key)
            # mutant staged-objects-have-grace
            if parsed is not None and listing.age_ms(entry) >= grace_ms:
                found.setdefault(parsed.uid, []).append(entry)
    return found


def dead_of(root: Root, unnamed: Listed, *, abort: bool) -> Steps[list[ListEntry]]:
    """Return those objects of ``unnamed``, the staged objects that no catalog names, that can never be committed.

    ``abort``: write an abort decision for undecided batches. Otherwise nothing is written, and undecided objects count
    as dead. Raises CorruptionError for an unreadable decision, because it may name any of the objects.
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


def delete_staged(entries: Sequence[ListEntry]) -> Steps[None]:
    """Delete objects, every ``.log`` before any bundle, which alone holds the transaction id."""
    for suffix in (".log", ".idx"):
        yield from delete_all([entry.key for entry in entries if entry.key.endswith(suffix)])


def _transaction(topic_id: UUID, partition: int, uid: str) -> Steps[str]:
    """Return the transaction id in the bundle of a staged segment; ``""`` without one."""
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
    """Return the keys of all decisions of all sinks. Lists ``txn/``."""
    listed = yield from list_all(DECISIONS_PREFIX)
    return [parsed for entry in listed if (parsed := parse_decision_key(entry.key)) is not None]


def _decided_as(uid: str, decided: Sequence[DecisionKey]) -> str:
    """Return the transaction id whose decision may name a ``.log`` without a bundle; ``""`` if that is not certain.

    A task stores two objects. If it stalls between them, a sweep may abort its batch and delete the first. The task
    then stores the second alone. If two ids fit ``uid``, it is not known to which batch the object belongs.
    """
    found = {each.txn for each in decided if is_stem_of(each.txn, staged_batch(uid), uid)}
    return found.pop() if len(found) == 1 else ""


def _undecided(root: Root, txn: str, batch: int, listed: Listed, *, abort: bool) -> Steps[set[str]]:
    """Return the uids in ``listed`` that can never be committed: the batch's decisions leave them out or abort them.

    ``abort``: store a decision that aborts the undecided uids. Otherwise they count as aborted, and nothing is stored.
    """
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
            found = yield from put_decision(mine, deadline)  # another process may have decided first
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
    """Result of a sweep of sink decisions. ``keys``: keys of obsolete decisions. ``kept``: number of all others.

    ``damaged``: errors of unreadable decisions, by key.
    """

    keys: list[str] = field(default_factory=list)
    kept: int = 0
    damaged: dict[str, CorruptionError] = field(default_factory=dict)


def sweep_decisions(*, delete: bool) -> Steps[OldDecisions]:
    """Find obsolete decisions of all sinks; with ``delete`` delete them. Lists ``txn/``.

    A sink begins a batch when the one before is in every partition. A decision is obsolete under three conditions: it
    is a day old, its id has a later decision to commit, and every partition that it names has committed its batch or a
    later one. These decisions stay:

    * the newest of an id for :data:`DECISION_KEPT_MS`, after which it needs no later one. If it is an abort, it stays
      for ever, so that its objects stay aborted;
    * unreadable ones, because it is unknown what they name;
    * ones whose id a partition's root no longer lists. Those of a one-shot write are deleted once the catalog names its
      objects, or none of them is stored.

    Raises:
        RemotePermissionError, RemoteUnavailableError: the audit line cannot be stored. Nothing was deleted.
    """
    found = OldDecisions()
    partitions = _DecidedPartitions()
    by_id: dict[str, list[tuple[DecisionKey, ListEntry]]] = {}
    listing = Listing(DECISIONS_PREFIX)
    while listing.more:
        for entry in (yield from listing.page()):
            parsed = parse_decision_key(entry.key)
            if parsed is not None:
                by_id.setdefault(parsed.txn, []).append((parsed, entry))
    for listed in by_id.values():
        listed.sort(key=lambda each: (each[0].batch, each[0].generation))
        later = yield from _newest_committed(listed, found)
        for parsed, entry in listed:
            due = listing.age_ms(entry) >= (ORPHAN_MS if parsed.batch < later else DECISION_KEPT_MS)
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
        yield from delete_all(found.keys)
    return found


def _newest_committed(listed: Sequence[tuple[DecisionKey, ListEntry]], found: OldDecisions) -> Steps[int]:
    """Return the batch of the newest readable decision, if it is one to commit; otherwise -1.

    ``listed``: the decisions of one id, oldest first. Adds the errors of unreadable ones to ``found``.
    """
    for parsed, entry in reversed(listed):
        try:
            newest = yield from read_decision(entry.key)
        except CorruptionError as damage:
            found.damaged[entry.key] = damage
            continue
        return parsed.batch if newest is not None and newest.state == COMMITTED else -1
    return -1


def _is_passed(parsed: DecisionKey, partitions: _DecidedPartitions, later: int) -> Steps[bool]:
    """Return True if no partition that the decision names needs it any more.

    Each of them is deleted, has committed this batch or a later one, or cannot commit this batch any more. An abort is
    also needed until its id has a later decision to commit. ``later``: batch of the id's newest decision if that is one
    to commit, otherwise -1.
    """
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


class _DecidedPartitions:
    """State of the partitions that decisions name. Each is read once."""

    def __init__(self) -> None:
        self._roots: dict[tuple[UUID, int], Root | None] = {}
        self._staged: dict[tuple[UUID, int], tuple[set[tuple[int, int]], set[tuple[int, int]]]] = {}

    def root(self, target: tuple[UUID, int]) -> Steps[Root | None]:
        """Return the root, None for a partition that is gone."""
        if target not in self._roots:
            self._roots[target] = yield from _root(*target)
        return self._roots[target]

    def is_over(self, decision: Decision, target: tuple[UUID, int], root: Root) -> Steps[bool]:
        """Return True if partition ``target`` needs ``decision`` no more, although its ``root`` does not list the id.

        Only the decisions of one-shot ids can be over, because they are never replayed. A stream that resumes after a
        year replays its last batch, and only the decision shows that the batch was decided. The partition refuses the
        batch for ever (``plan.sink_commit``). If the catalog names some of the batch, all of it was committed, since a
        batch comes whole. Otherwise no staged object of it may exist, because only the decision shows that those were
        decided.
        """
        forgotten = is_once(decision.txn) and root.last_batch(decision.txn) < 0
        forgotten = forgotten and decision.seen.get(target, 0) < txns_dropped_up_to(root, decision.txn)
        if decision.state != COMMITTED or not forgotten:
            return False
        if target not in self._staged:
            self._staged[target] = (yield from _named_staged(root)), (yield from _stored_staged(*target))
        named, stored = self._staged[target]
        ours = {(row.id_hi, row.id_lo) for row in decision.partitions[target]}
        return bool(ours & named) or not ours & stored


def _named_staged(root: Root) -> Steps[set[tuple[int, int]]]:
    found: set[tuple[int, int]] = set()
    pinned, at = CatalogView.from_root(root), 0
    while len(rows := (yield from pinned.flagged(FLAG_STAGED, at))):
        found.update((row.id_hi, row.id_lo) for row in rows)
        at = rows.end_offset
    return found


def _stored_staged(topic_id: UUID, partition: int) -> Steps[set[tuple[int, int]]]:
    """Return the ids, as (high, low) halves, of all staged objects of a partition."""
    listed = yield from list_all(staged_prefix(topic_id, partition))
    return {split_uid(parsed.uid) for entry in listed if (parsed := parse_staged_key(entry.key)) is not None}


def _root(topic_id: UUID, partition: int) -> Steps[Root | None]:
    key = root_key(topic_id, partition)
    got = yield root_get(key)
    return None if isinstance(got, Missing) else decode_root(got.data, key=key)
