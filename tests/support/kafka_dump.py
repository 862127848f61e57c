"""Kafka's own dump tool (``kafka-dump-log``, version 4.1), word for word, over what our dump finds in the files.

An oracle: what it prints of a file is compared with what Kafka's tool prints of the same file. Text is Kafka's too:
bytes that are not UTF-8 become U+FFFD exactly where Java puts them, and nothing is escaped. Indexes are compared as
Kafka's tool compares them: the batch at an entry's position ends at the entry's offset; a time entry names the last
offset of a batch whose largest timestamp is the entry's; timestamps rise.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tiered.check.inspection import batches
from tiered.errors import CorruptionError
from tiered.format.batch import HEADER_BYTES, BatchHeader, ControlType, control_type, decode_records, read_header
from tiered.format.batch_scanner import MAX_IGNORED_TAIL_BYTES, hop
from tiered.format.control import coordinator_epoch
from tiered.format.kernels import Record
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot
from tiered.format.segment_indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex, decode_txns
from tiered.inspect.items import (
    BatchItem,
    BatchWindow,
    Content,
    RecordItem,
    Tail,
    codec_word,
    log_items,
    record_items,
    record_sequence,
    time_type,
)
from tiered.inspect.small_files import base_of, first_sequence, suffix_of
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import AbortedTxn, ByteSource, Headers

BOOTSTRAP_NAME = "bootstrap.checkpoint"
_SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()

CONTROLLER_RECORDS = {
    ControlType.LEADER_CHANGE: "LeaderChange:",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlType.KRAFT_VERSION: "KRaftVersion",
    ControlType.KRAFT_VOTERS: "KRaftVoters",
}

Pairs = dict[str, list[tuple[int, int]]]


def print_as_kafka(*arguments: str) -> tuple[int, str, str]:
    """Run the tool. Return the exit code and both streams."""
    run = _Run(*arguments)
    for name in run.names:
        run.file(name)
    run.err += run.mismatches.lines()
    failed = run.damage or run.mismatches.errors
    return 13 if failed else 0, "".join(f"{line}\n" for line in run.out), "".join(f"{line}\n" for line in run.err)


class _Run:
    def __init__(self, *arguments: str) -> None:
        self.names: list[str] = []
        self.out: list[str] = []
        self.err: list[str] = []
        self.mismatches = Mismatches()
        self.damage = 0
        self._last_offset = -1
        flags, max_bytes, left = set[str](), None, iter(arguments)
        for word in left:
            if word == "--max-bytes":
                max_bytes = int(next(left))
            elif word == "--files":
                self.names += next(left).split(",")
            elif word.startswith("--"):
                flags.add(word)
            else:
                self.names.append(word)
        self._data = "--print-data-log" in flags
        self._content = Content(deep=self._data or "--deep-iteration" in flags, data=self._data)
        self._metadata = "--skip-record-metadata" not in flags
        self._window = BatchWindow(max_bytes=max_bytes)
        self._sanity = "--index-sanity-check" in flags
        self._shows_indexes = "--verify-index-only" not in flags

    def file(self, name: str) -> None:
        """Print one file."""
        self.out.append(f"Dumping {name}")
        suffix = suffix_of(Path(name).name)
        if suffix in (".log", ".checkpoint"):
            with open_file(name) as source:
                self._log(name, source)
        elif suffix == ".txnindex":
            self.out += map(txn_line, decode_txns(Path(name).read_bytes()))
        elif suffix == ".snapshot":
            self.out += map(producer_line, decode_snapshot(Path(name).read_bytes()))
        else:
            self._index(name, suffix, Path(name).read_bytes())

    def _log(self, name: str, source: ByteSource) -> None:
        short = Path(name).name
        is_snapshot = short.endswith(".checkpoint")
        self.out.append(snapshot_heading(short) if is_snapshot else f"Log starting offset: {base_of(short)}")
        self._last_offset = -1
        bytes_at = dict(batches(source)) if self._content.deep else {}
        for item in log_items(short, source, self._window, self._content):
            match item:
                case BatchItem(header, position, valid):
                    self.damage += not valid
                    self.out.append(batch_line(header, position, valid=valid))
                    if not valid and self._content.deep:  # Kafka's tool goes on with its records
                        found = record_items(bytes_at[position], header, position, self._content)
                        self.out += [self._record(each, name) for each in found]
                case RecordItem():
                    self.out.append(self._record(item, name))
                case Tail() if self._window.max_bytes is None and not item.zeros:
                    self.damage += 1
                    self.out.append(f"Found {item.size_bytes} invalid bytes at the end of {short}")

    def _record(self, item: RecordItem, name: str) -> str:
        offset = item.record.offset
        if self._last_offset not in (-1, offset - 1):  # compaction leaves gaps: worth a line, no damage
            self.mismatches.add(self.mismatches.gaps, name, self._last_offset, offset, error=False)
        self._last_offset = offset
        key, value = self._key_and_value(item.record)
        legacy = ""
        if item.message is not None:  # the closing brace stands in Kafka's own output
            legacy = f" isValid: {_yes(item.message[1])} crc: {item.message[0].crc}}}"
        return record_line(item.record, item.header, key, value, metadata=self._metadata, legacy=legacy)

    def _key_and_value(self, record: Record) -> tuple[str | None, str | None]:
        """Return both in the words of Kafka's tool, None for what it leaves out."""
        if not self._data:
            return None, None
        key, value = record.key, record.value
        return None if key is None else java_text(key), None if value is None else java_text(value)

    def _index(self, name: str, suffix: str, data: bytes) -> None:
        base = base_of(name)
        if self._sanity:
            empty = not data and suffix == ".index"
            self.out.append(f"{name} is empty." if empty else f"{name} passed sanity check.")
            return
        log_path = Path(name).with_suffix(".log")
        with open_file(str(log_path)) if log_path.exists() else contextlib.nullcontext() as log:
            if suffix == ".index":
                lines = offset_lines(name, data, base, log, self.mismatches)
            else:
                offsets = Path(name).with_suffix(".index").read_bytes()
                lines = time_lines(name, data, base, log, self.mismatches, offsets=offsets)
            self.out += [line for line in lines if self._shows_indexes or line.endswith("is empty.")]


