"""Arrow arrays around the buffers that the compiled kernels filled, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tiered.arrow.schema import pyarrow
from tiered.format.pure_kernels import ArrowBinary, ArrowBuffers
from tiered.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_ROWS = 16_384
"""Length at which a column of equal values is first built."""


class BufferArrays:
    """Builder of one partition's arrays. ``types``: Arrow types of the wanted columns, by name."""

    def __init__(self, tp: TopicPartition, types: dict[str, pa.DataType]) -> None:
        self._pa = pyarrow()
        self._types = types
        self._equal: dict[str, pa.Array] = {}
        self._repeated: dict[str, Callable[[int], pa.Array]] = {
            "topic": lambda rows: self._names(tp.topic.encode(), rows),
            "partition": lambda rows: self._plain(self._pa.int32(), rows, np.full(rows, tp.partition, np.int32)),
        }

    def array(self, name: str, buffers: ArrowBuffers) -> pa.Array:
        """Return one column, of ``buffers.rows`` elements."""
        rows = buffers.rows
        if name in self._repeated:
            return self._same(name, rows)
        if name == "headers":
            return self._lists(buffers)
        if name in {"key", "value"}:
            found = cast("ArrowBinary", buffers.keys if name == "key" else buffers.values)
            return self._binary(self._types[name], rows, found)
        whole = {"offset": buffers.offsets, "timestamp": buffers.timestamps, "timestampType": buffers.kinds}[name]
        return self._plain(self._types[name], rows, whole)

    def _plain(self, kind: pa.DataType, rows: int, values: object) -> pa.Array:
        return self._pa.Array.from_buffers(kind, rows, [None, self._pa.py_buffer(values)], 0)

    def _names(self, name: bytes, rows: int) -> pa.Array:
        # Not pa.repeat: Arrow imports pandas (0.3 s of a process) before it converts its first value of Python.
        ends = self._pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(len(name)))  # rows + 1 offsets
        return self._pa.Array.from_buffers(self._pa.string(), rows, [None, ends, self._pa.py_buffer(name * rows)], 0)

    def _same(self, name: str, rows: int) -> pa.Array:
        """Return a column of equal values. The array is built once, and sliced for each request."""
        found = self._equal.get(name)
        if found is None or len(found) < rows:
            found = self._equal[name] = self._repeated[name](max(rows, FIRST_ROWS))
        return found.slice(0, rows)

    def _binary(self, kind: pa.DataType, count: int, of: ArrowBinary) -> pa.Array:
        return self._pa.Array.from_buffers(kind, count, [*self._bounds(of), self._pa.py_buffer(of.data)], of.nulls)

    def _lists(self, buffers: ArrowBuffers) -> pa.Array:
        kind = self._types["headers"]
        lists, names, values = cast("tuple[ArrowBinary, ArrowBinary, ArrowBinary]", buffers.headers)
        fields, count = kind.value_type, len(names.ends) // 4 - 1
        children = [self._binary(fields.field(at).type, count, of) for at, of in enumerate((names, values))]
        held = self._pa.Array.from_buffers(fields, count, [None], 0, children=children)
        return self._pa.Array.from_buffers(kind, buffers.rows, self._bounds(lists), lists.nulls, children=[held])

    def _bounds(self, of: ArrowBinary) -> list[Any]:
        buffer = self._pa.py_buffer
        return [None if of.validity is None else buffer(of.validity), buffer(of.ends)]
