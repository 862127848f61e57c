"""Frame of the catalog's objects: a readable JSON header, columns for numpy, one checksum over all.

::

    0        4         6        8             12          12+header_len              size-4
    "OLC1" | format u16 | flags u16 | header_len u32 | header (UTF-8 JSON) | body | crc32c u32

    all little-endian; body = the concatenated columns of the tables, zstd as a whole;
    crc32c over everything before it; flags are 0

``head -c 4000`` shows the header. It names the tables: ``tables: [[name, rows, [[column, dtype], ...]], ...]``,
``codec`` and ``raw_len`` (bytes of the body before compression). A table without rows is left out. ``format`` alone
decides who can read an object: a higher one is refused, unknown fields are skipped. Objects of a bucket are not
trusted: every length is checked against the bytes that are there before anything is allocated.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import zstandard

from tiered.errors import ConfigError, CorruptionError
from tiered.format.json_schema import INT32_MAX, TEXT, JsonObject, ListOf, ValueType
from tiered.format.kernels import crc32c

MAGIC = b"OLC1"
FORMAT = 1
"""Format that is written, and the highest that is read."""
MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_RAW_BYTES = 256 * 1024 * 1024
"""Largest body after decompression: about three million rows."""
MAX_OBJECT_BYTES = MAX_HEADER_BYTES + MAX_RAW_BYTES + 1024
MAX_TABLES = 16
ZSTD_LEVEL = 3

_BODY = {"codec": TEXT, "tables": ListOf(None, MAX_TABLES)}
BODY_FIELDS = frozenset({*_BODY, "raw_len"})
"""Fields of every header that describe the body."""

_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_HEAD = struct.Struct("<4sHHI")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size
"""Position of the header."""
_DTYPES: dict[str, np.dtype[np.int64] | np.dtype[np.int32]] = {"<i8": np.dtype("<i8"), "<i4": np.dtype("<i4")}

_NO_VALUES = np.empty(0, np.int64)
"""Column of a table without rows, as most tables of most catalogs are."""

Columns = Mapping[str, npt.NDArray[np.int64]]
Tables = dict[str, dict[str, npt.NDArray[np.int64]]]
"""Columns by name of each table, by its name: int64 copies of the encoded bytes."""


class TableLayout:
    """A table's name and its columns with their dtypes (``<i8`` or ``<i4``) in the object."""

    def __init__(self, name: str, columns: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self.columns = columns
        self.names = [name for name, _ in columns]
        self.described = [list(column) for column in columns]
        self.described_text = _json(self.described)
        self.row_bytes = sum(_DTYPES[dtype].itemsize for _, dtype in columns)

    def packed(self, columns: Columns) -> Packed:
        """Return the encoded table of ``columns``. Raises OverflowError if a value does not fit its column."""
        narrow = [columns[name] for name, dtype in self.columns if dtype == "<i4"]
        if narrow and len(narrow[0]) and not _fits(np.concatenate(narrow)):
            wide = [n for n, dtype in self.columns if dtype == "<i4" and not _fits(columns[n])]
            raise OverflowError(f"column {wide[0]} holds a value that does not fit 32 bits")
        parts = [columns[name].astype(_DTYPES[dtype], copy=False).tobytes() for name, dtype in self.columns]
        return Packed(self, len(columns[self.columns[0][0]]), b"".join(parts))


def _fits(column: npt.NDArray[np.int64]) -> bool:
    return bool(column.max() <= INT32_MAX and column.min() >= -INT32_MAX - 1)


class Packed(NamedTuple):
    """One encoded table of a framed object. ``rows``: its length. ``data``: its columns in order, uncompressed."""

    layout: TableLayout
    rows: int
    data: bytes


def pack(header: Mapping[str, Any], tables: Sequence[Packed]) -> bytes:
    """Return the bytes of one object. Raises ConfigError if readers would refuse its size."""
    tables = [table for table in tables if table.rows]
    raw = b"".join([table.data for table in tables])
    described = ",".join([f"[{_json(t.layout.name)},{t.rows},{t.layout.described_text}]" for t in tables])
    text = f'{_json(header)[:-1]},"tables":[{described}],"codec":"zstd","raw_len":{len(raw)}}}'.encode()
    if len(text) > MAX_HEADER_BYTES or len(raw) > MAX_RAW_BYTES:
        raise ConfigError(
            f"a catalog object with {len(text)} bytes of header and {len(raw)} bytes of rows is too large to read"
        )
    body = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(raw)
    data = b"".join([_HEAD.pack(MAGIC, FORMAT, 0, len(text)), text, body])
    return data + _CRC.pack(crc32c(data))


def with_field(data: bytes, name: str, value: str) -> bytes:
    """Return the bytes of a framed object with one more field, at the front of its header. The checksum is updated."""
    _, fmt, flags, header_len = _HEAD.unpack_from(data)
    text = f"{{{_json(name)}:{_json(value)},".encode() + data[_HEAD.size + 1 : _HEAD.size + header_len]
    made = _HEAD.pack(MAGIC, fmt, flags, len(text)) + text + data[_HEAD.size + header_len : -_CRC.size]
    return made + _CRC.pack(crc32c(made))


def unpack(
    data: bytes,
    layouts: Callable[[JsonObject], Sequence[TableLayout]],
    *,
    key: str,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> tuple[JsonObject, Tables]:
    """Return header and tables in the bytes of :func:`pack`. ``layouts`` returns the tables that an object may have.

    The result has each of them, also those without rows. ``max_raw_bytes`` limits the decompressed body. Raises
    CorruptionError (``key`` and position) for damaged or foreign bytes, ConfigError for a newer format.
    """
    if len(data) < _HEAD.size + _CRC.size:
        _refuse(key, 0, f"{len(data)} bytes are too few for a catalog object")
    if len(data) > MAX_OBJECT_BYTES:
        _refuse(key, 0, f"{len(data)} bytes are more than the limit of {MAX_OBJECT_BYTES}")
    magic, fmt, flags, header_len = _HEAD.unpack_from(data)
    if magic != MAGIC:
        _refuse(key, 0, f"begins with {magic!r} instead of {MAGIC!r}")
    end = len(data) - _CRC.size
    (stored,) = _CRC.unpack_from(data, end)
    computed = crc32c(memoryview(data)[:end])
    if stored != computed:
        _refuse(key, end, f"checksum is {stored:#010x}, the bytes have {computed:#010x}")
    if fmt > FORMAT:  # before any check that only this format must pass
        raise ConfigError(
            f"{key} was written by a newer release: it has format {fmt}, this one reads {FORMAT}",
            hint="upgrade tieredlog; nothing was changed",
        )
    if fmt < 1:
        _refuse(key, 4, "has format 0")
    if header_len > min(MAX_HEADER_BYTES, end - _HEAD.size):
        _refuse(key, 8, f"header length {header_len} is larger than the object or the limit")
    body_at = _HEAD.size + header_len
    header = JsonObject(data[_HEAD.size : body_at], key=key, position=_HEAD.size)
    if flags:
        _refuse(key, 6, f"flags are {flags:#x} instead of 0")
    values = header.checked_fields({**_BODY, "raw_len": ValueType(int, 0, max_raw_bytes)})
    if values["codec"] != "zstd":
        header.refuse("codec", "is not zstd")
    raw = _decompressed(memoryview(data)[body_at:end], values["raw_len"], key, body_at)
    return header, _tables(raw, header, values["tables"], layouts(header))


def _decompressed(body: memoryview, raw_len: int, key: str, position: int) -> bytes:
    try:
        # The frame's own size is what the library allocates: it must agree before anything is decompressed.
        if zstandard.frame_content_size(body) != raw_len:
            _refuse(key, position, f"compressed body does not hold the {raw_len} bytes that the header promises")
        raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=raw_len, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptionError(f"{key}: body: {error}", path_or_key=key, position=position) from error
    if len(raw) != raw_len:
        _refuse(key, position, f"body has {len(raw)} bytes instead of {raw_len}")
    return raw


def _tables(raw: bytes, header: JsonObject, described: Sequence[Any], layouts: Sequence[TableLayout]) -> Tables:
    expected = {layout.name: layout for layout in layouts}
    tables: Tables = {}
    at = 0
    for index, entry in enumerate(described):
        where = f"tables[{index}]"
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str):
            header.refuse(where, "is not [name, rows, columns]")
        name, rows, columns = entry
        layout = expected.pop(name, None)
        if layout is None or columns != layout.described:
            header.refuse(where, "is not a table of this release, or given twice")
        if type(rows) is not int or not 0 < rows * layout.row_bytes <= len(raw) - at:
            header.refuse(where, f"claims {str(rows)[:24]} rows, more than the body holds")
        table = tables[name] = {}
        for column, dtype in layout.columns:
            table[column] = np.frombuffer(raw, dtype=_DTYPES[dtype], count=rows, offset=at).astype(np.int64)
            at += rows * _DTYPES[dtype].itemsize
    for layout in expected.values():
        tables[layout.name] = dict.fromkeys(layout.names, _NO_VALUES)
    if at != len(raw):
        header.refuse("tables", f"describe {at} bytes, but the body has {len(raw)}")
    return tables


def _refuse(key: str, position: int, what: str) -> NoReturn:
    hint = "`tiered repair TOPIC --dry-run` shows its repair"
    raise CorruptionError(f"{key}: {what}", path_or_key=key, position=position, hint=hint)
