"""Tables of the catalog: columns of int64 in memory, little-endian int64 and int32 in the object.

int64 only, never uint64: numpy converts a whole uint64 column before it compares it with a Python int (13 ms
instead of 2 us at ten million rows).

One row, 96 bytes; the canonical bytes over which its sum is taken are these fields in this order::

    base i8 | next i8 | min_ts i8 | max_ts i8 | size i8 | crc i8 | id_hi i8 | id_lo i8        64 bytes
    idx_len i4 | claim_epoch i4 | records i4 | flags i4 | leader_epoch i4 | reserved i4      24 bytes
    appended_ms i8                                                                            8 bytes

One entry of the trash, 56 bytes::

    id_hi i8 | id_lo i8 | base i8 | removed_version i8 | removed_ms i8 | epoch i4 | kind i4 | end i8
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Self

import numpy as np
import numpy.typing as npt

from tiered.format.framed_object import Packed, TableLayout
from tiered.model import KEY_BITS, Row, TrashEntry

Column = npt.NDArray[np.int64]

ROW_BYTES = 96
SUM_MODULUS = 1 << 128

_INT64_MIN = -(2**63)


def column_dtypes(fields: Iterable[str], narrow: frozenset[str]) -> list[tuple[str, str]]:
    """Return field names with the dtype of each in the object: int32 for those in ``narrow``, otherwise int64."""
    return [(name, "<i4" if name in narrow else "<i8") for name in fields]


ROW_COLUMNS = column_dtypes(
    Row._fields, frozenset({"idx_len", "claim_epoch", "records", "flags", "leader_epoch", "reserved"})
)
TRASH_COLUMNS = column_dtypes(TrashEntry._fields, frozenset({"epoch", "kind"}))
_ROW_DTYPE = np.dtype(ROW_COLUMNS)


@dataclass(frozen=True, slots=True)
class Tally:
    """Totals of rows. ``sum``: sum of the rows' hashes modulo 2**128, which does not depend on their order."""

    segments: int = 0
    size_bytes: int = 0
    records: int = 0
    sum: int = 0

    def __add__(self, more: Tally) -> Tally:
        return Tally(
            self.segments + more.segments,
            self.size_bytes + more.size_bytes,
            self.records + more.records,
            (self.sum + more.sum) % SUM_MODULUS,
        )

    def __sub__(self, less: Tally) -> Tally:
        return Tally(
            self.segments - less.segments,
            self.size_bytes - less.size_bytes,
            self.records - less.records,
            (self.sum - less.sum) % SUM_MODULUS,
        )


NO_TALLY = Tally()


