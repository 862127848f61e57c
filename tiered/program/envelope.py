"""A record as one JSON object, the same in every command that prints records.

::

    {"message_type": "record", "topic": "flights", "partition": 0, "offset": 4711, "timestamp": 1357016400000,
     "timestamp_type": "CreateTime", "key": "N14228", "value": "...", "headers": [["trace", "abc"]],
     "encoding": "utf-8", "tier": "remote"}

``encoding`` is one word, ``utf-8`` or ``base64``, for all of key, value and header values; where they differ it is an
object with a word for each. A field that is null does not count.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from tiered.model import ConsumerRecord, TimestampType

TEXT = "utf-8"
BINARY = "base64"

_ENCODER = json.JSONEncoder(ensure_ascii=False)


def envelope(record: ConsumerRecord) -> dict[str, Any]:
    """The fields above, in that order."""
    key, key_encoding = _encode([record.key])
    value, value_encoding = _encode([record.value])
    headers, headers_encoding = _encode([content for _, content in record.headers])
    words = {"key": key_encoding, "value": value_encoding, "headers": headers_encoding}
    present = {name: word for name, word in words.items() if word is not None}
    same = len(set(present.values())) <= 1
    return {
        "message_type": "record",
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": TimestampType(record.timestamp_type).label,
        "key": key[0],
        "value": value[0],
        "headers": [[name, content] for (name, _), content in zip(record.headers, headers, strict=True)],
        "encoding": next(iter(present.values()), TEXT) if same else present,
        "tier": record.tier,
    }


def envelope_line(record: ConsumerRecord) -> bytes:
    """The envelope as one line."""
    # A header name may hold lone surrogates only if the bytes on disk were not UTF-8; they are escaped, not lost.
    return _ENCODER.encode(envelope(record)).encode("utf-8", "backslashreplace") + b"\n"


def _encode(contents: list[bytes | None]) -> tuple[list[str | None], str | None]:
    """All of ``contents`` in one encoding, and its name; no name if there is nothing to encode."""
    given = [content for content in contents if content is not None]
    if not given:
        return [None] * len(contents), None
    try:
        return [None if content is None else content.decode(TEXT) for content in contents], TEXT
    except UnicodeDecodeError:
        encoded = [None if content is None else base64.b64encode(content).decode("ascii") for content in contents]
        return encoded, BINARY
