"""Lines of JSON, and members of each as they stand there: what is imported is no other text. Runs in the workers.

Spark's functions read numbers as doubles (``0.12345678901234567891`` loses digits, ``1.10`` its zero), take a name with
a dot for a path, a member that is not there for a null, and of a line with two documents the first one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf

SHAPE = "struct<wrong: string, members: array<binary>>"
_ARROW_SHAPE = pa.struct([("wrong", pa.string()), ("members", pa.list_(pa.binary()))])

NO_JSON = "is no JSON"


def read_lines(lines: Column, names: Sequence[str]) -> Column:
    """Of each line (binary) what is wrong with it, null if nothing is, and the members ``names``: :data:`SHAPE`."""

    def read(column: pa.Array) -> pa.Array:
        rows = [dict(zip(("wrong", "members"), _read(line, names), strict=True)) for line in column.to_pylist()]
        return pa.array(rows, _ARROW_SHAPE)

    of_each: Any = arrow_udf
    found: Column = of_each(read, SHAPE)(lines)
    return found


def _read(line: bytes, names: Sequence[str]) -> tuple[str | None, list[bytes | None]]:
    try:
        text = line.decode("utf-8")
        document = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return NO_JSON, []
    if not names:
        return None, []
    members = _members(text) if isinstance(document, dict) else {}
    lacking = [name for name in names if name not in members]
    if lacking:
        return f"has no member {lacking[0]}", []
    return None, [members[name] for name in names]


def _members(text: str) -> dict[str, bytes | None]:
    """The members of an object that is right: of a string what it says, of null None, of all else its own text."""
    found: dict[str, bytes | None] = {}
    at = _blank(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _blank(text, text.index(":", at) + 1)
        value, end = _DECODER.raw_decode(text, at)
        said = value if text[at] == '"' else text[at:end]
        found[name] = None if value is None else said.encode("utf-8", "surrogatepass")
        at = _blank(text, end)
        if text[at] == ",":
            at = _blank(text, at + 1)
    return found


def _blank(text: str, at: int) -> int:
    """Where what comes at ``at`` or behind it begins."""
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refused, strict=False)
"""Numbers are never more than their text. Tabs and the like inside a string pass, as Spark lets them."""
