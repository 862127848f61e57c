"""Pages: immutable objects below the root for rows that do not fit into it, and the pointers that name them.

::

    root ── inner pointers ── inner page: up to 512 pointers ── leaf page: up to 1,024 rows
      │  └─ leaf pointers ───────────────────────────────────── leaf page
      │  └─ rows of the newest segments
      └──── trash entries ─── trash page: up to 1,024 entries

The bytes are those of ``format.framed_object``; the one table of the body follows from ``kind``::

    header  kind ("leaf" | "inner" | "trash"), topic_id, partition, role, epoch, uid
    leaf    "rows": as the root's tail, 96 bytes a row (``format.rows``)
    inner   "pointers", 112 bytes each
    trash   "trash", 56 bytes an entry (``format.rows``)

    pointer   base i8 | next i8 | min_ts i8 | max_ts i8 | size i8 | records i8 | crc i8                   56 bytes
              id_hi i8 | id_lo i8 | sum_hi i8 | sum_lo i8                                                32
              rows i4 | page_len i4 | epoch i4 | flags i4 | row_flags i4 | leader_epoch i4               24

A pointer carries the totals of its whole subtree: range, times, bytes of ``.log`` objects, records, rows, the sum of
all row hashes, the union of row flags, the largest leader epoch. Of the page itself it carries the CRC32C and length
of its bytes, and the parts of its key (``flags`` bit 0: the role letter is ``m``). A page ends in the CRC of all bytes
before it, so all intact pages have the same CRC as a whole: that CRC proves damage but does not distinguish pages.
Pages are distinguished by the header, which repeats the key (a page copied in place of another is refused by name),
by the length, and by the content, which must match the totals in the pointer.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

import numpy as np

from tiered.errors import CorruptionError
from tiered.format.framed_object import TableLayout, pack, unpack
from tiered.format.json_schema import HEX_128, INT32, INT32_MAX, TEXT, JsonObject
from tiered.format.kernels import crc32c
from tiered.format.keys import KNOWN_FLAGS, PageKey, PageName, Role, join_uid, page_key, parse_page_key, split_uid
from tiered.format.rows import (
    ROW_COLUMNS,
    SUM_MODULUS,
    TRASH_COLUMNS,
    Column,
    Rows,
    Table,
    Tally,
    Trash,
    column_dtypes,
    columns_of,
)

MAX_PAGE_ROWS = 4096
"""Limit of rows, pointers or entries in one page: four times what this release writes."""
POINTER_MAINTAINER = 0x1
"""Bit in a pointer's ``flags``: the page's key has the role letter ``m``."""


Identity = tuple[int, int, int]
"""Identity of a page: (id high, id low, CRC of its bytes)."""


class PageKind(enum.StrEnum):
    """Kinds of pages by their content: rows, pointers to other pages, or entries of objects that wait for deletion."""

    LEAF = "leaf"
    INNER = "inner"
    TRASH = "trash"


class Pointer(NamedTuple):
    """Reference to a page, with the totals of its subtree. ``base``, ``next``: half-open range of its offsets.

    ``size``: bytes of all ``.log`` objects. ``records``, ``rows``: numbers of records and of rows. ``sum_hi``,
    ``sum_lo``: halves of the sum of all row hashes. ``row_flags``: the flags of all rows, combined by OR.
    ``leader_epoch``: the largest of all rows. ``min_ts``, ``max_ts``: range of all timestamps, inclusive. About the
    page itself: ``page_len`` and ``crc`` of its bytes; ``id_hi``, ``id_lo``, ``epoch``, ``flags`` of its key.
    """

    base: int
    next: int
    min_ts: int
    max_ts: int
    size: int
    records: int
    crc: int
    id_hi: int
    id_lo: int
    sum_hi: int
    sum_lo: int
    rows: int
    page_len: int
    epoch: int
    flags: int
    row_flags: int
    leader_epoch: int

    @property
    def name(self) -> PageName:
        """Name of the page: role, epoch and uid."""
        role = Role.MAINTAINER if self.flags & POINTER_MAINTAINER else Role.WRITER
        return PageName(role, self.epoch, join_uid(self.id_hi, self.id_lo))

    @property
    def identity(self) -> Identity:
        """Return (id high, id low, CRC) of the page that this pointer names."""
        return self.id_hi, self.id_lo, self.crc


POINTER_COLUMNS = column_dtypes(
    Pointer._fields, frozenset({"rows", "page_len", "epoch", "flags", "row_flags", "leader_epoch"})
)
_LOW32 = np.int64(0xFFFF_FFFF)


class Pointers(Table):
    """Table of pointers in offset order, without gap or overlap. Immutable."""

    FIELDS = Pointer._fields

    @classmethod
    def from_pointers(cls, pointers: Sequence[Pointer]) -> Pointers:
        """Return the table of ``pointers``. Raises OverflowError if a value does not fit int64."""
        return cls(columns_of(Pointer._fields, pointers))

    def pointer(self, index: int) -> Pointer:
        """Return one pointer; negative indexes count from the end. Raises IndexError."""
        return Pointer(*self.values(index))

    def __iter__(self) -> Iterator[Pointer]:
        for values in zip(*(self.columns[name].tolist() for name in self.FIELDS), strict=True):
            yield Pointer(*values)

    def identity(self, index: int) -> Identity:
        """Return (id high, id low, CRC) of the page that pointer ``index`` names."""
        high, low, crc = self._names
        return high[index], low[index], crc[index]

    @cached_property
    def _names(self) -> tuple[memoryview, memoryview, memoryview]:
        return self.columns["id_hi"].data, self.columns["id_lo"].data, self.columns["crc"].data

    @cached_property
    def impossible(self) -> int | None:
        """Index of the first pointer with an impossible size, time, flag or checksum; None if there is none."""
        column = self.columns
        bad = (
            (column["rows"] < 1)
            | (column["page_len"] < 1)
            | (column["size"] < 0)
            | (column["records"] < 0)
            | (column["min_ts"] > column["max_ts"])
            | (column["crc"] < 0)
            | (column["crc"] >= 2**32)
            | ((column["flags"] & ~POINTER_MAINTAINER) != 0)
            | ((column["row_flags"] & ~KNOWN_FLAGS) != 0)
            | (column["base"] < 0)
        )
        found = np.flatnonzero(bad)
        return int(found[0]) if len(found) else None

    @cached_property
    def epochs(self) -> tuple[int, int, int]:
        """Return (lowest epoch of all pages, highest of the writer's, highest of the maintainer's).

        Without pages the lowest is ``INT32_MAX``. The highest of a role without pages is 0.
        """
        epochs, by_maintainer = self.columns["epoch"], (self.columns["flags"] & POINTER_MAINTAINER) != 0
        return (
            int(epochs.min(initial=INT32_MAX)),
            int(epochs[~by_maintainer].max(initial=0)),
            int(epochs[by_maintainer].max(initial=0)),
        )

    @cached_property
    def leader_epoch(self) -> int:
        """Largest leader epoch of all rows in the pages below, -1 without one."""
        return int(self.columns["leader_epoch"].max(initial=-1))

    @cached_property
    def tally(self) -> Tally:
        """Totals of all rows in the pages below."""
        columns = self.columns
        high, low = columns["sum_hi"], columns["sum_lo"]
        # Halves of 32 bits: the columns hold 64-bit halves as signed numbers, whose sum would overflow.
        parts = [low & _LOW32, (low >> 32) & _LOW32, high & _LOW32, (high >> 32) & _LOW32]
        total = sum(int(part.sum()) << (32 * place) for place, part in enumerate(parts)) % SUM_MODULUS
        return Tally(int(columns["rows"].sum()), int(columns["size"].sum()), int(columns["records"].sum()), total)


NO_POINTERS = Pointers.from_pointers([])

Content = Rows | Pointers | Trash


@dataclass(frozen=True, slots=True)
class Page:
    """Encoded page. It must be stored before a root with its ``pointer`` is written. ``content``: its decoded table."""

    key: str
    body: bytes
    kind: PageKind
    pointer: Pointer
    content: Content


class StoredPage(NamedTuple):
    """Decoded page, with the topic, partition and name in its own header."""

    topic_id: UUID
    partition: int
    name: PageName
    kind: PageKind
    content: Content


def encode_page(topic_id: UUID, partition: int, name: PageName, content: Content) -> Page:
    """Return the encoded page with ``content`` (not empty). Raises OverflowError if a value does not fit its column."""
    kind, layout = _layout_of(content)
    header = {
        "kind": kind.value,
        "topic_id": topic_id.hex,
        "partition": partition,
        "role": name.role.value,
        "epoch": name.epoch,
        "uid": name.uid,
    }
    body = pack(header, [layout.packed(content.columns)])
    high, low = split_uid(name.uid)
    pointer = summary(content)._replace(
        crc=crc32c(body),
        id_hi=high,
        id_lo=low,
        page_len=len(body),
        epoch=name.epoch,
        flags=POINTER_MAINTAINER if name.role is Role.MAINTAINER else 0,
    )
    return Page(page_key(topic_id, partition, name), body, kind, pointer, content)


def decode_page(data: bytes, *, key: str, kind: PageKind) -> Content:
    """Return the content of the page ``key``, which must be of ``kind``.

    Raises CorruptionError (key and position) for damaged or foreign bytes, and for a copy of another page. Raises
    ConfigError for a newer format.
    """
    return _decoded(data, key, kind).content


def decode_stored_page(data: bytes, *, key: str) -> StoredPage:
    """Decode a page of any kind without checking its key, for tools that show one object. ``key`` is for messages only.

    Raises CorruptionError (key and position) for damaged or foreign bytes, ConfigError for a newer format.
    """
    return _decoded(data, key, None)


def _decoded(data: bytes, key: str, kind: PageKind | None) -> StoredPage:
    """Decode a page, which must be of ``kind`` and have its own key. ``kind`` None accepts any kind under any key.

    Raises CorruptionError for damaged bytes or another page, ConfigError for a newer format.
    """
    if len(data) > MAX_PAGE_BYTES:
        raise CorruptionError(
            f"{key}: the page has {len(data)} bytes, more than a page can have", path_or_key=key, position=0
        )

    def layouts(header: JsonObject) -> tuple[TableLayout]:
        kind_name = str(header.values.get("kind"))
        if kind is None and kind_name not in set(PageKind):
            header.refuse("kind", "is not a kind of page")
        return (_LAYOUTS[kind or PageKind(kind_name)],)

    widest = max(layout.row_bytes for layout in (_LAYOUTS.values() if kind is None else (_LAYOUTS[kind],)))
    header, tables = unpack(data, layouts, key=key, max_raw_bytes=MAX_PAGE_ROWS * widest)
    values = header.checked_fields(_HEADER)
    if kind is not None and values["kind"] != kind.value:
        header.refuse("kind", f"is not {kind.value}, as its pointer says")
    if values["role"] not in set(Role):
        header.refuse("role", "is not a known role")
    name = PageName(Role(values["role"]), values["epoch"], f"{values['uid']:032x}")
    topic_id, partition = UUID(int=values["topic_id"]), values["partition"]
    if kind is not None and parse_page_key(key) != PageKey(topic_id, partition, name):
        header.refuse("uid", f"{name.uid} belongs to another page, which was copied over this one")
    (table,) = tables.values()
    held = PageKind(values["kind"])
    content: Content
    match held:
        case PageKind.LEAF:
            content = Rows(table)
        case PageKind.INNER:
            content = Pointers(table)
        case PageKind.TRASH:
            content = Trash(table)
    if not len(content):
        header.refuse("tables", "hold nothing")
    return StoredPage(topic_id, partition, name, held, content)


def verified_page(data: bytes, pointer: Pointer, *, key: str, kind: PageKind) -> Rows | Pointers:
    """Return the content of a leaf or inner page, which must match its ``pointer``. ``key``: that of the page.

    Raises CorruptionError for damaged bytes or a difference from the pointer, ConfigError for a newer format.
    """
    if len(data) != pointer.page_len or crc32c(data) != pointer.crc:
        what = f"{len(data)} bytes with checksum {crc32c(data):#010x}"
        raise CorruptionError(
            f"{key}: the page has {what}, but its pointer says {pointer.page_len} with {pointer.crc:#010x}",
            path_or_key=key,
            position=0,
            offset=pointer.base,
        )
    content = decode_page(data, key=key, kind=kind)
    flaw = "it holds trash" if isinstance(content, Trash) else differs(content, pointer)
    if isinstance(content, Trash) or flaw:
        raise CorruptionError(f"{key}: {flaw}", path_or_key=key, position=0, offset=pointer.base)
    return content


def differs(content: Rows | Pointers, pointer: Pointer) -> str:
    """Return a text about the first difference between ``content`` and the totals of ``pointer``, ``""`` without one.

    A gap or an overlap between the ranges of ``content`` counts, too.
    """
    found, columns = summary(content), content.columns
    if (columns["base"] >= columns["next"]).any() or (columns["base"][1:] != columns["next"][:-1]).any():
        return "its ranges have a gap or an overlap"
    for name in _SUMMED:
        if getattr(found, name) != getattr(pointer, name):
            return f"{name} is {getattr(found, name)}, its pointer says {getattr(pointer, name)}"
    return ""


def summary(content: Content) -> Pointer:
    """Return a pointer with the totals of ``content``, and zeros in place of a page. For trash: only ``rows``."""
    if isinstance(content, Trash):
        return _NOWHERE._replace(rows=len(content))
    columns, total = content.columns, content.tally
    halves = total.sum.to_bytes(16, "big")
    return Pointer(
        base=int(columns["base"][0]),
        next=int(columns["next"][-1]),
        min_ts=int(columns["min_ts"].min()),
        max_ts=int(columns["max_ts"].max()),
        size=total.size_bytes,
        records=total.records,
        crc=0,
        id_hi=0,
        id_lo=0,
        sum_hi=int.from_bytes(halves[:8], "big", signed=True),
        sum_lo=int.from_bytes(halves[8:], "big", signed=True),
        rows=total.segments,
        page_len=0,
        epoch=0,
        flags=0,
        row_flags=_any(columns["flags" if isinstance(content, Rows) else "row_flags"]),
        leader_epoch=int(columns["leader_epoch"].max()),
    )


_HEADER = {"kind": TEXT, "topic_id": HEX_128, "partition": INT32, "role": TEXT, "epoch": INT32, "uid": HEX_128}
_NOWHERE = Pointer(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
_SUMMED = (
    "base",
    "next",
    "min_ts",
    "max_ts",
    "size",
    "records",
    "sum_hi",
    "sum_lo",
    "rows",
    "row_flags",
    "leader_epoch",
)
_LAYOUTS = {
    PageKind.LEAF: TableLayout("rows", ROW_COLUMNS),
    PageKind.INNER: TableLayout("pointers", POINTER_COLUMNS),
    PageKind.TRASH: TableLayout("trash", TRASH_COLUMNS),
}
MAX_PAGE_BYTES = MAX_PAGE_ROWS * _LAYOUTS[PageKind.INNER].row_bytes + 64 * 1024
"""Limit of a page's bytes: a larger object is refused before its download."""


def _layout_of(content: Content) -> tuple[PageKind, TableLayout]:
    kind = {Rows: PageKind.LEAF, Pointers: PageKind.INNER, Trash: PageKind.TRASH}[type(content)]
    return kind, _LAYOUTS[kind]


def _any(flags: Column) -> int:
    return int(np.bitwise_or.reduce(flags))
