r"""Records as text: the formats in which they are printed, and their parsers.

Records are printed as JSON, the same in every command, or in kcat's format language.

::

    {"message_type": "record", "topic": "flights", "partition": 0, "offset": 4711, "timestamp": 1357016400000,
     "timestamp_type": "CreateTime", "key": "N14228", "value": "...", "headers": [["trace", "abc"]],
     "encoding": "utf-8", "tier": "remote"}

``encoding`` is ``utf-8`` or ``base64`` for all of key, value and header values. If they differ, it is an object with a
word for each. A field that is null does not count.

``--template T``::

    %s value    %S its length (-1: null)     %t topic      %T timestamp in ms
    %k key      %K its length (-1: null)     %p partition  %h headers as a=b,c=d
    %o offset   %R length of the value as four bytes, big-endian (-1: null)
    %% a percent sign     \n \r \t \\ \0 \xHH as in C

Values are written unchanged. Only the default format escapes control characters, and only on a terminal.

They are read from a byte stream of UTF-8: lines, JSON documents, one a line, or CSV. An error names the bad line.
``lines``: a line is a value. With ``-K DELIM`` the part before the delimiter is the key. ``json``: a line is a JSON
document, and its bytes are the value. ``csv``: the first row names the columns, every other row becomes a JSON object
of texts. ``key_field`` and ``timestamp_field`` name the column or member for the record's key or timestamp, which stays
in the value. A number becomes the key as it is written in the document.
"""

from __future__ import annotations

import base64
import codecs
import csv
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tiered.errors import ConfigError, InvalidRecordError, TieredError
from tiered.format.kernels import ConsumerRecord
from tiered.model import NO_TIMESTAMP, NewRecord, TimestampType
from tiered.program.output import counted
from tiered.times import parse_time

TEXT = "utf-8"
BINARY = "base64"

_ENCODER = json.JSONEncoder(ensure_ascii=False)

FORMAT_NAMES = ("csv", "json", "lines", "text")
"""Words that other programs accept for such an option."""

Part = bytes | Callable[[ConsumerRecord], bytes]
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}


def envelope(record: ConsumerRecord) -> dict[str, Any]:
    """Return the fields of a record for JSON output.

    In this order: message_type, topic, partition, offset, timestamp, timestamp_type, key, value, headers, encoding,
    tier. ``encoding``: ``utf-8`` or ``base64`` for key, value and header values. If they differ, it is a dictionary.
    """
    (key,), key_word = _encode([record.key])
    (value,), value_word = _encode([record.value])
    return {
        "message_type": "record",
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": TimestampType(record.timestamp_type).label,
        **encoded_fields((key, key_word), (value, value_word), record.headers),
        "tier": record.tier,
    }


def encoded_fields(
    key: tuple[Any, str], value: tuple[Any, str], headers: Sequence[tuple[str, bytes | None]]
) -> dict[str, Any]:
    """Return the JSON fields ``key``, ``value``, ``headers`` and ``encoding``.

    ``key`` and ``value`` are pairs of the encoded content and the name of its encoding, ``""`` for null. The field
    ``encoding`` is that name, or a dictionary of the names by field if they differ.
    """
    contents, headers_word = _encode([content for _, content in headers])
    words = {"key": key[1], "value": value[1], "headers": headers_word}
    present = {name: word for name, word in words.items() if word}
    same = len(set(present.values())) <= 1
    return {
        "key": key[0],
        "value": value[0],
        "headers": [[name, content] for (name, _), content in zip(headers, contents, strict=True)],
        "encoding": next(iter(present.values()), TEXT) if same else present,
    }


def envelope_line(record: ConsumerRecord) -> bytes:
    """Return the JSON of :func:`envelope` as one line."""
    # A header name may hold lone surrogates only if the bytes on disk were not UTF-8; they are escaped, not lost.
    return _ENCODER.encode(envelope(record)).encode("utf-8", "backslashreplace") + b"\n"


def _encode(contents: list[bytes | None]) -> tuple[list[str | None], str]:
    """Return all of ``contents`` in one encoding, and its name, which is empty for no content."""
    given = [content for content in contents if content is not None]
    if not given:
        return [None] * len(contents), ""
    try:
        return [None if content is None else content.decode(TEXT) for content in contents], TEXT
    except UnicodeDecodeError:
        encoded = [None if content is None else base64.b64encode(content).decode("ascii") for content in contents]
        return encoded, BINARY


def _length(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(
        name.encode("utf-8", "backslashreplace") + b"=" + (content or b"") for name, content in record.headers
    )


_FIELDS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "s": lambda record: record.value or b"",
    "k": lambda record: record.key or b"",
    "S": lambda record: b"%d" % _length(record.value),
    "K": lambda record: b"%d" % _length(record.key),
    "R": lambda record: struct.pack(">i", _length(record.value)),
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "h": _headers,
}


