"""Records as JSON and as kcat's format; the line source under odd reads."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ConfigError, InvalidRecordError
from tiered.format.kernels import ConsumerRecord
from tiered.model import Headers
from tiered.program.records import (
    MAX_LINE_BYTES,
    InputShape,
    LineSource,
    compile_format,
    envelope,
    envelope_line,
    read_records,
)

FIELDS = "message_type topic partition offset timestamp timestamp_type key value headers encoding tier"


def record(key: bytes | None, value: bytes | None, headers: Headers | None = None) -> ConsumerRecord:
    return ConsumerRecord("t", 3, 42, 1_357_016_400_000, 1, key, value, headers or [], 5, "remote")


@pytest.mark.parametrize(
    ("given_record", "key", "value", "headers", "encoding"),
    [
        (record(b"k", "größe".encode()), "k", "größe", [], "utf-8"),
        (record(None, None), None, None, [], "utf-8"),
        (record(b"\xff", b"\xfe"), "/w==", "/g==", [], "base64"),
        (record(b"k", b"\xfe"), "k", "/g==", [], {"key": "utf-8", "value": "base64"}),
        (record(None, b"\xfe"), None, "/g==", [], "base64"),
        (
            record(b"k", b"v", [("h", b"\xff"), ("h", None), ("i", b"a")]),
            "k",
            "v",
            [["h", "/w=="], ["h", None], ["i", "YQ=="]],
            {"key": "utf-8", "value": "utf-8", "headers": "base64"},
        ),
    ],
)
def test_envelope(given_record: ConsumerRecord, key: object, value: object, headers: object, encoding: object) -> None:
    seen = envelope(given_record)
    assert (seen["key"], seen["value"], seen["headers"], seen["encoding"]) == (key, value, headers, encoding)
    assert json.loads(envelope_line(given_record)) == seen
    assert " ".join(seen) == FIELDS
    assert (seen["timestamp_type"], seen["tier"]) == ("LogAppendTime", "remote")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t/%p/%o %T %k=%s\n", b"t/3/42 1357016400000 k=v\n"),
        (r"%S %K %%\t\x41\0\\", b"1 1 %\tA\0\\"),
        ("%R", b"\0\0\0\1"),
        ("%h", b"a=1,a="),
        ("", b""),
        ("größe", "größe".encode()),
    ],
)
def test_formats(text: str, expected: bytes) -> None:
    assert compile_format(text)(record(b"k", b"v", [("a", b"1"), ("a", None)])) == expected


def test_null_in_a_format() -> None:
    assert compile_format("%s|%k|%S|%K|%R")(record(None, None)) == b"||-1|-1|\xff\xff\xff\xff"


@pytest.mark.parametrize("text", ["%", "%z", "\\", "\\q", "\\x4", "%s %"])
def test_formats_that_mean_nothing(text: str) -> None:
    with pytest.raises(ConfigError):
        compile_format(text)


class Trickle:
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = io.BytesIO(data)
        self._step = step

    def read1(self, size: int, /) -> bytes:
        return self._data.read(min(size, self._step))


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\n" not in line), max_size=12), st.integers(1, 9))
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], step: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert list(LineSource(Trickle(data, step))) == lines


def test_a_line_without_an_end_counts_and_so_do_empty_ones() -> None:
    source = LineSource(Trickle(b"a\n\nb", 2))
    assert list(source) == [b"a", b"", b"b"]
    assert source.number == 3


def test_the_source_says_when_the_next_line_has_to_be_waited_for() -> None:
    source = LineSource(Trickle(b"a\nb\nc\n", 4))
    assert [(line, source.drained) for line in source] == [(b"a", False), (b"b", True), (b"c", True)]


def test_nobody_waits_behind_blank_lines_that_are_skipped() -> None:
    """Events come as ``{...}`` and a blank line: each is whole before the next one is there."""
    shape = InputShape(format="json")
    source = LineSource(Trickle(b"{}\n\n[]\n\r\n1\n2\n", 4), skips_blank=True)
    seen = [(each.value, source.drained) for each in read_records(source, shape, now_ms=0)]
    assert seen == [(b"{}", True), (b"[]", True), (b"1", True), (b"2", True)]
    source = LineSource(Trickle(b"a\n\nb\n", 3))
    assert [(line, source.drained) for line in source] == [(b"a", False), (b"", True), (b"b", True)]


def test_an_endless_line_is_refused_before_it_fills_the_memory() -> None:
    class Endless:
        given = 0

        def read1(self, size: int, /) -> bytes:
            self.given += size
            return bytes(size)

    stream = Endless()
    with pytest.raises(InvalidRecordError, match="longer than"):
        next(iter(LineSource(stream)))
    assert stream.given < MAX_LINE_BYTES * 2


@given(st.binary(max_size=200), st.sampled_from(["lines", "json", "csv"]), st.booleans())
def test_no_input_gives_anything_but_records_or_the_typed_error(data: bytes, kind: str, fields: bool) -> None:
    wanted = {"key_field": "k", "timestamp_field": "t"} if fields and kind != "lines" else {}
    shape = InputShape(format=kind, **wanted)  # type: ignore[arg-type]  # names of text fields only
    records = read_records(LineSource(io.BytesIO(data)), shape, now_ms=0)
    with contextlib.suppress(InvalidRecordError):
        assert all(each.value is not None for each in records)
