"""Steps of the engine on a store (``store.base``): register, claim, upload, commit, read back, delete dead uploads.

::

    register -> claim (read back) -> delete dead claims' uploads
                  |
                  +-> upload: journal -> .log -> .idx -> verified row
                        |
                        +-> commit: root PUT -> read back -> remove from journal, delete failed attempts
                              |
                              +-> copy: the positions of groups that the root covers

``bucket`` and ``sync_run`` drive these steps. ``tiered.remote`` handles objects and catalogs. This module writes the
journal before each upload and the proof before each claim. A wait for the local disk is a ``Blocking``. The journal is
used only while the uploader's lock of the directory is held.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tiered.engine.disk import Disk, Granted
from tiered.engine.journal import Entry, Journal
from tiered.engine.partition import SegmentRef
from tiered.errors import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    FencedError,
    LocalIOError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.keys import Role, join_uid
from tiered.format.positions import Positions
from tiered.format.producer_snapshot import decode_snapshot
from tiered.format.root import Root
from tiered.local.disk.uploader_files import root_bounds_of, root_bounds_of_topic
from tiered.model import ByteSource, Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.plan.lineage import need_same_records
from tiered.plan.ownership import RestoredFrom, VolumeProof, is_own_claim
from tiered.plan.producer_state import ProducerSnapshot
from tiered.plan.root_lower_bounds import held_ids
from tiered.remote.catalog import Catalog, IdleCatalog
from tiered.remote.catalog_view import CatalogView
from tiered.remote.fetch import ByteCache, SegmentGone
from tiered.remote.lookup import SegmentLookup
from tiered.remote.positions import store_positions
from tiered.remote.topics import Registrant, TopicEntry, another_bucket, load_topic, register_topic
from tiered.remote.upload import UploadPlan, plan_upload, upload_segment
from tiered.store.base import (
    ACCESS_DENIED,
    AbortUpload,
    Backoff,
    Blocking,
    Capabilities,
    Delete,
    Deleted,
    NewId,
    Now,
    Steps,
)
from tiered.store.capabilities import check_capabilities, probe
from tiered.store.sources import PIECE_BYTES
from tiered.store.unique_upload import PARALLEL_PARTS, PUT_DEADLINE_SECONDS, PartSizes

T = TypeVar("T")

INDEX_COPIES = 3
"""Copies of a segment's indexes in memory during an upload: as entries, as bytes and in the bundle."""

CATALOGS_HELD = 256
"""Catalogs of idle partitions that stay in memory. A commit of another one reads its root first."""

READ_BACK_ATTEMPTS = 5
"""Attempts to read back a root that was just committed. If all fail, the next claim reads it."""

READ_BACK_SECONDS = 30.0
"""Time after the first failed attempt in which further attempts may start."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Sealed segment that is ready for an upload: its files are open, and fsynced if another process writes the log."""

    descriptor: SegmentDescriptor
    source: ByteSource
    sealed_indexes: SealedIndexes
    plan: UploadPlan

    def open_log(self) -> ByteSource:
        """Return the byte source of the ``.log``, which is open already."""
        return self.source

    def indexes(self) -> SealedIndexes:
        """Return the content of the index files, without preallocated zeros."""
        return self.sealed_indexes