def compile_format(text: str) -> Callable[[ConsumerRecord], bytes]:
    r"""Return a function that formats a record by the template ``text``, such as ``%o %s\n``.

    Raises ConfigError for an unknown field or escape.
    """
    parts = [_part(match) for match in _TOKEN.finditer(text)]

    def render(record: ConsumerRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return render


def need_field(text: str) -> str:
    """Return the template ``text``. Raises ConfigError if it has no field: all lines would look the same."""
    if not any(field not in (None, "%") for field, *_ in map(re.Match.groups, _TOKEN.finditer(text))):
        hint = "--json prints JSON" if text in FORMAT_NAMES else r"for example --template '%o %s\n'; --json prints JSON"
        raise ConfigError(f"the template {text!r} names no field, so all records would look the same", hint=hint)
    return text


def _part(match: re.Match[str]) -> Part:
    field, code, escape, plain, stray = match.groups()
    if plain is not None:
        return plain.encode("utf-8", "surrogateescape")
    if code is not None:
        return bytes.fromhex(code)
    if field == "%":
        return b"%"
    if field is not None and field in _FIELDS:
        return _FIELDS[field]
    if escape is not None and escape in _ESCAPES:
        return _ESCAPES[escape]
    shown = f"%{field}" if field is not None else f"\\{escape}" if escape is not None else stray
    raise ConfigError(
        f"the template holds {shown!r}, which is neither a field nor an escape",
        hint="fields: %" + " %".join([*_FIELDS, "%"]) + r"; escapes: \n \r \t \\ \0 \xHH",
    )


def terminal_line(record: ConsumerRecord) -> bytes:
    """Return the value and a line end. Control characters that a terminal would interpret are escaped."""
    text = (record.value or b"").decode("utf-8", "backslashreplace")
    safe = "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in text)
    return safe.encode("utf-8", "backslashreplace") + b"\n"


def plain_line(record: ConsumerRecord) -> bytes:
    """Return the value, unchanged, and a line end."""
    return (record.value or b"") + b"\n"


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
    """Part of the interface of standard input that :class:`LineSource` needs."""

    def read1(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, but at least one, and none at the end of the stream. Waits only for the first
        byte.
        """


class LineSource:
    """Lines of a stream, without their ends. Not thread-safe. ``number``: of the last returned line, from 1.

    Iteration raises InvalidRecordError for a line of more than ``MAX_LINE_BYTES``.
    """

    def __init__(self, stream: ByteStream, *, end: bytes = b"\n", skips_blank: bool = False) -> None:
        """Read lines from ``stream``. ``end``: the line end.

        ``skips_blank``: the caller ignores blank lines, so that no record has to wait for lines after blank ones.
        """
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
        """Return True if no further line is available without waiting. The caller then appends the records that it
        has.
        """
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
                    hint="check that the input is text; -0 splits at NUL bytes instead of line ends",
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
    """Options of the input. ``delimiter`` splits key and value in lines; None: lines have no key.

    ``separator`` splits the columns of a CSV; None: a comma.

    ``format``: "lines", "json" or "csv". ``binary``: lines are bytes, not UTF-8. ``key_field``, ``timestamp_field``:
    member or column with the key and the timestamp. ``headers``: headers of every record. ``null_empty``: an empty key
    or value becomes null. Raises ConfigError for options that contradict each other.
    """

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
            raise ConfigError(f"--binary belongs to lines, not to {self.format}", hint="leave --binary out")
        if self.delimiter == b"":
            raise ConfigError("-K needs a delimiter of at least one character", hint="for example -K ':' or -K '\\t'")


def read_records(source: LineSource, shape: InputShape, *, now_ms: int) -> Iterator[NewRecord]:
    """Yield the records of ``source``. ``now_ms``: time to which relative timestamps refer."""
    reader = {"lines": _lines, "json": _documents, "csv": _rows}[shape.format]
    return reader(source, shape, now_ms)


def _texts(source: LineSource, other: str = "") -> Iterator[bytes]:
    """Yield lines of UTF-8 text without a byte order mark. Raises InvalidRecordError for another encoding.

    Read as UTF-8, a text in UTF-16 would become records and keys full of NUL characters. ``other``: end of the hint.
    """
    for line in source:
        if source.number == 1:
            found = next((name for mark, name in _MARKS if line.startswith(mark)), None)
            if found is not None:
                hint = f"convert it first: iconv -f {found} -t UTF-8{other}"
                raise _wrong(source, f"begins with the byte order mark of {found}", hint)
            line = line.removeprefix(codecs.BOM_UTF8)
        if b"\0" in line:
            hint = f"convert it first: iconv -f UTF-16LE -t UTF-8{other}"
            raise _wrong(source, "holds NUL characters, as UTF-16 and UTF-32 do", hint)
        yield line


def _lines(source: LineSource, shape: InputShape, _now_ms: int) -> Iterator[NewRecord]:
    headers = list(shape.headers)
    for line in source if shape.binary else _texts(source, "; --binary appends lines as they are"):
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
    """Return the error "line N of the input ``what``". N: ``line``, or the last line read if ``line`` is 0."""
    number = line or source.number
    return InvalidRecordError(f"line {number} of the input {what}", index=number - 1, hint=hint)
