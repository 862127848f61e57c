"""Hard links to the sealed segments of a real Kafka broker, in a private directory that is uploaded.

::

    /var/lib/kafka/data            the broker's; read, never written
    /var/lib/kafka/data-tiered     ours, on the same file system: a log directory that is made of links
        orders-0/00000000000000000000.log  .index .timeindex .txnindex   links to the broker's files
        orders-0/00000000000000004711.log                                empty: where the log ends
        orders-0/00000000000000004711.snapshot                           the producers at that end, a link; derived
                                                                         from the links where the broker has none
        orders-0/partition.metadata  leader-epoch-checkpoint             copies
        orders-0/tiered-links                                            where links begin (``sidecar.links``)

A link preserves a segment that the broker's retention deletes. Only segments below the recovery point and the high
watermark of the broker's checkpoints are linked, whole and in offset order without a gap. Links whose records
are in the bucket are deleted. A new bucket begins with the segment in which the broker's log starts, as in Kafka's
tiering. The cleaner may merge linked and unlinked segments: the unlinked part is copied. Records after a removed link
are not uploaded (``sidecar.links``).

A link is the broker's file, so this directory is never opened for writing (``lock.SIDECAR_NAME``). The broker truncates
a linked file only after an unclean leader election. The leader epochs then differ (:meth:`Mirror._agree`). For a new
private directory the claim compares them with the bucket (``steps.BucketSteps.claim``).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from uuid import UUID

from tiered.clock import IdSource
from tiered.config import LogConfig
from tiered.errors import (
    ConfigError,
    CorruptionError,
    DataLocalError,
    FencedError,
    LogDestroyedError,
    NewerFormatError,
    NotFoundError,
    OffsetGapError,
    TieredError,
    message_of,
)
from tiered.format.batch_scanner import Offsets
from tiered.format.checkpoint import MetaProperties, decode_epochs, encode_meta_properties
from tiered.format.coordinator_records import OFFSETS_TOPIC
from tiered.format.local_names import (
    LOG_SUFFIX,
    SWAP_SUFFIX,
    LocalFile,
    log_name,
    partition_dir,
)
from tiered.local.directory.read_only_log import DirectoryView
from tiered.local.disk.claims import Claims
from tiered.local.disk.directory_files import (
    CLEANER_NAME,
    LOG_START_NAME,
    META_PROPERTIES_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
    OffsetsFile,
    ensure_volume,
    read_volume,
)
from tiered.local.disk.files import Files
from tiered.local.disk.lock import SIDECAR_NAME
from tiered.local.disk.partition_files import EPOCHS_NAME, bases_of, local_files
from tiered.local.disk.topics import PARTITION_METADATA_NAME, find_wrong_ids, read_topic_ids
from tiered.local.disk.uploader_files import UploadCheckpoint
from tiered.local.segment.scan import LogFile
from tiered.model import TopicPartition
from tiered.plan.lineage import UNKNOWN_EPOCH, are_other_epochs, epoch_at, rewritten
from tiered.sidecar.links import LinkedPart, LinkFolder, Lost, exchanging, read_or_empty

LOGGER = logging.getLogger("tiered.sidecar")

HELD_BYTES = 64 * 1024**3
"""Limit of linked bytes that are not in the bucket: a link holds space that the broker's retention meant to free."""

INTERNAL = frozenset(
    {OFFSETS_TOPIC, "__transaction_state", "__share_group_state", "__cluster_metadata", "__remote_log_metadata"}
)
"""Topics of the broker itself: state, not records."""


def beside(broker: Path) -> Path:
    """Return the default path of the private directory for a broker's log directory."""
    return broker.absolute().with_name(f"{broker.absolute().name}-tiered")


def epoch_of(epochs: bytes, offset: int) -> int:
    """Return the leader epoch of ``offset``. ``epochs``: content of ``leader-epoch-checkpoint``. -1: unknown."""
    try:
        return epoch_at(decode_epochs(epochs.decode()), offset)
    except (CorruptionError, UnicodeDecodeError):
        return UNKNOWN_EPOCH


