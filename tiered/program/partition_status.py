"""State of one partition over both tiers and its problems, for ``status`` and ``describe``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiered.engine.scanner import living
from tiered.errors import CorruptionError, LocalIOError, LogDestroyedError, NotFoundError, TieredError
from tiered.format.coordinator_records import is_state_log
from tiered.format.keys import Role
from tiered.format.local_names import log_name
from tiered.format.root import STATE_DELETING
from tiered.local.directory.read_only_log import LogView, find_gone, is_partition_gone
from tiered.local.disk.directory_files import STANDBY_NAME
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.lock import LOCK_NAME, UPLOADER_LOCK_NAME, DirectoryLock, Holder
from tiered.local.disk.partition_files import gone_text
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.model import Positions, TopicPartition
from tiered.plan.ownership import SPARK_VOLUME, Refusal, RefusalReason, RestoredFrom, VolumeProof, decide_claim
from tiered.plan.root_lower_bounds import NOTHING_KNOWN, RootLowerBounds
from tiered.program.open_log import Tiers, TopicFacts
from tiered.program.output import counted
from tiered.program.uploader_status import UnsafeReason
from tiered.remote.catalog_view import CatalogView
from tiered.remote.upload import check_source
from tiered.times import format_time


@dataclass(slots=True)
class PartitionStatus:
    """State of one partition over both tiers. ``positions`` (disk) and ``pinned`` (bucket) are None if that tier is not
    used or did not answer.

    ``unreadable``: why the disk's part cannot be read. ``lost``: why the bucket has less than the registry or this disk
    has seen. ``deleting``: the topic is being deleted in the bucket. ``fenced``: another volume owns the partition.
    ``sealed_since_ms``: last write of the oldest sealed segment that is not uploaded, -1 without any. ``reasons``: why
    this partition is not safe. ``times``: least and greatest timestamp in the bucket, None without any.
    ``local_bytes``: bytes of all its segments on this disk. ``active_bytes``: those of the active one.
    """

    tp: TopicPartition
    positions: Positions | None = None
    local_segments: int = 0
    local_bytes: int = 0
    active_bytes: int = 0
    fenced: bool = False
    pinned: CatalogView | None = None
    times: tuple[int, int] | None = None
    reasons: list[UnsafeReason] = field(default_factory=list)
    unreadable: TieredError | None = None
    lost: TieredError | None = None
    deleting: bool = False
    sealed_since_ms: int = -1

    @property
    def problems(self) -> list[str]:
        """Return the texts of the reasons why this partition is not safe."""
        return [reason.text for reason in self.reasons]

    @property
    def named_reasons(self) -> list[UnsafeReason]:
        """Return the reasons why this partition is not safe, each with the partition's name in its text."""
        return [dataclasses.replace(reason, text=f"{self.tp}: {reason.text}") for reason in self.reasons]

    def trouble(self, code: str, text: str) -> None:
        """Add a reason why this partition is not safe. ``code``: a key of ``uploader_status.CODES``."""
        self.reasons.append(UnsafeReason(code, text, topic=self.tp.topic, partition=self.tp.partition))

    @property
    def overtaken(self) -> bool:
        """Return True if another volume owns the partition, or if this disk ends below the committed records.

        Appends are then refused. ``tiered repair rejoin`` is the way back.
        """
        at = self.positions
        return self.fenced or (at is not None and at.end_offset < at.uploaded_offset)

    @property
    def end_offset(self) -> int:
        """Return the offset of the next record, over both tiers."""
        ends = [self.positions.end_offset] if self.positions is not None else []
        return max([*ends, self.pinned.next_offset if self.pinned is not None else 0])

    @property
    def uploaded_offset(self) -> int:
        """Return the end of the committed records: by the root if it was read, otherwise as recorded on this disk."""
        if self.pinned is not None:
            return self.pinned.next_offset
        return self.positions.uploaded_offset if self.positions is not None else 0

    @property
    def committed_offset(self) -> int:
        """Return the end of this disk's own records in the bucket. Commits under a newer claim do not count."""
        if self.fenced and self.positions is not None:
            return self.positions.uploaded_offset
        return self.uploaded_offset

    @property
    def deleting_since_ms(self) -> int | None:
        """Return the time in ms at which the root was marked as being deleted; None if it is not, or unknown."""
        root = self.pinned.root if self.pinned is not None else None
        return root.commit.ts_ms if root is not None and root.state == STATE_DELETING else None

    @property
    def internal(self) -> bool:
        """Return True if the topic is a state log of transactions or groups, which is never uploaded."""
        return is_state_log(self.tp.topic)

    @property
    def lag(self) -> int:
        """Return the number of offsets that are not uploaded yet."""
        return 0 if self.internal else max(0, self.end_offset - self.uploaded_offset)

    @property
    def only_here(self) -> int:
        """Return the number of offsets that are only on this disk and still have to be uploaded."""
        if self.positions is None or self.internal:
            return 0
        return max(0, self.positions.end_offset - self.committed_offset)

    def as_json(self) -> dict[str, Any]:
        """Return the partition's fields in the output of ``--json``."""
        local, pinned = self.positions, self.pinned
        root = pinned.root if pinned is not None else None
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "end_offset": self.end_offset,
            "flushed_offset": local.flushed_offset if local is not None else None,
            "uploaded_offset": self.uploaded_offset,
            "start_offset": _start(local, pinned),
            "local_start_offset": local.local_start_offset if local is not None else None,
            "lag_records": self.lag,
            "internal": self.internal,
            "deleting": self.deleting,
            "deleting_since_ms": self.deleting_since_ms,
            "local": None
            if local is None
            else {
                "segments": self.local_segments,
                "size_bytes": self.local_bytes,
                "active_bytes": self.active_bytes,
                "fenced": self.fenced,
                "end_offset": local.end_offset,
                "uploaded_offset": local.uploaded_offset,
                "only_here": self.only_here,
            },
            "remote": None
            if pinned is None or root is None
            else {
                "version": root.version,
                "segments": pinned.segments,
                "size_bytes": pinned.size_bytes,
                "records": pinned.records,
                "start_offset": root.start_offset,
                "next_offset": root.next_offset,
                "last_commit_ms": root.commit.ts_ms,
                "claim_epoch": root.writer.epoch,
                "owner": root.writer.owner,
                "state": root.state,
            },
            "problems": self.problems,
        }


