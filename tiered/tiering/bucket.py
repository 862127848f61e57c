"""The orders that touch the store, each as one coroutine that raises ``TieredError`` or returns facts.

Everything about objects and catalogs is in ``tiered.remote``; this adds the journal before each put, the proof before
each claim, and the bound on what is in flight. Blocking work on local files runs in threads.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from tiered.clock import Clock, IdSource
from tiered.errors import (
    CommitUnknown,
    ConfigError,
    FencedError,
    LogDestroyedError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.format.keys import Role, segment_key
from tiered.local.disk.claims import Claims
from tiered.local.disk.witness import known_topic
from tiered.model import ByteSource, Row, SealedIndexes, SegmentDescriptor, TopicPartition
from tiered.plan.known import Known
from tiered.plan.lifecycle import RestoredFrom, VolumeProof
from tiered.plan.tiering.facts import SegmentRef
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.lookup import SegmentLookup
from tiered.remote.roots import REGISTRATION_REQUESTS
from tiered.remote.snapshot import Snapshot
from tiered.remote.topics import Registrant, TopicEntry, load_topic, register_topic
from tiered.remote.upload import plan_upload, upload_segment
from tiered.store.base import AbortUpload, AioStore, Capabilities, Delete, Deleted, Steps
from tiered.store.driver import adrive
from tiered.store.probe import check_capabilities, probe
from tiered.tiering.directory import LogDirectory, Resume
from tiered.tiering.journal import Entry, Journal

ACCESS_DENIED = "AccessDenied"
"""How S3 says, per key of a batch delete, that the policy forbids it."""

READ_BACK_ATTEMPTS = 5
"""GETs of a root that was just committed; after them a new claim tells what it holds."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Granted:
    """A claim whose root was read back. ``resume``: a volume without records has to begin there."""

    claim_epoch: int
    start_offset: int
    next_offset: int
    resume: Resume | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sealed segment whose files were read and fsynced in a thread: the event loop waits for no disk."""

    descriptor: SegmentDescriptor
    source: ByteSource
    sealed_indexes: SealedIndexes

    def open_log(self) -> ByteSource:
        """The open file."""
        return self.source

    def indexes(self) -> SealedIndexes:
        """The trimmed index files."""
        return self.sealed_indexes


@dataclass(frozen=True, slots=True)
class PartSizes:
    """Segments above ``multipart_above_bytes`` are sent in parts of ``part_bytes``."""

    multipart_above_bytes: int
    part_bytes: int


class Bucket:
    """One store, one log directory, one event loop."""

    def __init__(
        self,
        store: AioStore,
        directory: LogDirectory,
        journal: Journal,
        *,
        clock: Clock,
        ids: IdSource,
        owner: str,
        sizes: PartSizes,
    ) -> None:
        self._store = store
        self._directory = directory
        self._journal = journal
        self._clock = clock
        self._ids = ids
        self._owner = owner
        self._sizes = sizes
        self._claims = Claims(directory.path, directory.files)
        self._catalogs: dict[TopicPartition, Catalog] = {}
        self._registered: dict[str, TopicEntry] = {}
        self._known: dict[str, dict[int, Known]] = {}  # what the disk had seen when the topic was registered
        self._capabilities: Capabilities | None = None
        self._probing = asyncio.Lock()

    @property
    def is_reachable(self) -> bool:
        """Whether the store has answered the probe."""
        return self._capabilities is not None

    async def capabilities(self) -> Capabilities:
        """What the store can do, probed once. Raises ConditionalWritesUnsupportedError, and the store's errors."""
        async with self._probing:
            if self._capabilities is None:
                found = await self._drive(probe())
                check_capabilities(found, self._store.url)
                self._capabilities = found
            return self._capabilities

    async def register(self, topic: str) -> None:
        """Create-only; adopts an entry with the same id and gives it the partitions that it lacks.

        Raises ConfigError for another id, LogDestroyedError, CorruptionError for what is lost.
        """
        await self.capabilities()
        info = (await asyncio.to_thread(self._directory.topics))[topic]
        await self.check_uploaded([topic])
        known = await asyncio.to_thread(lambda: known_topic(topic, self._directory.uploads(), self._claims.read()))
        seen = frozenset(partition for partition, what in known.items() if what.by_disk)
        entry = await adrive(
            self._store,
            register_topic(
                topic,
                info.topic_id,
                info.partitions,
                info.config.to_text(changed_only=True),
                Registrant(self._owner, frozenset(info.here), seen),
            ),
            clock=self._clock,
            ids=self._ids,
            together=REGISTRATION_REQUESTS,
        )
        if entry.topic_id != info.topic_id:
            raise ConfigError(
                f"topic {topic} is {info.topic_id} in {self._directory.path} and {entry.topic_id} in {self._store.url}",
                hint="it was deleted and made again, or the bucket is another log's: use another prefix or directory",
            )
        self._registered[topic] = entry
        self._known[topic] = {partition: replace(what, made=True) for partition, what in known.items()}

    async def check_uploaded(self, topics: Sequence[str] | None = None) -> None:
        """Raises LogDestroyedError if the bucket does not know one of ``topics`` (None: all) that this volume uploaded.

        One GET each. What the checkpoint says of another bucket, or of this one before it was emptied, is not believed.
        """
        uploaded = await asyncio.to_thread(self._uploaded_topics)
        for topic in sorted(uploaded if topics is None else uploaded.intersection(topics)):
            if await self._drive(load_topic(topic)) is None:
                raise LogDestroyedError(
                    f"topic {topic} was uploaded from {self._directory.path}, and {self._store.url} does not know it",
                    hint="it is another bucket or prefix, or it was emptied: correct the URL, or copy the objects back",
                )

    def _uploaded_topics(self) -> set[str]:
        return {tp.topic for tp, proof in self._claims.read().items() if proof.token or proof.restored_from}

    async def claim(self, tp: TopicPartition) -> Granted:
        """The proof is on the disk before the PUT that carries it. Raises FencedError if this volume may not write."""
        await self.capabilities()
        catalog = self._catalogs.get(tp)
        topic_id = self._directory.topic_id(tp)
        entry = self._registered.get(tp.topic)
        if entry is None or entry.topic_id != topic_id or tp.partition >= entry.partitions:
            await self.register(tp.topic)  # it grew, or was made again: what the registry does not name nobody reads
        if catalog is None or catalog.topic_id != topic_id:
            catalog = self._catalogs[tp] = self._catalog(tp)
        proof = await asyncio.to_thread(self._proof, tp)
        claim = await self._drive(catalog.claim(Role.WRITER, self._owner, proof))
        root = await self._drive(catalog.read_back())
        resume = None
        if claim.resumes and claim.next_offset:
            lookup = SegmentLookup(tp, topic_id, ByteCache())
            producers = await self._drive(lookup.producer_snapshot(Snapshot.of(root)))
            resume = Resume(claim.next_offset, claim.leader_epoch, producers)
        warnings = tuple(filter(None, (claim.not_recovered, claim.dated_ahead)))
        return Granted(claim.epoch, root.start_offset, root.next_offset, resume, warnings)

    async def settle(self, tp: TopicPartition, claim_epoch: int, next_offset: int) -> int:
        """Removes what dead claims left; returns how many uploads that were.

        Multipart uploads are aborted. Objects at or above ``next_offset`` are deleted: no commit can name them any
        more, because the claim that stored them is fenced. Those below it are committed, or the collector's, and so
        is everything where the policy lets a writer delete nothing (``terraform/modules/roles``).
        """
        entries = self._journal.before(tp, claim_epoch)
        for entry in entries:
            for upload_id in entry.upload_ids:
                await self._store.execute(AbortUpload(entry.log_key, upload_id))
            if entry.base >= next_offset:
                await self._delete_dead(entry)
            await asyncio.to_thread(self._journal.done, [entry.log_key])
        return len(entries)

    async def _delete_dead(self, entry: Entry) -> None:
        try:
            deleted = await self._store.execute(Delete((entry.log_key, entry.idx_key)))
        except RemotePermissionError:
            return  # a writer need not have the right: the maintainer collects by the epoch in the key
        if isinstance(deleted, Deleted) and deleted.failed:
            key, why = deleted.failed[0]
            if ACCESS_DENIED not in why:
                raise RemoteUnavailableError(f"{key} was not deleted: {why}")

    async def upload(self, tp: TopicPartition, ref: SegmentRef, claim_epoch: int) -> Row:
        """Both objects, stored and verified. What is left of a failed attempt is swept after the next claim."""
        capabilities = await self.capabilities()
        prepared = await asyncio.to_thread(self._prepare, tp, ref)
        try:
            plan = plan_upload(prepared.descriptor, uid=self._ids.uid(), claim_epoch=claim_epoch)
            entry = Entry(tp, claim_epoch, ref.base, plan.log_key, plan.idx_key)
            await asyncio.to_thread(self._journal.put, entry)
            steps = upload_segment(
                prepared,
                topic_id=prepared.descriptor.topic_id,
                partition=tp.partition,
                claim_epoch=claim_epoch,
                capabilities=capabilities,
                plan=plan,
                on_multipart=lambda upload_id: self._journal.part(plan.log_key, upload_id),
                multipart_from_bytes=self._sizes.multipart_above_bytes,
                part_bytes=self._sizes.part_bytes,
            )
            return await self._drive(steps)
        finally:
            prepared.source.close()

    async def commit(self, tp: TopicPartition, claim_epoch: int, rows: Sequence[Row]) -> int:
        """The end of a root that was read back. Raises CommitUnknown whenever the rows may be in it."""
        catalog = self._catalogs[tp]
        if catalog.claim_epoch != claim_epoch:
            raise CommitUnknown(f"{tp}: the claim {claim_epoch} is gone, {catalog.claim_epoch} is held")
        epochs = await asyncio.to_thread(self._directory.leader_epochs, tp)
        try:
            await self._drive(catalog.append(rows, epochs))
        except FencedError:
            raise
        except TieredError as error:
            if catalog.in_doubt and not isinstance(error, CommitUnknown):
                raise CommitUnknown(f"{tp}: {error.message}", hint=error.hint) from error
            raise
        end_offset = await self._read_back(tp, catalog, rows)
        await self._forget(tp, catalog.topic_id, rows)
        return end_offset

    async def close(self) -> None:
        """Releases connections."""
        await self._store.close()

    async def _read_back(self, tp: TopicPartition, catalog: Catalog, rows: Sequence[Row]) -> int:
        attempt = 1
        while True:
            try:
                return (await self._drive(catalog.read_back(rows))).next_offset
            except FencedError:
                raise
            except TieredError as error:  # whatever it is: the rows are in, and only a claim's root can say so now
                if attempt >= READ_BACK_ATTEMPTS:
                    raise CommitUnknown(
                        f"{tp}: committed up to {rows[-1].next}, but the root cannot be read back: {error.message}",
                        hint="the next claim reads it; local bytes stay until then",
                    ) from error
            attempt += 1
            await asyncio.sleep(0.1 * attempt)

    async def _forget(self, tp: TopicPartition, topic_id: UUID, rows: Sequence[Row]) -> None:
        """Strikes out what is committed, and deletes what failed attempts of these segments left: no row names it.

        A delete that fails costs an object that the collector finds later; the commit stands.
        """
        committed = {segment_key(topic_id, tp.partition, row) for row in rows}
        for entry in self._journal.below(tp, rows[-1].next):
            if entry.log_key not in committed and entry.epoch == rows[0].claim_epoch:
                try:
                    await self._store.execute(Delete((entry.log_key, entry.idx_key)))
                except TieredError:
                    continue
            await asyncio.to_thread(self._journal.done, [entry.log_key])

    def _prepare(self, tp: TopicPartition, ref: SegmentRef) -> Prepared:
        segment = self._directory.segment(tp, ref)
        descriptor, indexes = segment.descriptor, segment.indexes()
        return Prepared(descriptor, segment.open_log(), indexes)

    def _catalog(self, tp: TopicPartition) -> Catalog:
        known = self._known.get(tp.topic, {}).get(tp.partition, Known(made=True))
        persist = functools.partial(self._claims.keep, tp)
        return Catalog(
            self._directory.topic_id(tp),
            tp.partition,
            tp.topic,
            persist=persist,
            is_empty=lambda: self._directory.extent(tp, exact=False).is_empty,
            known=known,
        )

    def _proof(self, tp: TopicPartition) -> VolumeProof:
        proof = self._claims.of(tp)
        extent = self._directory.extent(tp, exact=proof.restored_from is not None)
        epochs = self._directory.leader_epochs(tp)
        return VolumeProof(
            volume_id=self._directory.volume_id,
            empty=extent.is_empty,
            end_offset=extent.end_offset,
            token=proof.token or "",
            last_append=proof.last_append or "",
            restored_from=RestoredFrom(*proof.restored_from) if proof.restored_from else None,
            start_offset=extent.local_start_offset,
            leader_epoch=epochs[-1].epoch if epochs else -1,
        )

    async def _drive(self, steps: Steps[T]) -> T:
        return await adrive(self._store, steps, clock=self._clock, ids=self._ids)
