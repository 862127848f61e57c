"""Hard links to the sealed segments of a real Kafka broker, in a private directory which is uploaded.

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
watermark of the broker's checkpoints are linked, whole and in offset order without a gap. Links that the bucket has are
deleted. A bucket without this log begins with the segment in which the broker's log starts, as Kafka's tiering. The
cleaner may merge linked and unlinked segments: the unlinked part is copied. A removed link is made again where the
broker has all of it; otherwise nothing from there on is uploaded. A link is the broker's file: this directory is never
opened for writing (``lock.SIDECAR_NAME``), and the engine seals nothing in it. The broker may cut a file only above the
high watermark, unless a leader is elected uncleanly: then the leader epoch of the linked records differs
(:meth:`Mirror._agree`), and the link may hold the other records. A new private directory has nothing to compare: its
claim asks the bucket (``steps.BucketSteps.claim``).
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from tiered.clock import IdSource
from tiered.config import LogConfig
from tiered.errors import (
    ConfigError,
    CorruptionError,
    DataLocalError,
    FencedError,
    LocalIOError,
    LocalPermissionError,
    LogDestroyedError,
    NewerFormatError,
    NotFoundError,
    OffsetGapError,
    TieredError,
)
from tiered.format.batch_scanner import Offsets
from tiered.format.checkpoint import MetaProperties, decode_epochs, encode_meta_properties
from tiered.format.coordinator_records import OFFSETS_TOPIC
from tiered.format.local_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    LocalFile,
    local_name,
    log_name,
    partition_dir,
    snapshot_name,
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
from tiered.local.disk.partition_files import EPOCHS_NAME, bases_of, local_files, log_bases, snapshot_offsets
from tiered.local.disk.topics import PARTITION_METADATA_NAME, read_topic_ids, set_apart
from tiered.local.disk.uploader_files import UploadCheckpoint
from tiered.local.segment.scan import LogFile
from tiered.local.segment.side_files import snapshot_after
from tiered.model import TopicPartition
from tiered.plan.lineage import UNKNOWN_EPOCH, are_other_epochs, epoch_at, rewritten
from tiered.plan.side_files import NO_PRODUCERS
from tiered.sidecar.links import LinkNotes, Lost

LOGGER = logging.getLogger("tiered.sidecar")

HELD_BYTES = 64 * 1024**3
"""Limit of linked bytes that are not in the bucket: a link holds space that the broker's retention meant to free."""

INTERNAL = frozenset(
    {OFFSETS_TOPIC, "__transaction_state", "__share_group_state", "__cluster_metadata", "__remote_log_metadata"}
)
"""Topics of the broker itself: state, not records."""

COPIED_BYTES = 4 * 1024**2
"""Bytes read and written at once where a segment of the broker is copied in part."""

LINKING_NAME = "tiered-linking"
BEGUN_NAME = "tiered-begun"
"""Empty file in a partition whose claim stood: links made from then on are the log of this directory."""
STARTS_IN_NAME = "tiered-starts-in"
"""File with the base of the segment in which the broker's log started when it was first linked. A new bucket begins
there.
"""
TAKEN_BACK_NAME = "tiered-taken-back"
"""File with the offset from which links were taken back. Only the next claim proves whether the bucket has it."""
DELETED = ".deleted"
"""Suffix that the broker appends to the name of a file a minute before it removes it."""


def beside(broker: Path) -> Path:
    """Return the default private directory of a broker's log directory."""
    return broker.absolute().with_name(f"{broker.absolute().name}-tiered")


def safe_end(
    tp: TopicPartition, points: Mapping[TopicPartition, int], marks: Mapping[TopicPartition, int]
) -> int | None:
    """Return the end of flushed records that no leader election takes back; None if a checkpoint does not name it."""
    return min(points[tp], marks[tp]) if tp in points and tp in marks else None


def first_base(bases: Sequence[int], log_start: int) -> int:
    """Return the base of the segment that contains ``log_start``. Segments before it hold no readable record."""
    return max((base for base in bases if base <= log_start), default=bases[0])


def epoch_of(epochs: bytes, offset: int) -> int:
    """Return the leader epoch of ``offset`` by a ``leader-epoch-checkpoint``; -1 if it has none for it."""
    try:
        return epoch_at(decode_epochs(epochs.decode()), offset)
    except (CorruptionError, UnicodeDecodeError):
        return UNKNOWN_EPOCH


class _LinkedPart(NamedTuple):
    """Part of the broker's segment ``base`` that is linked as the segment from ``start`` to ``after``.

    The piece begins at byte ``position`` and ends at byte ``until``, or with the file if that is None. A piece that is
    not the whole file is a copy.
    """

    base: int
    start: int
    after: int
    position: int
    until: int | None = None

    @property
    def is_copy(self) -> bool:
        return bool(self.position) or self.until is not None