class Mirror:
    """Private directory ``path`` with links to the sealed segments of ``broker``. Use it from one thread at a time.

    ``compacted``: topics that are linked although the broker compacts them. ``held_bytes``: limit of linked bytes that
    the bucket lacks; at the limit no new links are made. ``broken``: error of each partition that the last scan could
    not link. ``skipped``: partitions that are not uploaded because they are compacted or internal.
    """

    def __init__(self, broker: Path, path: Path, files: Files, *, compacted: Collection[str], held_bytes: int) -> None:
        self.broker = broker
        self.path = path
        self.broken: dict[TopicPartition, TieredError] = {}
        self.skipped: set[TopicPartition] = set()
        self.taken_back: set[TopicPartition] = set()
        """Partitions whose links the last scan found replaced."""
        self._files = files
        self._compacted = frozenset(compacted)
        self._held_bytes = held_bytes
        self._full = False
        self._folders: dict[TopicPartition, LinkFolder] = {}
        self._uploads = UploadCheckpoint(path, files)
        self._ends = OffsetsFile(path, RECOVERY_POINT_NAME, files)

    def make(self, ids: IdSource) -> None:
        """Create the private directory if it is missing, and check that it belongs to this broker.

        Raises NotFoundError if ``broker`` is no broker's directory. Raises ConfigError if ``path`` is on another file
        system, inside the broker's directory, or in use for another log or broker.
        """
        files, meta = self._files, read_volume(self.broker, self._files)
        if meta is None:
            raise NotFoundError(
                f"{self.broker} is not a broker's log directory: it has no {META_PROPERTIES_NAME}",
                hint="name one of the broker's log.dirs",
            )
        if files.state(self.broker / SIDECAR_NAME) is not None:
            raise ConfigError(
                f"{self.broker} is not a broker's directory: it contains links to a broker's files",
                hint="name the broker's own directory",
            )
        if self.path.resolve().is_relative_to(self.broker.resolve()):
            raise ConfigError(
                f"{self.path} lies in the broker's directory", hint="pass a --log-dir outside of the broker's directory"
            )
        files.make_directory(self.path)
        if self.path.stat().st_dev != self.broker.stat().st_dev:
            raise ConfigError(
                f"no file can be linked: {self.path} is not on the file system of {self.broker}",
                hint="pass a --log-dir on the same file system",
            )
        if files.state(self.path / META_PROPERTIES_NAME) is None:
            files.replace(self.path / SIDECAR_NAME, f"{self.broker.absolute()}\n".encode())
            own = MetaProperties(meta.cluster_id, meta.node_id, None)
            files.replace(self.path / META_PROPERTIES_NAME, encode_meta_properties(own).encode())
        elif files.state(self.path / SIDECAR_NAME) is None:
            raise ConfigError(f"{self.path} is a log directory of its own", hint="pass an empty --log-dir")
        else:
            self._need_own_links()
        ensure_volume(self.path, files, ids, LogConfig())

    def _need_own_links(self) -> None:
        """Raise ConfigError if the links are to files of another broker's directory that still exists."""
        other = Path(read_or_empty(self._files, self.path / SIDECAR_NAME).decode().strip())
        if other.is_absolute() and other.resolve() != self.broker.resolve() and read_volume(other, self._files):
            raise ConfigError(
                f"{self.path} already has links to the files of {other}, not of {self.broker}",
                hint="pass another --log-dir: each broker directory needs its own",
            )

    def forget_removed(self) -> None:
        """Remove the checkpoint entries and claims of partitions without links: usually their topic was deleted.

        The caller holds the uploader's lock.
        """
        for tp in {*self._uploads.read(), *Claims(self.path, self._files).read()}:
            if not self.folder(tp).bases():
                self._forget(tp)

    def folder(self, tp: TopicPartition) -> LinkFolder:
        """Return the private folder of a partition, which may not exist yet."""
        folder = self._folders.get(tp)
        if folder is None:
            folder = self._folders[tp] = LinkFolder(tp, self.broker, self.path, self._files)
        return folder

    def scan(self) -> None:
        """Link the broker's new segments that are flushed and replicated. Delete links that the bucket has.

        Errors of single partitions are stored in ``broken``.
        """
        theirs = DirectoryView.read(self.broker, self._files).partitions
        self.taken_back = set()
        try:
            names = (RECOVERY_POINT_NAME, REPLICATION_NAME, CLEANER_NAME, LOG_START_NAME)
            points, marks, cleaned, starts = map(self._checkpoint, names)
        except TieredError as unknown:  # existing links are uploaded meanwhile
            self.broken = dict.fromkeys((tp for tp in theirs if tp.topic not in INTERNAL), unknown)
            return
        committed = {tp: upload.end_offset for tp, upload in self._uploads.read().items()}
        ours = DirectoryView.read(self.path, self._files).partitions
        held, broken = self._delete_committed(ours)
        was_full, self._full = self._full, False
        followed: dict[TopicPartition, bool] = {}
        for tp in theirs:
            asked_for = tp not in cleaned or tp.topic in self._compacted
            if tp.topic in INTERNAL or not (asked_for or self.folder(tp).begun):
                self._skip(tp)
            else:
                followed[tp] = asked_for
        ids = read_topic_ids(self.broker, self._files, followed, broken)
        find_wrong_ids(self.broker, ids, {}, broken)
        linked = read_topic_ids(self.path, self._files, (tp for tp in ours if self.folder(tp).bases()), broken)
        for tp, asked_for in followed.items():
            if tp in broken:
                continue
            try:
                self._need_asked(tp, asked_for=asked_for)
                self._need_same_topic(tp, ids[tp.topic][tp.partition], linked.get(tp.topic, {}))
                held = self._follow(
                    tp,
                    theirs[tp],
                    min(points[tp], marks[tp]) if tp in points and tp in marks else None,
                    held,
                    committed.get(tp, -1),
                    topic_id=ids[tp.topic][tp.partition],
                    log_start=starts.get(tp, 0),
                )
            except TieredError as error:
                broken[tp] = error
        self._report_lost(broken, ours)
        self.broken = broken
        if self._full and not was_full:
            LOGGER.warning(
                "sidecar_full held=%d limit=%d: the broker's retention may outrun the uploads", held, self._held_bytes
            )
        ends = {tp: self.folder(tp).end() for tp in DirectoryView.read(self.path, self._files).partitions}
        flushed = {tp: end for tp, end in ends.items() if end is not None}
        if flushed != self._ends.read():
            self._ends.write(flushed)

    def _checkpoint(self, name: str) -> Mapping[TopicPartition, int]:
        """Read the broker's checkpoint file ``name``. Raises CorruptionError if it is damaged."""
        lost = "no segment is linked without this file; a running broker writes it again within a minute"
        return OffsetsFile(self.broker, name, self._files).read_or_raise(lost)

    def _read_epochs(self, theirs: Path) -> bytes:
        """Return the content of the leader epoch file in the broker's folder ``theirs``; empty without a file.

        Raises CorruptionError if it is damaged, NewerFormatError if it is of a newer release. Such a file never counts
        as empty, because then no difference could be found.
        """
        path = theirs / EPOCHS_NAME
        data = read_or_empty(self._files, path)
        try:
            decode_epochs(data.decode())
        except NewerFormatError as newer:
            newer.hint = "upgrade tieredlog; nothing of the partition is linked meanwhile"
            newer.message = f"{path} was written by a newer release: {newer.message}"
            raise
        except (CorruptionError, UnicodeDecodeError) as error:
            raise CorruptionError(
                f"{path} cannot be read: {message_of(error)}",
                path_or_key=str(path),
                hint="nothing of the partition is linked without this file; a running broker writes it again at its "
                "next election",
            ) from error
        return data

    def _report_lost(self, broken: dict[TopicPartition, TieredError], ours: Iterable[TopicPartition]) -> None:
        """Store in ``broken`` the error of each partition with a missing link, unless it has another error."""
        uploads = self._uploads.read()
        for tp in ours:
            if tp in broken and not isinstance(broken[tp], OffsetGapError):
                continue
            folder, upload = self.folder(tp), uploads.get(tp)
            lost = folder.lost(folder.bases(), -1 if upload is None or not folder.begun else upload.end_offset)
            if lost:
                broken[tp] = self._is_lost(tp, lost[0])

    def _is_lost(self, tp: TopicPartition, lost: Lost) -> OffsetGapError:
        ours = self.folder(tp).ours
        return OffsetGapError(
            f"{tp}: {ours / log_name(lost.base)} is gone: it linked offsets {lost.base} to {lost.after} of the "
            "broker's log",
            start=lost.base,
            end=lost.after,
            hint=f"if the broker still has these offsets, stop this and remove {ours}: links are made again. Otherwise "
            "put that file back from a backup or another replica, or upload to another prefix with another --log-dir",
        )

    def joints(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return the offsets at which links can begin, ascending: bases of linked segments and of the broker's."""
        theirs = self.broker / partition_dir(tp)
        held = self._bases(theirs, local_files(self._files, theirs)) if self._files.is_directory(theirs) else []
        return tuple(sorted({*self.folder(tp).bases(), *held}))

    def _skip(self, tp: TopicPartition) -> None:
        if tp not in self.skipped and tp.topic not in INTERNAL:
            LOGGER.info("%s is compacted, and is not uploaded", tp)
        self.skipped.add(tp)

    def _follow(
        self,
        tp: TopicPartition,
        theirs: Path,
        safe: int | None,
        held: int,
        committed: int,
        *,
        topic_id: UUID | None,
        log_start: int,
    ) -> int:
        """Link the new segments of one partition. Return ``held`` plus the bytes of the new links.

        ``theirs``: the broker's folder. ``held``: bytes that are linked in all partitions before. ``safe``: end of the
        flushed and replicated records; None: the broker's checkpoints do not list the partition. ``committed``: end of
        the bucket, -1: none. ``topic_id``: None if the broker's directory has none. ``log_start``: first offset of the
        broker's log.
        """
        folder, found = self.folder(tp), local_files(self._files, theirs)
        end, bases = folder.end(), self._bases(theirs, found)
        if topic_id is None and len(bases) > 1:  # a broker writes it before it rolls
            raise ConfigError(
                f"{tp}: {theirs} has no {PARTITION_METADATA_NAME}, so its topic id is unknown",
                hint="copy the file from another partition of the topic: its content is the same. A broker before "
                "2.8 writes none and cannot be followed: upgrade it and its inter.broker.protocol.version",
            )
        if not bases:
            return held
        self._need_settled(tp, found)
        epochs = self._read_epochs(theirs)  # once, and before any link is made: see _agree
        if end is None:
            self._forget(tp)
            end = bases[0]  # below the log start, too: the bucket's log may end there
            folder.adopt(end, epochs, starts_in=max((base for base in bases if base <= log_start), default=bases[0]))
        end = self._agree(folder, epochs, last=bases[-1], committed=committed if folder.begun else -1)
        if safe is None:
            self._need_no_vouching(tp, bases)
            return held
        return self._link_new(tp, theirs, bases, end, safe=safe, held=held, epochs=epochs)

    def _link_new(
        self, tp: TopicPartition, theirs: Path, bases: list[int], end: int, *, safe: int, held: int, epochs: bytes
    ) -> int:
        """Link the segments from ``end``, where the links end, to ``safe``. Return ``held`` plus the new links' bytes.

        ``theirs``: the broker's folder. ``bases``: bases of its segments. ``epochs``: its leader epoch file. ``held``:
        bytes linked so far in all partitions. A range that the cleaner emptied gets no link: the next linked segment
        covers it, too.
        """
        folder, compacted, empty_to = self.folder(tp), tp.topic in self._compacted, end
        for base, after in itertools.pairwise(bases):
            if after <= end:
                continue
            merged = compacted and base < end
            if not merged:
                self._need_joint(tp, empty_to, base)
            state = self._files.state(theirs / log_name(base))
            size = 0 if state is None else state.size
            self._full |= after <= safe and held + size > self._held_bytes
            if after <= safe and size > self._held_bytes:
                raise self._too_large(tp, base, size)
            if after > safe or held + size > self._held_bytes:
                break
            position = self._joint_in(tp, theirs / log_name(base), base, end, after) if merged else 0
            if merged and position == size:
                empty_to = after
                continue
            folder.copy_small_files(epochs)
            folder.link(LinkedPart(base, end, after, position), may_have_gaps=compacted)
            held, end, empty_to = held + size - position, after, after
        else:
            self._need_joint(tp, empty_to, bases[-1])
        return held

    def _too_large(self, tp: TopicPartition, base: int, size: int) -> ConfigError:
        return ConfigError(
            f"{tp}: the broker's segment {base} has {size:,} bytes, all links together may hold "
            f"{self._held_bytes:,}: this segment and later ones cannot be linked",
            hint=f"raise --sidecar-held to the size of several segments ({HELD_BYTES // 1024**3}GiB by default)",
        )

    def _joint_in(self, tp: TopicPartition, path: Path, base: int, end: int, after: int) -> int:
        """Return the byte position of the first batch at or above ``end`` in the file ``path``; its size if none.

        The file is a segment with offsets ``base`` to ``after`` (exclusive), which the cleaner merged from several.
        Raises OffsetGapError if a batch begins below ``end`` and ends above it.
        """
        with LogFile(self._files, path) as log:
            for span, _ in log.segment(0, log.size(), Offsets(base, after)):
                if span.base_offset < end <= span.last_offset:
                    self._need_joint(tp, end, base)
                if span.last_offset >= end:
                    return span.position
            return log.size()

    def _agree(self, folder: LinkFolder, epochs: bytes, *, last: int, committed: int) -> int:
        """Return the offset at which the links end, after links that the broker has truncated are removed.

        After an unclean leader election the broker assigns offsets again, under another leader epoch. ``epochs``: its
        leader epochs, read before any link is made. ``last``: base of its last segment. ``committed``: end of the
        bucket. Raises OffsetGapError if records in the bucket differ from the broker's.
        """
        tp, noted, ends = folder.tp, folder.read(EPOCHS_NAME), folder.offsets(folder.bases())
        while True:
            was, now = epoch_of(noted, ends[-1] - 1), epoch_of(epochs, ends[-1] - 1)
            differ = are_other_epochs(was, now)
            if not differ and (ends[-1] <= last or folder.is_another_copy()):
                return ends[-1]
            if len(ends) == 1 or ends[-2] < committed:
                break
            text = "sidecar_taken_back partition=%s base=%d end=%d: the broker truncated its log below that end"
            LOGGER.warning(text, tp, *ends[-2:])
            self.taken_back.add(tp)
            folder.withdraw(ends[-2])
            ends.pop()
        if differ:
            raise rewritten(str(tp), ends[0], ends[-1], f": they are of leader epoch {was}, the broker's are of {now}")
        return ends[-1]

    @staticmethod
    def _need_no_vouching(tp: TopicPartition, bases: list[int]) -> None:
        """Raise DataLocalError if a partition that the broker's checkpoints do not list has sealed segments."""
        if len(bases) > 1:
            raise DataLocalError(
                f"{tp}: the broker's {RECOVERY_POINT_NAME} and {REPLICATION_NAME} do not both list this partition, "
                "so no segment is linked yet",
                hint="wait: a running broker writes both every minute",
            )

    def _need_settled(self, tp: TopicPartition, found: list[LocalFile]) -> None:
        """Raise DataLocalError while the broker replaces segments, as ``.swap`` files show."""
        if any(file.suffix == LOG_SUFFIX and file.work == SWAP_SUFFIX for file in found):
            raise exchanging(tp)

    def _bases(self, theirs: Path, found: list[LocalFile]) -> list[int]:
        """Return the bases of the broker's segments, without empty sealed ones.

        ``found``: the listed files of its folder ``theirs``. A segment that was deleted since the listing is included,
        because it was not empty.
        """
        bases = bases_of(found)
        return [base for base in bases[:-1] if not self._is_empty(theirs / log_name(base))] + bases[-1:]

    def _is_empty(self, path: Path) -> bool:
        state = self._files.state(path)
        return state is not None and state.size == 0

    @staticmethod
    def _need_asked(tp: TopicPartition, *, asked_for: bool) -> None:
        """Raise ConfigError if the broker compacts a partition for which compaction was not requested."""
        if not asked_for:
            raise ConfigError(
                f"nothing more of {tp} is linked, because the broker has compacted it",
                hint=f"allow it with --sidecar-compacted {tp.topic}",
            )

    def _need_same_topic(self, tp: TopicPartition, topic_id: UUID | None, linked: Mapping[int, UUID | None]) -> None:
        """Raise ConfigError if the broker's topic was deleted and created again.

        A bucket has one topic of each name. So while any partition has links of the old topic, all partitions wait.
        ``topic_id``: the broker's, None: unknown. ``linked``: topic id of each partition of the topic with links.
        """
        held = {tp.partition: linked[tp.partition]} if tp.partition in linked else linked
        others = sorted(number for number, known in held.items() if known != topic_id)
        if topic_id is not None and others:
            folders = ", ".join(str(self.path / partition_dir(TopicPartition(tp.topic, number))) for number in others)
            raise ConfigError(
                f"{tp} is another topic of the same name now: existing links of the first topic are still uploaded",
                hint=f"delete the topic in the bucket (`tiered topic delete {tp.topic}`), then stop this and "
                f"remove {folders}",
            )

    @staticmethod
    def _need_joint(tp: TopicPartition, end: int, base: int) -> None:
        if base > end:
            raise OffsetGapError(
                f"{tp}: the broker's log goes on at {base}: offsets from {end} were deleted before they were linked",
                start=end,
                end=base,
                hint="give the broker a longer retention, and upload to another prefix, which begins a new log",
            )
        if base < end:
            raise OffsetGapError(
                f"{tp}: the broker's segment {base} begins below offset {end}, the end of the links: its log was "
                "rewritten",
                start=base,
                end=end,
                hint="wait if the replica is being fetched again; otherwise run the sidecar beside another one, or use "
                "another --remote prefix",
            )

    def _forget(self, tp: TopicPartition) -> None:
        """Remove the checkpoint entry and the claim of a partition without links."""
        if tp in self._uploads.read():
            self._uploads.forget([tp])
        claims = Claims(self.path, self._files)
        if claims.find(tp) is not None:
            claims.forget([tp])

    def add_owner_hint(self, tp: TopicPartition, error: TieredError) -> None:
        """Replace the hint of a refused claim, a lost topic or a damaged link by one for the sidecar's user."""
        ours = self.path / partition_dir(tp)
        if isinstance(error, FencedError):  # a repair would write to what is linked
            error.hint = (
                f"to continue with this broker's log, stop this and remove {ours}: links are made again from "
                "the bucket's end"
            )
        elif isinstance(error, LogDestroyedError):
            held = DirectoryView.read(self.path, self._files).partitions
            folders = ", ".join(str(folder) for each, folder in held.items() if each.topic == tp.topic)
            error.hint = f"if the topic was deleted on purpose, stop this and remove {folders}; else {error.hint}"
        elif isinstance(error, NewerFormatError):
            return
        elif isinstance(error, CorruptionError) and Path(error.path_or_key).parent == ours:
            error.hint = (
                f"let the broker fetch the segment from another replica; then stop this and remove {ours}: the missing "
                "segments are linked again"
            )

    def _delete_committed(self, ours: Iterable[TopicPartition]) -> tuple[int, dict[TopicPartition, TieredError]]:
        """Delete links whose records the bucket has. Return (bytes of other links, error by partition)."""
        held, broken, uploads = 0, {}, self._uploads.read()
        for tp in ours:
            folder, upload = self.folder(tp), uploads.get(tp)
            try:
                if folder.begun:  # before that the bucket may know producers that no link shows
                    folder.derive_snapshots(upload)
                held += folder.delete_committed(-1 if upload is None or not folder.begun else upload.end_offset)
            except TieredError as error:
                broken[tp] = error
        return held, broken
