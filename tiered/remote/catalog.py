"""Catalog of one partition in one process: claims, commits of intents, and settling of doubts.

All methods that touch the store are steps (``store.base``): run them with ``store.driver``, one at a time.

A commit builds the next root from an intent, reading the pages that it asks for. It PUTs the new pages, if any,
create-only, and then changes the root by compare-and-swap (``conditional_put.update``). Commit ids decide who wrote the
root that is found after a lost PUT. Inside one epoch a role is one sequential process. So only that process overwrites
the role's ``last_commit``; other roles' commits keep it, and a claim copies it to ``sealed``. So a lost answer is
always decidable, exactly:

==================================================  =========================================================
the root read back after a 412                      result
==================================================  =========================================================
my role's ``last_commit`` is mine                   committed
a newer epoch, ``sealed`` of mine names my commit   committed; the next call raises ``FencedError``
a newer epoch, ``sealed`` names another commit      ``FencedError``: proven not committed
a newer epoch, no entry (over 64 claims ago)        ``CommitUnknownError``
my epoch, my commit before                          proven not committed: again on the newer root
my epoch, a commit that I did not make              ``FencedError``: a copy of this process uses its claim
==================================================  =========================================================

The catalog is in doubt after ``CommitUnknownError``, after a refused PUT (a 403 may come after the effect), and after
steps that were abandoned during a PUT. Then every call but ``claim``, ``load`` and ``read_back`` raises: the claim's
CAS settles the doubt. Until a root was read back whose CAS settled them, ids that may be in the root stay on the
volume. Only a maintainer's commit deletes objects: old history copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple
from uuid import UUID

from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    FencedError,
    LockedError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.keys import Role
from tiered.format.root import Root
from tiered.format.rows import ROW_BYTES
from tiered.model import EpochEntry, Row
from tiered.plan.catalog_edit import TrimIntent, spill
from tiered.plan.commit import (
    SHAPE,
    AppendIntent,
    ClaimIntent,
    Intent,
    Shape,
    Stamp,
)
from tiered.plan.ownership import Refusal, RefusalReason, VolumeProof, hold, since
from tiered.plan.retention import dated
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds, held_ids
from tiered.remote.catalog_view import PageGone, store_pages, with_pages
from tiered.remote.committer import Claim, Persist, StoreClock, refusal_error
from tiered.remote.conditional_put import (
    COMMIT_DEADLINE_MS,
    LOOK,
    Cell,
    Deadline,
    NextBody,
    Planned,
    Tagged,
    deadline_after,
    update,
)
from tiered.remote.root_history import copy_root, is_copied_after, prune_history, removes_rows, store_copy
from tiered.remote.root_view import RootView, root_get
from tiered.remote.roots import root_body
from tiered.store.base import (
    Blocking,
    Get,
    NewId,
    Now,
    Object,
    Steps,
    Time,
)

COMMIT_COPIES = 5
"""Copies of a root's tables in a commit: before, after, encoding, body, read-back."""
COMMIT_PAGES_BYTES = 1024 * 1024
"""Memory for the pages of one commit, encoded and not. A leaf of 1,024 rows and an inner page use a quarter."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """Claim of this process. ``owner``: name of this process in the root. ``last_commit``: id of the newest commit."""

    role: Role
    epoch: int
    owner: str
    last_commit: str


@dataclass(frozen=True, slots=True)
class _PersistedIds:
    """Claim tokens and append ids that this process has stored on the volume. A root may carry any of them.

    ``token``, ``last_append``: the claim tokens and the append ids, each as one text with all ids, oldest first.
    """

    token: str = ""
    last_append: str = ""


class IdleCatalog(NamedTuple):
    """Saved state of an idle :class:`Catalog`, from which :meth:`Catalog.go_on` continues its claim.

    A daemon has one for each idle partition, so all fields are plain values. ``token``: that of the claim.
    ``last_commit``: id of the newest commit under the claim.
    ``persisted_token``, ``persisted_append``: claim tokens and append ids on the volume. ``version``, ``start``,
    ``end``: lower bounds of the root's version, start offset and next offset. ``pruned_epoch``: epoch of the newest
    claim that has deleted old history copies, 0 for none.
    """

    topic_id: UUID
    role: Role
    epoch: int
    owner: str
    last_commit: str
    token: str
    persisted_token: str
    persisted_append: str
    version: int
    start: int
    end: int
    pruned_epoch: int


class Catalog(RootView):
    """One partition's catalog, read and committed to under a claim.

    ``persist`` stores claim tokens and append ids on the volume (``remote.committer``); a writer's claim needs it.
    ``is_empty`` returns True while the log on this disk has no records. A claim of an empty volume calls it after its
    proof is stored, to notice a concurrent first append. ``shape``: sizes at which pages are split off. ``known``:
    lower bounds of the root's version and offsets: an older root is refused. ``root``, ``etag``: last acknowledged or
    read; None and ``""`` before.
    """

    def __init__(
        self,
        topic_id: UUID,
        partition: int,
        topic: str,
        *,
        persist: Persist | None = None,
        is_empty: Callable[[], bool] | None = None,
        shape: Shape = SHAPE,
        known: RootLowerBounds = NOTHING_KNOWN,
    ) -> None:
        super().__init__(topic_id, partition, topic, known)
        self._shape = shape
        self._persist = persist
        self._is_empty = is_empty
        self._held: _Claim | None = None
        self._clock = StoreClock(self.name)
        self._token = ""  # of the claim of this process
        self._kept = _PersistedIds()
        self._pruned_epoch = 0
        self._doubt = self._fenced = ""  # reasons why commits are forbidden until the next claim
        self._doubt_before = ""  # ``_doubt`` before the last PUT

    @property
    def claim_epoch(self) -> int:
        """Return the epoch of this process's claim, 0 without a claim."""
        return self._held.epoch if self._held else 0

    def holds_token(self, kept: str) -> bool:
        """Return True if the newest token in ``kept`` is that of this process's claim: no newer claim was made from
        this volume.

        ``kept``: list of tokens as read from the volume.
        """
        return bool(self._token) and held_ids(kept)[-1:] == (self._token,)

    def rest(self) -> IdleCatalog | None:
        """Return the state from which :meth:`go_on` continues under this claim.

        None without a claim or a root, or while :attr:`in_doubt` is not empty.
        """
        root, held = self.root, self._held
        if held is None or self.in_doubt or root is None:
            return None
        known = self.known
        version, start = max(known.version, root.version), max(known.start_offset, root.start_offset)
        end = max(known.next_offset, root.next_offset)
        claim, kept = (held.role, held.epoch, held.owner, held.last_commit), self._kept
        return IdleCatalog(
            self.topic_id, *claim, self._token, kept.token, kept.last_append, version, start, end, self._pruned_epoch
        )

    def go_on(self, rest: IdleCatalog) -> None:
        """Continue under the claim of an earlier catalog object. ``rest``: result of that object's :meth:`rest`.

        A root older than the last one of that object will be refused.
        """
        self._held = _Claim(rest.role, rest.epoch, rest.owner, rest.last_commit)
        self._kept = _PersistedIds(rest.persisted_token, rest.persisted_append)
        self._token, self._pruned_epoch = rest.token, rest.pruned_epoch
        tokens = (rest.token,) if rest.token else ()
        self.known = RootLowerBounds(True, rest.version, rest.start, rest.end, rest.epoch, tokens)

    @property
    def in_doubt(self) -> str:
        """Return why commits are refused until the next claim, ``""`` if they are not.

        Either the outcome of a commit is unknown, or another process has claimed the role or uses this claim.
        """
        return self._doubt or self._fenced

    # -- changing ----------------------------------------------------------------------------------------------------

    def claim(self, role: Role | str, owner: str, volume: VolumeProof | None = None) -> Steps[Claim]:
        """Claim ``role`` for this process, fence all older claims of this role, and return the granted claim.

        The root must exist already. Afterwards :attr:`in_doubt` is empty. ``owner``: name of this process in the
        catalog. ``volume`` (writers only): proof that this volume may write. Every retry checks it.

        Raises:
            FencedError: the volume may not have the role, or another process has claimed it since.
            LogDestroyedError, CorruptionError: the root is gone or damaged.
            CommitUnknownError: the outcome is unknown. Call this again.
            RemoteUnavailableError: nothing was committed. Call this again.
            OffsetGapError: the log beside a Kafka broker has no segment that begins at the catalog's end.
            ConfigError: the topic is not open, this machine's clock is far ahead of the store's, or ``volume`` or
                ``persist`` is missing for a writer.
            LockedError: records were appended to a volume while it was claimed as empty. Call this again.
        """
        role = Role(role)
        if role is Role.WRITER and (volume is None or self._persist is None):
            raise ConfigError(f"{self.name}: a writer's claim needs volume= and the catalog's persist=")
        self._held = None  # a claim that raises leaves none: its CAS may have landed
        if (yield from self.load()) is None:
            raise self._destroyed()  # a new empty root would hide the loss of that one
        return (yield from self._claim(role, owner, volume))

    def append(self, rows: Sequence[Row], epochs: Sequence[EpochEntry] = ()) -> Steps[Root]:
        """Commit rows at ``next_offset``. Return the acknowledged root, or a newer one that contains the commit.

        ``epochs``: leader epochs that begin inside these rows. Raises FencedError (proven not committed),
        OffsetGapError if ``rows`` begin elsewhere, ConfigError for rows that are not uploads of this claim. Also raises
        CommitUnknownError, LogDestroyedError if the root is gone, RemoteUnavailableError (nothing was committed).
        """
        append_id = yield NewId()
        intent = AppendIntent(tuple(rows), append_id, tuple(epochs))

        def keep() -> Steps[None]:
            # mutant append-id-before-put
            return self._keep(self._kept.token, hold(self._kept.last_append, append_id))

        return (yield from self.commit(intent, before=keep))

    def dated(self, rows: Sequence[Row]) -> Steps[tuple[Row, ...]]:
        """Return ``rows`` of uploaded segments with the append times that their commit stores, for retention.

        Each time is the writer's clock at the segment's last append. If that clock is far from the store's, the time of
        the commit counts instead. Raises ConfigError if this machine's clock is far ahead of the store's.
        """
        time = yield Now()
        if self._clock.ahead(time):  # or this machine slept: a new answer of the store decides
            yield from self._read_again()
            time = yield Now()
        held = self._current().rows
        before_ms = held.row(-1).appended_ms if len(held) else -1
        commit_ms, trusted = self._clock.commit_ms(time), self._clock.agrees(time)
        return dated(rows, before_ms=before_ms, commit_ms=commit_ms, trusted=trusted)

    def now_ms(self) -> Steps[int]:
        """Return this machine's time, or the store's if this machine's clock is far from it."""
        return self._clock.trusted_ms((yield Now()))

    def commit_bytes(self, rows: int) -> int:
        """Return an upper bound of the memory that a commit of ``rows`` more rows needs, the current root included."""
        root = self.root
        held = 0 if root is None else root.nbytes
        return COMMIT_COPIES * (held + 2 * ROW_BYTES * rows) + COMMIT_PAGES_BYTES

    def trim(self, offset: int, *, reason: str = "") -> Steps[Root]:
        """Move the start of the log up to ``offset``. Return the acknowledged root.

        Sends nothing if the log begins there already. A trim to the end removes every row. Retention instead
        spares the newest row, whose bundle has the producers. The newest root is read first if ``offset`` is beyond the
        end of the known one. ``reason``: text for people, stored in the root. Raises OffsetOutOfRangeError beyond the
        end, FencedError, CommitUnknownError, RemoteUnavailableError.
        """
        if self.root is not None and offset > self.root.next_offset:
            yield from self.load()
        return (yield from self.commit(TrimIntent(offset), reason=reason))

    def commit(
        self, intent: Intent, *, before: Callable[[], Steps[None]] | None = None, reason: str = ""
    ) -> Steps[Root]:
        """Commit one intent under this process's claim, by one PUT of the root. Return the acknowledged root.

        ``before``: steps that run once, before the first PUT; if they raise, nothing is sent. ``reason``: text for
        people, stored after the owner in the root's ``commit``.

        Raises:
            FencedError: a newer claim exists. Nothing was committed.
            CommitUnknownError: the outcome is unknown; :attr:`in_doubt` says why. Claim again.
            RemoteUnavailableError: nothing was committed.
            LogDestroyedError, CorruptionError: the root was deleted, or the catalog is damaged.
            ConfigError: there is no claim, or this machine's clock is far ahead of the store's.
            TieredError: the root refuses the intent. Nothing was committed.
        """
        held = self._require_claim()
        owner = f"{held.owner}: {reason}" if reason else held.owner
        deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
        sent, is_timed = self._current(), False

        def next_root(seen: Tagged[Root]) -> Planned[Root]:
            nonlocal sent, before, is_timed
            base, time = seen.value, (yield Now())
            if self._clock.ahead(time) and not is_timed:  # or this machine slept: a new answer decides
                is_timed = True
                return LOOK
            # mutant commit-ids-are-unique
            stamp = self._stamp(held.role, held.epoch, owner, (yield NewId()), time)
            planned = yield from self._applied(intent, base, stamp)
            if planned is None:
                return LOOK
            if isinstance(planned, Refusal):
                if planned.reason is RefusalReason.NOTHING:
                    return None
                raise self._refused(planned, base, intent)
            planned = spill(planned, stamp)
            if before is not None:
                # mutant append-id-is-persisted
                yield from before()
                before = None
            # mutant pages-before-root
            planned = yield from store_pages(planned, deadline)
            if removes_rows(planned):
                # mutant copy-before-removal
                yield from store_copy(base, deadline)
            sent = planned
            return LOOK if self._stale(time, (yield Now())) else self._sending(sent)

        if (yield from self._swap_root(next_root, partial(self._is_committed, held), deadline)):
            if not self._fenced:
                self._held = replace(held, last_commit=sent.commit.id)
            yield from self._copy_after(sent)
        return self._current()

    def confirm(self) -> Steps[None]:
        """Read the newest root. Raises FencedError if another process has taken the claim over.

        Call this before reporting a missing object as damage: a newer claim may have deleted objects of this epoch.
        """
        yield from self.load()
        self._require_claim()

    def _applied(self, intent: Intent, root: Root, stamp: Stamp) -> Steps[Root | Refusal | None]:
        """Return the result of ``intent`` on ``root``; None if it must be applied to a newer root.

        None means that garbage collection has deleted a page of ``root``. Raises FencedError if another process has
        claimed the role since, PageGone if the page is lost.
        """
        outcome = intent.apply(root, stamp)
        if isinstance(outcome, Root | Refusal):
            return outcome
        try:
            return (yield from with_pages(outcome, root, self.pages))
        except PageGone:
            yield from self.confirm()
            if self._current().version > root.version:
                return None
            raise

    def _copy_after(self, after: Root) -> Steps[None]:
        """Copy ``after`` to ``hist/`` if its version is a multiple of ``HIST_EVERY``. A failure is only logged.

        A maintainer also deletes old copies, once in each claim, after a commit for which a copy was stored.
        """
        if is_copied_after(after):
            yield from copy_root(after)
        # A writer deletes nothing, so that a stolen key cannot erase history.
        is_maintainer = after.commit.role == Role.MAINTAINER.value
        is_history = removes_rows(after) or is_copied_after(after)
        if is_history and is_maintainer and self._pruned_epoch != after.commit.epoch:
            self._pruned_epoch = after.commit.epoch
            yield from prune_history(after)

    # -- one attempt --------------------------------------------------------------------------------------------------

    def _swap_root(
        self, change: Callable[[Tagged[Root]], Planned[Root]], is_ours: Callable[[Root, Root], bool], deadline: Deadline
    ) -> Steps[bool]:
        """Change the root by compare-and-swap. Return True if this call wrote it.

        ``change`` returns the next root for a root that was read. ``is_ours(found, sent)``: True if ``found`` shows
        that ``sent`` was committed. The catalog is in doubt from each PUT until its outcome is known.
        """
        self._doubt_before = self._doubt
        cell = Cell(self.key, self.name, self._read_tagged, is_ours, _CLAIM_HINT, self._destroyed)
        try:
            done = yield from update(cell, change, deadline, seen=Tagged(self._current(), self.etag))
        except RemoteUnavailableError:
            self._doubt = self._doubt_before  # nothing of the last PUT can have landed
            raise
        if done.written:
            self.root, self.etag, self._doubt = done.value, done.etag, ""
        return done.written

    def _sending(self, planned: Root) -> NextBody[Root]:
        """Return the body of the root that is sent next. The catalog is in doubt from here on."""
        self._check(planned, self.root)
        body = root_body(planned)
        self._sent, self._doubt_before = body, self._doubt
        self._doubt = f"commit {planned.commit.id} ({planned.commit.op}) was sent, and its outcome is unknown"
        return NextBody(body, planned)

    def _read_tagged(self) -> Steps[Tagged[Root]]:
        return Tagged((yield from self._read_again()), self.etag)

    def _is_committed(self, held: _Claim, back: Root, sent: Root) -> bool:
        """Return True if ``sent`` was committed under the claim ``held``.

        ``back``: the root that was read after the PUT. Raises FencedError if a newer claim exists and ``sent`` was not
        committed, CommitUnknownError if that is not known.
        """
        state = back.roles[held.role.value]
        # mutant ended-epoch-is-not-ours
        if state.epoch == held.epoch:
            # mutant commit-ids-are-compared
            if state.last_commit == sent.commit.id:
                return True
            self._lost()
            self._expect_own(back)
            return False
        sealed = back.sealed_commit(held.role.value, held.epoch)
        if sealed is None:
            raise CommitUnknownError(
                f"{back.where}: the outcome of commit {sent.commit.id} is unknown: role {held.role.value} is at "
                f"epoch {state.epoch}, and how epoch {held.epoch} ended is no longer recorded",
                hint="nothing was deleted: open the log again, then compare the two tiers with "
                f"`tiered check {back.topic} --log-dir DIR --remote URL`",
            )
        self._fenced = self._taken(back, held)
        self._lost()
        # mutant sealed-epoch-is-looked-up
        if sealed.last_commit == sent.commit.id:
            return True
        raise FencedError(f"{self._fenced}; the commit was not made", hint=_FENCED_HINT)

    def _lost(self) -> None:
        """Clear the doubts about the last PUT, whose outcome is known now: no earlier PUT can succeed any more."""
        self._doubt = self._doubt_before = ""

    def _claim(self, role: Role, owner: str, volume: VolumeProof | None) -> Steps[Claim]:
        """Claim the role by compare-and-swap, and return the granted claim.

        The volume's proof is checked against each root that is found. ``owner``: name of this process in the root.
        """
        deadline = yield from deadline_after(COMMIT_DEADLINE_MS)
        token = yield NewId()
        before = sent = self._current()
        proof = volume

        def next_root(seen: Tagged[Root]) -> Planned[Root]:
            nonlocal before, proof, sent
            before = seen.value
            if volume is not None:
                kept = self._kept  # ids that this process has persisted since ``volume`` was read
                token_ids, append_ids = hold(volume.token, kept.token), hold(volume.last_append, kept.last_append)
                proof = replace(volume, token=token_ids, last_append=append_ids)
            intent = ClaimIntent(role, owner, proof, token if role is Role.WRITER else "")
            stamp = self._stamp(role, before.roles[role.value].epoch, owner, (yield NewId()), (yield Now()))
            planned = intent.apply(before, stamp)
            if isinstance(planned, Refusal):
                raise self._refused(planned, before, intent)
            if proof is not None:
                yield from self._keep_proof(proof, before, token)
            sent = planned
            return self._sending(sent)

        # mutant claim-is-put
        yield from self._swap_root(next_root, partial(self._is_granted, role), deadline)
        if role is Role.WRITER:
            yield from copy_root(sent)
        self._held = _Claim(role, sent.commit.epoch, owner, sent.commit.id)
        self._doubt = self._fenced = ""
        self._token = token if role is Role.WRITER else ""
        is_new = role is Role.WRITER and sent.leader_epoch != before.leader_epoch
        return Claim(
            epoch=sent.commit.epoch,
            leader_epoch=sent.leader_epoch,
            next_offset=sent.next_offset,
            resumes=is_new and proof is not None and proof.empty and bool(before.writer.epoch or before.next_offset),
            previous=before.roles[role.value],
            root=self._current(),
        )

    def _is_granted(self, role: Role, back: Root, sent: Root) -> bool:
        """Return True if the claim ``sent`` was granted. ``back``: the root that was read after the PUT.

        Raises FencedError if it was granted, but another process has claimed the role since.
        """
        sealed = back.sealed_commit(role.value, sent.commit.epoch)
        if sealed is not None and sealed.last_commit == sent.commit.id:
            self._lost()
            raise FencedError(
                f"{back.where}: the claim was granted, but another process has claimed the partition since",
                hint=_FENCED_HINT,
            )
        # mutant claim-is-read-back
        if back.roles[role.value].last_commit != sent.commit.id:
            self._lost()
            return False
        return True

    def _keep_proof(self, proof: VolumeProof, root: Root, token: str) -> Steps[None]:
        """Persist on the volume the token and append ids that the root of a claim will carry, before it is sent.

        ``root``: the root that the claim replaces. ``token``: that of the claim.
        """
        writer = root.writer  # a fresh volume adopts the append that it resumes from
        yield from self._keep(
            # mutant claim-token-before-put
            hold(since(proof.token, writer.token), token),
            hold(since(proof.last_append, writer.last_append), writer.last_append),
        )
        if proof.empty:
            yield Blocking(self._need_empty)

    def _asked(self, request: Get) -> Steps[Root | None]:
        """Send a GET of the root and return the checked root, None if it does not exist. Records the store's clock."""
        got = yield request
        if isinstance(got, Object) and got.date_ms:
            self._clock.note(got, (yield Now()))
        return self._received(got)

    def _read_again(self) -> Steps[Root]:
        """Read the root by an unconditional GET: "not modified" answers carry no time."""
        root = yield from self._asked(root_get(self.key))
        if root is None:
            raise self._destroyed()
        return root

    # -- small parts --------------------------------------------------------------------------------------------------

    def _accepted(self, root: Root) -> None:
        writer, kept = root.writer, self._kept
        self._kept = _PersistedIds(since(kept.token, writer.token), since(kept.last_append, writer.last_append))
        if not self._doubt:
            self._expect_own(root)

    def _expect_own(self, root: Root) -> None:
        """Raise FencedError if a copy of this process commits under its epoch. A newer claim ends later commits."""
        held = self._held
        if held is None:
            return
        state = root.roles[held.role.value]
        if state.epoch > held.epoch:
            self._fenced = self._taken(root, held)
        elif state.last_commit != held.last_commit:
            self._fenced = f"{root.where}: another process commits under epoch {held.epoch} of role {held.role.value}"
            raise FencedError(self._fenced, hint="stop the copy of this process, then open the log again")

    def _taken(self, root: Root, held: _Claim) -> str:
        state = root.roles[held.role.value]
        return (
            f"{root.where}: {state.owner} claimed role {held.role.value} with epoch {state.epoch}, "
            f"this process held epoch {held.epoch}"
        )

    def _current(self) -> Root:
        if self.root is None:
            raise ConfigError(f"{self.name}: the catalog was neither loaded nor claimed yet")
        return self.root

    def _require_claim(self) -> _Claim:
        if self._fenced:
            raise FencedError(self._fenced, hint=_FENCED_HINT)
        if self._doubt:
            raise CommitUnknownError(f"{self.name}: {self._doubt}", hint=_CLAIM_HINT)
        if self._held is None:
            raise ConfigError(f"{self.name}: a commit needs a claim", hint="call claim first")
        return self._held

    def _stamp(self, role: Role, epoch: int, owner: str, commit_id: str, time: Time) -> Stamp:
        return Stamp(commit_id, self._clock.commit_ms(time), role, epoch, owner, self._shape)

    def _stale(self, taken: Time, now: Time) -> bool:
        """Return True if a commit dated ``taken`` is too old to be sent.

        The grace period of removed objects begins at that date. After a suspension of a day it would be over already.
        """
        return max(now.now_ms - taken.now_ms, int((now.monotonic - taken.monotonic) * 1000)) > COMMIT_DEADLINE_MS

    def _keep(self, token: str, last_append: str) -> Steps[None]:
        """Persist claim tokens and append ids on the volume, each as a list of ids in one text.

        They count as persisted only when this returns.
        """
        persist = self._persist
        if persist is not None:
            # mutant proof-is-persisted
            yield Blocking(partial(persist, token, last_append))
        self._kept = _PersistedIds(token, last_append)

    def _need_empty(self) -> None:
        if self._is_empty is not None and not self._is_empty():
            raise LockedError(
                f"{self.name} was not claimed: its log was empty on this disk, and its first records were "
                "appended meanwhile",
                hint="an uploader claims it again by itself; after `sync()` has failed, call it again",
            )

    def _refused(self, refusal: Refusal, root: Root, intent: Intent) -> TieredError:
        if refusal.reason is RefusalReason.FENCED and not isinstance(intent, ClaimIntent):
            self._fenced = refusal.message
        return refusal_error(refusal, root, intent)


_CLAIM_HINT = "run it again: its new claim finds out whether the commit was made; an uploader does so by itself"
_FENCED_HINT = (
    "another process owns this partition now: stop one of the two, or open the log again to see who may write"
)
