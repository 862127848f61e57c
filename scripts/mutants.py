#!/usr/bin/env python
"""Drops one safety check at a time from a copy of the tree, to see a test object: ``scripts/mutants.py [part ...]``.

Each mutant names one line of one file, what stands there instead, and the tests that have to object. A line that is not
there exactly once "does not apply": the table has to follow the code. ``--list`` shows the table, ``--check`` only
whether every line is there, ``--quick`` leaves the slow selections out (simulation, sweeps, crash matrix, bucket).
Ends with 1 if a mutant survives or does not apply.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("tiered", "uploader", "pyspark_tiered", "tests", "scripts", "demo", "bench")
SECONDS = 900
"""Of one selection; a mutant that does not end is caught."""
MEMORY_BYTES = 4 << 30
"""What a folder in memory must have free."""


@dataclass(frozen=True)
class Mutant:
    """``new`` empty: an ``if`` never holds, any other line does nothing."""

    name: str
    file: str
    old: str
    tests: str
    new: str = ""

    @property
    def replacement(self) -> str:
        """The line that stands there instead."""
        return self.new or ("if False:" if self.old.startswith("if ") else "pass")


def of(tests: str, file: str, *lines: tuple[str, ...]) -> list[Mutant]:
    """Mutants of one file: a name, a line, and what replaces it."""
    return [Mutant(f"{file}: {line[0]}", file, line[1], tests, *line[2:]) for line in lines]


SLOW = ("tests/crash", "tests/sim", "tests/sweeps", "tests/damage")

FACADE = " ".join(
    f"tests/unit/facade/test_{name}.py"
    for name in ("believes_nobody", "sync_refusals", "store_faults", "sync_meets_others")
)
DAEMON = "tests/unit/tiering tests/unit/uploader"

HOT = [
    *of(
        "tests/unit/local/test_replace.py",
        "tiered/local/disk/files.py",
        ("replace without fsync", "self.sync(handle)"),
        (
            "one temporary name for all",
            'temporary = path.with_name(f"{path.name}.{os.getpid()}-{next(_TURN)}{TEMPORARY_SUFFIX}")',
            'temporary = path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")',
        ),
        ("a temporary file that stays behind", "self.unlink(temporary)"),
        (
            "a temporary file of another that is swept",
            ('if found is not None and found["name"].startswith(of) and not (but and found["name"].startswith(but)):'),
            "if found is not None:",
        ),
    ),
    *of(
        "tests/unit/local/test_files.py",
        "tiered/local/disk/files.py",
        ("replace without the fsync of its directory", "self.sync_directory(path.parent)"),
        ("a new directory whose name is not durable", "self.sync_directory(place.parent)"),
        ("small files without a limit", "if len(data) > MAX_SMALL_FILE_BYTES:"),
        ("a write that is cut short", "if more == 0:", "if more < 0:"),
    ),
    *of(
        "tests/unit/local/test_partition.py",
        "tiered/local/segment/active.py",
        ("flush without fsync of the log", "self._files.sync(self._handle())"),
    ),
    *of(
        "tests/crash/matrix/test_matrix.py",
        "tiered/local/segment/active.py",
        ("flush without fsync of aborted transactions", "self._files.sync(self._txn_handle)"),
    ),
    *of(
        "tests/unit/local/test_cases_segment.py",
        "tiered/local/segment/active.py",
        ("offsets too far from the base", "if not 0 <= batches[-1][1] - self.base_offset <= MAX_RELATIVE_OFFSET:"),
    ),
    *of(
        "tests/unit/local/test_side_files.py",
        "tiered/local/segment/active.py",
        ("entries of the transaction index that went", "if len(found) < expected:"),
    ),
    *of(
        "tests/unit/local/test_files.py",
        "tiered/local/segment/sealed.py",
        ("a reader uploads what is not durable", "files.sync(self._handle)"),
    ),
    *of(
        "tests/unit/local/test_partition.py",
        "tiered/local/segment/sealed.py",
        ("a short read is taken as it is", "if self._files.read_into(self._handle, buffer, position) < length:"),
    ),
    *of(
        "tests/unit/local/test_damage_rules.py",
        "tiered/local/segment/sealed.py",
        ("a sealed segment that lost its end", "if lost_end(self._files, log, self.base_offset, self.size_bytes):"),
    ),
    *of(
        "tests/unit/local/test_cleaner_cases.py",
        "tiered/local/segment/replacement.py",
        ("a copy that is not fsynced", "self._files.sync(handle)"),
    ),
    *of(
        "tests/unit/local/test_segment_copy.py",
        "tiered/local/segment/replacement.py",
        (
            "a copy whose offsets go back",
            "if not self.fits(header.last_offset) or header.last_offset < self._end:",
            "if not self.fits(header.last_offset):",
        ),
        (
            "a copy whose offsets do not fit its base",
            "if not self.fits(header.last_offset) or header.last_offset < self._end:",
            "if header.last_offset < self._end:",
        ),
    ),
    *of(
        "tests/unit/local/test_damage_rules.py",
        "tiered/local/segment/scan.py",
        ("a short read", "if self._files.read_into(self._handle, buffer, position) < length:"),
    ),
    *of(
        "tests/unit/local/test_damage_rules.py",
        "tiered/format/walk.py",
        ("a batch below the one before it", "if base < expected or last >= limit:", "if last >= limit:"),
        ("a batch beyond its segment", "if base < expected or last >= limit:", "if base < expected:"),
        ("a segment that does not end with a batch", "if self.position != end:"),
        ("a segment that ends below what was safe", "if self.expected < reach:"),
    ),
    *of(
        "tests/unit/local/test_scan.py",
        "tiered/format/walk.py",
        (
            "any bytes begin a batch",
            "if not MIN_BATCH_LENGTH <= length <= self._most_length or base < 0 or not 0 <= magic <= 2:",
        ),
        ("a batch shorter than its header", "if magic == 2 and length < _MIN_V2_LENGTH:"),
        (
            "a negative last offset",
            "if magic == 2 and _MIN_V2_LENGTH <= length <= most_length and base >= 0 <= delta:",
            "if magic == 2 and _MIN_V2_LENGTH <= length <= most_length and base >= 0:",
        ),
        ("offsets left out of a dense segment", "missing = base > exact >= 0", "missing = False"),
    ),
    *of(
        "tests/unit/local/test_index_trust.py",
        "tiered/local/segment/indexes.py",
        ("positions outside of the file", "if not 0 < position < size_bytes:"),
        ("an index whose last entry lies", "if log.header_at(position, size_bytes).last_offset != last_offset:"),
        (
            "a time index that ends too early",
            "if why is None and largest is not None and times.last_entry[0] != largest:",
        ),
        ("a time index that lies", "if timestamp != _time_at(log, offsets.lookup(offset)[1], offset, size_bytes):"),
    ),
    *of(
        "tests/unit/local/test_cases_recovery.py",
        "tiered/local/segment/indexes.py",
        ("offsets too far for an index", "if span.last_offset - base_offset > MAX_INT:"),
    ),
    *of(
        "tests/unit/local/test_cases_append.py",
        "tiered/local/partition/truncation.py",
        (
            "a cut below what the bucket holds",
            "if upload is not None and offset < upload.end_offset and not below_uploaded:",
        ),
    ),
    *of(
        "tests/unit/local/test_producers_recovery.py::test_a_cut_makes_the_aborted_transactions_that_stay_durable",
        "tiered/local/partition/truncation.py",
        (
            "the aborted transactions of a cut segment",
            "self._flusher.sync_txn_index(directory / log_name(base))  # whoever wrote it has closed it without",
        ),
    ),
    *of(
        "tests/crash/matrix/test_matrix.py",
        "tiered/local/partition/truncation.py",
        (
            "segments behind a cut that come back",
            "self._files.sync_directory(directory)  # else a power cut may bring them back behind a hole",
        ),
        ("a cut that is not fsynced", "files.sync(handle)"),
    ),
    *of(
        "tests/unit/local/test_producers_recovery.py::test_power_goes",
        "tiered/local/partition/flusher.py",
        ("sealed segments are not fsynced", "segment.sync()"),
    ),
    *of(
        "tests/unit/local/test_partition.py",
        "tiered/local/partition/flusher.py",
        ("the active segment is not fsynced", "active.sync()"),
    ),
    *of(
        "tests/unit/local/test_recovered_bytes.py",
        "tiered/local/partition/flusher.py",
        ("a closing file is not fsynced", "self._files.sync(handle)"),
    ),
    *of(
        "tests/unit/local/test_partition.py::test_a_cut_makes_the_sealed_segments_that_stay_durable",
        "tiered/local/partition/truncation.py",
        ("sealed segments that stay, not fsynced", "self._sync_closing()"),
    ),
    *of(
        "tests/unit/local/test_partition.py::test_segments_that_are_not_flushed_stay",
        "tiered/local/partition/retention.py",
        (
            "segments that are not flushed may go",
            "if segment.end_offset > limit or segment.end_offset > flushed:",
            "if segment.end_offset > limit:",
        ),
    ),
    *of(
        "tests/crash/matrix/test_matrix.py",
        "tiered/local/partition/retention.py",
        ("removed segments that come back", "self._files.sync_directory(segments.directory)"),
    ),
    *of(
        "tests/unit/local/test_cases_retention.py",
        "tiered/local/partition/retention.py",
        (
            "segments above the limit may go",
            "if segment.end_offset > limit or segment.end_offset > flushed:",
            "if segment.end_offset > flushed:",
        ),
        ("delete_records of a compacted topic", "if not segments.config.deletes:"),
    ),
    *of(
        "tests/unit/local/test_cases_append.py",
        "tiered/local/partition/appender.py",
        ("batches larger than a segment", "if len(buffer) > self._segments.active.segment_bytes:"),
    ),
    *of(
        "tests/unit/local/test_cases_append.py",
        "tiered/local/partition/replica.py",
        ("a follower's batch below the end", "if first < end:"),
    ),
    *of(
        "tests/unit/local/test_partition.py",
        "tiered/local/partition/leadership.py",
        ("a leader epoch that goes back", "if epoch <= latest:"),
    ),
    *of(
        "tests/golden/test_foreign.py",
        "tiered/local/partition/incoming.py",
        ("a count that is not that of the records", "if not records or count != header.last_offset_delta + 1:"),
    ),
    *of(
        "tests/unit/local/test_cases_append.py",
        "tiered/local/partition/incoming.py",
        ("records larger than allowed", "if len(buffer) > rules.max_bytes:"),
        ("control batches of clients", "if header.is_control:"),
        ("batches of one call out of order", "if headers and header.base_offset <= headers[-1].last_offset:"),
    ),
    *of(
        "tests/unit/local/test_recovered_bytes.py",
        "tiered/local/recovery/recovery.py",
        ("a recovered file is not fsynced", "self._files.sync(handle)"),
        ("torn bytes are kept, not fsynced", "self._files.sync(target)"),
    ),
    *of(
        "tests/unit/local/test_known_prefix.py",
        "tiered/local/recovery/rebuilding.py",
        (
            "an index entry of another batch",
            "if indexes.position_of(header.last_offset) != position or header.last_offset >= recovery_point:",
            "if header.last_offset >= recovery_point:",
        ),
        (
            "an index entry of a batch behind the recovery point",
            "if indexes.position_of(header.last_offset) != position or header.last_offset >= recovery_point:",
            "if indexes.position_of(header.last_offset) != position:",
        ),
        (
            "a time entry of another batch",
            "if reached is None or (reached[1].last_offset, reached[1].max_timestamp) != (at, timestamp):",
            "if reached is None or reached[1].max_timestamp != timestamp:",
        ),
        (
            "a time entry of another time",
            "if reached is None or (reached[1].last_offset, reached[1].max_timestamp) != (at, timestamp):",
            "if reached is None or reached[1].last_offset != at:",
        ),
        ("aborts without their index", "if producers and any(True for _ in abort_markers(log, position)):"),
    ),
    *of(
        "tests/unit/local/test_directories.py",
        "tiered/local/directory/moving.py",
        ("a moved file is not fsynced", "files.sync(writing)"),
        (
            "a move whose name is not durable",
            "files.sync_directory(target.directory)  # before the mark goes: a copy without it is thrown away",
        ),
    ),
    *of(
        "tests/unit/local/test_unclean_open.py",
        "tiered/local/disk/checkpoints.py",
        ("a clean mark that comes back", "files.sync_directory(directory)"),
    ),
    *of(
        "tests/unit/local/test_plans.py",
        "tiered/plan/retention.py",
        (
            "local bytes go before the bucket has them",
            "if reason is None or (committed_end is not None and segment.end_offset > committed_end):",
            "if reason is None:",
        ),
    ),
    *of(
        "tests/unit/producers/test_stable_offset.py",
        "tiered/plan/producer_rules.py",
        ("sequences that go on too high", "if lowest is not None and batch.base_sequence > lowest:"),
        ("records outside of their transaction", "if draft.in_txn and not batch.transactional:"),
        ("transactions that were not begun", "if not verification.accepts(batch.producer_id, guard):"),
    ),
    *of(
        "tests/unit/format/test_batch.py::test_a_crc_mismatch_names_the_offset_and_both_values",
        "tiered/format/batch.py",
        ("CRCs are not compared", "if crc != header.crc:"),
    ),
    *of(
        "tests/unit/format/test_batch.py::test_more_records_than_offsets_are_refused",
        "tiered/format/batch.py",
        ("more records than offsets", "if header.records_count > header.last_offset_delta + 1:"),
    ),
    *of(
        "tests/unit/format/test_batch.py::test_a_batch_beyond_the_formats_size_is_refused",
        "tiered/format/batch.py",
        ("batches without a limit", "if size > MAX_BATCH_BYTES:"),
    ),
    *of(
        "tests/unit/local/test_damage_rules.py",
        "tiered/local/segment/seal.py",
        (
            "a partial tail is not measured",
            (
                "for span, view in log.segment(0, size_bytes, offsets, dense=dense, reach=offsets.next if dense "
                "else -1):"
            ),
            "for span, view in log.batches(0, size_bytes):",
        ),
        (
            "a note that rotted is believed",
            "if CHECK in value and value.pop(CHECK) != _check_of(value):",
            "if value.pop(CHECK, None) is Ellipsis:",
        ),
    ),
    *of(
        "tests/unit/local/test_scan.py",
        "tiered/local/segment/seal.py",
        (
            "a segment is measured without its CRCs",
            "header = log.verify(span, view)",
            "header = log.header(view, span.position)",
        ),
        (
            "a note of another size is believed",
            "return stats if stats is not None and stats.size_bytes == size_bytes else None",
            "return stats",
        ),
    ),
    *of(
        "tests/unit/local/test_batch_order.py",
        "tiered/local/recovery/order.py",
        ("offsets that go back", "if base < self.expected:"),
        (
            "a batch that follows the one before the last",
            "if self._before is None or base < self._before[1]:",
            "if True:",
        ),
        (
            "a batch beyond its segment",
            "if last >= self._offsets.next or self._is_far(last) or self._is_hole(first):",
            "if self._is_far(last) or self._is_hole(first):",
        ),
        (
            "a batch too far from the base",
            "if last >= self._offsets.next or self._is_far(last) or self._is_hole(first):",
            "if last >= self._offsets.next or self._is_hole(first):",
        ),
        (
            "a hole where none can be",
            "if last >= self._offsets.next or self._is_far(last) or self._is_hole(first):",
            "if last >= self._offsets.next or self._is_far(last):",
        ),
        (
            "a hole across the recovery point",
            "return self._dense or self.expected < self._promised <= base",
            "return self._dense",
        ),
    ),
    *of(
        "tests/unit/local/test_claims_file.py",
        "tiered/local/disk/files.py",
        ("a claim that is not fsynced", "self.sync(file)"),
        ("a torn claim stays below the next", "if self.size(file) > position:"),
    ),
    *of(
        "tests/unit/local/test_claims_file.py",
        "tiered/local/disk/claims.py",
        ("the CRC of a line", 'if line[:_PAYLOAD_AT] != expected or line[-1:] != b"}":', 'if line[-1:] != b"}":'),
        ("a damaged line among others", "if number + 1 < len(lines):"),
        (
            "a line in doubt is written behind",
            (
                "if self._suspect or not self._end or self._end + len(line) > max(REWRITE_BYTES, 2 * "
                "self._compact_bytes):"
            ),
            "if not self._end or self._end + len(line) > max(REWRITE_BYTES, 2 * self._compact_bytes):",
        ),
        (
            "a file that grows without end",
            (
                "if self._suspect or not self._end or self._end + len(line) > max(REWRITE_BYTES, 2 * "
                "self._compact_bytes):"
            ),
            "if self._suspect or not self._end:",
        ),
        (
            "another file of that name",
            ("if not self._header or self._end > size or self._bytes(handle, 0, len(self._header)) != self._header:"),
            "if not self._header or self._end > size:",
        ),
        ("a version that nobody knows", 'if not isinstance(value, dict) or value.get("version") != 1:'),
        ("an error of the write is swallowed", "if mine.error is not None:"),
    ),
    *of(
        "tests/unit/local/test_side_files_at_open.py",
        "tiered/local/segment/factory.py",
        (
            "aborted transactions without a note are not asked of the log",
            "if not noted and known is None and not self._may_have_aborts(tail, path):",
            "if not noted:",
        ),
        ("aborted transactions that nobody can tell", "active.settle_aborted(error)"),
    ),
    *of(
        "tests/unit/local/test_side_files_at_open.py",
        "tiered/local/partition/producers.py",
        (
            "a snapshot before which nothing is known",
            "if known and segment.base_offset in points and segment.base_offset >= state.map_end_offset:",
            "if segment.base_offset in points and segment.base_offset >= state.map_end_offset:",
        ),
    ),
    *of(
        "tests/unit/local/test_side_files_at_open.py",
        "tiered/local/partition/opening.py",
        ("producers are loaded as if there were no bucket", "writer.set_uploaded(upload)"),
    ),
    *of(
        "tests/unit/local/test_side_files_at_open.py",
        "tiered/local/partition/foreign.py",
        ("an index that is lost under a reader", "if missing != late:"),
    ),
    *of(
        "tests/unit/local/test_side_files.py",
        "tiered/local/segment/side_files.py",
        (
            "a transaction index that differs from the note",
            "if len(found) == self._noted.aborted * TXN_ENTRY_BYTES and crc32c(found) == noted_crc:",
            "if True:",
        ),
        (
            "a snapshot that differs from the note",
            "if crc32c(NO_PRODUCERS if found is None else found) == noted_crc:",
            "if True:",
        ),
        ("what the log alone cannot tell", "if judged.flaw is not None and not judged.known:"),
        (
            "a snapshot that should be there",
            "expected = noted_crc is not None or bool(snapshot_offsets(self._files, directory))",
            "expected = False",
        ),
    ),
    *of(
        "tests/unit/local/test_side_files.py",
        "tiered/local/segment/side_files.py",
        (
            "the CRC of a batch that is replayed",
            "header = log.verify(span, view)",
            "header = log.header(view, span.position)",
        ),
        (
            "a batch that is replayed and stands elsewhere",
            "for span, view in log.segment(0, log.size() if size_bytes < 0 else size_bytes, offsets):",
            "for span, view in log.batches(0, log.size() if size_bytes < 0 else size_bytes):",
        ),
        (
            "a beginning that nobody knows",
            "follower = Follower(known, whole=known is not None or plain or first == 0)",
            "follower = Follower(known, whole=True)",
        ),
    ),
    *of(
        "tests/unit/local/test_side_files.py",
        "tiered/plan/side_files.py",
        ("an entry without a marker", "if known is None and marker not in orphans:"),
        ("an entry that begins too late", "if known is not None and entry.first_offset > known.first_offset:"),
        ("a marker without an entry", "if missing:"),
        ("a marker of which nothing is known", "if orphans and not followed.whole:"),
    ),
    *of(
        "tests/unit/plan/test_side_files.py",
        "tiered/plan/side_files.py",
        ("an open transaction that a snapshot lacks", "if producer_id not in noted:"),
        ("an open transaction that a snapshot begins too late", "if noted[producer_id] > first:"),
        ("a decided transaction that a snapshot has open", "if producer_id not in told and marker > first:"),
        (
            "a transaction index that cannot be known",
            "known = followed.whole or not followed.orphans or crc32c(told) == noted_crc",
            "known = True",
        ),
        ("a snapshot that cannot be known", "known = followed.whole or crc32c(told) == noted_crc", "known = True"),
    ),
    *of(
        "tests/unit/facade/test_rejoin.py",
        "tiered/local/partition/condition.py",
        ("an append below what the bucket holds", "if self.upload is not None and end < self.upload.end_offset:"),
    ),
    *of(
        "tests/unit/local/test_partition.py",
        "tiered/local/partition/condition.py",
        ("an append to a fenced partition", "if fenced_too and self.upload is not None and self.upload.fenced:"),
        ("an append to a disk that failed", "if self.offline is not None:"),
    ),
    *of(
        "tests/unit/facade/test_out_of_service.py",
        "tiered/local/directory/loading.py",
        ("a partition out of service is opened", "if tp in found.broken:"),
    ),
    *of(
        "tests/unit/facade/test_out_of_service.py",
        "tiered/local/directory/manager.py",
        ("a partition out of service is read", "if broken is not None:"),
        (
            "a clean mark over a partition that nobody looked at",
            "if settled and not self.roster.broken:",
            "if settled:",
        ),
    ),
    *of(
        "tests/unit/facade/test_out_of_service.py",
        "tiered/local/disk/volume.py",
        ("an unreadable partition is not told", "broken[tp] = error"),
    ),
    *of(
        "tests/unit/format/test_batch.py",
        "tiered/format/_kernels.py",
        ("a buffer of wider items", "if view.ndim != 1 or view.format not in _BYTE_FORMATS:", "if view.ndim != 1:"),
        (
            "a buffer of several dimensions",
            "if view.ndim != 1 or view.format not in _BYTE_FORMATS:",
            "if view.format not in _BYTE_FORMATS:",
        ),
    ),
    *of(
        "tests/unit/format/test_codecs.py",
        "tiered/format/codecs.py",
        ("plain data without a limit", "if len(data) > max_bytes:"),
    ),
    *of(
        "tests/unit/format/test_codecs.py",
        "tiered/format/gzip_members.py",
        ("data without a limit", "if size > max_bytes:"),
        (
            "small data without a limit",
            "return piece if stream.eof and not stream.unused_data and len(piece) <= max_bytes else None",
            "return piece if stream.eof and not stream.unused_data else None",
        ),
        ("the checksum of a member", "if _TRAILER.unpack_from(raw, position) != (crc, size - before & 0xFFFF_FFFF):"),
    ),
    *of(
        "tests/unit/format/test_codecs.py",
        "tiered/format/zstd_frame.py",
        ("data without a limit", "if size > max_bytes:"),
        (
            "a bomb goes in at once",
            "step = len(view) if _bound(view) <= max_bytes else _CAUTIOUS_STEP_BYTES",
            "step = len(view)",
        ),
        ("a window without a limit", "if parameters.window_size > MAX_WINDOW_BYTES:"),
    ),
    *of(
        "tests/unit/format/test_codecs.py",
        "tiered/format/lz4_frame.py",
        ("data without a limit", "if len(out) > max_bytes:"),
    ),
    *of(
        "tests/unit/format/test_codecs.py",
        "tiered/format/snappy.py",
        ("data without a limit", "if claimed > budget:"),
        ("a claim that no block can hold", "if claimed > len(block) * _MAX_EXPANSION:"),
    ),
]

COLD = [
    *of(
        FACADE,
        "tiered/tiering/run.py",
        ("a gap between bucket and disk", "if p.phase is Phase.CLAIMED and p.committed not in p.works and not late:"),
    ),
    *of(
        FACADE,
        "tiered/tiering/run.py",
        ("a refused partition is not told", "if refused:"),
    ),
    *of(
        FACADE,
        "tiered/tiering/steps.py",
        (
            "no root read-back before local deletion",
            "return (yield from catalog.read_back(rows))",
            "return catalog.root",
        ),
        (
            "another process of the volume is not noticed",
            'return catalog if catalog.holds_token(self._disk.claims.of(tp).token or "") else None',
            "return catalog",
        ),
        (
            "a commit in doubt is gone on from",
            "if catalog is None or not catalog.claim_epoch or catalog.in_doubt or tp in self._unseen:",
            "if catalog is None or not catalog.claim_epoch or tp in self._unseen:",
        ),
        (
            "a commit that was not read back is gone on from",
            "if catalog is None or not catalog.claim_epoch or catalog.in_doubt or tp in self._unseen:",
            "if catalog is None or not catalog.claim_epoch or catalog.in_doubt:",
        ),
        ("another topic of that name", "if entry.topic_id != info.topic_id:"),
    ),
    *of(
        "tests/unit/facade/test_lost.py",
        "tiered/tiering/steps.py",
        ("a bucket that was emptied", "if (yield from load_topic(topic)) is None:"),
        (
            "what the disk has seen is not told to the catalog",
            "catalog.known = yield Blocking(lambda: known_of(disk.uploads().get(tp), disk.claims.of(tp), made=made))",
            "yield Blocking(lambda: made)",
        ),
    ),
    *of(
        "tests/unit/facade/test_claims.py",
        "tiered/tiering/steps.py",
        (
            "the grant of a volume that this directory once was",
            "if root is None or not is_own_claim(root, proof) or held_ids(proof.token)[-1] != root.writer.token:",
            "if root is None or held_ids(proof.token)[-1] != root.writer.token:",
        ),
        (
            "the grant before a newer one",
            "if root is None or not is_own_claim(root, proof) or held_ids(proof.token)[-1] != root.writer.token:",
            "if root is None or not is_own_claim(root, proof):",
        ),
    ),
    *of(
        "tests/unit/facade/test_claims.py",
        "tiered/tiering/disk.py",
        (
            "a claim that comes while a grant is taken",
            "log.begin_under(granted.token, granted.claim_epoch)",
            "log.begin_under(self.claims.of(tp).token, granted.claim_epoch)",
        ),
    ),
    *of(
        "tests/unit/catalog/test_commits.py",
        "tiered/remote/catalog.py",
        ("how an epoch ended is guessed", "if sealed is None:", "if sealed is None and False:"),
        ("a root that vanished at a commit", "if settled.status is PutStatus.ABSENT:"),
        ("a fenced process goes on", "if self._fenced:"),
        ("a commit in doubt goes on", "if self._doubt:"),
        ("a clock far before the store's", "if lead_ms > self._limits.max_clock_lead_ms:"),
    ),
    *of(
        "tests/unit/catalog/test_claims.py",
        "tiered/remote/catalog.py",
        ("a writer without a proof", "if role is Role.WRITER and (volume is None or self._persist is None):"),
    ),
    *of(
        "tests/unit/tiering/test_tiering_beginning.py",
        "tiered/remote/catalog.py",
        (
            "a log that got its first records is claimed as empty",
            "if self._is_empty is not None and not self._is_empty():",
        ),
    ),
    *of(
        "tests/unit/tiering/test_tiering_beginning.py",
        "tiered/local/partition/beginning.py",
        ("a first record where the bucket may go on", "if why:"),
        (
            "a first record beside a claim that came meanwhile",
            "if not follows and self.token() != token:",
        ),
    ),
    *of(
        "tests/unit/catalog/test_topics.py",
        "tiered/remote/roots.py",
        (
            "a 412 is taken for a root",
            "missing = [partition for partition, root in roots.items() if root is None]",
            "missing = []",
        ),
    ),
    *of(
        "tests/unit/catalog/test_claims.py",
        "tiered/remote/catalog.py",
        ("the proof is not kept before the PUT", "yield Blocking(lambda: persist(token, last_append))", "yield Now()"),
        (
            "the token is not kept before the claim",
            "hold(since(volume.token, writer.token), token),",
            "since(volume.token, writer.token),",
        ),
        (
            "the append id is not kept before the commit",
            "yield from self._keep(self._kept.token, hold(self._kept.last_append, append_id))",
            "yield from self._keep(self._kept.token, self._kept.last_append)",
        ),
        (
            "ids that may have landed are dropped",
            "hold(since(volume.last_append, writer.last_append), writer.last_append),",
            "writer.last_append,",
        ),
        ("a claim makes a root that was there", "if volume is not None and (volume.token or volume.restored_from):"),
    ),
    *of(
        "tests/unit/catalog/test_roots.py",
        "tiered/remote/catalog.py",
        (
            "a commit of a newer release's root",
            "need_writable(planned)  # before anything is noted of a commit that must not be",
        ),
        ("a claim of a newer release's root", "need_writable(planned)"),
    ),
    *of(
        "tests/unit/catalog/test_commits.py",
        "tiered/remote/catalog.py",
        (
            "a PUT that is refused leaves no doubt",
            'self._doubt = f"commit {planned.commit.id} ({planned.commit.op}) was sent and is not settled"',
        ),
        ("a copy of this process under its claim", "elif state.last_commit != held.last_commit:", "elif False:"),
    ),
    *of(
        "tests/unit/remote/test_upload.py",
        "tiered/remote/upload.py",
        ("a segment of another partition", "if (descriptor.topic_id, descriptor.partition) != (topic_id, partition):"),
        ("stored objects are not verified", "if not (trusted and sent.etag and sent.crc32c == crc):"),
        ("a file of another size", "if source.size != descriptor.size_bytes:"),
        ("a file of another checksum", "if crc != descriptor.crc32c:"),
    ),
    *of(
        "tests/unit/catalog/test_commits.py",
        "tiered/remote/root_view.py",
        ("a row that the root lacks", "if flaw:"),
        ("a root that vanished", "if self.root is not None:"),
        ("invariants are not compared", "if violations:"),
    ),
    *of(
        "tests/unit/catalog/test_topics.py",
        "tiered/remote/root_view.py",
        (
            "a root that is downloaded without a limit",
            "return Get(key, if_none_match=if_none_match, max_bytes=MAX_OBJECT_BYTES)",
            "return Get(key, if_none_match=if_none_match)",
        ),
    ),
    *of(
        "tests/unit/catalog/test_roots.py",
        "tiered/remote/root_view.py",
        ("a root older than what was seen", "for older in self.known.contradictions(root):", "for older in ():"),
        (
            "an unchanged root is not held against what is known now",
            "self._check_known(unchanged)  # more may be known since it was read",
        ),
        ("a root that is absent and was known", "if not why:", "if True:"),
    ),
    *of(
        "tests/unit/remote/test_assembly.py",
        "tiered/remote/assembly.py",
        ("a batch beyond its segment", "if self._walk.position + size > self._row.size:"),
        ("a batch without a limit", "if size > MAX_BATCH_BYTES:"),
    ),
    *of(
        "tests/unit/remote/test_assembly.py",
        "tiered/remote/assembly.py",
        ("a message whose inside begins too early", "if header.base_offset < self.next_offset:"),
        ("bytes that end early", "if self._held_bytes or position != self._row.size:"),
        (
            "offsets left out of a dense segment",
            "elif self._dense and header.magic < 2 and header.base_offset > self.next_offset:",
            "elif False:",
        ),
        ("offsets left out at the end of a dense segment", "if self._dense and self.next_offset < self._row.next:"),
        (
            "a base offset beyond the end ends the read",
            "self.done, self._beyond = self._beyond, True",
            "self.done = True",
        ),
    ),
    *of(
        "tests/unit/remote/test_reader.py",
        "tiered/remote/assembly.py",
        (
            "the checksum of a whole segment",
            "if self._counted == self._row.size and self._crc != self._row.crc and not self._is_damaged(view):",
        ),
        ("a timestamp above the row's", "if header.max_timestamp > self._row.max_ts:"),
        ("the CRC of a batch", "if wanted and self._verify_crc:"),
    ),
    *of(
        "tests/unit/remote/test_wrong_indexes.py",
        "tiered/remote/assembly.py",
        ("an index that sends behind the offset", "if header.base_offset > self._start:"),
    ),
    *of(
        "tests/unit/remote/test_reader.py",
        "tiered/remote/fetch.py",
        ("an object that is gone", "if isinstance(found, Missing):"),
    ),
    *of(
        "tests/unit/remote/test_cases_remote.py",
        "tiered/remote/fetch.py",
        ("a short answer", "if len(found.data) != end - start or found.size != size:", "if found.size != size:"),
    ),
    *of(
        "tests/unit/remote/test_reader.py",
        "tiered/remote/fetch.py",
        (
            "an object of another size",
            "if len(found.data) != end - start or found.size != size:",
            "if len(found.data) != end - start:",
        ),
    ),
    *of(
        "tests/unit/store/test_puts.py",
        "tiered/store/puts.py",
        ("a stored object of another size", "if head.size != size:"),
        ("a stored object of another checksum", "if found != crc32c:"),
        ("an object that is absent after its PUT", "if not isinstance(head, Object):"),
    ),
    *of(
        "tests/unit/store/test_layers.py",
        "tiered/store/retry.py",
        (
            "conditional writes are repeated blindly",
            "_ONCE = (Put, CompleteUpload)",
            "_ONCE = (CompleteUpload,)",
        ),
    ),
    *of(
        "tests/unit/plan/test_visibility.py",
        "tiered/plan/visibility.py",
        (
            "an aborted transaction without an end",
            "return begun > 0 and header.base_offset < self._ends[header.producer_id][begun - 1]",
            "return begun > 0",
        ),
        (
            "an open transaction that holds nothing back",
            "return max(min(firsts, default=end), start)",
            "return max(end, start)",
        ),
    ),
    *of(
        "tests/unit/plan/test_intents.py",
        "tiered/plan/lifecycle.py",
        ("a deleted topic is claimed", "if root.state != STATE_OPEN:"),
        ("a volume that has lost records", "if volume.end_offset >= root.next_offset:", "if True:"),
    ),
    *of(
        "tests/unit/catalog/test_claims.py",
        "tiered/plan/lifecycle.py",
        ("an older copy of a volume, by its claim", "if writer.token not in held_ids(volume.token):"),
        (
            "an older copy of a volume, by its append",
            (
                'return "append" if writer.last_append and writer.last_append not in '
                'held_ids(volume.last_append) else ""'
            ),
            'return ""',
        ),
        (
            "ids that were not seen are dropped",
            "return HELD_SEPARATOR.join(ids[ids.index(seen) :]) if seen in ids else value",
            "return HELD_SEPARATOR.join(ids[ids.index(seen) :]) if seen in ids else seen",
        ),
        (
            "restored from a newer root",
            (
                "if restored is not None and restored.version <= root.version and volume.end_offset == "
                "restored.next_offset:"
            ),
            "if restored is not None and volume.end_offset == restored.next_offset:",
        ),
        (
            "restored, and then written to",
            (
                "if restored is not None and restored.version <= root.version and volume.end_offset == "
                "restored.next_offset:"
            ),
            "if restored is not None and restored.version <= root.version:",
        ),
        ("restored to another end", "if volume.end_offset == root.next_offset:", "if True:"),
    ),
    *of(
        "tests/unit/plan/test_intents.py",
        "tiered/plan/lifecycle.py",
        (
            "another volume's claim taken for its own",
            ("return root.writer.epoch > 0 and volume.volume_id == root.writer.volume and not _missing(root, volume)"),
            "return root.writer.epoch > 0 and not _missing(root, volume)",
        ),
        (
            "an earlier self's claim taken for its own",
            ("return root.writer.epoch > 0 and volume.volume_id == root.writer.volume and not _missing(root, volume)"),
            "return root.writer.epoch > 0 and volume.volume_id == root.writer.volume",
        ),
        (
            "ids behind the one seen are dropped",
            "return HELD_SEPARATOR.join(ids[ids.index(seen) :]) if seen in ids else value",
            "return seen if seen in ids else value",
        ),
        (
            "the id that was seen is forgotten",
            "return HELD_SEPARATOR.join(ids if len(ids) <= HELD_LIMIT else [ids[0], *ids[1 - HELD_LIMIT :]])",
            "return HELD_SEPARATOR.join(ids[-HELD_LIMIT:])",
        ),
    ),
    *of(
        "tests/unit/plan/test_intents.py",
        "tiered/plan/commit.py",
        ("the claim epoch is not compared", "if held.epoch != stamp.epoch:"),
    ),
    *of(
        "tests/unit/catalog/test_commits.py",
        "tiered/plan/commit.py",
        ("rows that do not join", "if flaw:"),
        ("an object named twice", "if len(uids) < len(rows) or holds_any(root.rows, uids):"),
    ),
    *of(
        "tests/unit/catalog/test_commits.py",
        "tiered/plan/rewrite.py",
        ("a trim beyond the end", "if self.offset > root.next_offset:"),
    ),
    *of(
        "tests/unit/paged/test_model.py",
        "tiered/plan/rewrite.py",
        ("a replacement of other rows", "if list(place.rows.slice(at, at + len(old))) != old:"),
        ("a replacement of what was trimmed", "if self.old[-1].next <= root.start_offset:"),
        (
            "rows that died before are listed again",
            "garbage.rows_of(edge, max(root.start_offset, edge.base), offset)",
            "garbage.rows_of(edge, edge.base, root.next_offset)",
        ),
        ("outputs below the start that nobody collects", "garbage.objects([*old, *dropped])", "garbage.objects(old)"),
        (
            "rewritten pages carry what is dead",
            "dead, rows = dead + rows.slice(0, below).tally, rows.slice(below)",
            "pass",
        ),
    ),
    *of(
        "tests/unit/paged/test_model.py",
        "tiered/plan/pages.py",
        ("a name that a page has already", "self.made = (*self.made, page)", "self.made = (page,)"),
        (
            "trash that is listed and lost",
            "oldest = single.slice(0, stamp.shape.trash_page)",
            "oldest = single.slice(0, stamp.shape.trash_page - 1)",
        ),
    ),
    *of(
        "tests/unit/paged/test_store.py",
        "tiered/remote/catalog.py",
        (
            "a root before its pages",
            "planned = yield from store_pages(planned, deadline)",
            "planned = replace(planned, unwritten=())",
        ),
    ),
    *of(
        "tests/unit/paged/test_store.py",
        "tiered/remote/pages.py",
        (
            "a damaged page that is believed",
            "content = verified_page(got.data, pointer, key=key, kind=kind)",
            "content = Rows.from_rows([])",
        ),
    ),
    *of(
        "tests/unit/root/test_root_bytes.py",
        "tiered/format/root.py",
        ("the root of another partition", "if expected is not None and expected != (topic_id, partition):"),
    ),
    *of(
        "tests/unit/root/test_root_bytes.py",
        "tiered/format/container.py",
        ("the checksum of a root", "if stored != computed:"),
        ("a root without a limit", "if len(data) > MAX_OBJECT_BYTES:"),
        ("a body larger than it says", "if zstandard.frame_content_size(body) != raw_len:"),
        ("a newer reader's root", "if type(needed) is int and needed > reader:  # before anything else is asked of it"),
    ),
    *of(
        "tests/unit/root/test_bundle.py",
        "tiered/format/bundle.py",
        ("the checksum of a section", "if computed != section.crc:"),
        ("the checksum of a bundle's head", "if stored != computed:"),
    ),
    *of(
        "tests/unit/restore/test_restore.py",
        "tiered/care/restore.py",
        ("a restored file is not fsynced", "yield Blocking(partial(files.sync, handle))"),
        (
            "the bundle of another segment",
            "if (bundle.descriptor.base_offset, bundle.descriptor.crc32c) != (self.row.base, self.row.crc):",
        ),
    ),
    *of(
        "tests/unit/restore/test_restore.py",
        "tiered/care/inspection.py",
        (
            "an object of another size",
            "if not isinstance(found, Object) or found.size != row.size or len(found.data) != whole_bytes:",
            "if not isinstance(found, Object) or len(found.data) != whole_bytes:",
        ),
    ),
    *of(
        "tests/unit/restore/test_restore.py",
        "tiered/care/restore.py",
        ("no look at the room on the disk", "if needed > free:"),
    ),
    *of(
        "tests/unit/facade/test_sync_refusals.py",
        "tiered/tiering/steps.py",
        ("a store that ignores conditions", "check_capabilities(found, self._url)", "pass"),
    ),
    *of(
        DAEMON,
        "tiered/tiering/steps.py",
        ("a claim of before", "if catalog.claim_epoch != claim_epoch:"),
        (
            "an upload that is not written down first",
            "journal.put(Entry(tp, self._role, claim_epoch, ref.base, plan.log_key, plan.idx_key))",
            "pass",
        ),
    ),
    *of(
        "tests/unit/uploader/test_uploader_parts.py",
        "tiered/tiering/journal.py",
        ("a journal that is not fsynced", "self._files.sync(self._handle)"),
    ),
    *of(
        "tests/unit/plan/test_known.py",
        "tiered/plan/known.py",
        ("an absent root that a disk has seen", "if self.by_disk:"),
    ),
    *of(
        "tests/unit/catalog/test_roots.py",
        "tiered/plan/known.py",
        (
            "an absent root that the registry vouches for",
            'return "the registry entry says that it was made with its topic" if self.made else ""',
            'return ""',
        ),
        (
            "a disk's proof is no witness",
            (
                "return bool(self.tokens) or max(self.version, self.start_offset, self.next_offset, "
                "self.writer_epoch) > 0"
            ),
            "return False",
        ),
        ("an end below what was seen", "if root.next_offset < self.next_offset:"),
        ("a start below what was seen", "if root.start_offset < self.start_offset:"),
        ("a version below the restored one", "if root.version < self.version:"),
        ("a claim below the disk's", "if root.writer.epoch < self.writer_epoch:"),
        ("the claim of another disk", "if same_claim and self.tokens and root.writer.token not in self.tokens:"),
    ),
    *of(
        "tests/unit/catalog/test_roots.py",
        "tiered/remote/roots.py",
        ("a root of a newer release is written", "if reason:"),
        ("every put of a root is asked", "need_writable(root)"),
        ("a root whose PUT is unknown counts as made", "elif result.status is not PutStatus.LANDED:", "elif False:"),
    ),
    *of(
        "tests/unit/catalog/test_roots.py",
        "tiered/remote/topics.py",
        (
            "the entry before the roots",
            "used = yield from _made(entry, range(partitions), registrant)",
            "used: list[Root] = []",
        ),
        (
            "a partition that grew has no root",
            "used = yield from _made(wanted, range(before, wanted.partitions), registrant)",
            "used: list[Root] = []",
        ),
        ("a root that was seen is made anew", "if roots[partition] is None:"),
        ("an entry that was lost is made anew", "if used and (yield from load_topic(name)) is None:"),
        ("an entry older than its roots", "if used and found.roots:"),
        (
            "an entry older than the disk",
            "check_entry(name, found, dict.fromkeys(registrant.seen, Known(writer_epoch=1)))",
        ),
        ("roots of a topic of before the rule are made over its objects", "yield from _never_there(found, ours)"),
        ("an entry vouches for roots that nobody made", "return len(ours) == len(absent)", "return True"),
        ("an entry that is gone, and the disk knows it", "if entry is None and seen:"),
        (
            "an entry with fewer partitions than the disk",
            "if entry is not None and entry.roots and seen and max(seen) >= entry.partitions:",
        ),
        (
            "an entry that is gone since it was seen",
            "if entry is None or entry.topic_id != seen.topic_id:",
            "if entry is not None and entry.topic_id != seen.topic_id:",
        ),
        (
            "an entry of another topic since it was seen",
            "if entry is None or entry.topic_id != seen.topic_id:",
            "if entry is None:",
        ),
        (
            "an entry older than the one that was seen",
            (
                "if entry.partitions < seen.partitions or entry.version < seen.version or (seen.roots and not "
                "entry.roots):"
            ),
        ),
    ),
    *of(
        "tests/unit/catalog/test_topics.py",
        "tiered/remote/topics.py",
        ("an entry without a limit", "return Get(key, max_bytes=MAX_ENTRY_BYTES)", "return Get(key)"),
        ("the entry of another topic, copied", "if TOPICS_PREFIX + name != key:"),
    ),
    *of(
        "tests/contract/test_stores.py",
        "tiered/store/base.py",
        ("an answer without a limit", "if size_bytes > self.max_bytes and size_bytes > self.body_limit:"),
    ),
    *of(
        "tests/contract/test_stores.py",
        "tiered/store/directory.py",
        ("an answer without a limit", "request.check_body(end - request.start)"),
    ),
    *of(
        "tests/contract/test_stores.py",
        "tiered/store/memory.py",
        ("an answer without a limit", "request.check_body(end - request.start)"),
    ),
    *of(
        "tests/unit/store/test_body_limit.py",
        "tiered/store/s3.py",
        ("an answer without a limit, by its length", 'request.check_body(response.get("ContentLength") or 0)'),
        ("an answer without a limit, as it comes", "request.check_body(size)"),
    ),
    *of(
        "tests/unit/store/test_body_limit.py",
        "tiered/store/aio_s3.py",
        ("an answer without a limit, by its length", 'request.check_body(response.get("ContentLength") or 0)'),
        ("an answer without a limit, as it comes", "request.check_body(size)"),
    ),
    *of(
        "tests/unit/sidecar",
        "tiered/tiering/sidecar.py",
        ("what is not flushed, too", "return min(points.get(tp, 0), marks.get(tp, 0))", "return marks.get(tp, 0)"),
        (
            "above the high watermark, too",
            "return min(points.get(tp, 0), marks.get(tp, 0))",
            "return points.get(tp, 0)",
        ),
        ("a gap passed over", "self._need_joint(tp, end, base)"),
        ("a log that ends below its links", "self._need_joint(tp, end, bases[-1])"),
        ("the log before the end", "files.rename(linking, ours / log_name(base))", "files.rename(linking, ours / 'x')"),
        (
            "an end without a segment before it",
            "while len(bases) > 1 and not self._size(folder, bases[-2]):",
            "while False:",
        ),
        (
            "what the bucket does not hold let go",
            "done = [base for base, after in itertools.pairwise(bases) if after <= committed]",
            "done = bases[:-1]",
        ),
        (
            "compacted ones, too",
            "if tp.topic in INTERNAL or (tp in cleaned and tp.topic not in self._compacted):",
            "if tp.topic in INTERNAL:",
        ),
        ("no limit", "if after > safe or held + size > self._held_bytes:", "if after > safe:"),
        (
            "another topic of the name",
            "if end is not None and read_topic_id(ours, self._files) != read_topic_id(theirs, self._files):",
        ),
        (
            "links as a log of their own",
            "return found if self._mirror.begun(tp) else Extent(found.local_start_offset, found.local_start_offset)",
            "return found",
        ),
    ),
    *of(
        "tests/unit/sidecar",
        "tiered/local/disk/lock.py",
        (
            "links opened for writing",
            "if self.path.name == LOCK_NAME and self._files.state(self.path.parent / SIDECAR_NAME) is not None:",
        ),
    ),
    *of(
        "tests/unit/store/test_guards.py",
        "tiered/store/s3_requests.py",
        (
            "no owner",
            'owner = {"ExpectedBucketOwner": self.expected_bucket_owner} if self.expected_bucket_owner else {}',
            "owner = {}",
        ),
        (
            "a multipart upload in the clear",
            "begin = {**place, **target.encryption(), **_multipart_checksum(), **_tagging(tags)}",
            "begin = {**place, **_multipart_checksum(), **_tagging(tags)}",
        ),
        (
            "a put in the clear",
            "return _put_call({**place, **target.encryption()}, request)",
            "return _put_call(place, request)",
        ),
    ),
    *of(
        "tests/unit/access/test_roles.py",
        "tiered/plan/access.py",
        (
            "a writer deletes",
            '_allow("Swap", ["s3:PutObject"], keys("root", "topic")),',
            '_allow("Swap", ["s3:PutObject", "s3:DeleteObject"], keys("root", "topic")),',
        ),
        (
            "a writer writes as a maintainer",
            'own = Role.MAINTAINER if role == "maintainer" else Role.WRITER',
            "own = None",
        ),
        ("all prefixes listed", 'return {"Condition": {operator: {"s3:prefix": value}}}', "return {}"),
    ),
    *of(
        "tests/unit/plan/test_maintenance.py",
        "tiered/plan/maintenance.py",
        ("merges of too few", "if sum(1 for row in group if row.size) < MERGE_LEAST_ROWS:"),
        ("a large row for every few small ones", "if 2 * group[largest].size > sum(row.size for row in group):"),
        (
            "what was just uploaded",
            "return row.size < self._small and row.size <= self._most and at_rest",
            "return True",
        ),
        (
            "trash before its grace",
            'return trash.where((columns["removed_version"] <= limit) & (columns["removed_ms"] <= now_ms - grace_ms))',
            'return trash.where(columns["removed_version"] <= limit)',
        ),
    ),
    *of(
        "tests/unit/plan/test_maintenance.py",
        "tiered/plan/retention.py",
        (
            "a compacted topic goes by time",
            "elif retention_ms >= 0 and _newest_ms(row, stored_ms) <= expired:",
            "elif config.retention_ms >= 0 and _newest_ms(row, stored_ms) <= now_ms - config.retention_ms:",
        ),
        (
            "a compacted topic goes by size",
            "elif retention_bytes >= 0 and excess > 0 and excess >= row.size:",
            "elif config.retention_bytes >= 0 and whole - config.retention_bytes >= row.size:",
        ),
        (
            "a wrong clock pins the bucket",
            "return min(row.max_ts, stored_ms.get(row.base, row.max_ts))",
            "return row.max_ts",
        ),
    ),
    *of(
        "tests/unit/remote/test_rewrites.py",
        "tiered/remote/rewrite.py",
        ("an input with more than its offsets", "if taken != row.size:"),
    ),
    *of(
        "tests/unit/remote/test_rewrites.py",
        "tiered/remote/merge.py",
        ("parts of what failed", "yield from output.abandon()"),
    ),
    *of(
        "tests/unit/remote/test_rewrites.py",
        "tiered/remote/compact.py",
        (
            "the newest producers go with a hole",
            "ends = not output.written[0] and rows[-1].next == self._snapshot.next_offset",
            "ends = False",
        ),
    ),
    *of(
        "tests/property/test_remote_compaction.py",
        "tiered/remote/compact.py",
        ("transactions that were aborted", "txns = kept.take_aborted()", "txns = ()"),
        (
            "a horizon from another clock",
            "now_ms=self._now_ms,",
            "now_ms=0,",
        ),
    ),
    *of(
        "tests/unit/remote/test_maintain.py",
        "tiered/remote/maintain.py",
        ("an object that was lost", "yield from self._need_superseded(gone)"),
        (
            "when an object of the future was stored",
            "stored[found.pinned.base] = head.last_modified_ms if isinstance(head, Object) else now_ms",
            "stored[found.pinned.base] = now_ms",
        ),
        (
            "the clean end is forgotten",
            "cleaned = max((entry.end_offset for entry in snapshot.root.cleaned), default=None)",
            "cleaned = None",
        ),
    ),
    *of(
        "tests/unit/paged/test_collect.py",
        "tiered/remote/collect.py",
        ("no floor", "root = yield from self._catalog.commit(GcFloorIntent(before.version))", "root = before"),
        (
            "pins hold nothing",
            "due = self._due(root, floor if pins.lowest is None else min(floor, pins.lowest), pins.date_ms)",
            "due = self._due(root, floor, pins.date_ms)",
        ),
        ("a pin holds for ever", 'if kind == "pin/" and date_ms - entry.last_modified_ms > PIN_MS:'),
        ("a key that was refused is forgotten", "self.kept |= {number for key, number in group if key in refused}"),
        ("a page goes before what it names", "work.needed.add((key, number))"),
        ("a right that is missing", "if ACCESS_DENIED in why:"),
        (
            "live rows of a page that is partly dead",
            "yield from work.add(_row_keys(root, content.where((ends > entry.base) & (ends <= entry.end))), number)",
            "yield from work.add(_row_keys(root, content), number)",
        ),
    ),
    *of(
        "tests/unit/paged/test_sweep.py",
        "tiered/remote/sweep.py",
        ("an epoch that may still commit", "if name.epoch >= root.roles[name.role.value].epoch:"),
        ("a young object", "elif date_ms - entry.last_modified_ms >= ORPHAN_MS:", "else:"),
        ("what waits in the trash", "yield from _drop_trash(root, entry, candidates)"),
        ("pages of inner pages", "_drop(candidates, children)"),
    ),
]


def mutated(text: str, mutant: Mutant) -> str | None:
    """The file with the other line; None if the line is not there exactly once."""
    lines = text.split("\n")
    places = [number for number, line in enumerate(lines) if line.strip() == mutant.old]
    if len(places) != 1:
        return None
    indent = lines[places[0]][: len(lines[places[0]]) - len(lines[places[0]].lstrip())]
    lines[places[0]] = indent + mutant.replacement
    return "\n".join(lines)


def tests_of(mutant: Mutant, tree: Path, *, quick: bool) -> list[str]:
    """Those of its selection whose files are there; one may be ``file::test``."""
    chosen = [name for name in mutant.tests.split() if (tree / name.partition("::")[0]).exists()]
    return [name for name in chosen if not quick or not name.startswith(SLOW)] or chosen


def object_to(tree: Path, tests: list[str]) -> bool:
    """Whether a test fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not servers", "-p", "no:cacheprovider", *tests]
    files = tree.parent / "files"
    files.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(files)}
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def run(mutants: list[Mutant], tree: Path, *, quick: bool = False) -> Iterator[tuple[Mutant, str]]:
    """Each with what became of it. A selection that fails without a mutant proves nothing."""
    sound: dict[str, bool] = {}
    for mutant in mutants:
        path = tree / mutant.file
        text = path.read_text() if path.exists() else ""
        other = mutated(text, mutant)
        if other is None:
            yield mutant, "does not apply"
            continue
        if mutant.tests not in sound:
            sound[mutant.tests] = not object_to(tree, tests_of(mutant, tree, quick=quick))
        if not sound[mutant.tests]:
            yield mutant, "its tests fail by themselves"
            continue
        path.write_text(other)
        caught = object_to(tree, tests_of(mutant, tree, quick=quick))
        path.write_text(text)
        yield mutant, "caught" if caught else "SURVIVED"


