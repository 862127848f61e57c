"""What sinks have committed since the root that a lost catalog goes on from: found by their decisions.

::

    LIST txn/ ──> decisions ──> those of this partition that the copy has not committed ──> plan.decided: their order
    LIST s/t/ ──> what is staged and no decision names: was it ever decided?                     │
                                             the commits again, one by one, on the copy <────────┘

What cannot be proven is refused. That is the case where a decision was swept, or may have been; where a local log wrote
into the same partition; and where no copy is left although objects were collected, since nothing tells what they held.

Two sinks may have committed side by side, so that no decision tells which of them came first. Such a partition is
refused, too, unless the caller accepts any order. Then all records are there again, but behind the first such place a
record may have another offset than it had before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tiered.errors import CorruptionError
from tiered.format.decision import COMMITTED, UNTOLD, Decision, Target
from tiered.format.keys import (
    DECISIONS_PREFIX,
    STEM_CHARS,
    TXN_CHARS,
    Role,
    parse_decision_key,
    parse_segment_key,
    parse_staged_key,
    root_key,
    split_uid,
    staged_batch,
    staged_prefix,
    staged_stem,
)
from tiered.format.root import Root
from tiered.model import Row, TopicPartition
from tiered.plan.commit import Stamp, create_root
from tiered.plan.decided import Decided, Order, in_order, not_in, replayed
from tiered.plan.lifecycle import SPARK_VOLUME
from tiered.plan.rebuild import VERSION_STEP
from tiered.plan.stage import passed_batch
from tiered.remote.audit import was_collected
from tiered.remote.roots import ROOTS_TOGETHER
from tiered.remote.snapshot import Snapshot
from tiered.remote.stage import read_decisions
from tiered.remote.sweep import drop_named
from tiered.remote.sweep_staged import DECISION_KEPT_MS
from tiered.remote.torn import Torn
from tiered.store.base import ListEntry, NewId, Now, Steps, list_all, list_page

_ADVICE = "nothing was changed; `tiered repair advice` says how a kept root is put back"
_ACCEPT_HINT = (
    "nothing was changed; a root that is put back tells (`tiered repair advice`). All that was decided is there: "
    "--accept-order puts it into the order of its decisions, the plan names the offsets that may have been others'"
)


@dataclass(frozen=True, slots=True)
class SinceCopy:
    """``root``: the copy with what sinks have committed since, None without both. ``rows``: what they are, in order.
    ``batches``: how many. ``unproven``: offsets of records that may have had others, (0, 0) for none. ``seen``: the
    newest version that a decision has seen."""

    root: Root | None
    rows: tuple[Row, ...] = ()
    batches: int = 0
    unproven: tuple[int, int] = (0, 0)
    seen: int = 0


@dataclass(frozen=True, slots=True)
class _Told:
    """All decisions of the bucket. ``here``: those to commit something in the partition. ``named``: ids of what they
    name there, aborts included. ``states``: by stem how that batch was decided; ``newest``: by the hash of an id the
    newest batch that is to be committed, and the id."""

    here: list[Decided]
    named: set[tuple[int, int]]
    states: dict[str, set[str]]
    newest: dict[str, tuple[int, str]]


def since_copy(
    tp: TopicPartition,
    topic_id: UUID,
    copy: Root | None,
    torn: Torn | None,
    keys: Collection[str],
    *,
    older: bool,
    accept_order: bool,
) -> Steps[SinceCopy]:
    """``keys``: of all segments of the partition; ``torn``: the copy, where pages of it are lost; ``older``: it is the
    root that lies there, which was put back.

    Raises CorruptionError where it is not known what sinks have committed since, or in which order.
    """
    staged = {parsed.uid: key for key in keys if (parsed := parse_staged_key(key)) is not None}
    if copy is not None and staged:
        if torn is None:
            yield from drop_named(Snapshot.of(copy), staged)
        else:
            for uid in (yield from torn.named()):
                staged.pop(uid, None)
    logged = _logged(copy, keys)
    owned = copy.writer.volume == SPARK_VOLUME if copy is not None else not logged
    if not staged and not owned:
        return SinceCopy(copy)
    told = yield from _decisions(topic_id, tp.partition)
    yield from _need_all_decided(tp, topic_id, copy, staged, told)
    seen = max((each.seen for each in told.here), default=0)
    known = copy or create_root(topic_id, tp.partition, tp.topic, (yield from _stamp()))
    batches = not_in(known, told.here, {split_uid(uid) for uid in staged}) if copy is not None else told.here
    if not batches:
        return SinceCopy(copy, seen=seen)
    if torn is not None or logged or (copy is None and (yield from was_collected(topic_id, tp.partition))):
        raise _not_proven(tp, topic_id, torn, logged, batches)
    order = in_order(known, batches, fresh=copy is None, older=older)
    if order.why and not accept_order:
        raise CorruptionError(
            f"{tp}: at which offsets sinks have committed since is not known: {order.why}",
            path_or_key=root_key(topic_id, tp.partition),
            hint=_ACCEPT_HINT,
        )
    # Above every version that was: a decision that comes late was made below.
    begun = replace(known, version=max(known.version, seen) + VERSION_STEP)
    if copy is None:
        begun = replace(begun, txns_floor=begun.version)  # what was forgotten or swept is not known
    root, rows = replayed(begun, order.batches, (yield from _stamp()))
    return SinceCopy(root, rows, len(order.batches), _doubted(known, order), seen)


def _doubted(known: Root, order: Order) -> tuple[int, int]:
    """The offsets of all behind what is proven."""
    lengths = [each.length for each in order.batches]
    start = known.next_offset + sum(lengths[: order.proven])
    return (start, known.next_offset + sum(lengths)) if order.why else (0, 0)


def _stamp() -> Steps[Stamp]:
    return Stamp((yield NewId()), (yield Now()).now_ms, Role.WRITER, 0, "rebuild")


def _logged(copy: Root | None, keys: Collection[str]) -> str:
    """The key of a segment that a local log has uploaded since the copy; ``""`` without one."""
    epoch = copy.writer.epoch if copy is not None else 0
    end = copy.next_offset if copy is not None else 0
    for key in keys:
        parsed = parse_segment_key(key)
        name = None if parsed is None else parsed.name
        if name is not None and name.role is Role.WRITER and name.epoch >= epoch and name.base >= end:
            return key
    return ""


def _decisions(topic_id: UUID, partition: int) -> Steps[_Told]:
    """Lists ``txn/`` and reads each. Raises CorruptionError for one that cannot be read: what it names is not known."""
    listed = [entry for entry in (yield from list_all(DECISIONS_PREFIX)) if parse_decision_key(entry.key) is not None]
    told = _Told([], set(), {}, {})
    for at in range(0, len(listed), ROOTS_TOGETHER):
        group = listed[at : at + ROOTS_TOGETHER]
        decisions = yield from read_decisions([entry.key for entry in group])
        for entry, decision in zip(group, decisions, strict=True):
            if decision is not None:
                _note(told, entry, decision, Target(topic_id, partition))
    return told


def _note(told: _Told, entry: ListEntry, decision: Decision, target: Target) -> None:
    rows, committed = decision.partitions.get(target, ()), decision.state == COMMITTED
    stem = staged_stem(decision.txn, decision.batch)
    told.named.update([(row.id_hi, row.id_lo) for row in rows])
    told.states.setdefault(stem, set()).add(decision.state)
    if committed:
        before, _ = told.newest.get(stem[:TXN_CHARS], (-1, ""))
        told.newest[stem[:TXN_CHARS]] = max(before, decision.batch), decision.txn
    if committed and rows:
        seen, end = decision.seen.get(target, 0), decision.ends.get(target, UNTOLD)
        told.here.append(Decided(decision.txn, decision.batch, rows, seen, end, entry.last_modified_ms))


def _need_all_decided(
    tp: TopicPartition, topic_id: UUID, copy: Root | None, staged: Mapping[str, str], told: _Told
) -> Steps[None]:
    """Raises CorruptionError where a decision that is not there any more may have committed what is staged.

    A decision is swept once a later one of its id is there, or a month after it was made.
    """
    swept: dict[str, list[str]] = {}
    unknown: set[str] = set()
    for uid in sorted(staged):
        stem = uid[:STEM_CHARS]
        if split_uid(uid) in told.named or COMMITTED in told.states.get(stem, ()):
            continue
        if copy is not None and passed_batch(copy, uid) is not None:
            continue
        later, _ = told.newest.get(stem[:TXN_CHARS], (-1, ""))
        if later > staged_batch(uid):
            swept.setdefault(stem, []).append(uid)
        elif later < 0:
            unknown.add(uid)
    for stem, uids in swept.items():
        later, txn = told.newest[stem[:TXN_CHARS]]
        raise CorruptionError(
            f"{tp}: no kept copy names {len(uids)} segments of batch {staged_batch(uids[0])} of {txn}, whose decision "
            f"was swept since its batch {later} was decided: whether they were committed, and at which offsets, no "
            f"object tells",
            path_or_key=root_key(topic_id, tp.partition),
            hint=_ADVICE,
        )
    old = (yield from _older(topic_id, tp.partition, unknown)) if unknown else []
    if old:
        raise CorruptionError(
            f"{tp}: no kept copy and no decision names {len(old)} segments of sinks, the first {old[0]}, and they are "
            f"older than a decision is kept: whether they were committed, and at which offsets, no object tells",
            path_or_key=old[0],
            hint=f"{_ADVICE}. Only to give them up, as what an attempt has left that failed: delete them here, and "
            "plan this anew",
        )


def _older(topic_id: UUID, partition: int, uids: Collection[str]) -> Steps[list[str]]:
    """The keys of those that were stored so long ago that their decision may be swept."""
    found: list[str] = []
    after, more = "", True
    while more:
        page = yield from list_page(staged_prefix(topic_id, partition), after)
        date_ms = page.date_ms or (yield Now()).now_ms
        for entry in page.entries:
            parsed = parse_staged_key(entry.key)
            if parsed is not None and parsed.uid in uids and parsed.suffix == "log":
                found += [entry.key] if date_ms - entry.last_modified_ms >= DECISION_KEPT_MS else []
        after, more = (page.entries[-1].key if page.entries else ""), page.more and bool(page.entries)
    return found


def _not_proven(
    tp: TopicPartition, topic_id: UUID, torn: Torn | None, logged: str, batches: Sequence[Decided]
) -> CorruptionError:
    if torn is not None:
        why = "the root that lies there has lost pages"
    elif logged:
        why = f"a local log wrote the partition, too ({logged}), and nothing tells when it was handed over"
    else:
        why = "objects were collected, and no copy of a root is left that tells what they were"
    first, count = min(batches, key=lambda each: (each.seen, each.name)), sum(len(each.rows) for each in batches)
    return CorruptionError(
        f"{tp}: sinks have staged {count} segments that no kept copy names, the first of {first.name}, which was "
        f"decided to be committed: at which offsets they were, no object tells: {why}",
        path_or_key=root_key(topic_id, tp.partition),
        hint=_ADVICE,
    )