def open_file(name: str) -> closing[FileSource]:
    """Open a file for reads at any place."""
    return closing(FileSource(PosixFiles(), Path(name), Path(name).stat().st_size, sync=False))


class Mismatches:
    """What Kafka's tool prints behind the last file, by file. Newest first where Kafka has it so."""

    def __init__(self) -> None:
        self.offsets: Pairs = {}
        self.timestamps: Pairs = {}
        self.order: Pairs = {}
        self.absent: Pairs = {}
        self.gaps: Pairs = {}
        self.errors = 0

    def add(self, kind: Pairs, name: str, first: int, second: int, *, error: bool = True) -> None:
        """One more pair. Not every one is an ``error``: compaction leaves gaps and batches without records."""
        kind.setdefault(name, []).append((first, second))
        self.errors += error

    def lines(self) -> Iterator[str]:
        """In Kafka's words; files in the order in which they were met."""
        for name, pairs in self.offsets.items():
            yield f"Mismatches in :{name}"
            yield from (f"  Index offset: {index}, log offset: {log}" for index, log in reversed(pairs))
        for name, pairs in self.timestamps.items():
            yield f"Found timestamp mismatch in :{name}"
            yield from (f"  Index timestamp: {index}, log timestamp: {log}" for index, log in pairs)
        for name, pairs in self.order.items():
            yield f"Found out of order timestamp in :{name}"
            yield from (
                f"  Index timestamp: {index}, Previously indexed timestamp: {before}" for index, before in pairs
            )
        for pairs in self.absent.values():
            yield "The following indexed offsets are not found in the log."
            yield from (f"Indexed offset: {index}, found log offset: {log}" for index, log in pairs)
        for name, pairs in self.gaps.items():
            yield f"Non-consecutive offsets in {name}"
            yield from (f"  {first} is followed by {second}" for first, second in reversed(pairs))


def offset_lines(name: str, data: bytes, base: int, log: ByteSource | None, found: Mismatches) -> Iterator[str]:
    """The entries of a ``.index``, up to the zeros of a file that was never trimmed."""
    index = OffsetIndex.from_bytes(data[: len(data) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES], base)
    if not len(index):
        yield f"{name} is empty."
        return
    for number, (offset, position) in enumerate(index):
        if offset == base and number:
            return
        if log is not None:
            try:
                last_offset = _header_at(log, position).last_offset
                if last_offset != offset:
                    found.add(found.offsets, name, offset, last_offset)
            except CorruptionError:
                found.errors += 1
        yield f"offset: {offset} position: {position}"


def time_lines(
    name: str, data: bytes, base: int, log: ByteSource | None, found: Mismatches, *, offsets: bytes
) -> Iterator[str]:
    """The entries of a ``.timeindex``, likewise; ``offsets`` are the bytes of the ``.index`` beside it."""
    index = TimeIndex.from_bytes(data[: len(data) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES], base)
    whole_bytes = len(offsets) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES
    lookup = OffsetIndex.from_bytes(offsets[:whole_bytes], base, drop_padding=True)
    before = -1
    for number, (timestamp, offset) in enumerate(index):
        if offset == base and number:
            return
        if log is not None:
            try:
                _check_time(name, (timestamp, offset, before), lookup.lookup(offset)[1], log, found)
            except CorruptionError:
                found.errors += 1
        yield f"timestamp: {timestamp} offset: {offset}"
        before = timestamp