@dataclass(frozen=True, slots=True)
class DiskNotes:
    """Facts from the files of a log directory about all its partitions, read once.

    ``present``: partitions with a folder. ``gone``: end offsets of partitions whose folder is gone. ``known``: lower
    bounds of the roots in the bucket. ``uploads``: state of the uploads.
    """

    present: frozenset[TopicPartition] = frozenset()
    known: Mapping[TopicPartition, RootLowerBounds] = field(default_factory=dict)
    uploads: Mapping[TopicPartition, PartitionUpload] = field(default_factory=dict)
    gone: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def read(cls, tiers: Tiers) -> DiskNotes:
        """Read the facts from the log directory, if there is one.

        Call this before the bucket is read, so that the state of the bucket is never older than these facts.
        """
        log = tiers.local
        if log is None:
            return cls()
        known, uploads = tiers.known(), log.uploads.read()
        present = frozenset(log.partitions())
        return cls(present, known, uploads, _gone(log, uploads))


def _gone(log: LogView, uploads: Mapping[TopicPartition, PartitionUpload]) -> dict[TopicPartition, int]:
    """Return the end offset of each partition that has lost its files. Empty if the checkpoints are unreadable."""
    try:
        return find_gone(log.directory, log.files, uploads)
    except (CorruptionError, LocalIOError):
        return {}


def gather(
    tiers: Tiers, unreadable: dict[str, TieredError] | None = None, topic: str | None = None, *, read_bytes: int = 0
) -> list[PartitionStatus]:
    """Return the state of every partition, or those of ``topic``.

    ``unreadable``: gets the error of each topic whose entry cannot be read. None: such an error is raised.
    ``read_bytes``: most bytes of the next segments to upload that are read, to find damage that stops the uploads.
    """
    notes = DiskNotes.read(tiers)
    found = tiers.topics(unreadable=unreadable) if topic is None else {topic: tiers.need_topic(topic)}
    statuses = [
        partition_status(tiers, facts, number, notes) for facts in found.values() for number in range(facts.partitions)
    ]
    for status in statuses if read_bytes else ():
        upload = notes.uploads.get(status.tp)
        if tiers.local is not None and status.positions is not None and upload is not None and not upload.fenced:
            read_bytes -= _read_next(status, tiers.local, upload, read_bytes)
    return statuses


def _read_next(status: PartitionStatus, local: LogView, upload: PartitionUpload, most_bytes: int) -> int:
    """Add the error that the upload of the next segment will meet, if any. Return the number of bytes read.

    Of a segment above ``most_bytes`` only the indexes are read.
    """
    segment, size = None, 0
    try:
        segment = next(iter(local.partition(status.tp).sealed_segments(upload.end_offset)), None)
        if segment is None:
            return 0
        if not segment.lacks_producers:  # an uploader takes them from the bucket
            segment.indexes()
        if segment.size_bytes <= most_bytes:
            size = segment.size_bytes
            with closing(segment.open_log()) as source:
                check_source(source, segment.descriptor)
    except NotFoundError:
        pass  # it left the disk at this moment
    except (CorruptionError, LocalIOError) as damage:
        status.trouble("damaged", f"the upload waits: {damage.message}; {damage.hint}")
    return size


