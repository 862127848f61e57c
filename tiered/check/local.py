"""Check of every file of a log directory. It takes no lock and changes nothing.

A live writer may append, roll and delete meanwhile. Index files are read before the size of their ``.log`` is taken, so
that their entries never point beyond the bytes that are read. A file that vanishes was deleted by the writer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import UUID

from tiered.check.findings import NEWER_RELEASE, Finding, Findings, Passed, Severity
from tiered.check.inspection import Expectations, LogInspection, LogScan, SideFileCheck, pieces
from tiered.config import TopicConfig
from tiered.errors import (
    CorruptionError,
    LocalIOError,
    LocalPermissionError,
    NewerFormatError,
    NotFoundError,
    TieredError,
    message_of,
)
from tiered.format.checkpoint import (
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
)
from tiered.format.local_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    LocalFile,
    local_name,
    log_name,
    partition_dir,
)
from tiered.format.segment_builder import SegmentStats
from tiered.local.directory.read_only_log import DirectoryView, StrangeFolder, find_gone
from tiered.local.disk.claims import CLAIMS_NAME, ClaimProof, Claims
from tiered.local.disk.directory_files import (
    CLEAN_SHUTDOWN_NAME,
    CLEANER_NAME,
    LOG_START_NAME,
    META_PROPERTIES_NAME,
    RECOVERY_POINT_NAME,
    REPLICATION_NAME,
)
from tiered.local.disk.files import Files
from tiered.local.disk.partition_files import EPOCHS_NAME, SPARSE_NAME, bases_of, gone_text, local_files
from tiered.local.disk.topics import (
    PARTITION_METADATA_NAME,
    TOPICS_NAME,
    expected_topics,
    find_wrong_ids,
    known_ids,
    read_topics,
)
from tiered.local.disk.uploader_files import OFFSET_CHECKPOINT_NAME, PartitionUpload, UploadCheckpoint, root_bounds_of
from tiered.local.segment.sealed import FileSource
from tiered.local.segment.side_files import SEAL_SUFFIX, read_note
from tiered.local.transactions.state_log import PRODUCER_IDS_NAME, read_ids
from tiered.model import SealedIndexes, TopicPartition
from tiered.plan.retention import is_believed, wrong_times_text
from tiered.plan.root_lower_bounds import RootLowerBounds
from tiered.plan.side_files import SideFileVerdict

OFFSET_CHECKPOINTS = (RECOVERY_POINT_NAME, LOG_START_NAME, REPLICATION_NAME, CLEANER_NAME)
UNREADABLE = "unreadable"
"""Code of a finding about a file that this process cannot read: it may be whole or damaged."""

T = TypeVar("T")
Seen = list[Finding | Passed]
"""Findings and progress of one step."""


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts of a local segment, to compare it with the bucket. ``sealed``: True if it will not change any more."""

    base_offset: int
    size_bytes: int
    crc32c: int
    sealed: bool


@dataclass(slots=True)
class PartitionFacts:
    """Facts of one partition on this disk. ``topic_id``: None if its file is missing or damaged.

    ``segments``: by base offset. ``upload``, ``proof``: entries of the uploader's checkpoint and claims files, None
    without one. ``whole``: True if every file was read and none is damaged.
    """

    tp: TopicPartition
    topic_id: UUID | None = None
    segments: dict[int, SegmentFacts] = field(default_factory=dict)
    start_offset: int = 0
    end_offset: int = 0
    upload: PartitionUpload | None = None
    proof: ClaimProof | None = None
    whole: bool = True

    @property
    def known(self) -> RootLowerBounds:
        """Return lower bounds of the partition's root, from the uploader's files on this disk."""
        return root_bounds_of(self.upload, self.proof)


@dataclass(slots=True)
class LocalFacts:
    """Facts of all partitions of a log directory, and its totals."""

    partitions: dict[TopicPartition, PartitionFacts] = field(default_factory=dict)
    segments: int = 0
    size_bytes: int = 0


class SmallFiles(NamedTuple):
    """Result of reading the small files of a log directory: findings, the upload checkpoint, and the claims."""

    findings: list[Finding]
    uploads: Mapping[TopicPartition, PartitionUpload]
    claims: Mapping[TopicPartition, ClaimProof]