def memory() -> Path | None:
    """A folder without a disk behind it, if there is one with room: tests fsync, and no mutant needs a real fsync."""
    folder = Path("/dev/shm")  # noqa: S108  # a random name below it
    if not os.access(folder, os.W_OK) or shutil.disk_usage(folder).free < MEMORY_BYTES:
        return None
    return folder


def asked(arguments: list[str]) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Drop one safety check at a time, to see a test object.")
    parser.add_argument("part", nargs="*", help="only the mutants whose names hold every one of these")
    parser.add_argument("--list", action="store_true", help="show the table, run nothing")
    parser.add_argument("--check", action="store_true", help="show the lines that are not there, run nothing")
    parser.add_argument("--quick", action="store_true", help=f"leave out {', '.join(SLOW)}")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Prints one line each, then the sums."""
    wanted = asked(arguments)
    mutants = [mutant for mutant in (*HOT, *COLD) if all(part in mutant.name for part in wanted.part)]
    if wanted.list or wanted.check:
        gone = [mutant for mutant in mutants if mutated((ROOT / mutant.file).read_text(), mutant) is None]
        for mutant in mutants if wanted.list else gone:
            print(mutant.name, "(does not apply)" if mutant in gone else "")
        print(f"{len(HOT)} of the hot tier, {len(COLD)} of the cold one; {len(gone)} do not apply")
        return bool(gone)
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="tiered-mutants-", dir=memory()) as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        for folder in COPIED:
            shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy(file, tree)
        for mutant, fate in run(mutants, tree, quick=wanted.quick):
            counts[fate] = counts.get(fate, 0) + 1
            print(f"{time.strftime('%H:%M:%S')} {fate:12} {mutant.name}", flush=True)
    print(", ".join(f"{count} {fate}" for fate, count in sorted(counts.items())))
    return counts.get("caught", 0) != len(mutants)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