class BucketSteps:
    """Operations on the bucket for one log directory, as steps functions. Different partitions may run concurrently.

    ``journal``: returns the open journal of uploads. ``owner``: name of this process in claims. ``capabilities``:
    result of :meth:`probe`, None before. ``sizes``: part sizes of new multipart uploads. ``registered``: registry
    entries of the topics that this process has registered.
    """

    def __init__(
        self,
        url: str,
        disk: Disk,
        journal: Callable[[], Journal],
        *,
        owner: str,
        sizes: PartSizes,
    ) -> None:
        self._url = url
        self._disk = disk
        self._journal = journal
        self._owner = owner
        self.sizes = sizes
        self.registered: dict[str, TopicEntry] = {}
        self.capabilities: Capabilities | None = None
        self._catalogs: dict[TopicPartition, Catalog] = {}
        self._idle: dict[TopicPartition, None] = {}  # partitions with a catalog in memory, the longest idle first
        self._resting: dict[TopicPartition, IdleCatalog] = {}  # idle longer: without a catalog
        self._unseen: set[TopicPartition] = set()  # committed, but the root could not be read back: claim again

    # ------------------------------------------------------------------ the store, topics

    def probe(self) -> Steps[Capabilities]:
        """Return the store's capabilities; the first call finds them out by requests.

        Raises ConditionalWritesUnsupportedError if two writers could both win on this store.
        """
        if self.capabilities is None:
            found = yield from probe()
            check_capabilities(found, self._url)
            self.capabilities = found
        return self.capabilities

    def register(self, topic: str, partitions: int = 0) -> Steps[TopicEntry]:
        """Create the topic's registry entry, or adopt an entry with the same topic id. Add missing partitions to it.

        The entry gets as many partitions as the disk has, or ``partitions`` if that is more. Raises ConfigError if the
        bucket has another topic of this name. Raises LogDestroyedError if the entry or a root is gone, and this volume
        has used it. Raises CorruptionError if the entry is damaged, has fewer partitions than are in use, or is gone
        while a root has records.
        """
        disk = self._disk
        info = (yield Blocking(disk.topics))[topic]
        count = max(info.partitions, partitions)
        before = self.registered.get(topic)
        if before is not None and before.topic_id == info.topic_id and before.partitions >= count:
            return before
        known = yield Blocking(lambda: root_bounds_of_topic(topic, disk.uploads(), disk.claims.read()))
        seen = frozenset(partition for partition, what in known.items() if what.by_disk)
        if seen:
            yield from self._need_topic(topic)
        settings = info.config.to_text(changed_only=True)
        who = Registrant(self._owner, seen, self.probe)
        entry = yield from register_topic(topic, info.topic_id, count, settings, who)
        if entry.topic_id != info.topic_id:
            raise ConfigError(
                f"topic {topic}: its topic id is {info.topic_id} in {disk.path}, but {entry.topic_id} in {self._url}",
                hint="the topic was deleted and created again, or the bucket belongs to another log: use another "
                "prefix or directory",
            )
        self.registered[topic] = entry
        return entry

    def check_uploaded(self) -> Steps[None]:
        """Raise LogDestroyedError if the bucket lacks a topic that this volume has claimed or was restored from.

        One GET for each topic.
        """
        proofs = yield Blocking(self._disk.claims.read)
        for topic in sorted({tp.topic for tp, proof in proofs.items() if proof.token or proof.restored_from}):
            yield from self._need_topic(topic)

    def _need_topic(self, topic: str) -> Steps[None]:
        """Raise LogDestroyedError if the bucket lacks the topic: it is another bucket, or it was emptied."""
        if (yield from load_topic(topic)) is None:
            gone = another_bucket(topic, self._disk.path, self._url)
            yield Blocking(functools.partial(self._disk.add_owner_hint, TopicPartition(topic, 0), gone))
            raise gone

    # ------------------------------------------------------------------ claims

    def catalog(self, tp: TopicPartition) -> Steps[Catalog]:
        """Return this process's catalog object of a partition, with lower bounds for its root.

        A recreated topic gets a new one. The bounds are read from the disk each time: another process of this volume
        may have seen a newer root.
        """
        disk, catalog = self._disk, self._catalog(tp)
        if catalog.topic_id != disk.topic_id(tp):
            del self._catalogs[tp]
            catalog = self._catalog(tp)
        made = tp.topic in self.registered
        catalog.known = yield Blocking(lambda: root_bounds_of(disk.uploads().get(tp), disk.claims.proof(tp), made=made))
        return catalog

    def _catalog(self, tp: TopicPartition) -> Catalog:
        """Return the partition's catalog object: from memory, from its stored values, or a new one. No I/O."""
        catalog = self._catalogs.get(tp)
        if catalog is None:
            disk = self._disk
            rest = self._resting.pop(tp, None)
            catalog = self._catalogs[tp] = Catalog(
                disk.topic_id(tp) if rest is None else rest.topic_id,
                tp.partition,
                tp.topic,
                persist=functools.partial(disk.claims.keep, tp),
                is_empty=lambda: disk.extent(tp, exact=False).is_empty,
            )
            if rest is not None:
                catalog.go_on(rest)
        return catalog

    def held(self, tp: TopicPartition) -> Catalog | None:
        """Return the partition's catalog object if this process has a valid claim in it, otherwise None.

        A commit of unknown outcome makes a claim invalid, and so does a claim by another process of this volume.
        """
        catalog = self._catalogs.get(tp)
        if catalog is None or not catalog.claim_epoch or catalog.in_doubt or tp in self._unseen:
            return None
        return catalog if catalog.holds_token(self._disk.claims.proof(tp).token or "") else None

    def rest(self, tp: TopicPartition) -> None:
        """Record that a partition is idle. Only the ``CATALOGS_HELD`` newest idle catalogs stay in memory.

        Of older ones only a few values stay.
        """
        self._idle.pop(tp, None)
        self._idle[tp] = None
        while len(self._idle) > CATALOGS_HELD:
            longest = next(iter(self._idle))
            del self._idle[longest]
            catalog = self._catalogs.get(longest)
            rest = None if catalog is None or longest in self._unseen else catalog.rest()
            if catalog is not None and rest is not None:
                del self._catalogs[longest]
                self._resting[longest] = rest

    def claim(self, tp: TopicPartition) -> Steps[Granted]:
        """Claim the writer role of a partition, read the root back, and prepare the local log for appends.

        Return the granted claim. Raises FencedError if this volume may not write. Raises OffsetGapError for a sidecar
        whose broker has other records than the bucket, or continues at another offset.
        """
        yield from self.probe()
        self._idle.pop(tp, None)
        topic_id = self._disk.topic_id(tp)
        entry = self.registered.get(tp.topic)
        if entry is None or entry.topic_id != topic_id or tp.partition >= entry.partitions:
            yield from self.register(tp.topic)  # the topic grew, or was made again: readers go by the registry
        if tp in self._unseen:
            self._catalogs.pop(tp, None)  # an acknowledged root that was never read proves nothing
        catalog = yield from self.catalog(tp)
        proof = yield Blocking(lambda: self.proof(tp))
        joints = proof.joints
        if joints is not None:
            before = yield from catalog.load()
            if before is not None and before.next_offset in joints:  # a claim would only fence a volume that can go on
                yield from self._need_same_records(tp, before)
        try:
            claim = yield from catalog.claim(Role.WRITER, self._owner, proof)
        except FencedError as refused:
            yield Blocking(functools.partial(self._disk.add_owner_hint, tp, refused))
            raise
        root = yield from catalog.read_back()
        # mutant doubt-is-settled-by-claim
        if catalog.in_doubt:  # another's commits are at offsets of this disk, and not on it
            raise FencedError(catalog.in_doubt, hint="open the log again to see whether this volume may write")
        if joints is not None:  # others may have committed before the claim
            yield from self._need_same_records(tp, root)
        self._unseen.discard(tp)
        resumes = claim.resumes and bool(claim.next_offset)  # our claim stands: the catalog's end is the log's
        granted = Granted(
            self._disk.claims.proof(tp).token,
            claim.epoch,
            claim.leader_epoch,
            root.start_offset,
            root.next_offset,
            resumes,
            (yield from self.producers(tp, root)) if resumes else b"",
            (claim.not_recovered,) if claim.not_recovered else (),
        )
        later = yield Blocking(lambda: self._disk.start_log(tp, granted))
        return replace(granted, resumes=later)

    def _need_same_records(self, tp: TopicPartition, root: Root) -> Steps[None]:
        """Raise OffsetGapError if the broker of a sidecar without links has other records than the bucket."""
        held = yield from self._looked_up(tp, root, SegmentLookup.leader_epochs)
        theirs = yield Blocking(functools.partial(self._disk.leader_epochs, tp))
        need_same_records(str(tp), held, theirs, root.next_offset)

    def adopt_grant(self, tp: TopicPartition) -> Steps[bool]:
        """Prepare the log for appends under a claim that another process of this volume has made. Return True if so.

        Return False unless the root has the newest claim token of this disk. A root with an older token may be from
        before ``repair rejoin``, or a newer claim is in progress.
        """
        if not self._disk.claims.proof(tp).token:
            return False
        catalog = yield from self.catalog(tp)
        root = yield from catalog.load()
        proof = yield Blocking(lambda: self.proof(tp))
        if root is None or not is_own_claim(root, proof) or held_ids(proof.token)[-1] != root.writer.token:
            return False  # a newer claim of this volume may be under way: its leader epoch is the one to write under
        resumes = proof.empty and bool(root.next_offset)
        producers = (yield from self.producers(tp, root)) if resumes else b""
        writer, token = root.writer, proof.token  # a claim that came meanwhile is not the one that this root carries
        granted = Granted(
            token, writer.epoch, root.leader_epoch, root.start_offset, root.next_offset, resumes, producers
        )
        yield Blocking(lambda: self._disk.start_log(tp, granted))
        return True

    def producers(self, tp: TopicPartition, root: Root) -> Steps[bytes]:
        """Return the producer state at the end of the root, as a ``.snapshot`` file; empty without producers."""
        return (yield from self._looked_up(tp, root, SegmentLookup.producer_snapshot))

    def _looked_up(
        self, tp: TopicPartition, root: Root, ask: Callable[[SegmentLookup, CatalogView], Steps[T]]
    ) -> Steps[T]:
        """Return the result of ``ask``, a lookup in the segments of ``root``.

        For a missing or damaged object, retry once with a newer root. Raises CorruptionError if that fails, too.
        """
        for last in (False, True):
            try:
                return (yield from ask(SegmentLookup(tp, root.topic_id, ByteCache()), CatalogView.from_root(root)))
            except SegmentGone as gone:
                if last:
                    raise CorruptionError(
                        f"{tp}: the object {gone.key} is gone, and version {root.version} of the catalog still names "
                        f"it (offsets {gone.row.base} to {gone.row.next})",
                        path_or_key=gone.key,
                        position=0,
                        offset=gone.row.base,
                        hint=f"run `tiered check {tp.topic}`, and find the rule or person that deletes objects",
                    ) from None
            except CorruptionError:
                if last:
                    raise
            root = (yield from self._catalog(tp).load()) or root
        raise AssertionError("the second look ends it")

    def proof(self, tp: TopicPartition) -> VolumeProof:
        """Return this volume's proof for a claim, read from the disk. It blocks."""
        proof = self._disk.claims.proof(tp)
        extent = self._disk.extent(tp, exact=proof.restored_from is not None)
        epochs = self._disk.leader_epochs(tp)
        return VolumeProof(
            volume_id=self._disk.volume_id,
            empty=extent.is_empty,
            end_offset=extent.end_offset,
            token=proof.token or "",
            last_append=proof.last_append or "",
            restored_from=RestoredFrom(*proof.restored_from) if proof.restored_from else None,
            start_offset=extent.local_start_offset,
            leader_epoch=epochs[-1].epoch if epochs else -1,
            joints=extent.joints,
        )

    def sweep_dead_uploads(self, tp: TopicPartition, claim_epoch: int, next_offset: int) -> Steps[int]:
        """Delete the objects of uploads that earlier claims left unfinished. Return the number of these uploads.

        The journal names them. ``claim_epoch``: the present claim. ``next_offset``: end of its root. Multipart uploads
        are aborted. Objects at or above ``next_offset`` are deleted: no fenced claim can commit them. Garbage
        collection finds the others, or all if the policy forbids a writer to delete.
        """
        journal = self._journal()
        entries = journal.before(tp, claim_epoch)
        for entry in entries:
            for upload_id in entry.upload_ids:
                yield AbortUpload(entry.log_key, upload_id)
            # mutant sweep-spares-committed
            if entry.base >= next_offset:
                yield from _delete_dead(entry)
            yield Blocking(functools.partial(journal.done, [entry.log_key]))
        return len(entries)

    # ------------------------------------------------------------------ segments

    def commit_bytes(self, tp: TopicPartition, rows: Sequence[Row]) -> int:
        """Return the upper bound of the memory in bytes that a commit needs."""
        return self._catalog(tp).commit_bytes(len(rows))

    def upload_bytes(self, tp: TopicPartition, ref: SegmentRef) -> int:
        """Return the upper bound of the memory in bytes that an upload needs. Reads the disk.

        Raises NotFoundError if the segment is not on it.
        """
        parts = -(-ref.size_bytes // self.sizes.part_bytes) if ref.size_bytes > self.sizes.multipart_above_bytes else 1
        indexes = self._disk.segment(tp, ref).index_bytes
        return min(parts, PARALLEL_PARTS) * PIECE_BYTES + INDEX_COPIES * indexes

    def upload(
        self, tp: TopicPartition, ref: SegmentRef, claim_epoch: int, *, deadline_seconds: float = PUT_DEADLINE_SECONDS
    ) -> Steps[Row]:
        """Upload both objects of a segment, verify them, and return their row for the catalog.

        Objects of failed attempts are deleted after the commit or by the next claim. ``deadline_seconds``: time in
        which the upload of each object is retried. Then RemoteUnavailableError is raised. Raises FencedError if a newer
        claim deleted the objects, CorruptionError if the segment is damaged or the stored object differs.
        """
        try:
            return (yield from self._upload(tp, ref, claim_epoch, deadline_seconds))
        except CorruptionError as damage:
            yield Blocking(functools.partial(self._disk.add_owner_hint, tp, damage))
            raise

    def _upload(self, tp: TopicPartition, ref: SegmentRef, claim_epoch: int, deadline_seconds: float) -> Steps[Row]:
        capabilities = self.capabilities or (yield from self.probe())
        journal = self._journal()
        uid: str = yield NewId()
        before = yield from self._producers_before(tp, ref)

        def prepare() -> Prepared:
            """Read the segment, then write the names of its objects into the journal."""
            segment = self._disk.segment(tp, ref)
            descriptor, indexes = segment.descriptor, segment.indexes(before)
            plan = plan_upload(descriptor, uid=uid, claim_epoch=claim_epoch)
            source = segment.open_log()
            try:
                journal.put(Entry(tp, claim_epoch, ref.base, plan.log_key, plan.idx_key))
            except BaseException:
                source.close()
                raise
            return Prepared(descriptor, source, indexes, plan)

        prepared: Prepared = yield Blocking(prepare)
        try:
            return (
                yield from upload_segment(
                    prepared,
                    claim_epoch=claim_epoch,
                    capabilities=capabilities,
                    plan=prepared.plan,
                    on_multipart=functools.partial(journal.part, prepared.plan.log_key),
                    sizes=self.sizes,
                    deadline_seconds=deadline_seconds,
                )
            )
        except CorruptionError:
            yield from self._catalog(tp).confirm()
            raise
        finally:
            prepared.source.close()

    def _producers_before(self, tp: TopicPartition, ref: SegmentRef) -> Steps[ProducerSnapshot | None]:
        """Return the producers at the bucket's end if the broker (before 2.8) has no snapshot of them, else None."""
        if not (yield Blocking(lambda: self._disk.segment(tp, ref).lacks_producers)):
            return None
        root = self._catalog(tp).root or (yield from self._catalog(tp).load())
        if root is None:
            return None
        data = yield from self.producers(tp, root)
        return ProducerSnapshot(root.next_offset, tuple(decode_snapshot(data)) if data else ())

    def commit(self, tp: TopicPartition, claim_epoch: int, rows: Sequence[Row]) -> Steps[Root]:
        """Append ``rows`` to the root, and return the root as it was read back.

        Raises FencedError if a newer claim owns the partition. Raises CommitUnknownError if it is unknown whether
        the rows were committed, or if ``claim_epoch`` is not the present claim of this process.
        """
        catalog = self._catalog(tp)
        if catalog.claim_epoch != claim_epoch:
            raise CommitUnknownError(
                f"{tp}: the commit was prepared under claim epoch {claim_epoch}, and the current one is "
                f"{catalog.claim_epoch}"
            )
        epochs = yield Blocking(functools.partial(self._disk.leader_epochs, tp))
        self._idle.pop(tp, None)
        if catalog.root is None:
            yield from catalog.load()
        try:
            rows = yield from catalog.dated(rows)
            yield from catalog.append(rows, epochs)
        except FencedError:
            raise
        except TieredError as error:
            if catalog.in_doubt and not isinstance(error, CommitUnknownError):
                raise CommitUnknownError(f"{tp}: {error.message}", hint=error.hint) from error
            raise
        self._unseen.add(tp)
        root = yield from _read_back(tp, catalog, rows)
        yield from self._forget(tp, rows)
        self._unseen.discard(tp)
        return root

    def copy_positions(self, tp: TopicPartition, claim_epoch: int, groups: Positions) -> Steps[None]:
        """Replace the bucket's copy of consumer groups' positions. Raises FencedError if a newer claim wrote it."""
        yield from store_positions(self._disk.topic_id(tp), tp, claim_epoch, groups)

    def _forget(self, tp: TopicPartition, rows: Sequence[Row]) -> Steps[None]:
        """Remove committed uploads from the journal. Delete the objects of failed attempts at the same segments.

        Errors are ignored, because the commit is done. Garbage collection finds objects that could not be deleted. If
        the journal cannot be written, the next start checks the uploads again.
        """
        journal = self._journal()
        committed = {join_uid(row.id_hi, row.id_lo) for row in rows}
        done = []
        for entry in journal.between(tp, rows[0].base, rows[-1].next):
            stands = entry.uid in committed
            try:
                # One that was completed is unknown to the store; what a failed attempt began and did not abort is not.
                for upload_id in entry.upload_ids[:-1] if stands else entry.upload_ids:
                    yield AbortUpload(entry.log_key, upload_id)
                # mutant commit-spares-named
                if not stands and entry.epoch == rows[0].claim_epoch:
                    yield Delete((entry.log_key, entry.idx_key))
            except TieredError:
                continue
            done.append(entry.log_key)
        with contextlib.suppress(LocalIOError):  # a full disk: a later claim looks at them once more
            yield Blocking(functools.partial(journal.done, done))


def _read_back(tp: TopicPartition, catalog: Catalog, rows: Sequence[Row]) -> Steps[Root]:
    """Return the root with the rows, read back from the bucket. Only then may local records be deleted.

    Raises CommitUnknownError if several attempts cannot read it, FencedError if a newer claim has replaced it.
    """
    until = math.inf
    attempt = 1
    while True:
        try:
            return (yield from catalog.read_back(rows))
        except FencedError:
            raise
        except TieredError as error:
            now = (yield Now()).monotonic
            until = min(until, now + READ_BACK_SECONDS)
            if attempt >= READ_BACK_ATTEMPTS or now >= until:
                raise CommitUnknownError(
                    f"{tp}: rows up to offset {rows[-1].next} were sent, but the catalog cannot be read back: "
                    f"{error.message}",
                    hint="no action is needed: the next claim reads it; local segments stay until then",
                ) from error
        yield Backoff(attempt)
        attempt += 1


def _delete_dead(entry: Entry) -> Steps[None]:
    try:
        deleted = yield Delete((entry.log_key, entry.idx_key))
    except RemotePermissionError:
        return  # a writer need not have the right: the maintainer collects by the epoch in the key
    if isinstance(deleted, Deleted) and deleted.failed:
        key, why = deleted.failed[0]
        if ACCESS_DENIED not in why:
            raise RemoteUnavailableError(f"{key} was not deleted: {why}")