def partition_status(tiers: Tiers, facts: TopicFacts, partition: int, notes: DiskNotes) -> PartitionStatus:
    """Return the current state of one partition. ``notes`` must have been read before the bucket."""
    status = PartitionStatus(TopicPartition(facts.name, partition), deleting=facts.deleting)
    if facts.local_id is not None and facts.remote_id is not None and facts.local_id != facts.remote_id:
        status.trouble("problem", f"the topic is {facts.local_id} on this disk and {facts.remote_id} in the bucket")
    if tiers.local is not None and status.tp in notes.gone:
        bucket = status.tp in notes.uploads or status.tp in notes.known
        advice = gone_text(tiers.local.directory, status.tp, notes.gone[status.tp], tiered=bucket)
        status.trouble("damaged", f"its directory is gone from this disk or has no .log file; {advice}")
    if tiers.local is not None and status.tp in notes.present:
        try:
            _add_disk(status, tiers.local, notes.uploads.get(status.tp))
        except (CorruptionError, LocalIOError, NotFoundError) as error:
            status.positions = None
            if not is_partition_gone(tiers.local.files, tiers.local.directory, status.tp, error):
                status.unreadable = error
                code = "damaged" if isinstance(error, CorruptionError) else "unreadable"
                status.trouble(code, str(error))
    if facts.unreadable is not None:  # reported once, for the topic
        return status
    try:
        status.pinned = tiers.snapshot(facts, partition, notes.known.get(status.tp, NOTHING_KNOWN))
        if status.pinned is not None:
            status.times = tiers.run(status.pinned.times())
    except (CorruptionError, LogDestroyedError) as error:
        status.lost = error
        status.trouble("damaged", str(error))
    local, pinned = status.positions, status.pinned
    if tiers.local is not None and facts.local_id == facts.remote_id and status.tp in notes.present:
        _add_owner(status, tiers.local)
    if local is not None and pinned is not None and local.local_start_offset > pinned.next_offset:
        status.trouble("damaged", f"offsets {pinned.next_offset} to {local.local_start_offset} are in neither tier")
    return status


def _add_disk(status: PartitionStatus, local: LogView, upload: PartitionUpload | None) -> None:
    """Add positions and problems of this disk to ``status``. ``upload``: state of the partition's uploads, if any."""
    log = local.partition(status.tp)
    status.positions = log.positions()
    sealed = log.sealed_segments()
    status.local_segments = len(sealed) + 1
    base = sealed[-1].end_offset if sealed else status.positions.local_start_offset
    active = local.files.state(local.directory / str(status.tp) / log_name(base))
    status.active_bytes = active.size if active is not None else 0
    status.local_bytes = sum(segment.size_bytes for segment in sealed) + status.active_bytes
    if upload is not None and not upload.fenced and status.positions.end_offset < upload.end_offset:
        status.trouble(
            "damaged",
            f"this disk ends at offset {status.positions.end_offset}, below the bucket's {upload.end_offset}:"
            " appends are refused; `tiered repair rejoin` is the way back",
        )
    unsent = [each for each in sealed if each.end_offset > (upload.end_offset if upload is not None else 0)]
    if unsent:
        state = local.files.state(local.directory / str(status.tp) / log_name(unsent[0].base_offset))
        status.sealed_since_ms = -1 if state is None else state.modified_ns // 1_000_000
    if upload is not None and upload.fenced:
        status.fenced = True
        status.trouble(
            "fenced",
            f"fenced: a newer claim owns the partition; {counted(status.only_here, 'record')} only here;"
            " `tiered repair rejoin` sets them aside and is the way back",
        )


def _add_owner(status: PartitionStatus, local: LogView) -> None:
    """Add a reason if another volume owns the root, so that the next claim of this disk would be refused.

    A root of this volume proves nothing: its writer may have claimed or committed since the disk was read.
    """
    at, root = status.positions, status.pinned.root if status.pinned is not None else None
    if at is None or root is None or status.fenced or at.end_offset == at.local_start_offset:
        return
    volume_id = str(local.volume_id)
    if root.writer.volume in (volume_id, SPARK_VOLUME) or local.topics()[status.tp.topic].adopted:
        return
    if local.files.state(local.directory / STANDBY_NAME) is not None:
        return  # it follows, and is never the writer
    restored = local.claims.proof(status.tp).restored_from
    source = RestoredFrom(*restored) if restored is not None else None
    claim = decide_claim(
        root, Role.WRITER, VolumeProof(volume_id, empty=False, end_offset=at.end_offset, restored_from=source)
    )
    if isinstance(claim, Refusal) and claim.reason is RefusalReason.FENCED:
        status.fenced = True
        status.trouble("fenced", f"appends are refused: {claim.message}; {claim.hint}")


def _start(local: Positions | None, pinned: CatalogView | None) -> int:
    starts = [local.start_offset] if local is not None else []
    return min([*starts, pinned.start_offset] if pinned is not None else starts, default=0)


def deleting_text(statuses: Iterable[PartitionStatus]) -> str:
    """Return ``deleting``, with the time of its start if known; empty if the topic is not being deleted."""
    found = [status for status in statuses if status.deleting]
    since = [status.deleting_since_ms for status in found if status.deleting_since_ms is not None]
    return "" if not found else f"deleting since {format_time(min(since))}" if since else "deleting"


def lock_holders(directory: Path) -> dict[str, Holder]:
    """Return the running ``writer`` and ``uploader`` of a log directory, by these words. Acquires no lock."""
    found = {}
    for role, name in (("writer", LOCK_NAME), ("uploader", UPLOADER_LOCK_NAME)):
        holder = DirectoryLock(directory, PosixFiles(), name=name).holder()
        if living(holder):
            found[role] = holder
    return found
