"""Scan of a log directory that another process may write. It finds sealed segments by name and reads no active one.

In a partition's directory every ``.log`` is sealed, except the one with the largest base: the writer creates a segment
only after the one before is fsynced. A segment ends where the next begins. Of the active segment only name and size are
known, so ``end_offset`` counts it as one record. This lower bound is exact after a seal.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from tiered.clock import Clock
from tiered.config import TopicConfig
from tiered.engine.partition import PartitionSeen, SegmentRef
from tiered.errors import ConfigError, CorruptionError, LocalIOError, NotFoundError, TieredError
from tiered.format.checkpoint import decode_epochs, decode_meta_properties
from tiered.format.coordinator_records import is_state_log
from tiered.format.local_names import LOG_SUFFIX, log_name, partition_dir
from tiered.format.positions import Positions
from tiered.local.directory.read_only_log import DirectoryView, find_gone
from tiered.local.disk.directory_files import META_PROPERTIES_NAME, RECOVERY_POINT_NAME, OffsetsFile
from tiered.local.disk.files import Files, FileState
from tiered.local.disk.lock import DirectoryLock, Holder
from tiered.local.disk.partition_files import EPOCHS_NAME, gone_error, log_bases
from tiered.local.disk.topics import (
    PARTITION_METADATA_NAME,
    TOPICS_NAME,
    TopicInfo,
    another_topic,
    expected_topics,
    known_ids,
    read_topic_id,
    read_topics,
)
from tiered.local.disk.uploader_files import PartitionUpload, PauseFile, PositionsFile, UploadCheckpoint
from tiered.local.segment.sealed import OwningLog, SealedLocalSegment
from tiered.model import EpochEntry, TopicPartition
from tiered.plan.pacing import Pause

LOOKS = 4
"""Attempts to read a partition whose active segment is renamed between the listing and its ``stat``."""
COLD_LOOKS = 12
"""Scans in which the active segment of each partition that does not grow is read once."""
NO_TOPIC_SEAL_MS = -1
"""``seal.ms`` of a broker's topic, which has none."""


@dataclass(slots=True)
class Look:
    """Changes of a log directory since the last scan. ``gone``: removed partitions. ``seen``: new or changed ones.

    Apply ``gone`` first: a partition may be in both. ``writer``: the holder of ``.lock`` in words, ``""`` if none.
    ``pauses``: the paused topics; ``ALL_TOPICS`` pauses all. ``positions``: those of consumer groups, by partition.
    The last three are None if they have not changed.
    """

    gone: list[TopicPartition] = field(default_factory=list)
    seen: list[PartitionSeen] = field(default_factory=list)
    writer: str | None = None
    pauses: Mapping[str, Pause] | None = None
    positions: Mapping[TopicPartition, Positions] | None = None


@dataclass(slots=True)
class _LastScan:
    """Result of the last scan of a partition. ``reported``: the bases of its sealed segments, in order.

    ``active_base``, ``active_since_ms``, ``active_ns``: base, first append and last change of the active segment.
    ``grows``: True if the size of the active segment differed from that of the scan before.
    """

    topic_id: UUID
    seen: PartitionSeen | None = None
    reported: tuple[int, ...] = ()
    active_base: int = -1
    active_since_ms: int = -1
    active_ns: int = -1
    grows: bool = False