class Views(dict[str, memoryview]):
    """Dictionary of views of columns by name. A view is made on first access: most lookups read one column."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        super().__init__()
        self._columns = columns

    def __missing__(self, name: str) -> memoryview:
        view = self[name] = self._columns[name].data
        return view


class Table:
    """Table of named int64 columns of equal length, read-only. Subclasses define the names."""

    FIELDS: tuple[str, ...] = ()

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns: dict[str, Column] = {}
        for name in self.FIELDS:
            column = self.columns[name] = columns[name]
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.columns[self.FIELDS[0]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table) or self.FIELDS != other.FIELDS:
            return NotImplemented
        return all(np.array_equal(self.columns[name], other.columns[name]) for name in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]  # compared by value, and large: not for dict keys

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows)"

    @property
    def nbytes(self) -> int:
        """Bytes of the columns in memory."""
        return sum([column.nbytes for column in self.columns.values()])

    @cached_property
    def views(self) -> Views:
        """The columns by name, as sequences of Python ints: a number read from an array costs three times as much."""
        return Views(self.columns)

    @cached_property
    def _all_views(self) -> tuple[memoryview, ...]:
        return tuple([column.data for column in self.columns.values()])

    def packed(self, layout: TableLayout) -> Packed:
        """Return the encoded table. It is encoded once, because most tables pass unchanged from root to root.

        Raises OverflowError if a value does not fit its column.
        """
        found: Packed | None = self.__dict__.get("_packed")
        if found is None or found.layout is not layout:
            found = self.__dict__["_packed"] = layout.packed(self.columns)
        return found

    def values(self, index: int) -> list[int]:
        """Return the fields of one row; negative indexes count from the end. Raises IndexError."""
        return list(map(itemgetter(index), self._all_views))

    def slice(self, start: int, end: int | None = None) -> Self:
        """Return rows ``start`` to ``end`` (exclusive) as views."""
        if not start and (end is None or end >= len(self)):
            return self
        return self._read_only({name: column[start:end] for name, column in self.columns.items()})

    def where(self, wanted: npt.NDArray[np.bool_]) -> Self:
        """Return the rows for which the mask ``wanted`` is True, in order."""
        return type(self)({name: column[wanted] for name, column in self.columns.items()})

    def appended(self, more: Self) -> Self:
        """Return these rows followed by ``more``."""
        return type(self)({name: np.concatenate([column, more.columns[name]]) for name, column in self.columns.items()})

    def first_above(self, offset: int) -> int:
        """Return the index of the first row whose range ends above ``offset``; the number of rows if there is none."""
        return bisect_right(self.ends, offset)

    @cached_property
    def ends(self) -> memoryview:
        """Exclusive end offsets of a table of ranges, as a sequence of Python ints."""
        return self.columns["next"].data

    def first_with_timestamp(self, timestamp: int, index: int = 0) -> int:
        """Return the first index >= ``index`` with ``max_ts >= timestamp``; the number of rows if there is none."""
        found = bisect_left(self._max_ts_so_far, timestamp)
        if found >= index:
            return found
        later = np.flatnonzero(self.columns["max_ts"][index:] >= max(timestamp, _INT64_MIN))
        return index + int(later[0]) if len(later) else len(self)

    @cached_property
    def _max_ts_so_far(self) -> memoryview:
        return np.maximum.accumulate(self.columns["max_ts"]).data

    @classmethod
    def _read_only(cls, columns: dict[str, Column]) -> Self:
        """Wrap columns that are read-only already, in field order, without copying."""
        table = cls.__new__(cls)
        table.columns = columns
        return table


def columns_of(fields: Sequence[str], rows: Sequence[Sequence[int]]) -> dict[str, Column]:
    """Return rows as int64 columns by field name. Raises OverflowError if a value does not fit int64."""
    data = np.array(rows, dtype=np.int64).reshape(len(rows), len(fields))
    return {name: np.ascontiguousarray(data[:, i]) for i, name in enumerate(fields)}


class Rows(Table):
    """Table of catalog rows, one for each remote segment, in offset order. Immutable: every change makes new Rows."""

    FIELDS = Row._fields

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Rows:
        """Return the table of ``rows``, which are in offset order. Raises OverflowError if a value does not fit
        int64.
        """
        return cls(columns_of(Row._fields, rows))

    def row(self, index: int) -> Row:
        """Return one row; negative indexes count from the end. Raises IndexError."""
        return Row._make(map(itemgetter(index), self._all_views))

    def ends_with(self, rows: Sequence[Row]) -> bool:
        """Return True if the last rows equal ``rows``."""
        return len(rows) <= len(self) and [self.row(index) for index in range(-len(rows), 0)] == list(rows)

    def __iter__(self) -> Iterator[Row]:
        for values in zip(*(self.columns[name].tolist() for name in self.FIELDS), strict=True):
            yield Row(*values)

    def appended(self, more: Self) -> Self:
        """Return these rows followed by ``more``. ``sum``, the sum of their row hashes, is added up."""
        joined = super().appended(more)
        joined.__dict__["sum"] = (self.sum + more.sum) % SUM_MODULUS
        return joined

    def find_offset(self, offset: int) -> int | None:
        """Return the index of the row whose range contains ``offset``, None outside all of them."""
        index = self.first_above(offset)
        return index if index < len(self) and self.views["base"][index] <= offset else None

    @property
    def end_offset(self) -> int:
        """Exclusive end of the last row. Raises IndexError without one."""
        return int(self.next[-1])

    @property
    def base(self) -> Column:
        """First offsets of the rows."""
        return self.columns["base"]

    @property
    def next(self) -> Column:
        """Exclusive end offsets of the rows."""
        return self.columns["next"]

    @property
    def size_bytes(self) -> int:
        """Bytes of all ``.log`` objects."""
        return int(self.columns["size"].sum())

    @property
    def records(self) -> int:
        """Records in all segments."""
        return int(self.columns["records"].sum())

    @cached_property
    def sum(self) -> int:
        """Sum, modulo 2**128, of blake2b-128 over each row's canonical bytes. It does not depend on the order of
        rows.
        """
        data, total = self.canonical_bytes(), 0
        for at in range(0, len(data), ROW_BYTES):
            total += int.from_bytes(hashlib.blake2b(data[at : at + ROW_BYTES], digest_size=16).digest(), "little")
        return total % SUM_MODULUS

    def canonical_bytes(self) -> bytes:
        """Return all rows, 96 bytes each: the fields of ``Row`` in their order, little-endian, 4 or 8 bytes wide."""
        packed = np.empty(len(self.columns["base"]), dtype=_ROW_DTYPE)
        for name in self.FIELDS:
            packed[name] = self.columns[name]
        return packed.tobytes()

    @cached_property
    def tally(self) -> Tally:
        """Totals of these rows."""
        return Tally(len(self), self.size_bytes, self.records, self.sum)


class Trash(Table):
    """Table of objects that wait for deletion, in the order of their removal."""

    FIELDS = TrashEntry._fields

    @classmethod
    def from_entries(cls, entries: Sequence[TrashEntry]) -> Trash:
        """Return the table of ``entries``. Raises OverflowError if a value does not fit int64."""
        return cls(columns_of(TrashEntry._fields, entries))

    def entry(self, index: int) -> TrashEntry:
        return TrashEntry(*self.values(index))

    def __iter__(self) -> Iterator[TrashEntry]:
        for values in zip(*(self.columns[name].tolist() for name in self.FIELDS), strict=True):
            yield TrashEntry(*values)

    @cached_property
    def kinds(self) -> Column:
        """Kind of each entry (``TRASH_OBJECT`` to ``TRASH_LIST``), without the bits for the form of its key."""
        return self.columns["kind"] & ~KEY_BITS


NO_ROWS = Rows.from_rows([])
NO_TRASH = Trash.from_entries([])