def _check_time(name: str, entry: tuple[int, int, int], position: int, log: ByteSource, found: Mismatches) -> None:
    """``entry``: timestamp, offset, and the timestamp before it; its batch is at or behind ``position``."""
    timestamp, offset, before = entry
    headers = _from(log, position)
    at = next(((place, header) for place, header in headers if header.last_offset >= offset), None)
    if at is None or at[1].last_offset != offset:
        found.add(found.absent, name, offset, -1 if at is None else at[1].last_offset)
        return
    place, header = at
    records = decode_records(log.read_at(place, header.size_bytes))
    largest = max((record.timestamp for record in records), default=-1)
    if largest != timestamp:
        # A batch that compaction emptied has no timestamp to compare with: true of a broker's own files.
        found.add(found.timestamps, name, timestamp, largest, error=header.records_count != 0)
    if before >= timestamp:
        found.add(found.order, name, timestamp, before)


def _from(log: ByteSource, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """The batches from there on; none where no batch begins."""
    with contextlib.suppress(CorruptionError):
        yield from hop(lambda at: _header_at(log, at), position, log.size - MAX_IGNORED_TAIL_BYTES)


def _header_at(log: ByteSource, position: int) -> BatchHeader:
    """The header of the whole batch that begins there."""
    left = log.size - position
    if position < 0 or left <= 0:
        raise CorruptionError(f"the log has {log.size} bytes")
    return read_header(log.read_at(position, min(HEADER_BYTES, left)), limit=left)


def java_text(data: bytes) -> str:
    """``data`` as Java reads UTF-8: as Python does, but an encoded surrogate is one replacement, not two or three."""
    return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")


def snapshot_heading(name: str) -> str:
    """What stands above the batches of a KRaft snapshot. Raises ValueError for a name that is none."""
    if name == BOOTSTRAP_NAME:
        return "KRaft bootstrap snapshot"
    snapshot = _SNAPSHOT_NAME.fullmatch(name)
    if snapshot is None:
        raise ValueError(f"{name} is no name of a KRaft snapshot")
    return f"Snapshot end offset: {int(snapshot[1])}, epoch: {int(snapshot[2])}"


def batch_line(header: BatchHeader, position: int, *, valid: bool) -> str:
    """A batch, or a v0 or v1 message."""
    if header.magic >= 2:
        start = (
            f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.records_count} "
            f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
            f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
            f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_yes(header.is_transactional)} "
            f"isControl: {_yes(header.is_control)} deleteHorizonMs: {_optional(header.delete_horizon_ms)}"
        )
    else:
        start = f"offset: {header.last_offset}"
    return (
        f"{start} position: {position} {time_type(header)}: {header.max_timestamp} size: {header.size_bytes} "
        f"magic: {header.magic} compresscodec: {codec_word(header)} crc: {header.crc} isvalid: {_yes(valid)}"
    )


def record_line(
    record: Record, header: BatchHeader, key: str | None, value: str | None, *, metadata: bool, legacy: str = ""
) -> str:
    """A record. ``key`` and ``value`` are shown where they are not None; ``legacy`` is what v0 and v1 messages add."""
    line = ""
    before = "| "
    if metadata:
        line = (
            f"| offset: {record.offset} {time_type(header)}: {record.timestamp} "
            f"keySize: {_size(record.key)} valueSize: {_size(record.value)}"
        )
        before = " "
        if header.magic >= 2:
            line += f" sequence: {record_sequence(record, header)} headerKeys: [{_header_keys(record.headers)}]"
        line += legacy
        if header.is_control:
            line += f" {_control(record)}"
    if header.is_control:
        return line
    if key is not None:
        line += f"{before}key: {key}"
    if value is not None:
        line += f" payload: {value}"
    return line


def txn_line(txn: AbortedTxn) -> str:
    """An entry of a transaction index."""
    return (
        f"version: 0 producerId: {txn.producer_id} firstOffset: {txn.first_offset} lastOffset: {txn.last_offset} "
        f"lastStableOffset: {txn.last_stable_offset}"
    )


def producer_line(entry: ProducerEntry) -> str:
    """A producer of a snapshot; the blank at the end of one without a batch is Kafka's."""
    txn = entry.txn_first_offset
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
        f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: {_optional(txn if txn >= 0 else None)} "
        f"lastTimestamp: {entry.timestamp} "
    )
    if entry.last_offset < 0:
        return line
    return line + (
        f"firstSequence: {first_sequence(entry)} lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset} "
        f"offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
    )


def _control(record: Record) -> str:
    """A control record. The fields of those of Kafka's controllers are left out."""
    kind = control_type(record)
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return f"endTxnMarker: {kind.name} coordinatorEpoch: {coordinator_epoch(record)}"
    return f"{CONTROLLER_RECORDS.get(kind, 'controlType: UNKNOWN')}"


def _header_keys(headers: Headers) -> str:
    return ",".join(java_text(name.encode("utf-8", "surrogateescape")) for name, _ in headers)


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def _yes(value: bool) -> str:
    return "true" if value else "false"


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)
