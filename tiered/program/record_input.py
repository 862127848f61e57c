"""Records from a byte stream: lines, JSON documents, one a line, or CSV. An error names the bad line.

Text is UTF-8. ``lines``: a line is a value. With ``-K DELIM`` the part before the delimiter is the key. ``json``: a
line is a JSON document, and its bytes are the value. ``csv``: the first row names the columns, every other row becomes
a JSON object of texts. ``key_field`` and ``timestamp_field`` name the column or member for the record's key or
timestamp, which stays in the value. A number becomes the key as it is written in the document.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tiered.errors import ConfigError, InvalidRecordError, TieredError
from tiered.model import NO_TIMESTAMP, NewRecord
from tiered.program.output import counted
from tiered.times import parse_time

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line in bytes. The topic's ``max.message.bytes`` is usually far smaller."""

MAX_FIELD_CHARS = MAX_LINE_BYTES
"""Longest field of a CSV."""

MAX_INT_CHARS = 100
"""Most digits of a number that is converted to an int. No time has as many."""

_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
"""Byte order marks of other encodings than UTF-8. That of UTF-32 begins with that of UTF-16."""

_CR = "holds a CR that ends no line: lines end in LF or CR LF"
_ALONE = "convert them first: tr '\\r' '\\n' < FILE | tiered append ..."

OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""Separators of files that are called CSV, too."""

READ_BYTES = 256 * 1024
"""Bytes requested from the stream at once. It may return fewer, so a slow stream is not delayed."""


@runtime_checkable
class ByteStream(Protocol):
    """Interface of standard input."""

    def read1(self, size: int, /) -> bytes:
        """Return at least one byte, unless the stream has ended. Never waits for more than is available."""


class LineSource:
    """Lines of a stream, without their ends. Not thread-safe."""

    def __init__(self, stream: ByteStream, *, end: bytes = b"\n", skips_blank: bool = False) -> None:
        """Take ``skips_blank`` if the caller ignores blank lines: no record then waits for lines after blank ones."""
        self._stream = stream
        self._end = end
        self._skips_blank = skips_blank
        self._lines: list[bytes] = []
        self._next = 0
        self._drained_at = 0
        self.number = 0
        self.is_one = False  # the input is one line without a line end

    @property
    def drained(self) -> bool:
        """Return whether the next line has to be waited for. The collected records are appended then."""
        return self._next >= self._drained_at

    def __iter__(self) -> Iterator[bytes]:
        tail: list[bytes] = []
        tail_bytes = 0
        while chunk := self._stream.read1(READ_BYTES):
            head, found, rest = chunk.partition(self._end)
            tail.append(head)
            tail_bytes += len(head)
            if tail_bytes > MAX_LINE_BYTES:
                raise InvalidRecordError(
                    f"line {self.number + 1} of the input is longer than {MAX_LINE_BYTES} bytes",
                    hint="is this text? -0 splits at NUL bytes instead of line ends",
                )
            if not found:
                continue
            self._lines = [b"".join(tail), *rest.split(self._end)]
            tail = [self._lines.pop()]
            tail_bytes = len(tail[0])
            yield from self._give()
        last = b"".join(tail)
        if last:
            self.is_one = self.number == 0 and self._end == b"\n"
            self._lines = [last]
            yield from self._give()

    def _give(self) -> Iterator[bytes]:
        self._next = 0
        self._drained_at = len(self._lines)
        while self._skips_blank and self._drained_at and not self._lines[self._drained_at - 1].strip():
            self._drained_at -= 1
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            self.number += 1
            yield line
        self._lines = []
        self._next = self._drained_at = 0


class _Number(str):
    """A number of a JSON document as written there. A double has at most 17 digits and ends at 1.8e308."""

    __slots__ = ()

    @property
    def value(self) -> int | float:
        """Return the nearest number."""
        return int(self) if len(self) <= MAX_INT_CHARS and self.lstrip("-").isdecimal() else float(self)


@dataclass(frozen=True, slots=True)
class InputShape:
    """Options of the input. ``delimiter`` splits key and value in lines, ``separator`` the columns of a CSV."""

    format: str = "lines"
    delimiter: bytes | None = None
    separator: str | None = None
    binary: bool = False
    key_field: str | None = None
    timestamp_field: str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    null_empty: bool = False

    def __post_init__(self) -> None:
        if self.format == "lines" and (self.key_field or self.timestamp_field):
            raise ConfigError(
                "--key-field and --timestamp-field need fields",
                hint="add --format json or csv, or use -K DELIM for lines",
            )
        if self.format != "lines" and self.delimiter is not None:
            raise ConfigError(f"-K belongs to lines, not to {self.format}", hint="use --key-field NAME")
        if self.separator is not None and self.format != "csv":
            hint = "add --format csv" + ("; -K separates key and value" if self.format == "lines" else "")
            raise ConfigError(f"--delimiter belongs to csv, not to {self.format}", hint=hint)
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n\0'):
            raise ConfigError("--delimiter is one character, no quote and no line end", hint="for example ';' or '\\t'")
        if self.binary and self.format != "lines":
            raise ConfigError(f"--binary belongs to lines, not to {self.format}", hint="leave it out")
        if self.delimiter == b"":
            raise ConfigError("-K needs a delimiter of at least one character", hint="for example -K ':' or -K '\\t'")


def read_records(source: LineSource, shape: InputShape, *, now_ms: int) -> Iterator[NewRecord]:
    """Yield the records of ``source``. Raises ``InvalidRecordError``, which names the line, after earlier records."""
    reader = {"lines": _lines, "json": _documents, "csv": _rows}[shape.format]
    return reader(source, shape, now_ms)


def _texts(source: LineSource) -> Iterator[bytes]:
    """Yield lines of UTF-8 text without a byte order mark. Raises InvalidRecordError for another encoding.

    Read as UTF-8, a text in UTF-16 would become records and keys full of NUL characters.
    """
    for line in source:
        if source.number == 1:
            found = next((name for mark, name in _MARKS if line.startswith(mark)), None)
            if found is not None:
                hint = f"convert it first: iconv -f {found} -t UTF-8; --binary appends lines of bytes as they are"
                raise _wrong(source, f"begins with the byte order mark of {found}", hint)
            line = line.removeprefix(codecs.BOM_UTF8)
        if b"\0" in line:
            hint = "convert it first: iconv -f UTF-16LE -t UTF-8; --binary appends lines of bytes as they are"
            raise _wrong(source, "holds NUL characters, as UTF-16 and UTF-32 do", hint)
        yield line


def _lines(source: LineSource, shape: InputShape, _now_ms: int) -> Iterator[NewRecord]:
    headers = list(shape.headers)
    for line in source if shape.binary else _texts(source):
        key: bytes | None = None
        value = line
        if source.is_one and b"\r" in line and not shape.binary:
            raise _wrong(source, _CR, f"{_ALONE}; --binary appends it as one record")
        if shape.delimiter is not None:
            key, found, value = line.partition(shape.delimiter)
            if not found:
                shown = shape.delimiter.decode("utf-8", "backslashreplace")
                raise _wrong(source, f"has no key delimiter {shown!r}", "every line needs one, or leave -K out")
        empty = shape.null_empty
        yield NewRecord(
            None if empty and not value else value, None if empty and key == b"" else key, NO_TIMESTAMP, headers
        )


def _documents(source: LineSource, shape: InputShape, now_ms: int) -> Iterator[NewRecord]:
    for line in _texts(source):
        text = line.strip()
        if not text:
            continue
        try:
            document = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as cause:
            hint = _ALONE if b"\r" in text else "one JSON document a line"
            raise _wrong(source, f"is not JSON: {cause}", hint) from None
        yield _with_fields(text, document, source, shape, now_ms)


def _rows(source: LineSource, shape: InputShape, now_ms: int) -> Iterator[NewRecord]:
    csv.field_size_limit(MAX_FIELD_CHARS)  # for the whole process, which is ours; the default is 128 KiB
    rows = csv.reader(_text_lines(source), strict=True, delimiter=shape.separator or ",")
    names: list[str] | None = None
    while True:
        begun = source.number + 1
        try:
            row = next(rows, None)
        except csv.Error as cause:
            if "unexpected end of data" in str(cause):
                text = f"opens a quote that is not closed before the input ends (line {source.number})"
                raise _wrong(source, text, 'every " that begins a field needs one that ends it', begun) from None
            if "field limit" in str(cause):
                text = f"has a field of more than {MAX_FIELD_CHARS:,} characters"
                raise _wrong(source, text, "append such values as lines or as files of their own", begun) from None
            if "new-line character" in str(cause):
                raise _wrong(source, _CR, _ALONE) from None
            raise _wrong(source, f"is not CSV: {cause}", "quote fields that hold quotes or commas") from None
        if row is None:
            return
        if not row:
            continue
        if names is None:
            names = _column_names(source, row, shape)
            continue
        if len(row) != len(names):
            text = f"has {counted(len(row), 'column')} where the header has {len(names)}"
            raise _wrong(source, text, "correct the row")
        document = dict(zip(names, row, strict=True))
        value = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        yield _with_fields(value, document, source, shape, now_ms)


def _column_names(source: LineSource, row: list[str], shape: InputShape) -> list[str]:
    names = list(row)
    if len(names) == 1:
        other = next((mark for mark in OTHER_SEPARATORS if mark in names[0]), None)
        if other is not None and shape.separator is None:
            text = f"is one column that holds {OTHER_SEPARATORS[other]}; the separator is a comma"
            shown = "\\t" if other == "\t" else other
            raise _wrong(source, text, f"add --delimiter '{shown}', or append it as lines with -K")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _wrong(source, f"names the column {twice[0]!r} twice", "each column needs a name of its own")
    for field in (shape.key_field, shape.timestamp_field):
        if field is not None and field not in names:
            raise _wrong(source, f"has no column {field!r}", "columns: " + ", ".join(names))
    return names


def _text_lines(source: LineSource) -> Iterator[str]:
    for line in _texts(source):
        try:
            yield line.decode("utf-8") + "\n"
        except UnicodeDecodeError as cause:
            hint = "convert it first: iconv -f LATIN1 -t UTF-8"
            raise _wrong(source, f"is not UTF-8 at byte {cause.start}", hint) from None


def _with_fields(value: bytes, document: Any, source: LineSource, shape: InputShape, now_ms: int) -> NewRecord:
    key: bytes | None = None
    timestamp = NO_TIMESTAMP
    if shape.key_field is not None:
        content = _member(document, shape.key_field, source)
        try:
            key = None if content is None or (shape.null_empty and content == "") else _key_bytes(content)
        except RecursionError:
            raise _wrong(source, f"has a {shape.key_field!r} that is too deep for a key", "name another") from None
    if shape.timestamp_field is not None:
        content = _member(document, shape.timestamp_field, source)
        moment: Any = content.value if isinstance(content, _Number) else content
        try:
            timestamp = parse_time(moment, now_ms=now_ms)
        except TieredError as cause:
            raise _wrong(source, f"has a bad {shape.timestamp_field!r}: {cause.message}", cause.hint) from None
    return NewRecord(value, key, timestamp, list(shape.headers))


def _member(document: Any, name: str, source: LineSource) -> Any:
    if not isinstance(document, dict):
        raise _wrong(source, f"is no JSON object, so it has no member {name!r}", "leave the field option out")
    if name not in document:
        shown = ", ".join(list(document)[:20])
        raise _wrong(source, f"has no member {name!r}", f"it has {shown}" if shown else "it has none")
    return document[name]


def _key_bytes(content: Any) -> bytes:
    """Return a text or a number unchanged, anything else as JSON without spaces."""
    return (content if isinstance(content, str) else _json(content)).encode("utf-8", "surrogatepass")


def _json(content: Any) -> str:
    if isinstance(content, _Number):
        return str(content)
    if isinstance(content, dict):
        return "{" + ",".join([f"{_json(name)}:{_json(value)}" for name, value in content.items()]) + "}"
    if isinstance(content, list):
        return "[" + ",".join([_json(each) for each in content]) + "]"
    return json.dumps(content, ensure_ascii=False)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _wrong(source: LineSource, what: str, hint: str, line: int = 0) -> InvalidRecordError:
    """Return the error. ``line`` is the first line of the record, if it is not the last line read."""
    number = line or source.number
    return InvalidRecordError(f"line {number} of the input {what}", index=number - 1, hint=hint)
