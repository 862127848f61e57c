"""Options, plan and outcome of an erasure as programs show them, the same on one machine and on many."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tiered.erase.erase import Erased, ErasePlan
from tiered.errors import ConfigError
from tiered.plan.erasure import Selection
from tiered.program.application import Application
from tiered.program.output import columns, counted, human_bytes
from tiered.store.location import StoreLocation
from tiered.times import parse_time

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
    """Add the options that :func:`selection_of` takes."""
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
    """Return the selection that the options name. Raises ConfigError."""
    lines = list(keys)
    if file is not None:
        lines += _lines_of(file)
        if not lines and not prefixes:  # with --to alone it would mean every key
            raise ConfigError(f"--keys {file} names no key: nothing was erased", hint="leave it out, or name keys")

    def raw(text: str) -> bytes:
        try:
            return bytes.fromhex(text) if as_hex else text.encode("utf-8", "surrogateescape")  # as the shell gave it
        except ValueError:
            raise ConfigError("a key is not written as hex digits", hint="leave --hex out, or correct it") from None

    before_ms = None if before is None else parse_time(before.removeprefix("s@"), now_ms=app.clock.now_ms())
    return Selection(frozenset(raw(line) for line in lines), tuple(raw(prefix) for prefix in prefixes), before_ms)


def _lines_of(file: Path) -> list[str]:
    """Return the keys of a file, one a line. Blank lines and a byte order mark are ignored.

    Only LF, CR LF or CR ends a line. Other line ends of Unicode may be part of a key.
    """
    if not file.is_file() or file.stat().st_size > MAX_KEYS_BYTES:
        raise ConfigError(f"--keys {file}: there is no such file of at most {MAX_KEYS_BYTES} bytes")
    try:
        text = file.read_text("utf-8-sig")
        if "\0" in text:  # read as UTF-8, a file in UTF-16 would name keys that no record has
            raise ConfigError(
                f"--keys {file} holds NUL characters, as UTF-16 does", hint="convert it to UTF-8; --hex writes any key"
            )
        return [line for line in text.split("\n") if line.strip(" \t")]
    except UnicodeDecodeError as cause:
        raise ConfigError(
            f"--keys {file} is not UTF-8 at byte {cause.start}", hint="convert it, or write keys as hex digits: --hex"
        ) from None


Fields = Mapping[str, Any]


def plan_fields(plan: ErasePlan) -> dict[str, Any]:
    """Return one partition's plan, for ``--json`` and the functions below."""
    return {
        "topic": plan.tp.topic,
        "partition": plan.tp.partition,
        "version": plan.version,
        "end_offset": plan.end_offset,
        "segments_read": plan.segments,
        "bytes_read": plan.read_bytes,
        "records": plan.records,
        "bytes_rewritten": plan.rewritten_bytes,
        "segments": [
            {"start_offset": hit.row.base, "end_offset": hit.row.next, "records": hit.records, "bytes": hit.row.size}
            for hit in plan.hits
        ],
        "holders": list(plan.holders),
        "volume": plan.volume,
    }


def plan_table(plans: Iterable[Fields]) -> list[str]:
    """Return a table of the segments that are rewritten."""
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
    """Return the question to the user before the erasure begins."""
    plans = list(plans)
    records, segments = sum(plan["records"] for plan in plans), sum(len(plan["segments"]) for plan in plans)
    return f"Erase {counted(records, 'record')} of {counted(segments, 'segment')} for ever?"


def stays(plans: Iterable[Fields]) -> list[str]:
    """Return lines about data that an erasure of the bucket does not reach, and holders of older versions."""
    lines = []
    for plan in (plans := list(plans)):
        name = f"{plan['topic']}-{plan['partition']}"
        if plan["holders"]:
            lines.append(f"{name}: older versions are held by {', '.join(plan['holders'])}")
        if plan["volume"]:
            lines.append(
                f"{name}: the disk of volume {plan['volume']} keeps what local.retention.* keeps: "
                f"`tiered disk drop {plan['topic']}:{plan['partition']} --log-dir DIR` on its machine deletes what "
                f"the bucket holds. Records from offset {plan['end_offset']} on are not uploaded yet: run this command "
                f"again after they are"
            )
    if plans:
        lines.append(
            "a versioned bucket keeps noncurrent versions of deleted objects: the receipt has the commands that remove "
            "them, for its owner, once the objects are deleted"
        )
    return lines


def noncurrent_commands(place: StoreLocation, erased: Iterable[Erased]) -> list[str]:
    """Return commands that delete noncurrent versions of replaced and remaining objects. Empty but for S3.

    There is one command for each object, because a list of all versions would be cut at a thousand. Current objects are
    never deleted.
    """
    if place.target is None:
        return []
    keys = {note["before"] for one in erased for note in one.segments} | {
        left.key for one in erased for left in one.left
    }
    words = {"--bucket": place.bucket, "--endpoint-url": place.target.endpoint_url, "--region": place.target.region}
    words["--expected-bucket-owner"] = place.target.expected_bucket_owner
    common = " ".join(f"{word} {shlex.quote(value)}" for word, value in words.items() if value)
    query = "{Objects: Versions[?IsLatest==`false`].{Key: Key, VersionId: VersionId}}"
    return [
        f"aws s3api list-object-versions {common} --prefix {shlex.quote(place.target.full_key(key))} "
        f"--query {shlex.quote(query)} --output json > versions.json && "
        f"aws s3api delete-objects {common} --delete file://versions.json"
        for key in sorted(keys)
    ]


def left_line(partition: str, left: Fields) -> str:
    """Return a line about one object that still holds matching records; ``left`` as in a receipt."""
    held = "cannot be read" if left["records"] < 0 else f"holds {counted(left['records'], 'record')}"
    return f"{partition}: {left['key']} {held}: {left['why']}"


def outcome_line(records: int, left: int) -> str:
    """Return the outcome of an erasure."""
    hold = "holds" if left == 1 else "hold"
    proof = f"{counted(left, 'object')} still {hold} some" if left else "no object of the bucket holds any"
    return f"{counted(records, 'record')} erased; {proof}"
