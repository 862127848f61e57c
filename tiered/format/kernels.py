"""The hot loops: the compiled twin (``_kernels``) if it was built, otherwise the pure one.

``TIERED_NO_EXTENSION=1`` selects the pure twin even if the compiled one exists. ``TIERED_REQUIRE_EXTENSION=1`` makes
the import fail unless the compiled one is used. Both also decide what an installation builds. Empty and ``0`` mean no.
"""

from __future__ import annotations

import os

from tiered.format import pure_kernels
from tiered.format.records import ConsumerRecord, Record

__all__ = [
    "AT_WORK",
    "HASH_SECRET",
    "PURE",
    "ConsumerRecord",
    "KeyTable",
    "Record",
    "arrow_columns",
    "arrow_rows",
    "assign_offsets",
    "batch_filler",
    "batch_records",
    "consumer_records",
    "crc32c",
    "decode_records",
    "encode_batch",
    "encode_record_at",
    "encode_records",
    "group",
    "intact_header",
    "key_hashes",
    "murmur2",
    "records_extent",
    "run_batches",
    "run_records",
    "scan",
    "survey",
]

_PURE_ALONE = {"AT_WORK", "HASH_SECRET", "PURE", "encode_record_at"}
"""Names of ``__all__`` that have no compiled twin."""
_ELSEWHERE = ("AccumulatedBatch", "AccumulatedRecord", "Accumulator", "PlainLock", "TurnLock")
"""Compiled names with other importers: ``tiered.format.accumulator``, ``tiered.local.disk.plain_lock``."""
HASH_SECRET = os.urandom(16)
"""Secret that keys every :class:`KeyTable` of this process; no result depends on it."""
_NO_EXTENSION = "TIERED_NO_EXTENSION"
_REQUIRE_EXTENSION = "TIERED_REQUIRE_EXTENSION"
PURE = "pure Python"


def _asked(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


AT_WORK: str = PURE
"""Kernels in use, in words: ``pure Python``, or ``compiled`` and by what."""

KeyTable = pure_kernels.KeyTable
arrow_columns = pure_kernels.arrow_columns
arrow_rows = pure_kernels.arrow_rows
assign_offsets = pure_kernels.assign_offsets
batch_filler = pure_kernels.batch_filler
batch_records = pure_kernels.batch_records
consumer_records = pure_kernels.consumer_records
crc32c = pure_kernels.crc32c
decode_records = pure_kernels.decode_records
encode_batch = pure_kernels.encode_batch
encode_record_at = pure_kernels.encode_record_at
encode_records = pure_kernels.encode_records
group = pure_kernels.group
intact_header = pure_kernels.intact_header
key_hashes = pure_kernels.key_hashes
murmur2 = pure_kernels.murmur2
records_extent = pure_kernels.records_extent
run_batches = pure_kernels.run_batches
run_records = pure_kernels.run_records
scan = pure_kernels.scan
survey = pure_kernels.survey

_why_not = f"{_NO_EXTENSION} is set"
if not _asked(_NO_EXTENSION):
    try:
        from tiered.format import _kernels

        if _missing := [
            name for name in (*__all__, *_ELSEWHERE) if name not in _PURE_ALONE and not hasattr(_kernels, name)
        ]:
            raise ImportError(
                f"they were built from other sources, without {_missing[0]}: `make setup` builds them again"
            )
    except ImportError as error:
        _why_not = str(error)
    else:
        ConsumerRecord = _kernels.ConsumerRecord  # type: ignore[misc]
        KeyTable = _kernels.KeyTable  # type: ignore[assignment,misc]
        Record = _kernels.Record  # type: ignore[misc]
        AT_WORK = f"compiled ({_kernels.COMPILED})"
        arrow_columns = _kernels.arrow_columns
        arrow_rows = _kernels.arrow_rows
        assign_offsets = _kernels.assign_offsets
        batch_filler = _kernels.batch_filler
        batch_records = _kernels.batch_records
        consumer_records = _kernels.consumer_records
        crc32c = _kernels.crc32c
        decode_records = _kernels.decode_records
        encode_batch = _kernels.encode_batch
        encode_records = _kernels.encode_records
        group = _kernels.group
        intact_header = _kernels.intact_header
        key_hashes = _kernels.key_hashes
        murmur2 = _kernels.murmur2
        records_extent = _kernels.records_extent
        run_batches = _kernels.run_batches
        run_records = _kernels.run_records
        scan = _kernels.scan
        survey = _kernels.survey

if AT_WORK == PURE and _asked(_REQUIRE_EXTENSION):
    raise ImportError(f"{_REQUIRE_EXTENSION} is set and the compiled kernels are not at work: {_why_not}")