class FolderWatch:
    """Filter for the partitions that may have changed since the last scan. Most of them cost one ``stat``.

    A folder's time has the resolution of a clock tick. So a folder that changed is read twice: the second read comes at
    least one scan later, and finds changes of the same tick.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._names: list[str] | None = None
        self._tps: list[TopicPartition] = []
        self._folders: list[str] = []
        self._changed_ns: list[int] = []
        self._sure: list[bool] = []
        self._read: tuple[object, object] = (None, None)
        self.turn = 0

    def whole(self, look: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
        """List all partitions with ``look`` and return them, so that the scan reads each one."""
        self._names = self._files.names(self._directory)  # first: a later change is seen the next time
        self._tps = look()
        listed = {name: name for name in self._names}  # one string for each name
        self._folders = [listed.get(name, name) for name in map(partition_dir, self._tps)]
        self._changed_ns, self._sure = [-1] * len(self._tps), [False] * len(self._tps)
        return self._tps

    def forget(self) -> None:
        """Make the next scan read all partitions."""
        self._names = None

    def due(
        self,
        known: Mapping[TopicPartition, _LastScan],
        flushed: Mapping[TopicPartition, int],
        noted: Mapping[TopicPartition, PartitionUpload],
    ) -> list[TopicPartition] | None:
        """Return the partitions to read. None: folders were added or removed, and all must be listed.

        ``known``: results of the last scan. ``flushed``, ``noted``: the recovery points and the upload checkpoint now.
        Due are partitions with a changed folder, a growing active segment or a changed checkpoint entry. One scan in a
        dozen looks for new growth of a segment that did not grow.
        """
        if self._names is None or self._files.names(self._directory) != self._names:
            return None
        before, self._changed_ns = self._changed_ns, self._files.modified_ns(self._directory, self._folders)
        same = [now == then for now, then in zip(self._changed_ns, before, strict=True)]
        due = {at for at, sure in enumerate(self._sure) if not (sure and same[at])}
        self._sure = same
        due.update(at for at, tp in enumerate(self._tps) if tp not in known or known[tp].grows)
        if self._read[0] is not flushed or self._read[1] is not noted:
            self._read = (flushed, noted)
            due.update(at for at, tp in enumerate(self._tps) if _noted_anew(tp, known, flushed, noted))
        cold = [at for at in range(self.turn % COLD_LOOKS, len(self._tps), COLD_LOOKS) if at not in due]
        self.turn += 1
        logs = [f"{self._folders[at]}/{log_name(known[self._tps[at]].active_base)}" for at in cold]
        grown = self._files.modified_ns(self._directory, logs)
        due.update(at for at, ns in zip(cold, grown, strict=True) if ns != known[self._tps[at]].active_ns)
        return [self._tps[at] for at in sorted(due)]


def _noted_anew(
    tp: TopicPartition,
    known: Mapping[TopicPartition, _LastScan],
    flushed: Mapping[TopicPartition, int],
    noted: Mapping[TopicPartition, PartitionUpload],
) -> bool:
    seen, note = known[tp].seen if tp in known else None, noted.get(tp)
    if seen is None:
        return True
    return (seen.flushed_offset, seen.noted_offset) != (flushed.get(tp, 0), -1 if note is None else note.end_offset)


class Scanner:
    """Finder of changes in a log directory since the last scan. One thread at a time.

    ``segments``: returns (base, end) of a partition's sealed segments, given the bases of its ``.log`` files.
    """

    def __init__(
        self,
        directory: Path,
        files: Files,
        clock: Clock,
        *,
        segments: Callable[[TopicPartition, Sequence[int]], Iterable[tuple[int, int]]] = lambda _, bases: (
            itertools.pairwise(bases)
        ),
    ) -> None:
        self.directory = directory
        self._files = files
        self._clock = clock
        self._segments = segments
        self._known: dict[TopicPartition, _LastScan] = {}
        self._since_ms: dict[tuple[TopicPartition, int], int] = {}  # first byte of segments that are not reported yet
        self._ids: dict[UUID, UUID] = {}  # one object for all partitions of a topic
        self._recovery_points = OffsetsFile(directory, RECOVERY_POINT_NAME, files)
        self.checkpoint = UploadCheckpoint(directory, files)
        self._pause_file = PauseFile(directory, files)
        self._pauses: Mapping[str, Pause] = {}
        self._positions_file = PositionsFile(directory, files)
        self._positions: Mapping[TopicPartition, Positions] | None = None
        self._writer = "?"
        self._topics_seen: FileState | None = None
        self._configs: dict[str, TopicConfig] = {}
        self._known_ids: dict[str, UUID] = {}
        self.broken: dict[TopicPartition, TieredError] = {}
        self._watch = FolderWatch(directory, files)

    @property
    def volume_id(self) -> str:
        """Return ``directory.id`` from ``meta.properties``.

        Raises NotFoundError if this is no log directory, ConfigError if the file has no id.
        """
        path = self.directory / META_PROPERTIES_NAME
        try:
            meta = decode_meta_properties(self._files.read(path).decode())
        except NotFoundError:
            raise NotFoundError(
                f"{self.directory} is not a log directory: it has no {META_PROPERTIES_NAME}",
                hint="name the directory that the application opens, or start the application first",
            ) from None
        if meta.directory_id is None:
            raise ConfigError(
                f"{path} has no directory.id",
                hint="open the log once with tiered.open: it writes the id",
            )
        return str(meta.directory_id)

    def scan(self, *, whole: bool = True) -> Look:
        """Scan the directory and return the changes since the last scan.

        ``whole`` False: partitions whose folder has not changed are skipped. The growth of their active segment is
        found within a dozen of such scans, and from then on in each scan while it grows.
        ``broken`` then has the error of each partition that could not be read.
        """
        look = Look()
        holder = self.writer()
        if holder != self._writer:
            self._writer, whole = holder, True
            look.writer = holder
        pauses = self._pause_file.read()
        if pauses != self._pauses:
            self._pauses = look.pauses = pauses
        settings = self._topics_seen
        look.gone += self._read_settings()
        flushed, noted = self._recovery_points.read(), self.checkpoint.read()
        due = None
        if not whole and not self.broken and settings == self._topics_seen:
            due = self._watch.due(self._known, flushed, noted)
        found: set[TopicPartition] = set()
        broken: dict[TopicPartition, TieredError] = {}
        for tp in self._watch.whole(self._partitions) if due is None else due:
            note = noted.get(tp)
            try:
                seen = self._scan_partition(tp, flushed.get(tp, 0), note.end_offset if note is not None else -1)
            except NotFoundError:
                self._watch.forget()
                continue  # being made, renamed or deleted at this moment: the next scan sees the result
            except (CorruptionError, LocalIOError) as error:
                broken[tp] = error  # only this partition's: all others are scanned
                continue
            found.add(tp)
            if seen is not None:
                look.seen.append(seen)
        if due is None:
            broken |= self._gone(noted)
        self.broken = broken
        # Positions alone are copied once in a dozen scans: each copy costs a PUT.
        if due is None or any(seen.sealed for seen in look.seen) or self._watch.turn % COLD_LOOKS == 0:
            positions = self._positions_file.read()
            if positions is not self._positions:
                self._positions = look.positions = positions
        if due is None:
            look.gone += [tp for tp in list(self._known) if tp not in found and self.forget(tp)]
        return look

    def _gone(self, noted: Mapping[TopicPartition, PartitionUpload]) -> dict[TopicPartition, TieredError]:
        """Return the error of each partition that had records and has lost its files."""
        try:
            gone = find_gone(self.directory, self._files, noted)
        except (CorruptionError, LocalIOError):
            return {}  # an open of the log reports it
        return {tp: gone_error(self.directory, tp, end, tiered=tp in noted) for tp, end in gone.items()}

    def forget(self, tp: TopicPartition) -> bool:
        """Make the next scan report the partition as new. Return True if an earlier scan reported it."""
        self._watch.forget()
        self._since_ms = {key: ms for key, ms in self._since_ms.items() if key[0] != tp}
        return self._known.pop(tp, None) is not None

    def _read_settings(self) -> list[TopicPartition]:
        """Read the topics' settings if they changed. Return the known partitions of topics that were created again."""
        state = self._files.state(self.directory / TOPICS_NAME)
        if state == self._topics_seen:
            return []
        try:
            topics = expected_topics(self.directory, self._files)
        except (CorruptionError, LocalIOError):
            return []  # an open of the log reports it
        self._topics_seen = state
        self._configs = {name: topic.config for name, topic in topics.items()}
        ids = self._known_ids = known_ids(topics)
        again = [tp for tp, known in self._known.items() if ids.get(tp.topic, known.topic_id) != known.topic_id]
        return [tp for tp in again if self.forget(tp)]  # the next report is of the new topic

    def writer(self) -> str:
        """Return the holder that is named in ``.lock``, ``""`` if there is none or its process is gone.

        The name may be out of date.
        """
        return living(DirectoryLock(self.directory, self._files).holder())

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics by name. In a broker's directory these are only topics with partitions here."""
        topics = read_topics(self.directory, self._files)
        for tp, known in self._known.items():
            have = topics.get(tp.topic)
            if have is None or have.partitions <= tp.partition:
                config = have.config if have else TopicConfig()
                topics[tp.topic] = TopicInfo(tp.topic, known.topic_id, tp.partition + 1, config)
        return topics

    def topic_id(self, tp: TopicPartition) -> UUID:
        """Return the topic id in the partition's ``partition.metadata``. Raises NotFoundError without this file."""
        known = self._known.get(tp)
        return known.topic_id if known is not None else self._read_topic_id(tp)

    def segment(self, tp: TopicPartition, ref: SegmentRef) -> SealedLocalSegment:
        """Return a sealed segment for reading. Raises NotFoundError if the newest scan has not found the partition."""
        known = self._known.get(tp)
        if known is None:
            raise NotFoundError(
                f"{tp} is not in {self.directory}", hint="no action is needed: the uploader scans again"
            )
        epochs = self.leader_epochs(tp)
        log = OwningLog(
            self.directory / partition_dir(tp),
            tp,
            known.topic_id,
            self._interval_bytes(tp),
            lambda end: tuple(entry for entry in epochs if entry.start_offset < end),
            read_only=True,
        )
        return SealedLocalSegment(
            self._files, log, ref.base, ref.end, size_bytes=ref.size_bytes, appended_ms=ref.first_ms
        )

    def leader_epochs(self, tp: TopicPartition) -> tuple[EpochEntry, ...]:
        """Return the epochs in ``leader-epoch-checkpoint``.

        A missing or damaged file gives none; the writer rebuilds it.
        """
        try:
            return decode_epochs(self._files.read(self.directory / partition_dir(tp) / EPOCHS_NAME).decode())
        except (NotFoundError, CorruptionError, UnicodeDecodeError):
            return ()

    def seen(self, tp: TopicPartition) -> PartitionSeen:
        """Return the partition's state from the last scan. Raises NotFoundError if there is no such partition."""
        known = self._known.get(tp)
        if known is None or known.seen is None:
            raise NotFoundError(
                f"{tp} is not in {self.directory}", hint="no action is needed: the uploader scans again"
            )
        return known.seen

    def extent(self, tp: TopicPartition) -> tuple[int, int]:
        """Return (first offset, lower bound of the end), read from the directory now, not from the last scan.

        Raises NotFoundError if there is no such partition, or if its files are renamed again and again.
        """
        seen = self.seen(tp)
        folder = self.directory / partition_dir(tp)
        for _ in range(LOOKS):
            bases = log_bases(self._files, folder)
            active = self._files.state(folder / f"{bases[-1]:020d}{LOG_SUFFIX}") if bases else None
            if active is not None:
                return bases[0], _least_end(bases[-1], active.size, seen.flushed_offset)
        raise NotFoundError(
            f"{tp}: its active segment was not found", hint="no action is needed: the uploader scans again"
        )

    def free_space(self) -> tuple[int, int] | None:
        """Return (free bytes, used percentage), None if the file system reports no size."""
        space = self._files.space(self.directory)
        return None if space is None else (space.free, 100 - (100 * space.free) // max(1, space.total))

    def _partitions(self) -> list[TopicPartition]:
        found = DirectoryView.read(self.directory, self._files).partitions
        known = {tp: tp for tp in self._known}  # one object for each name
        return [known.get(tp, tp) for tp in found if not is_state_log(tp.topic)]

    def _scan_partition(self, tp: TopicPartition, flushed: int, noted: int) -> PartitionSeen | None:
        known = self._known.get(tp)
        if known is None:
            known = self._known[tp] = _LastScan(self._read_topic_id(tp))
        folder = self.directory / partition_dir(tp)
        bases = log_bases(self._files, folder)
        if not bases:
            return None
        active = self._files.state(folder / f"{bases[-1]:020d}{LOG_SUFFIX}")
        if active is None:
            raise NotFoundError(f"{tp}: the active segment was renamed during the scan")
        config = self._configs.get(tp.topic)
        self._watch_active(tp, known, bases[-1], active.size, active.modified_ns // 1_000_000)
        seen = PartitionSeen(
            tp=tp,
            topic_id=known.topic_id,
            local_start_offset=bases[0],
            flushed_offset=flushed,
            end_offset=_least_end(bases[-1], active.size, flushed),
            active_bytes=active.size,
            active_since_ms=known.active_since_ms if active.size else -1,
            noted_offset=noted,
            seal_ms=NO_TOPIC_SEAL_MS if config is None else config.seal_ms,
        )
        known.grows, known.active_ns = known.seen is None or known.seen.active_bytes != active.size, active.modified_ns
        segments, reported = tuple(self._segments(tp, bases)), set(known.reported)
        sealed = tuple([self._sealed(tp, folder, *each) for each in segments if each[0] not in reported])
        known.reported = tuple([base for base, _ in segments])
        before, known.seen = known.seen, seen
        if sealed:
            return replace(seen, sealed=sealed)
        return seen if seen != before else None

    def _watch_active(self, tp: TopicPartition, known: _LastScan, base: int, size: int, modified_ms: int) -> None:
        """Record the approximate time of the first byte: the file itself has only the time of the last one."""
        if base != known.active_base:
            if known.active_since_ms >= 0:
                self._since_ms[tp, known.active_base] = known.active_since_ms
            known.active_base, known.active_since_ms = base, -1
        if size and known.active_since_ms < 0:
            known.active_since_ms = min(modified_ms, self._clock.now_ms())

    def _sealed(self, tp: TopicPartition, folder: Path, base: int, end: int) -> SegmentRef:
        state = self._files.state(folder / f"{base:020d}{LOG_SUFFIX}")
        if state is None:
            raise NotFoundError(f"the segment with base offset {base} was deleted during the scan")
        since_ms = self._since_ms.pop((tp, base), state.modified_ns // 1_000_000)
        return SegmentRef(base, end, state.size, since_ms)

    def _interval_bytes(self, tp: TopicPartition) -> int:
        return self._configs.get(tp.topic, TopicConfig()).index_interval_bytes

    def _read_topic_id(self, tp: TopicPartition) -> UUID:
        found = read_topic_id(self.directory / partition_dir(tp), self._files)
        if found is None:
            raise NotFoundError(f"{tp}: there is no {PARTITION_METADATA_NAME}")
        if found != (right := self._known_ids.get(tp.topic, found)):
            raise another_topic(self.directory, tp, found, right)
        return self._ids.setdefault(found, found)


def _least_end(active_base: int, active_bytes: int, flushed: int) -> int:
    """Return the lower bound of the end: the bytes of the active segment are not read, and count as one record."""
    return max(active_base + (1 if active_bytes else 0), flushed)


def living(holder: Holder) -> str:
    """Return the holder of a lock in words, ``""`` if there is none or its process on this machine is gone."""
    if not holder.pid or (holder.host == socket.gethostname() and not _alive(holder.pid)):
        return ""
    return str(holder)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
