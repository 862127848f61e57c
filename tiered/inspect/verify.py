"""Verification of one segment: batches and records of its ``.log``, and the indexes against them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tiered.check.findings import Findings, Severity
from tiered.check.inspection import Expectations, LogInspection, LogScan
from tiered.format.keys import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from tiered.format.offset_index import OFFSET_ENTRY_BYTES, OffsetIndex
from tiered.format.time_index import TIME_ENTRY_BYTES, TimeIndex
from tiered.format.txn_index import TXN_ENTRY_BYTES
from tiered.inspect.small_files import base_of, suffix_of, whole
from tiered.inspect.targets import beside, may_grow, sibling
from tiered.local.disk.files import PosixFiles
from tiered.local.segment.sealed import FileSource
from tiered.model import ByteSource, SealedIndexes

_FILES = {
    "offset_index": INDEX_SUFFIX,
    "offset_index_untrimmed": INDEX_SUFFIX,
    "time_index": TIME_INDEX_SUFFIX,
    "time_index_untrimmed": TIME_INDEX_SUFFIX,
    "txn_index": TXN_INDEX_SUFFIX,
    "producer_snapshot": SNAPSHOT_SUFFIX,
}
"""Suffix of the file that a finding is about; other findings are about the ``.log``."""


def sanity_error(suffix: str, data: bytes, base: int) -> str:
    """Return the reason why a broker would rebuild the index at its start; empty if it would keep it."""
    entry_bytes = OFFSET_ENTRY_BYTES if suffix == ".index" else TIME_ENTRY_BYTES
    if len(data) % entry_bytes:
        return f"its {len(data)} bytes are no multiple of {entry_bytes}"
    if not data:
        return ""
    if suffix == ".index":
        last_offset = OffsetIndex.from_bytes(data, base).last_offset
    else:
        index = TimeIndex.from_bytes(data, base)
        last, last_offset = index.last_entry
        if last < index.entry(0)[0]:
            return f"its last timestamp {last} is below its first, {index.entry(0)[0]}"
    return f"its last offset {last_offset} is below the base {base}" if last_offset < base else ""


def segment_of(name: str) -> str:
    """Return a text that is the same for all files of one segment."""
    log = sibling(name, LOG_SUFFIX)
    return name if log is None else str(log)


def verify_segment(name: str, source: ByteSource) -> tuple[Findings, LogScan | None]:
    """Verify the segment of the file ``name``. The scan is None for an index without a ``.log``."""
    if suffix_of(name.rsplit("/", 1)[-1]) == LOG_SUFFIX or sibling(name, LOG_SUFFIX) is None:
        return _verify_log(name, source)
    log = sibling(name, LOG_SUFFIX)
    if log is not None and log.is_file():
        with closing(FileSource(PosixFiles(), log, log.stat().st_size, sync=False)) as log_source:
            return _verify_log(str(log), log_source)
    findings = Findings(name)
    suffix = suffix_of(Path(name).name)
    findings.add(Severity.WARNING, "log_missing", "there is no .log beside it: only its order can be checked")
    if suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        wrong = sanity_error(suffix, whole(name, source), base_of(name))
        if wrong:
            findings.error("offset_index" if suffix == INDEX_SUFFIX else "time_index", wrong)
    return findings, None


def _verify_log(name: str, source: ByteSource) -> tuple[Findings, LogScan]:
    findings = Findings(name)
    base = base_of(name)
    indexes = _indexes(name, base, findings)
    expectations = Expectations(decode=True, padded=may_grow(name))
    scan = LogInspection(source.size, base, findings, expectations, indexes=indexes).feed_all(source)
    _rehome(name, findings)
    return findings, scan


def _rehome(name: str, findings: Findings) -> None:
    """Assign index findings to their own files, in which their positions are."""
    for number, item in enumerate(findings.items):
        file = sibling(name, _FILES.get(item.code, ""))
        if file is not None and file.is_file() and item.code in _FILES:
            findings.items[number] = replace(item, where=str(file))


def _indexes(name: str, base: int, findings: Findings) -> SealedIndexes | None:
    """Return the index files of a local ``.log``, without trailing zeros of untrimmed files; None for an object."""
    if sibling(name, INDEX_SUFFIX) is None:
        return None
    offsets = _read(name, INDEX_SUFFIX, findings, needed=True)
    times = _read(name, TIME_INDEX_SUFFIX, findings, needed=True)
    if offsets and not len(offsets) % OFFSET_ENTRY_BYTES:
        offsets = _trimmed("offset_index", offsets, OffsetIndex.from_bytes(offsets, base, drop_padding=True), findings)
    if times and not len(times) % TIME_ENTRY_BYTES:
        times = _trimmed("time_index", times, TimeIndex.from_bytes(times, base, drop_padding=True), findings)
    txns = _read(name, TXN_INDEX_SUFFIX, findings) or b""
    torn = len(txns) % TXN_ENTRY_BYTES
    if torn:
        message = f"{torn} bytes of an unfinished entry end the transaction index"
        findings.error("txn_index", message, position=len(txns) - torn)
    return SealedIndexes(offsets or b"", times or b"", txns, _read(name, SNAPSHOT_SUFFIX, findings) or b"")


def _read(name: str, suffix: str, findings: Findings, *, needed: bool = False) -> bytes | None:
    with beside(name, suffix) as source:
        if source is not None:
            return whole(name, source)
    if needed:
        message = f"there is no {suffix} beside it: a broker, and any writer, rebuilds it"
        findings.add(Severity.WARNING, "index_missing", message)
    return None


def _trimmed(code: str, data: bytes, index: OffsetIndex | TimeIndex, findings: Findings) -> bytes:
    kept = index.to_bytes()
    if len(kept) < len(data):
        message = (
            f"{len(data) - len(kept)} zero bytes end the {code.replace('_', ' ')}: its writer is open, or was killed"
        )
        findings.add(Severity.INFO, f"{code}_untrimmed", message)
    return kept
