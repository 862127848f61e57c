"""Records of every kind that a user may pass: plain ones, odd ones, wrong ones."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.unit.format import strategies
from tiered.model import NewRecord

NOW = 1_700_000_000_000


class Bytes(bytes):
    """As good as bytes, and not quite."""


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Own(list[Any]):
    pass


class Late(NewRecord):
    """A record that says something else when it is unpacked."""

    def __iter__(self) -> Any:
        return iter((b"other", None, NOW, None))


buffers = st.sampled_from(
    [
        bytearray(b"abc"),
        memoryview(b"abcd")[::2],
        array("i", [1, 2]),
        Bytes(b"sub"),
        memoryview(bytes(4)).cast("B", (2, 2)),
    ]
)
fields = strategies.fields | buffers | st.sampled_from(["text", 7, (), b"x" * 9000])
times = strategies.timestamps | st.sampled_from(
    [-2, 2**63, -(2**70), True, 1.5, None, "1", Number(5), 2**62 + 5, 2**31, NOW - 10**12]
)
names = st.text(max_size=20) | st.sampled_from(["\ud800", Text("kind"), "é", b"bytes", None, 3, "x" * 9000])
header = st.tuples(names, fields) | st.lists(names, max_size=3) | st.sampled_from([("a",), (), None, "ab"])
headers = (
    strategies.headers
    | st.lists(header, max_size=4)
    | st.sampled_from([(), [], {}, 0, "ab", (("a", b"1"), ("b", None)), {"a": b"b"}, [("e", b"")] * 300])
)
odd = (
    st.tuples(fields, fields, times, headers)
    | st.builds(NewRecord, fields, fields, times, headers)
    | st.sampled_from([None, b"value", (b"v", b"k"), [b"v", None, 1, None], Late(b"v"), (b"v", None, 1, None, 5)])
)
lists = st.lists(strategies.records | odd, max_size=12)
containers: st.SearchStrategy[Callable[[list[Any]], Any]] = st.sampled_from([list, tuple, iter, Own])
