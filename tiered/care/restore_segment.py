"""One segment from the bucket onto the disk: the ``.log`` byte for byte, the indexes from the bundle or rebuilt."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import UUID

from tiered.care.fetch import fetch_log
from tiered.care.inspection import Expectations, SideFileCheck, inspect_log
from tiered.errors import ConfigError, CorruptionError
from tiered.findings import Findings, Severity
from tiered.format.bundle import HEAD_BYTES, MAX_BUNDLE_BYTES, decode_bundle
from tiered.format.crc import crc32c
from tiered.format.keys import (
    FLAG_ABORTED_TXNS,
    index_key,
    index_name,
    log_name,
    segment_key,
    snapshot_name,
    time_index_name,
    txn_index_name,
)
from tiered.format.txn_index import TXN_ENTRY_BYTES
from tiered.local.disk.files import Files
from tiered.local.segment.indexes import rebuild_indexes, store_indexes
from tiered.local.segment.scan import LogFile
from tiered.local.segment.seal import SEAL_SUFFIX, SegmentStats, write_note
from tiered.local.segment.sealed import FileSource
from tiered.model import Row, SealedIndexes, TopicPartition
from tiered.plan.side_files import Judged
from tiered.store.base import Blocking, Get, Object, Steps, blocking

FETCH_ATTEMPTS = 2
"""A body that arrives damaged is fetched once more before the object is called damaged."""

INDEX_INTERVAL_BYTES = 4096
"""Interval of a rebuilt offset index, Kafka's default."""


class SegmentRestore:
    """Restores the segment of ``row`` into ``directory``."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        tp: TopicPartition,
        topic_id: UUID,
        row: Row,
        beside: SideFileCheck,
    ) -> None:
        self._beside = beside
        self._files = files
        self._directory = directory
        self._tp = tp
        self._row = row
        self._key = segment_key(topic_id, tp.partition, row)
        self._index_key = index_key(topic_id, tp.partition, row)
        self._path = directory / log_name(row.base)

    def run(self) -> Steps[list[str]]:
        """Fetches, checks and writes everything; gives what had to be rebuilt. Raises ``CorruptionError``."""
        yield from self._fetch_log()
        indexes, why = yield from self._bundle()
        return (yield from blocking(partial(self._settle, indexes, why)))

    def _settle(self, indexes: SealedIndexes | None, why: str) -> list[str]:
        """Checks what is on disk now, and writes what stands beside it."""
        findings = Findings(self._key)
        self._beside.begin(self._row.base)
        with closing(FileSource(self._files, self._path, self._row.size, sync=False)) as source:
            inspect_log(
                source,
                self._row.base,
                findings,
                Expectations(),
                indexes=indexes,
                follower=self._beside.follower,
            )
        damage = [item for item in findings.items if item.severity is Severity.ERROR]
        in_log = [item for item in damage if item.code.startswith("log_")]
        if in_log:
            # The CRC of the file is what was sealed: it was uploaded like this.
            raise CorruptionError(
                f"{self._tp}: {self._key}: {in_log[0].message}",
                path_or_key=self._key,
                position=in_log[0].position,
                offset=in_log[0].offset,
                hint="restore the other partitions, or run check --read-data for the whole picture",
            )
        notes: list[str] = []
        if damage or indexes is None:
            why = damage[0].message if damage else why
            notes.append(f"{self._tp}: indexes of segment {self._row.base} were rebuilt from its .log: {why}")
            self._rebuild()
        else:
            self._files.replace(self._directory / index_name(self._row.base), indexes.offset_index)
            self._files.replace(self._directory / time_index_name(self._row.base), indexes.time_index)
        notes += self._write_side_files(indexes)
        return notes

    def _fetch_log(self) -> Steps[None]:
        seen = -1
        for attempt in range(FETCH_ATTEMPTS):
            seen = yield from self._fetch_once(told=attempt == 0)
            if seen == self._row.crc:
                return
        raise CorruptionError(
            f"{self._tp}: {self._key} has CRC32C {seen:#010x}, the catalog says {self._row.crc:#010x}",
            path_or_key=self._key,
            offset=self._row.base,
            hint="the object is damaged: look for another version of it in the bucket, or restore newer segments only",
        )

    def _fetch_once(self, *, told: bool) -> Steps[int]:
        files, handle, position, checksum = self._files, -1, 0, 0

        def begin() -> None:
            nonlocal handle
            handle = files.open_write(self._path)
            files.truncate(handle, 0)

        def write(data: bytes) -> None:
            nonlocal position, checksum
            files.write_at(handle, data, position)
            position, checksum = position + len(data), crc32c(data, checksum)

        try:
            yield Blocking(begin)
            yield from fetch_log(self._tp, self._key, self._row, write, told=told)
            yield Blocking(partial(files.sync, handle))
        finally:
            if handle >= 0:
                files.close(handle)
        return checksum

    def _bundle(self) -> Steps[tuple[SealedIndexes | None, str]]:
        """The bundle's indexes, or None and why there are none to be used."""
        if self._row.idx_len > MAX_BUNDLE_BYTES:
            return None, "the bundle is too large"
        try:
            found = yield Get(self._index_key, max_bytes=max(self._row.idx_len, HEAD_BYTES))
            if not isinstance(found, Object):
                return None, "the index bundle is gone"
            bundle = decode_bundle(found.data, key=self._index_key)
        except (CorruptionError, ConfigError) as damage:
            return None, damage.message
        if (bundle.descriptor.base_offset, bundle.descriptor.crc32c) != (self._row.base, self._row.crc):
            return None, "the index bundle is that of another segment"
        return bundle.indexes, ""

    def _rebuild(self) -> None:
        with LogFile(self._files, self._path) as log:
            rebuilt = rebuild_indexes(log, self._row.base, self._row.size, INDEX_INTERVAL_BYTES)
        store_indexes(self._files, self._directory, self._row.base, rebuilt)

    def _write_side_files(self, indexes: SealedIndexes | None) -> list[str]:
        """Transaction index and producer snapshot, those of the bundle or what the log tells; and the note."""
        row = self._row
        txn_index = indexes.txn_index if indexes is not None else b""
        snapshot = (indexes.producer_snapshot or None) if indexes is not None else None
        lost = indexes is None
        txns, producers = self._beside.compare(row.base, row.next, txn_index, snapshot, expected=lost)
        notes: list[str] = []
        if not txns.known and not lost:
            txns = Judged(txn_index)  # what came before is not restored: the bundle knew it
        if txns.flaw is not None or (lost and row.flags & FLAG_ABORTED_TXNS):
            notes.append(
                f"{self._tp}: the transaction index of segment {row.base} was rebuilt from its .log"
                if txns.known
                else f"{self._tp}: segment {row.base} has lost its transaction index, and what came before it is not "
                "restored: read_committed raises CorruptionError there; restore the older segments, too"
            )
        if producers.flaw is not None and producers.data:
            notes.append(f"{self._tp}: the producer snapshot at offset {row.next} was rebuilt from the .log")
        if txns.data:
            self._files.replace(self._directory / txn_index_name(row.base), txns.data)
        if producers.data:
            self._files.replace(self._directory / snapshot_name(row.next), producers.data)
        stats = SegmentStats(row.size, row.crc, row.records, row.min_ts, row.max_ts, row.leader_epoch)
        if txns.known:
            stats.aborted, stats.txn_crc = len(txns.data) // TXN_ENTRY_BYTES, crc32c(txns.data)
        write_note(self._files, self._path.with_suffix(SEAL_SUFFIX), stats)
        return notes
