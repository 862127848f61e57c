"""Options and output of an erasure, shared by ``tiered erase`` and the erasure on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from tiered.erase.topic import Fields
from tiered.errors import ConfigError
from tiered.plan.erasure import Selection
from tiered.program.application import Application
from tiered.program.output import columns, counted, human_bytes

MAX_KEYS_BYTES = 64 * 1024 * 1024
"""Largest file of keys in bytes."""

_OPTIONS = (
    click.option("--key", "keys", multiple=True, metavar="K", help="records of this key (UTF-8); may be given again"),
    click.option(
        "--keys", "file", type=click.Path(path_type=Path), metavar="FILE", help="the same of each line of a file"
    ),
    click.option("--key-prefix", "prefixes", multiple=True, metavar="P", help="records whose key begins so"),
    click.option("--hex", "as_hex", is_flag=True, help="keys are written as hex digits"),
    click.option("--to", "before", metavar="TIME", help="only records before this time; alone: all of them"),
)


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options that :func:`selection_of` needs."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def selection_of(
    app: Application,
    *,
    keys: Sequence[str],
    file: Path | None,
    prefixes: Sequence[str],
    as_hex: bool,
    before: str | None,
) -> Selection:
    """Build the selection of records from the options of :func:`selection_options`.

    ``file``: file with one key on each line. ``as_hex``: keys and prefixes are hex digits. ``before``: text of a time.
    Raises ConfigError for a bad ``file``, a key that is not hex, and if nothing is selected. Raises
    InvalidTimestampError for a wrong time.
    """
    lines = list(keys)
    if file is not None:
        lines += _lines_of(file)
        if not lines and not prefixes:  # with --to alone it would mean every key
            raise ConfigError(
                f"--keys {file} names no key: nothing was erased",
                hint="write one key on each line, or leave --keys out",
            )

    def raw(text: str) -> bytes:
        try:
            return bytes.fromhex(text) if as_hex else text.encode("utf-8", "surrogateescape")  # as the shell gave it
        except ValueError:
            raise ConfigError(
                "--hex was passed, and a key is not written as hex digits", hint="leave --hex out, or correct the key"
            ) from None

    time = None if before is None else before.removeprefix("s@")
    return Selection.asked(map(raw, lines), map(raw, prefixes), time, app.clock.now_ms())


def _lines_of(file: Path) -> list[str]:
    """Return the keys of a file, one a line. Blank lines and a byte order mark are ignored.

    Only LF, CR LF or CR ends a line. Other line ends of Unicode may be part of a key. Raises ConfigError for a file
    that is missing, too large or not UTF-8.
    """
    if not file.is_file():
        raise ConfigError(f"--keys {file} is no file", hint="name a file with one key on each line")
    if file.stat().st_size > MAX_KEYS_BYTES:
        raise ConfigError(
            f"--keys {file} is larger than {human_bytes(MAX_KEYS_BYTES)}",
            hint="split the file, and erase in several runs",
        )
    try:
        text = file.read_text("utf-8-sig")
        if "\0" in text:  # read as UTF-8, a file in UTF-16 would name keys that no record has
            raise ConfigError(
                f"--keys {file} holds NUL characters, as UTF-16 does", hint="convert it to UTF-8; --hex writes any key"
            )
        return [line for line in text.split("\n") if line.strip(" \t")]
    except UnicodeDecodeError as cause:
        raise ConfigError(
            f"--keys {file} is not UTF-8 at byte {cause.start}",
            hint="convert it to UTF-8, or write the keys as hex digits and pass --hex",
        ) from None


def plan_table(plans: Iterable[Fields]) -> list[str]:
    """Return a table of the segments to rewrite, and the number of segments that were read."""
    plans = list(plans)
    header = ["partition", "from", "to", "records that go", "bytes of the segment"]
    rows = [
        [
            f"{plan['topic']}-{plan['partition']}",
            hit["start_offset"],
            hit["end_offset"],
            hit["records"],
            human_bytes(hit["bytes"]),
        ]
        for plan in plans
        for hit in plan["segments"]
    ]
    read = f"{counted(sum(plan['segments_read'] for plan in plans), 'segment')} read"
    return [*(columns(header, rows) if rows else ["no live segment holds any"]), read]


def question(plans: Iterable[Fields]) -> str:
    """Return the question that asks to confirm an erasure. ``plans``: each partition's plan, as JSON values."""
    plans = list(plans)
    records, segments = sum(plan["records"] for plan in plans), sum(len(plan["segments"]) for plan in plans)
    return f"Erase {counted(records, 'record')} of {counted(segments, 'segment')} for ever?"


def left_line(partition: str, left: Fields) -> str:
    """Return a line about an object that has matching records or cannot be read. ``left``: its entry in the receipt."""
    held = "cannot be read" if left["records"] < 0 else f"holds {counted(left['records'], 'record')}"
    return f"{partition}: {left['key']} {held}: {left['why']}"


def outcome_line(records: int, left: int) -> str:
    """Return one sentence about the result: ``records`` erased, and ``left`` objects that still have some."""
    hold = "holds" if left == 1 else "hold"
    proof = f"{counted(left, 'object')} still {hold} some" if left else "no object of the bucket holds any"
    return f"{counted(records, 'record')} erased; {proof}"
