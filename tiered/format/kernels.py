"""The hot loops: the compiled twin (``_kernels``) if it was built, otherwise the pure one.

``TIERED_NO_EXTENSION=1`` selects the pure twin even if the compiled one exists. ``TIERED_REQUIRE_EXTENSION=1`` makes
the import fail unless the compiled one is used. Both also decide what an installation builds. Empty and ``0`` mean no.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tiered.format.pure_kernels import encode_record_at as encode_record_at

if TYPE_CHECKING:
    from tiered.format import _kernels as typed

    ConsumerRecord = typed.ConsumerRecord
    KeyTable = typed.KeyTable
    PlainLock = typed.PlainLock
    Record = typed.Record
    TurnLock = typed.TurnLock
    arrow_columns = typed.arrow_columns
    arrow_rows = typed.arrow_rows
    assign_offsets = typed.assign_offsets
    batch_filler = typed.batch_filler
    batch_records = typed.batch_records
    consumer_records = typed.consumer_records
    crc32c = typed.crc32c
    decode_records = typed.decode_records
    encode_batch = typed.encode_batch
    encode_records = typed.encode_records
    group = typed.group
    intact_header = typed.intact_header
    key_hashes = typed.key_hashes
    murmur2 = typed.murmur2
    records_extent = typed.records_extent
    run_batches = typed.run_batches
    run_records = typed.run_records
    scan = typed.scan
    survey = typed.survey
else:
    from tiered.format.locks import PlainLock  # noqa: F401
    from tiered.format.locks import PlainLock as TurnLock  # noqa: F401
    from tiered.format.partitioner import murmur2  # noqa: F401
    from tiered.format.pure_kernels import (  # noqa: F401  the names of _TWINS
        KeyTable,
        assign_offsets,
        consumer_records,
        crc32c,
        decode_records,
        encode_records,
        run_batches,
        scan,
        survey,
    )
    from tiered.format.records import ConsumerRecord, Record  # noqa: F401

_TWINS = (
    *("ConsumerRecord", "KeyTable", "PlainLock", "Record", "TurnLock", "assign_offsets", "consumer_records", "crc32c"),
    *("decode_records", "encode_records", "murmur2", "run_batches", "scan", "survey"),
)
"""Names that both twins have."""
_COMPILED_ALONE = (
    *("arrow_columns", "arrow_rows", "batch_filler", "batch_records", "encode_batch", "group", "intact_header"),
    *("key_hashes", "records_extent", "run_records"),
)
"""Functions that only the compiled twin has. In pure Python they return None, and callers use a slower path."""
HASH_SECRET = os.urandom(16)
"""Secret that keys every :class:`KeyTable` of this process; no result depends on it."""
_NO_EXTENSION = "TIERED_NO_EXTENSION"
_REQUIRE_EXTENSION = "TIERED_REQUIRE_EXTENSION"
PURE = "pure Python"
KERNELS_IN_USE: str = PURE
"""Kernels in use, in words: ``pure Python``, or ``compiled`` and by what."""


def _asked(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def _odd(*_arguments: object, **_named: object) -> None:
    """Return None for any arguments: stands for each function that only the compiled kernels have."""


globals().update(dict.fromkeys(_COMPILED_ALONE, _odd))
_why_not = f"{_NO_EXTENSION} is set"
if not _asked(_NO_EXTENSION):
    try:
        from tiered.format import _kernels

        _compiled = {name: getattr(_kernels, name) for name in (*_TWINS, *_COMPILED_ALONE)}
    except (ImportError, AttributeError) as error:  # not built, or from other sources
        _why_not = str(error)
    else:
        globals().update(_compiled)
        KERNELS_IN_USE = f"compiled ({_kernels.COMPILED})"

if KERNELS_IN_USE == PURE and _asked(_REQUIRE_EXTENSION):
    raise ImportError(f"{_REQUIRE_EXTENSION} is set, but the compiled kernels cannot be loaded: {_why_not}")