class Mirror:
    """Links in ``path`` to the sealed segments of ``broker``. One thread at a time."""

    def __init__(self, broker: Path, path: Path, files: Files, *, compacted: Collection[str], held_bytes: int) -> None:
        self.broker = broker
        self.path = path
        self.broken: dict[TopicPartition, TieredError] = {}
        self.skipped: set[TopicPartition] = set()
        self.taken_back: set[TopicPartition] = set()
        """Partitions whose links the last look found replaced, missing or restored."""
        self._files = files
        self._compacted = frozenset(compacted)
        self._held_bytes = held_bytes
        self._full = False
        self._gone: set[TopicPartition] = set()
        self._links = LinkNotes(files)
        self._lost: dict[TopicPartition, list[Lost]] = {}
        self._unlinked: dict[TopicPartition, TieredError] = {}  # ``broken`` without missing links
        self._uploads = UploadCheckpoint(path, files)
        self._ends = OffsetsFile(path, RECOVERY_POINT_NAME, files)

    def make(self, ids: IdSource) -> None:
        """Make the directory if missing. Raises NotFoundError (no broker's), ConfigError (another file system)."""
        files, meta = self._files, read_volume(self.broker, self._files)
        if meta is None:
            raise NotFoundError(
                f"{self.broker} is not a broker's log directory: it has no {META_PROPERTIES_NAME}",
                hint="name one of the broker's log.dirs",
            )
        if files.state(self.broker / SIDECAR_NAME) is not None:
            raise ConfigError(f"{self.broker} holds links to a broker's files", hint="name the broker's own directory")
        if self.path.resolve().is_relative_to(self.broker.resolve()):
            raise ConfigError(f"{self.path} lies in the broker's directory", hint="name one beside it: --log-dir DIR")
        files.make_directory(self.path)
        if self.path.stat().st_dev != self.broker.stat().st_dev:
            raise ConfigError(
                f"{self.path} is not on the file system of {self.broker}: no file can be linked",
                hint="name a directory on the same one: --log-dir DIR",
            )
        if files.state(self.path / META_PROPERTIES_NAME) is None:
            files.replace(self.path / SIDECAR_NAME, f"{self.broker.absolute()}\n".encode())
            own = MetaProperties(meta.cluster_id, meta.node_id, None)
            files.replace(self.path / META_PROPERTIES_NAME, encode_meta_properties(own).encode())
        elif files.state(self.path / SIDECAR_NAME) is None:
            raise ConfigError(f"{self.path} is a log directory of its own", hint="name an empty one: --log-dir DIR")
        else:
            self._need_own_links()
        ensure_volume(self.path, files, ids, LogConfig())

    def _need_own_links(self) -> None:
        """Raise ConfigError if the links are to files of another broker that still exists."""
        other = Path(self._read(self.path / SIDECAR_NAME).decode().strip())
        if other.is_absolute() and other.resolve() != self.broker.resolve() and read_volume(other, self._files):
            raise ConfigError(
                f"{self.path} holds links to the files of {other}, not of {self.broker}",
                hint="each of the broker's directories has one of its own: name another one, --log-dir DIR",
            )

    def forget_removed(self) -> None:
        """Drop checkpoint entries and claims of partitions whose links were removed, usually of a deleted topic.

        Otherwise each scan would request their roots. The caller holds the uploader's lock.
        """
        for tp in {*self._uploads.read(), *Claims(self.path, self._files).read()}:
            if not self._linked(self.path / partition_dir(tp)):
                self._forget(tp)

    def scan(self) -> None:
        """Link new safe segments, and delete links that the bucket has."""
        theirs = DirectoryView.read(self.broker, self._files).partitions
        self.taken_back = set()
        try:
            names = (RECOVERY_POINT_NAME, REPLICATION_NAME, CLEANER_NAME, LOG_START_NAME)
            points, marks, cleaned, starts = map(self._checkpoint, names)
        except TieredError as unknown:  # existing links are uploaded meanwhile
            self.broken = dict.fromkeys((tp for tp in theirs if tp.topic not in INTERNAL), unknown)
            self._unlinked = dict(self.broken)
            return
        committed = {tp: upload.end_offset for tp, upload in self._uploads.read().items()}
        ours = DirectoryView.read(self.path, self._files).partitions
        held, broken = self._let_go_all(ours, committed)
        was_full, self._full = self._full, False
        self._log_gone({tp for tp in ours if tp not in theirs})
        followed: dict[TopicPartition, bool] = {}
        for tp in theirs:
            asked_for = tp not in cleaned or tp.topic in self._compacted
            if tp.topic in INTERNAL or not (asked_for or self.begun(tp)):
                self._skip(tp)
            else:
                followed[tp] = asked_for
        ids = read_topic_ids(self.broker, self._files, followed, broken)
        set_apart(self.broker, ids, {}, broken)
        linked = read_topic_ids(self.path, self._files, (tp for tp in ours if self._linked(ours[tp])), broken)
        for tp, asked_for in followed.items():
            if tp in broken:
                continue
            try:
                self._need_asked(tp, asked_for=asked_for)
                self._need_same_topic(tp, ids[tp.topic][tp.partition], linked.get(tp.topic, {}))
                held = self._follow(
                    tp,
                    theirs[tp],
                    safe_end(tp, points, marks),
                    held,
                    committed.get(tp, -1),
                    topic_id=ids[tp.topic][tp.partition],
                    log_start=starts.get(tp, 0),
                )
            except TieredError as error:
                broken[tp] = error
        self._unlinked = dict(broken)
        self._report_lost(ours, broken)
        self.broken = broken
        if self._full and not was_full:
            LOGGER.warning(
                "sidecar_full held=%d limit=%d: the broker's retention may outrun the uploads", held, self._held_bytes
            )
        ends = {tp: self._end(folder) for tp, folder in DirectoryView.read(self.path, self._files).partitions.items()}
        flushed = {tp: end for tp, end in ends.items() if end is not None}
        if flushed != self._ends.read():
            self._ends.write(flushed)

    def _checkpoint(self, name: str) -> Mapping[TopicPartition, int]:
        """Read one of the broker's checkpoints. Raises CorruptionError: damage never counts as empty."""
        lost = (
            "what of the broker's logs is safe, compacted or deleted is not known: nothing is linked meanwhile; a "
            "running broker writes it anew within a minute"
        )
        return OffsetsFile(self.broker, name, self._files).read_whole(lost)

    def _read_epochs(self, theirs: Path) -> bytes:
        """Return the leader epochs of the broker's log; empty without a file.

        Raises CorruptionError: an unreadable file never counts as empty, because then no difference could be found.
        """
        path = theirs / EPOCHS_NAME
        data = self._read(path)
        try:
            decode_epochs(data.decode())
        except NewerFormatError as newer:
            newer.hint = "upgrade tieredlog; nothing of the partition is linked meanwhile"
            newer.message = f"{path} was written by a newer release: {newer.message}"
            raise
        except (CorruptionError, UnicodeDecodeError) as error:
            raise CorruptionError(
                f"{path} cannot be read: {error}",
                path_or_key=str(path),
                hint="without it nobody can tell whether another leader wrote the log again: nothing of the partition "
                "is linked meanwhile; a running broker writes it anew at its next election",
            ) from error
        return data

    def _log_gone(self, gone: set[TopicPartition]) -> None:
        """Log each partition that the broker lost, once until it is back."""
        for tp in sorted(gone - self._gone):
            text = (
                "sidecar_gone partition=%s: the broker has it no more; what is linked is uploaded, nothing else comes"
            )
            LOGGER.warning(text, tp)
        self._gone = gone

    def _report_lost(
        self,
        ours: Mapping[TopicPartition, Path],
        broken: dict[TopicPartition, TieredError],
    ) -> None:
        """Report the first missing link of each partition, unless an earlier error already explains it.

        Partitions whose missing links changed since the last look are ``taken_back``.
        """
        was_lost, self._lost = self._lost, {}
        for tp, folder in ours.items():
            if tp in broken and not isinstance(broken[tp], OffsetGapError):
                lost = was_lost.get(tp, [])
            else:
                lost = self._lost_links(tp, self._linked(folder))
                broken |= {tp: self._is_lost(tp, folder, lost[0])} if lost else {}
            if lost:
                self._lost[tp] = lost
        self.taken_back |= {tp for tp in {*was_lost, *self._lost} if was_lost.get(tp) != self._lost.get(tp)}

    def unreadable(self) -> dict[TopicPartition, TieredError]:
        """Return the errors of the last scan. A lost link is an error only while the bucket lacks its records.

        The first claim of a run may show, after the scan, that the bucket has them.
        """
        settled = {tp for tp in self._lost if not self._lost_links(tp, self._linked(self.path / partition_dir(tp)))}
        return {tp: error for tp, error in self.broken.items() if tp not in settled} | {
            tp: self._unlinked[tp] for tp in settled if tp in self._unlinked
        }

    def segments_of(self, tp: TopicPartition, linked: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Return the links that begin at ``linked``, each with its own end."""
        return self._links.there(self.path / partition_dir(tp), linked)

    def _lost_links(self, tp: TopicPartition, linked: Sequence[int]) -> list[Lost]:
        upload = self._uploads.read().get(tp)
        committed = -1 if upload is None or not self.begun(tp) else upload.end_offset
        return self._links.lost(self.path / partition_dir(tp), linked, committed)

    def _linked(self, folder: Path) -> list[int]:
        return log_bases(self._files, folder) if self._files.is_directory(folder) else []

    def _is_lost(self, tp: TopicPartition, ours: Path, lost: Lost) -> OffsetGapError:
        path = ours / log_name(lost.base)
        return OffsetGapError(
            f"{tp}: {path} is gone: it linked offsets {lost.base} to {lost.after} of the broker's log, and the broker "
            "has deleted some of them",
            start=lost.base,
            end=lost.after,
            hint="put that file back, from a backup or from another replica that has a segment of just these offsets. "
            f"If there is none, the bucket's log ends at {lost.base}; another prefix with a private directory of its "
            "own (--log-dir DIR) begins a new log at what the broker still has. What follows in "
            f"{ours} stays until you remove it",
        )

    def begun(self, tp: TopicPartition) -> bool:
        """Return True if a claim of this partition was committed. Before that the links are not a log yet."""
        return self._files.state(self.path / partition_dir(tp) / BEGUN_NAME) is not None

    def start(self, tp: TopicPartition, linked: int) -> int:
        """Return where a new bucket begins, for a log whose links begin at ``linked``."""
        noted = self._read(self.path / partition_dir(tp) / STARTS_IN_NAME)
        return int(noted) if noted else linked

    def joints(self, tp: TopicPartition) -> tuple[int, ...]:
        """Return the bases of linked segments and the broker's segments, the only offsets at which links can begin."""
        ours, theirs = self.path / partition_dir(tp), self.broker / partition_dir(tp)
        held = self._bases(theirs, local_files(self._files, theirs)) if self._files.is_directory(theirs) else []
        return tuple(sorted({*self._linked(ours), *held}))

    def start_log(self, tp: TopicPartition, at: int, *, resumes: bool, producers: bytes = b"") -> None:
        """Begin after a claim. The bucket ends ``at`` this offset.

        With ``resumes``, or the first time, delete links below or beside it. ``producers`` are those at the bucket's
        end, stored where the broker has no snapshot of them. Raises OffsetGapError if the broker has other records for
        offsets that the bucket holds.
        """
        folder = self.path / partition_dir(tp)
        taken_back = self._read(folder / TAKEN_BACK_NAME)
        if taken_back and int(taken_back) < at:
            raise rewritten(str(tp), int(taken_back), at)
        if taken_back:
            self._files.unlink(folder / TAKEN_BACK_NAME)
        bases = log_bases(self._files, folder)
        if resumes or (at > bases[0] and not self.begun(tp)):
            kept = self._links.offsets(folder, bases) if at in bases else []
            self._links.write(folder, [base for base in kept if base >= at] or [at])
            for base in reversed([base for base in bases if base < at or at not in bases]):
                self._files.unlink(folder / log_name(base))
            self._place(folder, at)
        if resumes and self._files.state(folder / snapshot_name(at)) is None:
            self._files.replace(folder / snapshot_name(at), producers or NO_PRODUCERS)
        self._files.replace(folder / BEGUN_NAME, b"")

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
        """Link the new segments of one partition. Return the bytes that are linked with them."""
        ours, found = self.path / partition_dir(tp), local_files(self._files, theirs)
        end, bases = self._end(ours), self._bases(theirs, found)
        if topic_id is None and len(bases) > 1:  # a broker writes it before it rolls
            raise ConfigError(
                f"{tp}: {theirs} has no {PARTITION_METADATA_NAME}: which topic of this name it is of is not known",
                hint="put the file back: that of another partition of the topic has the same content. A broker older "
                "than 2.8 (or its inter.broker.protocol.version) writes none: it cannot be followed before it does",
            )
        if not bases:
            return held
        self._need_settled(tp, found)
        epochs = self._read_epochs(theirs)  # once, and before any link is made: see _agree
        if end is None:
            self._forget(tp)
            end = bases[0]  # below the log start, too: the bucket's log may end there
            self._adopt(theirs, ours, end, epochs, starts_in=first_base(bases, log_start))
        end = self._agree(tp, ours, epochs, last=bases[-1], committed=committed if self.begun(tp) else -1)
        self._link_lost(tp, theirs, bases)
        if safe is None:
            self._need_no_vouching(tp, bases)
            return held
        return self._link_new(tp, theirs, bases, end, safe=safe, held=held, epochs=epochs)

    def _link_lost(self, tp: TopicPartition, theirs: Path, bases: list[int]) -> None:
        """Link removed segments again, if the broker still has all of their records."""
        ours, compacted = self.path / partition_dir(tp), tp.topic in self._compacted
        for lost in self._lost_links(tp, log_bases(self._files, ours)):
            try:
                piece = self._piece_of(tp, theirs, bases, lost)
                if piece is None:
                    continue
                self._link_segment(theirs, ours, piece, may_have_gaps=compacted, again=True)
            except OffsetGapError:
                continue  # the broker's log was rewritten there: it has other offsets
            text = "sidecar_linked_again partition=%s base=%d end=%d: somebody had removed the link"
            LOGGER.warning(text, tp, *lost)

    def _piece_of(self, tp: TopicPartition, theirs: Path, bases: list[int], lost: Lost) -> _LinkedPart | None:
        """Return the part of the broker's segments that holds a lost link's records; None if it has not all of them."""
        if bases[0] > lost.base or bases[-1] < lost.after:
            return None
        pieces = []
        for base, after in itertools.pairwise(bases):
            if after <= lost.base or base >= lost.after:
                continue
            path, state = theirs / log_name(base), self._files.state(theirs / log_name(base))
            size = 0 if state is None else state.size
            position = self._joint_in(tp, path, base, lost.base, after) if base < lost.base else 0
            until = self._joint_in(tp, path, base, lost.after, after) if after > lost.after else size
            if position < until:
                pieces.append(_LinkedPart(base, lost.base, lost.after, position, until if until < size else None))
        return pieces[0] if len(pieces) == 1 else None

    def _link_new(
        self, tp: TopicPartition, theirs: Path, bases: list[int], end: int, *, safe: int, held: int, epochs: bytes
    ) -> int:
        """Link the safe segments above ``end``. Return the bytes that are linked with them.

        ``empty_to`` is the end of the range that the cleaner emptied. The next linked segment reaches down over it.
        """
        ours, compacted, empty_to = self.path / partition_dir(tp), tp.topic in self._compacted, end
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
            self._copy(theirs, ours, epochs)
            self._link_segment(theirs, ours, _LinkedPart(base, end, after, position), may_have_gaps=compacted)
            held, end, empty_to = held + size - position, after, after
        else:
            self._need_joint(tp, empty_to, bases[-1])
        return held

    def _too_large(self, tp: TopicPartition, base: int, size: int) -> ConfigError:
        return ConfigError(
            f"{tp}: the broker's segment {base} has {size:,} bytes, all links together may hold {self._held_bytes:,}: "
            "neither it nor what follows would ever be linked",
            hint=f"--sidecar-held SIZE: at least some of the broker's segments ({HELD_BYTES // 1024**3}GiB by default)",
        )

    def _joint_in(self, tp: TopicPartition, path: Path, base: int, end: int, after: int) -> int:
        """Return the position of ``end`` in a segment that merges linked and later records."""
        with LogFile(self._files, path) as log:
            for span, _ in log.segment(0, log.size(), Offsets(base, after)):
                if span.base_offset < end <= span.last_offset:
                    self._need_joint(tp, end, base)
                if span.last_offset >= end:
                    return span.position
            return log.size()

    def _agree(self, tp: TopicPartition, ours: Path, epochs: bytes, *, last: int, committed: int) -> int:
        """Return where the links end. Remove links that the broker has truncated or rewritten since.

        A leader that was elected uncleanly gives offsets again, under another leader epoch. A file is cut in place: the
        link of it shows the new records, the next link the old ones. ``epochs`` were read before the links are made, so
        that they are never newer. ``last`` is the base of the broker's last segment. Raises OffsetGapError for records
        that are in the bucket.
        """
        noted, ends = self._read(ours / EPOCHS_NAME), self._links.offsets(ours, log_bases(self._files, ours))
        while True:
            was, now = epoch_of(noted, ends[-1] - 1), epoch_of(epochs, ends[-1] - 1)
            differ = are_other_epochs(was, now)
            if not differ and (ends[-1] <= last or self._is_another_copy(ours)):
                return ends[-1]
            if len(ends) == 1 or ends[-2] < committed:
                break
            text = "sidecar_taken_back partition=%s base=%d end=%d: the broker truncated its log below that end"
            LOGGER.warning(text, tp, *ends[-2:])
            self.taken_back.add(tp)
            self._withdraw(ours, ends[-2])
            ends.pop()
        if differ:
            raise rewritten(str(tp), ends[0], ends[-1], f": they are of leader epoch {was}, the broker's are of {now}")
        return ends[-1]

    def _is_another_copy(self, ours: Path) -> bool:
        """Return True if the broker has none of the linked files: it fetches its replica again.

        The leader's retention may have deleted linked segments. The epoch reveals another leader's records later.
        """
        return not any(self._is_the_brokers(ours, base) for base in log_bases(self._files, ours))

    def _withdraw(self, ours: Path, base: int) -> None:
        """End the links at ``base``. Write the empty log first: a broker's file is never cut, and a kill may follow.

        The upload checkpoint may be late, but the next claim is not: the offset is noted before that.
        """
        before = self._read(ours / TAKEN_BACK_NAME)
        self._files.replace(ours / TAKEN_BACK_NAME, b"%d" % (min(base, int(before)) if before else base))
        starts_in = self._read(ours / STARTS_IN_NAME)
        if starts_in and base < int(starts_in):  # a cut below it takes the log start along
            self._files.replace(ours / STARTS_IN_NAME, b"%d" % base)
        self._files.replace(ours / log_name(base), b"")
        for file in local_files(self._files, ours):
            if file.base > base or (file.base == base and file.suffix not in {LOG_SUFFIX, SNAPSHOT_SUFFIX}):
                self._files.unlink(ours / local_name(file.base, file.suffix, file.work))

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
        """Raise DataLocalError while the broker swaps segments: a ``.swap`` file is not linked."""
        if any(file.suffix == LOG_SUFFIX and file.work == SWAP_SUFFIX for file in found):
            raise self._exchanging(str(tp))

    @staticmethod
    def _exchanging(name: str) -> DataLocalError:
        return DataLocalError(
            f"{name}: the broker is exchanging segments: nothing is linked meanwhile",
            hint="wait: the next scan tries again; if the broker crashed, start it, which completes the exchange",
        )

    def _read(self, path: Path) -> bytes:
        try:
            return self._files.read(path)
        except NotFoundError:
            return b""

    def _bases(self, theirs: Path, found: list[LocalFile]) -> list[int]:
        """Return the bases of the broker's segments, without empty sealed ones.

        A segment that was deleted since the listing is included, because it was not empty.
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
                f"{tp} is followed, and the broker has compacted it since: nothing more of it is linked",
                hint=f"ask for it: --sidecar-compacted {tp.topic}",
            )

    def _need_same_topic(self, tp: TopicPartition, topic_id: UUID | None, linked: Mapping[int, UUID | None]) -> None:
        """Raise ConfigError if the broker's topic was deleted and created again.

        A bucket has one topic of each name. So while any partition has links of the old topic, all partitions wait.
        """
        held = {tp.partition: linked[tp.partition]} if tp.partition in linked else linked
        others = sorted(number for number, known in held.items() if known != topic_id)
        if topic_id is not None and others:
            folders = ", ".join(str(self.path / partition_dir(TopicPartition(tp.topic, number))) for number in others)
            raise ConfigError(
                f"{tp} is another topic of the same name now: what is linked of the first is still uploaded",
                hint=f"give the bucket's topic up (`tiered topic delete`), then stop this and remove {folders}",
            )

    @staticmethod
    def _need_joint(tp: TopicPartition, end: int, base: int) -> None:
        if base > end:
            raise OffsetGapError(
                f"{tp}: the broker's log goes on at {base}: offsets from {end} were deleted before they were linked",
                start=end,
                end=base,
                hint="give the broker a longer retention; another prefix begins a new log at what is left",
            )
        if base < end:
            raise OffsetGapError(
                f"{tp}: the broker's segment {base} begins below {end}, the end of the archived links: its log was "
                "rewritten",
                start=base,
                end=end,
                hint="if the replica is being fetched again, wait. Otherwise archive another replica, or use another "
                "--remote prefix",
            )

    def _forget(self, tp: TopicPartition) -> None:
        """Drop checkpoint entry and claim of a partition whose links were removed: its next topic may be another."""
        if tp in self._uploads.read():
            self._uploads.forget([tp])
        claims = Claims(self.path, self._files)
        if claims.find(tp) is not None:
            claims.forget([tp])

    def _adopt(self, theirs: Path, ours: Path, base: int, epochs: bytes, *, starts_in: int) -> None:
        self._files.make_directory(ours)
        self._copy(theirs, ours, epochs)
        self._files.replace(ours / STARTS_IN_NAME, b"%d" % starts_in)
        self._links.write(ours, [base])
        self._place(ours, base)

    def _link_segment(
        self, theirs: Path, ours: Path, piece: _LinkedPart, *, may_have_gaps: bool, again: bool = False
    ) -> None:
        """Link a segment, its log last: a visible log is whole. Its side files come first.

        ``again``: a removed link is made again. Links after it, and the snapshot at its end, may exist.
        """
        files, linking = self._files, ours / LINKING_NAME
        files.unlink(linking)
        if piece.is_copy:
            self._copy_log(theirs / log_name(piece.base), linking, piece)
        else:
            self._link(theirs, log_name(piece.base), linking)
        try:
            self._need_whole(linking, piece.start, piece.after, may_have_gaps=may_have_gaps)
        except CorruptionError as damage:
            raise self._damaged(damage, linking, theirs / log_name(piece.base)) from damage
        for name in (*(local_name(piece.start, suffix) for suffix in INDEX_SUFFIXES), snapshot_name(piece.after)):
            if again and name == snapshot_name(piece.after) and files.state(ours / name) is not None:
                continue
            files.unlink(ours / name)
            if (piece.start != piece.base or piece.is_copy) and name != snapshot_name(piece.after):
                continue  # the broker's index counts from another base, or of more
            try:
                self._link(theirs, name, ours / name)
            except NotFoundError:
                continue  # an index is rebuilt from the log; of transactions and producers there may be none
        now, linked = files.state(theirs / log_name(piece.base)), files.state(linking)
        if not piece.is_copy and now is not None and linked is not None and now.inode != linked.inode:
            raise self._exchanging(ours.name)  # its indexes may be those of the other file
        if not again:
            noted = self._links.offsets(ours, log_bases(files, ours))
            self._links.write(ours, [*(base for base in noted if base <= piece.start), piece.after])
            self._place(ours, piece.after)
        files.rename(linking, ours / log_name(piece.start))
        files.sync_directory(ours)

    def _copy_log(self, theirs: Path, linking: Path, piece: _LinkedPart) -> None:
        """Copy a part of a merged segment. The rest is in other links or the bucket, and a link shows a whole file."""
        files = self._files
        with LogFile(files, theirs) as log:
            until = log.size() if piece.until is None else piece.until
            handle = files.open_write(linking)
            try:
                for at in range(piece.position, until, COPIED_BYTES):
                    data = log.read_at(at, min(COPIED_BYTES, until - at))
                    files.write_at(handle, data, at - piece.position)
                files.sync(handle)
            finally:
                files.close(handle)

    def _need_whole(self, linking: Path, base: int, after: int, *, may_have_gaps: bool) -> None:
        """Raise OffsetGapError unless the link has all offsets of its segment; the broker may have rewritten it."""
        with LogFile(self._files, linking) as log:
            size, last = log.size(), base - 1
            for span, _ in log.segment(0, size, Offsets(base, after)):
                last = span.last_offset
        if last < base or (last + 1 < after and not may_have_gaps):
            raise OffsetGapError(
                f"{linking.parent.name}: the broker's segment {base} reaches to offset {last + 1}, the next one begins "
                f"at {after}: it was rewritten while it was looked at",
                start=last + 1,
                end=after,
                hint="the next look tries again; if this stays, the topic was truncated, or compacted once (see "
                "--sidecar-compacted)",
            )

    @staticmethod
    def _damaged(damage: CorruptionError, linking: Path, theirs: Path) -> CorruptionError:
        """Return the error with the path of the broker's file in place of the link's temporary name."""
        return CorruptionError(
            damage.message.replace(str(linking), str(theirs)),
            path_or_key=str(theirs),
            position=damage.position,
            offset=damage.offset,
            hint="the broker's segment is damaged: neither it nor what follows is linked; let the broker fetch it from "
            "another replica, or follow that one",
        )

    def add_owner_hint(self, tp: TopicPartition, error: TieredError) -> None:
        """Change errors for the user: damage in a link names the broker's file, and other refusals get a hint."""
        ours = self.path / partition_dir(tp)
        if isinstance(error, FencedError):  # a repair would write to what is linked
            error.hint = (
                f"if this broker's log is the one to go on with, stop this and remove {ours}: links are made anew from "
                "where the bucket ends, of what the broker still has"
            )
        elif isinstance(error, LogDestroyedError):
            held = DirectoryView.read(self.path, self._files).partitions
            folders = ", ".join(str(folder) for each, folder in held.items() if each.topic == tp.topic)
            error.hint = f"if the topic was deleted on purpose, stop this and remove {folders}; else {error.hint}"
        elif isinstance(error, CorruptionError) and Path(error.path_or_key).parent == ours:
            self._name_broker_file(tp, error, Path(error.path_or_key))

    def _name_broker_file(self, tp: TopicPartition, damage: CorruptionError, link: Path) -> None:
        """Name the broker's file in the error, if that is still the linked one."""
        file = self.broker / partition_dir(tp) / link.name
        linked, now = self._files.state(link), self._files.state(file)
        if linked is not None and now is not None and linked.inode == now.inode:
            damage.message = damage.message.replace(str(link), f"{file} (linked as {link})")
            damage.path_or_key = str(file)
        else:
            damage.message += f"; the broker's {file}, of which it was made, is gone or another file by now"
        if not isinstance(damage, NewerFormatError):
            damage.hint = (
                "neither it nor what follows is uploaded; once the broker has a whole copy, fetched from another "
                f"replica, stop this and remove {link.parent}: what the bucket lacks is linked anew"
            )

    def _link(self, theirs: Path, name: str, target: Path) -> None:
        try:
            try:
                self._files.link(theirs / name, target)
            except NotFoundError:
                self._files.link(theirs / f"{name}{DELETED}", target)
        except LocalIOError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EXDEV:
                raise self._on_another_disk(theirs) from error
            if isinstance(error, LocalPermissionError):
                error.hint = (
                    "run it as the user of the broker: of another one's files Linux links only those that the user may "
                    "write, too (fs.protected_hardlinks)"
                )
            raise

    def _on_another_disk(self, theirs: Path) -> ConfigError:
        return ConfigError(
            f"{theirs.name} lies in {theirs.resolve()}, on another file system than {self.path}: no file can be linked",
            hint=f"one private directory serves one file system: move the partition's files into {self.broker} (while "
            "the broker stands still), or, if all its partitions lie there, name a directory there: --log-dir DIR",
        )

    def _copy(self, theirs: Path, ours: Path, epochs: bytes) -> None:
        for name, data in (
            (PARTITION_METADATA_NAME, self._read(theirs / PARTITION_METADATA_NAME)),
            (EPOCHS_NAME, epochs),
        ):
            if data and self._read(ours / name) != data:
                self._files.replace(ours / name, data)

    def _place(self, folder: Path, end: int) -> None:
        self._files.close(self._files.open_write(folder / log_name(end)))

    def _end(self, folder: Path) -> int | None:
        """Return where the links end. Remove an empty file that a killed process placed beyond it.

        A link whose file the broker cut at its first offset is empty, too: its noted end is still the end.
        """
        if not self._files.is_directory(folder):
            return None
        bases = log_bases(self._files, folder)
        while len(bases) > 1 and not self._size(folder, bases[-2]) and not self._is_the_brokers(folder, bases[-2]):
            self._files.unlink(folder / log_name(bases.pop()))
        return bases[-1] if bases else None

    def _is_the_brokers(self, folder: Path, base: int) -> bool:
        ours = self._files.state(folder / log_name(base))
        theirs = self._files.state(self.broker / folder.name / log_name(base))
        return ours is not None and theirs is not None and ours.inode == theirs.inode

    def _mend_end(self, folder: Path, bases: list[int]) -> list[int]:
        """Return ``bases`` with the end of the links, if the empty file that marks it was removed.

        Offsets noted beyond the last existing link were linked, too, but for the last: they are lost.
        """
        noted = self._links.read(folder)
        if self._size(folder, bases[-1]) and noted and noted[-1] > bases[-1]:
            self._place(folder, noted[-1])
            return [*bases, noted[-1]]
        return bases

    def _size(self, folder: Path, base: int) -> int:
        state = self._files.state(folder / log_name(base))
        return 0 if state is None else state.size

    def _let_go_all(
        self, ours: Mapping[TopicPartition, Path], committed: Mapping[TopicPartition, int]
    ) -> tuple[int, dict[TopicPartition, TieredError]]:
        """Delete links that the bucket has. Return the bytes still linked, and the partitions that failed."""
        held, broken = 0, {}
        for tp, folder in ours.items():
            try:
                if self.begun(tp):  # before that the bucket may know producers that no link shows
                    self._derive_snapshots(tp, folder)
                held += self._let_go(folder, committed.get(tp, -1) if self.begun(tp) else -1)
            except TieredError as error:
                broken[tp] = error
        return held, broken

    def _derive_snapshots(self, tp: TopicPartition, folder: Path) -> None:
        """Write the producers at the end of each link of which the broker has no snapshot.

        A broker before 2.8 keeps the newest ones. The next link is judged by it once this link is deleted.
        """
        bases, there = self._linked(folder), set(snapshot_offsets(self._files, folder))
        first, upload = self._links.offsets(folder, bases)[:1], self._uploads.read().get(tp)
        if not (there and upload and upload.reaches_below(min(first, default=0))):
            there.update(first)  # the log begins there: no producer is before it
        for base, after in self._links.there(folder, bases):
            if after in there or base not in there:  # beyond a lost link producers may be missing
                continue
            try:
                self._files.replace(folder / snapshot_name(after), snapshot_after(self._files, folder, base, bases))
            except CorruptionError:
                return  # the upload of that link names the damage
            there.add(after)

    def _let_go(self, folder: Path, committed: int) -> int:
        """Delete the committed links but the newest, which proves whose log this is. Return the bytes still linked."""
        if self._end(folder) is None:
            return 0
        bases = self._mend_end(folder, log_bases(self._files, folder))
        done = [base for base, after in itertools.pairwise(bases) if after <= committed]
        first = done[-1] if done else bases[0]
        lost = [base for base, _ in self._links.lost(folder, bases, committed)]
        noted = self._links.offsets(folder, bases)
        self._links.write(folder, [base for base in noted if base >= min([first, *lost])])
        for base in done[:-1]:
            self._files.unlink(folder / log_name(base))
        for file in local_files(self._files, folder):
            if file.base < first:
                self._files.unlink(folder / local_name(file.base, file.suffix, file.work))
        return sum(self._size(folder, base) for base in bases if base >= first and base not in done)