def read_small_files(directory: Path, files: Files) -> SmallFiles:
    """Read each small file of a log directory. Unreadable ones give findings."""

    def about(name: str) -> Findings:
        beside.append(Findings(str(directory / name)))
        return beside[-1]

    beside: list[Findings] = []
    for name in OFFSET_CHECKPOINTS:
        # A damaged checkpoint costs a longer start, never data: Kafka reads it as empty.
        _read(about(name), "checkpoint", _decoded(files, directory / name, decode_offsets), Severity.WARNING)
    meta = _decoded(files, directory / META_PROPERTIES_NAME, decode_meta_properties)
    _read(about(META_PROPERTIES_NAME), "checkpoint", meta)
    _read(about(TOPICS_NAME), "topics_file", partial(read_topics, directory, files))
    _read(about(PRODUCER_IDS_NAME), "producer_ids", partial(read_ids, directory, files))
    uploads = _read(about(OFFSET_CHECKPOINT_NAME), "checkpoint", UploadCheckpoint(directory, files).read)
    claims = _read(about(CLAIMS_NAME), "claims", Claims(directory, files).read)
    return SmallFiles([one for each in beside for one in each.items], uploads or {}, claims or {})


@dataclass(slots=True)
class LocalCheck:
    """Check of one log directory. ``compacted``: returns True for a topic in which offsets may be missing.

    ``topics``: check only these, empty: all. ``decode``: also decode every record. ``settings``: settings by topic.
    """

    directory: Path
    files: Files
    compacted: Callable[[str], bool]
    topics: Collection[str]
    decode: bool = False
    settings: Mapping[str, TopicConfig] = field(default_factory=dict)
    facts: LocalFacts = field(default_factory=LocalFacts, init=False)
    _clean: bool = field(default=False, init=False)
    _unread: set[Path] = field(default_factory=set, init=False)
    _uncleaned: set[TopicPartition] = field(default_factory=set, init=False)

    def run(self) -> Iterator[Seen]:
        """Check partition by partition. Yield findings and progress after each file or piece. Fill ``facts``."""
        yield [Passed(0, "", self._total_bytes())]
        self._clean = self.files.state(self.directory / CLEAN_SHUTDOWN_NAME) is not None
        root = Findings(str(self.directory))
        small = read_small_files(self.directory, self.files)
        uploads, claims = small.uploads, small.claims
        directories = self._partition_directories(root)
        gone = [*self._gone(uploads, claims)]
        yield [*small.findings, *root.items, *gone]
        starts, points = self._offsets(LOG_START_NAME), self._offsets(RECOVERY_POINT_NAME)
        reported = {TopicPartition(found.topic, found.partition) for found in gone}
        directories = sorted([*directories, *self._emptied(points, {*dict(directories), *reported})])
        self._uncleaned = self._broker_has_not_cleaned([tp for tp, _ in directories])
        for tp, path in directories:
            partition = PartitionFacts(tp, upload=uploads.get(tp), proof=claims.get(tp))
            self.facts.partitions[tp] = partition
            yield from self._partition(partition, path, starts.get(tp, -1))
            yield self._shorter(partition, path, points.get(tp, 0))
        yield [*self._two_topics()]

    def _total_bytes(self) -> int:
        """Return the size of all ``.log`` files, for a progress bar."""
        total = 0
        for _, path in self._partition_directories(Findings("")):
            with suppress(LocalIOError):  # reported where it is checked
                for base in bases_of(self._listed(path)):
                    state = self.files.state(path / log_name(base))
                    total += state.size if state is not None else 0
        return total

    def _partition_directories(self, root: Findings) -> list[tuple[TopicPartition, Path]]:
        found = []
        for folder in DirectoryView.read(self.directory, self.files).folders:
            if isinstance(folder, StrangeFolder):
                root.error("directory_name", folder.refusal.message)
            elif folder.kind:
                what = "is not in use: it was set aside, waits to be removed, or a move to it did not end"
                root.add(Severity.INFO, "renamed_directory", f"{folder.name} {what}")
            elif not self.topics or folder.tp.topic in self.topics:
                found.append((folder.tp, self.directory / folder.name))
        return sorted(found)

    def _emptied(
        self, points: Mapping[TopicPartition, int], seen: Collection[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, Path]]:
        """Yield directories without a log file, where a broker's checkpoint names flushed records.

        ``points``: flushed end offset by partition. ``seen``: partitions that are found or reported already.
        """
        for tp, point in points.items():
            path = self.directory / partition_dir(tp)
            chosen = not self.topics or tp.topic in self.topics
            if point > 0 and chosen and tp not in seen and self.files.is_directory(path):
                yield tp, path

    def _gone(
        self, uploads: Mapping[TopicPartition, PartitionUpload], claims: Collection[TopicPartition]
    ) -> Iterator[Finding]:
        """Yield a finding for each partition that held records here and has no folder any more."""
        gone = _read(Findings(""), "checkpoint", partial(find_gone, self.directory, self.files, uploads)) or {}
        for tp, end in sorted((tp, end) for tp, end in gone.items() if not self.topics or tp.topic in self.topics):
            found = Findings(str(self.directory / partition_dir(tp)))
            advice = gone_text(self.directory, tp, end, tiered=tp in uploads or tp in claims)
            found.error("partition_gone", f"the directory is gone or has no .log file; {advice}")
            yield from found.about(*tp)

    def _broker_has_not_cleaned(self, tps: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions of a broker's topics that its cleaner's checkpoint does not name."""
        topics = _read(Findings(""), "topics_file", partial(expected_topics, self.directory, self.files))
        if topics is None:
            return set()
        theirs = {tp for tp in tps if tp.topic not in topics or topics[tp.topic].adopted}
        return theirs - self._offsets(CLEANER_NAME).keys()

    def _offsets(self, name: str) -> Mapping[TopicPartition, int]:
        """Return the offsets of a checkpoint; none if it cannot be read, which is reported elsewhere."""
        return _read(Findings(""), "checkpoint", _decoded(self.files, self.directory / name, decode_offsets)) or {}

    def _two_topics(self) -> Iterator[Finding]:
        """Yield a finding for each partition with another topic id than its topic."""
        ids: dict[str, dict[int, UUID | None]] = {}
        for tp, facts in self.facts.partitions.items():
            ids.setdefault(tp.topic, {})[tp.partition] = facts.topic_id
        broken: dict[TopicPartition, TieredError] = {}
        topics = _read(Findings(""), "topics_file", partial(expected_topics, self.directory, self.files))
        find_wrong_ids(self.directory, ids, known_ids(topics or {}), broken)
        for tp, error in sorted(broken.items()):
            found = Findings(str(self.directory / partition_dir(tp)))
            found.error("topic_ids", f"{error.message}; {error.hint}")
            yield from found.about(*tp)

    def _listed(self, path: Path) -> list[LocalFile]:
        try:
            return local_files(self.files, path)
        except NotFoundError:
            return []

    def _partition(self, facts: PartitionFacts, path: Path, start_offset: int) -> Iterator[Seen]:
        findings = Findings(str(path))
        try:
            files = self._listed(path)
        except LocalIOError as refused:
            _refused(findings, refused)
            facts.whole = False
            yield [*findings.about(*facts.tp)]
            return
        self._metadata(facts, path, findings)
        bases = bases_of(files)
        self._stray_files(path, files, set(bases), findings)
        yield [*findings.about(*facts.tp)]
        facts.start_offset = max(start_offset, bases[0] if bases else 0)
        facts.end_offset = facts.start_offset
        before: LogScan | None = None
        beside = SideFileCheck()
        alone = facts.upload is None or not facts.upload.reaches_below(bases[0] if bases else 0)
        for number, base in enumerate(bases):
            segment = Findings(str(path / log_name(base)))
            growing = number == len(bases) - 1 and not self._clean
            beside.start_segment(base)
            try:
                scan, noted = yield from self._segment(facts, path, base, segment, beside, growing=growing)
                if not growing:
                    end = bases[number + 1] if number + 1 < len(bases) else scan.end_offset
                    self._side_files(
                        path, scan, end, segment, beside, noted=noted, start=facts.start_offset, alone=alone
                    )
            except NotFoundError:
                segment.add(Severity.INFO, "vanished", "the file was removed while it was checked")
                facts.whole = False
                before = None  # its owner deleted it: no gap
                yield [*segment.about(*facts.tp)]
                continue
            except LocalIOError as refused:
                _refused(segment, refused)
                facts.whole = False
                yield [*segment.about(*facts.tp)]
                before = None  # its offsets are unknown: the next segment makes no gap
                continue
            self._follows(before, scan, segment, facts.tp, sparse=self._leaves_out(path, facts.tp.topic))
            before = scan
            facts.whole &= not any(item.severity is Severity.ERROR for item in segment.items)
            facts.end_offset = max(facts.end_offset, scan.end_offset)
            yield [*segment.about(*facts.tp)]

    def _shorter(self, facts: PartitionFacts, path: Path, point: int) -> Seen:
        """Report a log that ends below its recovery point ``point``: its files are whole, but later ones are gone."""
        if facts.end_offset >= point or not facts.whole:
            return []
        found = Findings(str(path))
        found.add(
            Severity.WARNING,
            "log_end",
            f"the log ends at offset {facts.end_offset}, and was flushed to the disk up to {point}: what lay between "
            "is lost, or its broker died in the middle of a truncation",
            offset=facts.end_offset,
        )
        return [*found.about(*facts.tp)]

    def _metadata(self, facts: PartitionFacts, path: Path, findings: Findings) -> None:
        named = _decoded(self.files, path / PARTITION_METADATA_NAME, decode_partition_metadata)
        facts.topic_id = _read(findings, "partition_metadata", named)
        if facts.topic_id is None and not findings.items:
            findings.add(Severity.INFO, "partition_metadata", "there is no partition.metadata: the topic id is unknown")
        epochs = _read(findings, "leader_epochs", _decoded(self.files, path / EPOCHS_NAME, decode_epochs))
        for before, after in itertools.pairwise(epochs or ()):
            if after.start_offset <= before.start_offset:
                findings.error("leader_epochs", f"leader epoch {after.epoch} begins at or before epoch {before.epoch}")

    def _stray_files(self, path: Path, files: list[LocalFile], bases: set[int], findings: Findings) -> None:
        leaving = {file.base for file in files if (file.suffix, file.work) == (LOG_SUFFIX, DELETED_SUFFIX)}
        for file in files:
            severity, code, what = Severity.WARNING, "orphan_index", "has no .log beside it; the next open removes it"
            if file.work == DELETED_SUFFIX:
                severity, code, what = Severity.INFO, "deleted_file", "waits to be removed"
            elif file.work in (CLEANED_SUFFIX, SWAP_SUFFIX):
                code, what = "unfinished_rewrite", "was left by a rewrite; the next open settles it"
            elif file.suffix in (LOG_SUFFIX, SNAPSHOT_SUFFIX) or file.base in bases:
                continue
            elif file.suffix == TIME_INDEX_SUFFIX and file.base not in leaving and self._size(path, file):
                # A deletion takes the .log first, and unlinks it last: only one that was killed twice leaves this.
                code, what = "log_gone", "names records, and has no .log beside it: unless they were deleted, put it"
                what += " back before anybody opens the log for writing, which removes what is left of them"
            findings.add(severity, code, f"{local_name(file.base, file.suffix, file.work)} {what}")

    def _size(self, path: Path, file: LocalFile) -> int:
        state = self.files.state(path / local_name(file.base, file.suffix, file.work))
        return 0 if state is None else state.size

    def _segment(
        self, facts: PartitionFacts, path: Path, base: int, findings: Findings, beside: SideFileCheck, *, growing: bool
    ) -> Generator[Seen, None, tuple[LogScan, SegmentStats | None]]:
        suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
        offsets, times, txns, snapshot = (
            self._optional(path / local_name(base, suffix), findings) or b"" for suffix in suffixes
        )
        indexes = SealedIndexes(offsets, times, txns, snapshot)
        state = self.files.state(path / log_name(base))
        if state is None:
            raise NotFoundError(f"{path / log_name(base)} is gone")
        expectations = Expectations(
            growing=growing, contiguous=not self._leaves_out(path, facts.tp.topic), decode=self.decode
        )
        with closing(FileSource(self.files, path / log_name(base), state.size, sync=False)) as source:
            look = LogInspection(source.size, base, findings, expectations, indexes=indexes, follower=beside.follower)
            for piece in pieces(source):
                look.feed(piece)
                yield [Passed(len(piece), str(facts.tp))]
        scan = look.end()
        noted = None if growing else self._noted(path / local_name(base, SEAL_SUFFIX), scan.size_bytes, findings)
        log_damaged = any(item.severity is Severity.ERROR and item.code.startswith("log_") for item in findings.items)
        if noted is not None and noted.crc32c != scan.crc32c and not log_damaged:
            # Base offsets and leader epochs are outside the CRC of their batch: only this checksum covers them.
            message = f"the file has CRC32C {scan.crc32c:08x}, {noted.crc32c:08x} was sealed"
            findings.error("log_changed", message, offset=base)
        if not growing and scan.size_bytes:
            self._need_right_times(facts.tp.topic, scan, noted, findings)
        facts.segments[base] = SegmentFacts(base, scan.size_bytes, scan.crc32c, not growing)
        self.facts.segments += 1
        self.facts.size_bytes += scan.size_bytes
        return scan, noted

    def _need_right_times(self, topic: str, scan: LogScan, noted: SegmentStats | None, findings: Findings) -> None:
        """Report timestamps that are impossible at the time of the append, which the ``.seal`` file has.

        Report none if that time is unknown. ``noted``: content of that file, None without one.
        """
        appended_ms, config = noted.appended_ms if noted is not None else -1, self.settings.get(topic, TopicConfig())
        if scan.records and appended_ms >= 0 and not is_believed(scan.max_timestamp, appended_ms, config):
            what = wrong_times_text(scan.base_offset, scan.end_offset, scan.max_timestamp, appended_ms)
            findings.add(Severity.WARNING, "timestamps_not_used", what, offset=scan.base_offset)

    def _side_files(
        self,
        path: Path,
        scan: LogScan,
        end: int,
        findings: Findings,
        beside: SideFileCheck,
        *,
        noted: SegmentStats | None,
        start: int,
        alone: bool,
    ) -> None:
        """Compare transaction index and producer snapshot with the markers. Reads and uploads rebuild both.

        ``scan``, ``end``: totals and end offset of the segment. ``noted``: content of its ``.seal`` file, None without.

        ``alone``: no bucket has the offsets before this log, so a marker of a transaction that began there hides no
        record. Segments wholly below the log ``start`` need neither file: an open removes the snapshots at or below it.
        """
        base = scan.base_offset
        txn_index = self._optional(path / local_name(base, TXN_INDEX_SUFFIX), findings)
        snapshot = self._optional(path / local_name(end, SNAPSHOT_SUFFIX), findings)
        expected = noted is not None and noted.producers > 0
        txns, producers = beside.compare(base, end, txn_index or b"", snapshot or None, expected=expected, alone=alone)
        if txn_index is None:
            txns = SideFileVerdict(b"")
        if snapshot is None:
            producers = SideFileVerdict(b"")
        if not snapshot and not expected:
            producers = SideFileVerdict(
                b""
            )  # a broker, a recovery and a cleaner leave fewer snapshots than there are segments
        for code, name, judged in (
            ("txn_index_lost", local_name(base, TXN_INDEX_SUFFIX), txns),
            ("producer_snapshot_lost", local_name(end, SNAPSHOT_SUFFIX), producers),
        ):
            if judged.flaw is None:
                continue
            severity, what = Severity.ERROR, "what came before the segment is not on this disk"
            if end <= start:
                severity, what = Severity.INFO, f"all of it lies below the log start {start}, it is not needed"
            elif judged.known:
                # A broker drops snapshots that we had noted, and a write of one may fail: the log has the same facts.
                dropped = judged is producers and not snapshot
                severity, what = Severity.INFO if dropped else Severity.WARNING, "it can be rebuilt from the log"
            findings.add(severity, code, f"{name} differs from the log: {judged.flaw}; {what}", offset=base)

    def _leaves_out(self, path: Path, topic: str) -> bool:
        """Return True if offsets of this partition may have no record."""
        try:
            return self.compacted(topic) or self.files.state(path / SPARSE_NAME) is not None
        except LocalIOError:
            return True  # unknown

    def _follows(
        self, before: LogScan | None, scan: LogScan, findings: Findings, tp: TopicPartition, *, sparse: bool
    ) -> None:
        """Report a segment that begins below the end of the segment ``before``, or after it unless ``sparse``.

        ``before``: None for the first segment. ``sparse``: offsets may be missing.

        A broker's topic may be compacted without a sign of it. If its cleaner has not named the partition, and the
        segments have every offset, a file is probably missing.
        """
        if before is None:
            return
        if scan.base_offset < before.end_offset:
            findings.error("log_order", f"the segment before this one reaches offset {before.end_offset}")
        elif scan.base_offset > before.end_offset and not sparse:
            findings.error(
                "log_gap", f"offsets {before.end_offset} to {scan.base_offset} are missing", offset=before.end_offset
            )
        elif scan.base_offset > before.end_offset and tp in self._uncleaned and _is_dense(before) and _is_dense(scan):
            what = "the segments around them have every offset, and the broker's cleaner has not named the partition"
            text = f"offsets {before.end_offset} to {scan.base_offset} are missing: {what}: a .log may be lost"
            findings.add(Severity.WARNING, "log_gap", text, offset=before.end_offset)

    def _optional(self, path: Path, findings: Findings) -> bytes | None:
        """Return the bytes of a side file, empty if missing; None if unreadable, which is a finding."""
        try:
            return self.files.read(path)
        except NotFoundError:
            return b""
        except LocalIOError as refused:
            if path not in self._unread:  # a snapshot belongs to the segments on both sides of it
                _refused(findings, refused)
            self._unread.add(path)
            return None

    def _noted(self, path: Path, size_bytes: int, findings: Findings) -> SegmentStats | None:
        """Return the totals in the ``.seal`` file ``path`` of a segment with ``size_bytes``.

        None if the file is missing, damaged, of another size or unreadable. Only an unreadable one is a finding.
        """
        try:
            return read_note(self.files, path, size_bytes)
        except LocalIOError as refused:
            _refused(findings, refused)
            return None


def _decoded(files: Files, path: Path, decode: Callable[[str], T]) -> Callable[[], T]:
    """Return a function that reads a text file. It names the file in the error of a damaged one."""

    def read() -> T:
        try:
            return decode(files.read(path).decode())
        except (CorruptionError, UnicodeDecodeError) as damage:
            kind = NewerFormatError if isinstance(damage, NewerFormatError) else CorruptionError
            raise kind(f"{path.name}: {message_of(damage)}", path_or_key=str(path)) from damage

    return read


def _read(found: Findings, code: str, read: Callable[[], T], severity: Severity = Severity.ERROR) -> T | None:
    """Return the content of a small file; None if it is missing, damaged or unreadable. All but missing is a finding.

    The code of a newer release is another one, because its file may be whole.
    """
    try:
        return read()
    except NotFoundError:
        pass
    except NewerFormatError as newer:
        found.error(NEWER_RELEASE, newer.message)
    except CorruptionError as damage:
        found.add(severity, code, damage.message)
    except LocalIOError as refused:
        _refused(found, refused)
    return None


def _refused(found: Findings, refused: LocalIOError) -> None:
    hint = refused.hint or "the disk may be failing: look at the kernel's log, and copy what can still be read"
    denied = isinstance(refused, LocalPermissionError)
    found.add(Severity.ERROR, UNREADABLE, f"{refused.message}: it was not checked; {hint}", denied=denied)


def _is_dense(scan: LogScan) -> bool:
    """Return True if each offset of a segment has a record."""
    return scan.records == max(0, scan.end_offset - scan.base_offset)
