r"""Formats of printed records: JSON, the same in every command, or kcat's format language.

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
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from tiered.errors import ConfigError
from tiered.format.kernels import ConsumerRecord
from tiered.model import TimestampType

TEXT = "utf-8"
BINARY = "base64"

_ENCODER = json.JSONEncoder(ensure_ascii=False)

MAX_FORMAT_CHARS = 4096
"""Longest template, in characters."""

FORMAT_NAMES = ("csv", "json", "lines", "text")
"""Words that other programs accept for such an option."""

Part = bytes | Callable[[ConsumerRecord], bytes]
_TOKEN = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}


def envelope(record: ConsumerRecord) -> dict[str, Any]:
    """Return the fields above, in that order."""
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
    """Return ``key``, ``value``, ``headers`` and ``encoding``. Key and value have their encodings, "" for none."""
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
    """Return the envelope as one line."""
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
    """Return a function that formats a record by ``text``. Raises ``ConfigError`` for an unknown field or escape."""
    if len(text) > MAX_FORMAT_CHARS:
        raise ConfigError(f"the template has {len(text)} characters, more than {MAX_FORMAT_CHARS}")
    parts = [_part(match) for match in _TOKEN.finditer(text)]

    def render(record: ConsumerRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return render


def need_field(text: str) -> str:
    """Return ``text`` if it has a field, otherwise raise ``ConfigError``: a single word was meant as a name."""
    if not any(field not in (None, "%") for field, *_ in map(re.Match.groups, _TOKEN.finditer(text))):
        hint = "--json prints JSON" if text in FORMAT_NAMES else r"for example --template '%o %s\n'; --json prints JSON"
        raise ConfigError(f"the template {text!r} names no field, so that all records would look the same", hint=hint)
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
        f"the template holds {shown!r}, which means nothing",
        hint="fields: %" + " %".join([*_FIELDS, "%"]) + r"; escapes: \n \r \t \\ \0 \xHH",
    )


def terminal_line(record: ConsumerRecord) -> bytes:
    """Return the value and a line end, with everything escaped that could drive a terminal."""
    text = (record.value or b"").decode("utf-8", "backslashreplace")
    safe = "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in text)
    return safe.encode("utf-8", "backslashreplace") + b"\n"


def plain_line(record: ConsumerRecord) -> bytes:
    """Return the unchanged value and a line end."""
    return (record.value or b"") + b"\n"
