"""Driver's side of a Spark sink: staged segments become a decision, then rows of each partition's catalog.

::

    tasks: .idx, .log below s/t/   (upload_staged)
    driver: GET the roots -> PUT txn/{id}/{batch}, create-only -> one CAS per touched partition

``decide`` and ``commit_staged`` may be repeated after any crash, by any process, concurrently. A decision is made once
and adopted by later callers, and a partition's commit is settled by content (``plan.sink_commit``). Without other
committers a partition costs at most one GET and one CAS. A partition that the batch does not touch costs nothing.

The bundle goes first: it names the transaction (``format.bundle``), so that a collector can identify the ``.log``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from tiered.errors import (
    ConfigError,
    CorruptionError,
    FencedError,
    LogDestroyedError,
    TieredError,
)
from tiered.format.bundle import encode_bundle
from tiered.format.decision import COMMITTED, Decision, decode_decision, encode_decision
from tiered.format.kernels import crc32c
from tiered.format.keys import FLAG_STAGED, Role, decision_key, index_key_of, split_uid, staged_key, staged_uid
from tiered.format.root import Root
from tiered.model import Row, SealedSegment
from tiered.plan.catalog_edit import spill
from tiered.plan.commit import Intent, Stamp
from tiered.plan.ownership import Refusal, RefusalReason, sink_refused
from tiered.plan.sink_commit import HandoverIntent, StageIntent
from tiered.remote.catalog_view import store_pages
from tiered.remote.committer import StoreClock, refusal_error
from tiered.remote.conditional_put import (
    COMMIT_DEADLINE_MS,
    LOOK,
    Cell,
    Deadline,
    NextBody,
    Planned,
    Tagged,
    any_is_ours,
    deadline_after,
    update,
)
from tiered.remote.root_history import store_copy
from tiered.remote.root_view import RootView, root_get
from tiered.remote.roots import ROOTS_TOGETHER, TopicIds, root_body
from tiered.remote.upload import INDEX_TAGS, SEGMENT_TAGS, row_of, verify_sent
from tiered.store.base import (
    Capabilities,
    Get,
    Missing,
    NewId,
    Now,
    Steps,
    Time,
    Together,
)
from tiered.store.steps import results_of, side_by_side
from tiered.store.unique_upload import put_unique, upload_object

MAX_GENERATIONS = 10_000
"""Most aborts of one batch that a sink skips. A collector makes at most one per partition and collection."""

_WAY_OUT = (
    "`tiered repair` puts a version of it back; without a version, use a backup of the bucket. Without a backup, use "
    "another `txnId` or checkpoint, and delete this object when no job uses its id any more"
)


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """Commit of a batch in one partition. ``root``: a root that contains the batch's rows.

    ``base`` to ``end`` (exclusive): offsets of these rows. Both are -1 if an earlier call committed the batch, because
    its rows may be merged by now.
    """

    topic_id: UUID
    partition: int
    root: Root
    base: int
    end: int


class SinkView(RootView):
    """One partition's root as a sink reads and commits it, without a claim.

    ``topic`` is None if only another attempt's decision names the partition. Its name is then taken from the root.
    """

    def __init__(self, topic_id: UUID, partition: int, topic: str | None) -> None:
        super().__init__(topic_id, partition, topic or topic_id.hex)
        self._is_named = topic is not None
        self.clock = StoreClock(self.name)

    def _check(self, root: Root, previous: Root | None) -> None:
        if not self._is_named:  # the registry was not read for it
            self.topic, self.name, self._is_named = root.topic, f"{root.topic}-{self.partition}", True
        super()._check(root, previous)

    def taken_in(self, got: object, time: Time) -> Root:
        """Return the root in ``got``, the store's answer that arrived at ``time``.

        Raises LogDestroyedError if there is no root, CorruptionError for a damaged one.
        """
        self.clock.note(got, time)
        root = self._received(got)
        if root is None:
            raise LogDestroyedError(
                f"{self.name}: the root {self.key} does not exist",
                hint="if the topic was deleted, or made again, write with another checkpoint or txnId; "
                f"{LogDestroyedError.hint}",
            )
        return root

    def planned(self, intent: Intent, stamp: Stamp) -> Root | Refusal:
        """Return the root that ``intent`` makes of the last root, checked, or the reason why it is refused.

        ``stamp``: id, date and owner of the commit.
        """
        if self.root is None:
            raise ValueError(f"{self.name}: the root was not read before the commit")
        outcome = intent.apply(self.root, stamp)
        if not isinstance(outcome, Root | Refusal):
            raise TypeError(f"{intent.op} asks for pages")
        if isinstance(outcome, Root):
            if outcome.writer.epoch == self.root.writer.epoch:  # no page may carry an unclaimed epoch
                outcome = spill(outcome, stamp)
            self._check(outcome, self.root)
        return outcome

    def landed(self, root: Root, etag: str) -> None:
        """Record that the store has acknowledged ``root``, with this ETag."""
        self.root, self.etag = root, etag


class Sink:
    """Committer of a Spark sink's batches. It caches the roots between batches.

    ``owner``: the committer's name in the catalog, for people. ``topics``: topic names by topic id, for all topics of
    this attempt. The decision of an earlier attempt may have other topics. Their names come from their roots.
    """

    def __init__(self, owner: str, topics: Mapping[UUID, str]) -> None:
        self._owner = owner
        self._topics = topics
        self._views: dict[tuple[UUID, int], SinkView] = {}

    def decide(self, decision: Decision) -> Steps[Decision]:
        """Store the decision to commit a batch, create-only. Return the valid decision: this one, or an earlier one.

        Pass the returned decision to :meth:`commit_staged`. The roots are read first.

        Raises:
            FencedError: a partition belongs to a local log; the hint has the command that hands it over. Or garbage
                collection has aborted the batch and deleted its objects: stage them again.
            ConfigError: the decision is not to commit, or the batch was aborted too often.
            LogDestroyedError: a partition has no root.
            CommitUnknownError, RemoteUnavailableError: call this again.
        """
        if decision.state != COMMITTED:
            raise ConfigError(f"batch {decision.batch} of {decision.txn}: the decision of a sink must be to commit")
        views = {target: self._view(*target) for target in decision.partitions}
        yield from load_views([*views.values()])
        for view in views.values():
            _need_sinks(view)
        roots = {target: view.root for target, view in views.items() if view.root is not None}
        time = yield Now()
        partitions = {
            target: tuple([row._replace(appended_ms=views[target].clock.trusted_ms(time)) for row in rows])
            for target, rows in decision.partitions.items()
        }
        seen = MappingProxyType({target: root.version for target, root in roots.items()})
        decision = dataclasses.replace(decision, partitions=MappingProxyType(partitions), seen=seen, generation=0)
        return (yield from _decided(decision, (yield from deadline_after(COMMIT_DEADLINE_MS))))

    def commit_staged(self, decision: Decision) -> Steps[tuple[PartitionCommit, ...]]:
        """Commit a decision in each partition for which it has rows. Return one result for each of them.

        A partition in which the decision is committed already is not changed. All partitions are tried before the first
        error is raised.

        Raises:
            FencedError: a partition was handed over to a local log meanwhile.
            ConfigError: the decision is not to commit.
            LogDestroyedError: a partition has no root.
            CommitUnknownError, RemoteUnavailableError: commit the same decision again.
        """
        if decision.state != COMMITTED:
            raise ConfigError(f"batch {decision.batch} of {decision.txn} is {decision.state}: it cannot be committed")
        targets = [target for target, rows in decision.partitions.items() if rows]
        intents = [
            StageIntent(decision.txn, decision.batch, decision.partitions[target], decision.seen.get(target, 0))
            for target in targets
        ]
        views = [self._view(*target) for target in targets]
        swapped = yield from swap_roots(views, intents, self._owner)
        landed = []
        for (topic_id, partition), (root, made), intent in zip(targets, swapped, intents, strict=True):
            length = sum([row.next for row in intent.rows])
            base, end = (root.next_offset - length, root.next_offset) if made else (-1, -1)
            landed.append(PartitionCommit(topic_id, partition, root, base, end))
        return tuple(landed)

    def _view(self, topic_id: UUID, partition: int) -> SinkView:
        view = self._views.get((topic_id, partition))
        if view is None:
            topic = self._topics.get(topic_id)
            view = self._views[topic_id, partition] = SinkView(topic_id, partition, topic)
        return view


def hand_over(ids: TopicIds, partitions: Sequence[int], to: str, owner: str) -> Steps[list[tuple[Root, bool]]]:
    """Hand partitions over to sinks (``to`` is ``spark``) or local logs (``local``).

    Returns for each partition the root, and True if this call changed it. ``owner``: name of this process in the
    catalog. Raises ConfigError for a topic that is not open, LogDestroyedError if a root is gone. After
    CommitUnknownError or RemoteUnavailableError call this again.
    """
    views = [SinkView(ids.topic_id, partition, ids.topic) for partition in partitions]
    return (yield from swap_roots(views, [HandoverIntent(to)] * len(views), owner))


def load_views(views: Sequence[SinkView]) -> Steps[None]:
    """Read the newest roots of all views, in groups. The GET is conditional for a root that was read before."""
    for at in range(0, len(views), ROOTS_TOGETHER):
        group = views[at : at + ROOTS_TOGETHER]
        answers = yield Together(tuple([view.request() for view in group]))
        time: Time = yield Now()
        for view, got in zip(group, answers, strict=True):
            view.taken_in(got, time)


def need_partition(topic: str, topic_id: UUID, partitions: int) -> Steps[None]:
    """Raise FencedError if local logs own all partitions of a topic, so that a sink cannot write to any.

    Called before a job stages rows. ``partitions``: number of partitions. Reads roots one by one, up to the first that
    a sink may write. Raises LogDestroyedError if one of these roots does not exist.
    """
    views = [SinkView(topic_id, number, topic) for number in range(partitions)]
    for view in views:
        yield from load_views([view])
        if view.root is None or sink_refused(view.root) is None:
            return
    _need_sinks(views[-1])


def _need_sinks(view: SinkView) -> None:
    refusal = sink_refused(view.root) if view.root is not None else None
    if refusal is not None and view.root is not None:
        raise refusal_error(refusal, view.root, StageIntent("", 0, ()))


def upload_staged(segment: SealedSegment, txn: str, batch: int, capabilities: Capabilities) -> Steps[Row]:
    """Store and verify both objects of a task's segment, whose offsets begin at 0. Return its staged row.

    ``txn``, ``batch``: transaction id and batch number of the sink. The bundle is stored first, because its transaction
    id identifies the ``.log`` for garbage collection. After an error, stored objects are orphans.

    Raises:
        ConfigError: the segment does not begin at 0, or has producers or transactions.
        FencedError: the batch was aborted, and its objects deleted, or another attempt at it was committed.
        CorruptionError: the file differs from the seal, or an object from what was sent.
        RemoteUnavailableError: the store does not answer.
    """
    descriptor, indexes = segment.descriptor, segment.indexes()
    if descriptor.base_offset or indexes.txn_index or indexes.producer_snapshot:
        raise ConfigError(
            f"a segment of {descriptor.topic_id}-{descriptor.partition} with base offset "
            f"{descriptor.base_offset} cannot be staged: its base must be 0, without producers and "
            "transactions"
        )
    number: str = yield NewId()
    uid = staged_uid(txn, batch, int(number[:8], 16))
    key = staged_key(descriptor.topic_id, descriptor.partition, uid)
    bundle = encode_bundle(descriptor, indexes, 0, txn=txn)
    crc = crc32c(bundle)
    source = segment.open_log()
    try:
        sent = yield from put_unique(index_key_of(key), bundle, crc, INDEX_TAGS)
        yield from verify_sent(index_key_of(key), len(bundle), crc, sent, capabilities)
        sent = yield from upload_object(key, source, descriptor.crc32c, SEGMENT_TAGS)
        yield from verify_sent(key, descriptor.size_bytes, descriptor.crc32c, sent, capabilities)
    except CorruptionError:  # a sweep may have deleted the objects of a suspended task: that is no damage
        yield from _need_undecided(txn, batch, uid)
        raise
    finally:
        source.close()
    row = row_of(descriptor, uid=uid, role=Role.WRITER, claim_epoch=0, idx_len=len(bundle), aborts=False)
    return row._replace(flags=row.flags | FLAG_STAGED)


def _need_undecided(txn: str, batch: int, uid: str) -> Steps[None]:
    """Raise FencedError if the batch was aborted with this segment, or committed without it."""
    for generation in range(MAX_GENERATIONS):
        found = yield from read_decision(decision_key(txn, batch, generation))
        if found is None:
            return
        if split_uid(uid) in found.uids:
            if found.state != COMMITTED:
                raise _aborted(found)
            return
        if found.state == COMMITTED:
            raise FencedError(
                f"batch {batch} of {txn} was decided by another attempt ({found.key}); the segments of this "
                "attempt are deleted",
                hint="nothing is lost, no action is needed: the other attempt adds the batch",
            )


def _aborted(decision: Decision) -> FencedError:
    what = f"batch {decision.batch} of {decision.txn}"
    return FencedError(
        f"{what} was aborted: garbage collection deleted its staged segments ({decision.key})",
        hint="run the batch again; if it is slow, raise gc.grace.ms, the lifetime of staged segments",
    )


# -- the decision ------------------------------------------------------------------------------------------------


def _decided(decision: Decision, deadline: Deadline) -> Steps[Decision]:
    while decision.generation <= MAX_GENERATIONS:
        found = yield from put_decision(decision, deadline)
        if found.state == COMMITTED:
            return found
        # mutant abort-is-heeded
        if found.uids & decision.uids:
            raise _aborted(found)
        decision = dataclasses.replace(decision, generation=decision.generation + 1)
    what = f"batch {decision.batch} of {decision.txn}"
    raise ConfigError(
        f"{what} was aborted {MAX_GENERATIONS} times, which is the limit",
        hint="write the batch under a new transaction id",
    )


def put_decision(decision: Decision, deadline: Deadline) -> Steps[Decision]:
    """Store a decision, create-only. Return the one that is valid: this one, or an earlier one.

    Raises CommitUnknownError if it may or may not be stored at the deadline, RemoteUnavailableError if it is not.
    """
    key = decision.key

    def first_decision(_seen: Tagged[Decision | None]) -> Planned[Decision | None]:
        yield from ()
        return NextBody(encode_decision(decision), decision)

    def read_back() -> Steps[Tagged[Decision | None]]:
        return Tagged((yield from read_decision(key)))

    cell: Cell[Decision | None] = Cell(key, f"the decision {key}", read_back, any_is_ours, "run the batch again")
    done = yield from update(cell, first_decision, deadline, seen=Tagged(None))
    if done.value is None:
        raise ValueError(f"{key}: the update returned no decision")
    # mutant decision-is-adopted
    return done.value


def read_decision(key: str) -> Steps[Decision | None]:
    """Return the decision stored under ``key``, None without one."""
    (decision,) = yield from read_decisions([key])
    return decision


def read_decisions(keys: Sequence[str]) -> Steps[list[Decision | None]]:
    """Return the decisions stored under ``keys``, at most ``ROOTS_TOGETHER``, in order; None without one.

    They are read concurrently. Raises CorruptionError for an unreadable one, with a hint for the sink's operator.
    """
    try:
        gets = [Get(key) for key in keys]
        answers = (yield Together(tuple(gets))) if len(gets) > 1 else ((yield gets[0]),)
        pairs = zip(keys, answers, strict=True)
        return [None if isinstance(got, Missing) else decode_decision(got.data, key=key) for key, got in pairs]
    except CorruptionError as damage:
        damage.hint = _WAY_OUT
        raise


# -- one CAS a partition -----------------------------------------------------------------------------------------


def swap_roots(views: Sequence[SinkView], intents: Sequence[Intent], owner: str) -> Steps[list[tuple[Root, bool]]]:
    """Commit ``intents[i]`` in the partition of ``views[i]``, in groups of partitions.

    Return for each partition a root that contains the intent, and True if this call committed it. Raises the first
    error after all partitions were tried. Only for intents that refuse with NOTHING if the root already contains them.
    After a lost or unknown PUT the root is read again.
    """
    deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
    ends: list[tuple[Root, bool] | TieredError] = []
    for at in range(0, len(views), ROOTS_TOGETHER):
        group = zip(views[at : at + ROOTS_TOGETHER], intents[at : at + ROOTS_TOGETHER], strict=True)
        swaps = [_swap_root(view, intent, owner, deadline) for view, intent in group]
        ends += yield from side_by_side(swaps)
    return results_of(ends)


def _swap_root(view: SinkView, intent: Intent, owner: str, deadline: Deadline) -> Steps[tuple[Root, bool]]:
    """Commit one intent. Return a root that contains the intent, and True if this call committed it.

    A catalog commit renews its date if the process was suspended before the PUT. This commit keeps its date. A sink
    removes no rows and no pages (``plan.catalog_edit.spill`` only makes them), so no grace period depends on it. An
    as-of read between the date and the PUT finds a slightly later version.
    """
    was_read = is_timed = False

    def read_back() -> Steps[Tagged[Root]]:
        nonlocal was_read
        got = yield root_get(view.key) if is_timed else view.request()  # "not modified" lacks the store's time
        root = view.taken_in(got, (yield Now()))
        was_read = True
        return Tagged(root, view.etag)

    def next_root(seen: Tagged[Root]) -> Planned[Root]:
        nonlocal is_timed
        time: Time = yield Now()
        if view.clock.ahead(time) and not is_timed:  # or this machine slept: a new answer of the store decides
            is_timed = True
            return LOOK
        commit_id: str = yield NewId()
        epoch = seen.value.writer.epoch
        stamp = Stamp(commit_id, view.clock.commit_ms(time), Role.WRITER, epoch, owner)
        planned = view.planned(intent, stamp)
        if isinstance(planned, Root):
            planned = yield from store_pages(planned, deadline)
            return NextBody(root_body(planned), planned)
        if planned.reason is RefusalReason.NOTHING:
            return None
        if was_read:
            raise refusal_error(planned, seen.value, intent)
        return LOOK  # refused on a root that may be outdated

    seen = None if view.root is None else Tagged(view.root, view.etag)
    cell = Cell(view.key, f"{view.name}, {intent.op}", read_back, hint="run the same call again")
    done = yield from update(cell, next_root, deadline, seen=seen)
    if done.written:
        view.landed(done.value, done.etag)
    # Before the batch is reported, because only roots record the order of the sinks' commits.
    yield from store_copy(done.value, deadline)
    return done.value, done.written
