"""``tiered append TOPIC``: append records from standard input."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import click

import tiered
from tiered.config import MAX_PARTITIONS, TopicConfig
from tiered.errors import (
    ConfigError,
    InvalidRecordError,
    TieredError,
)
from tiered.format.keys import check_topic_name
from tiered.model import NewRecord
from tiered.program.application import (
    STORE_DEADLINE_SECONDS,
    Application,
    Command,
    FiniteFloat,
    pass_application,
    split_topic,
)
from tiered.program.open_log import open_log, topic_settings
from tiered.program.open_reader import open_reader, topic_to_read
from tiered.program.output import Progress, counted, human_bytes
from tiered.program.records import ByteStream, InputShape, LineSource, read_records

CHUNK_RECORDS = 1000
"""Most records of one append. Each append is atomic."""

CHUNK_BYTES = 512 * 1024
"""Bytes of keys and values after which a chunk is appended, far below the default ``max.message.bytes``."""

RECORD_OVERHEAD_BYTES = 32
"""Most bytes of lengths, deltas and counts of one record."""

SYNC_TIMEOUT_SECONDS = 300.0
"""Seconds that the command waits for the store, at the open and for ``--durability remote``."""

EXIT_NOTHING = 4
"""Exit code for an empty input."""


@click.command("append", cls=Command, exits={4: "the input was empty (csv)"})
@click.argument("topic", metavar="TOPIC[:P]")
@click.option(
    "--format", "input_format", type=click.Choice(["lines", "json", "csv"]), default="lines", help="what stdin holds"
)
@click.option("--key-field", metavar="NAME", help="member or column that becomes the key")
@click.option("--timestamp-field", metavar="NAME", help="member or column that becomes the timestamp")
@click.option("-K", "--key-delimiter", metavar="DELIM", help=r"lines: key and value are separated by DELIM (\t, \xHH)")
@click.option("--delimiter", metavar="CHAR", help=r"csv: what separates the columns, if not a comma (; or \t)")
@click.option("--binary", is_flag=True, help="lines as they are, even with a byte order mark or NUL characters")
@click.option("-H", "--header", "headers", multiple=True, metavar="K=V", help="a header of every record; repeatable")
@click.option("-Z", "--null-empty", is_flag=True, help="an empty key or value is null (a tombstone)")
@click.option("-0", "--null", "nul", is_flag=True, help="NUL ends a record instead of a line end")
@click.option("--create", is_flag=True, help="create the log directory and the topic if they are missing")
@click.option("--partitions", type=click.IntRange(1, MAX_PARTITIONS), help="partitions of a topic that is created")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="setting of a topic that is created")
@click.option(
    "--durability",
    type=click.Choice(["memory", "disk", "remote"]),
    default="memory",
    help="what has to be true before the command ends: in the page cache, fsynced, committed in the bucket",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=FiniteFloat(min=0),
    default=SYNC_TIMEOUT_SECONDS,
    show_default=True,
    help="seconds to wait for the store, in all",
)
@pass_application
def command(app: Application, topic: str, durability: str, timeout_seconds: float, **options: Any) -> int:
    r"""Append records from standard input.

    \b
    Examples:
      echo hello | tiered append greetings --log-dir data --create --partitions 1
      tiered append flights --log-dir data --format csv --key-field tailnum --timestamp-field time_hour < flights.csv
      printf 'N14228\tdelayed\n' | tiered append events --log-dir data -K '\t' --durability disk
    """
    name, partition = split_topic(topic)
    check_topic_name(name)
    shape = _shape(options)
    create, partitions = options["create"], options["partitions"]
    config = topic_settings(options["settings"])
    if not create and (partitions is not None or config):
        raise ConfigError("--partitions and --set belong to --create", hint="add --create, or leave them out")
    if durability == "remote":
        app.need_remote()
    app.out.start("append", topic=name, records=0, partitions={})
    end = b"\0" if options["nul"] else b"\n"
    source = LineSource(_standard_input(app), end=end, skips_blank=shape.format != "lines")
    if app.dry_run:
        return _plan(app, name, source, shape, create=create)
    begun = app.clock.monotonic()
    with open_log(app, create=create, deadline_seconds=min(STORE_DEADLINE_SECONDS, timeout_seconds)) as log:
        tally = _Tally(log.topic(name, partitions=partitions, create=create, config=config))
        left_seconds = max(timeout_seconds - (app.clock.monotonic() - begun), 0.0)  # reading the input does not count
        _append_all(app, tally, source, shape, partition)
        if durability == "disk":
            log.flush()
        elif durability == "remote":
            log.sync(timeout=left_seconds)
    code = 0
    if shape.format == "csv" and not source.number:
        app.out.warn("the input is empty, without even a header: nothing was appended")
        code = EXIT_NOTHING
    app.out.summary(code, durability=durability)
    where = ", ".join(f"{number}: {end}" for number, end in sorted(tally.ends.items()))
    app.out.say(
        f"appended {counted(tally.records, 'record')} to {name}" + (f" (next offsets {where})" if where else "")
    )
    return code


def _plan(app: Application, name: str, source: LineSource, shape: InputShape, *, create: bool) -> int:
    """Read the whole input, and print the number of records to append."""
    if not create:
        with open_reader(app) as reader:
            topic_to_read(reader, name)
    records = size_bytes = 0
    for record in read_records(source, shape, now_ms=app.clock.now_ms()):
        records += 1
        size_bytes += len(record.key or b"") + len(record.value or b"")
    app.out.summary(0, records=0, dry_run=True, would_append=records, size_bytes=size_bytes)
    app.out.say(f"dry run: would append {counted(records, 'record')} to {name}, {human_bytes(size_bytes)}")
    return 0


def _append_all(app: Application, tally: _Tally, source: LineSource, shape: InputShape, chosen: int | None) -> None:
    """Append the whole input to the partition ``chosen`` (None: by key). An error has the number of records."""
    config = tally.config
    limit_bytes = min(CHUNK_BYTES, config.max_message_bytes // 2, config.segment_bytes // 2)
    try:
        with Progress(app, "appending") as progress:
            for chunk, lines in _chunks(source, shape, app.clock.now_ms(), limit_bytes):
                tally.append(chunk, lines, chosen)
                app.out.summary_fields.update(records=tally.records, partitions=tally.ends)
                progress.advance(len(chunk))
    except TieredError as cause:
        appended = tally.appended()
        cause.message += f"; {counted(appended, 'record')} of the input {'was' if appended == 1 else 'were'} appended"
        raise
    finally:
        app.out.summary_fields["records"] = tally.appended()


class _Tally:
    """Counter of appended records and of the end offset of each partition that got some."""

    def __init__(self, target: tiered.Topic) -> None:
        self._target = target
        self._before = self._ends()
        self.records = 0
        self.ends: dict[int, int] = {}

    @property
    def config(self) -> TopicConfig:
        return self._target.config

    def append(self, chunk: list[NewRecord], lines: list[int], partition: int | None) -> None:
        """Append one chunk. ``lines``: the input line of each record. ``partition`` None: each record's key decides.

        The error for a refused record names its line and its number in the input.
        """
        try:
            written = self._target.append_many(chunk, partition=partition)
        except InvalidRecordError as cause:
            # The log counts within the call, the user within the input.
            words = cause.message.removeprefix(f"record {cause.index}")
            cause.message = self._where(cause.index, lines) + (words if words != cause.message else f": {words}")
            raise
        self.records += len(chunk)
        self.ends.update({metadata.partition: metadata.end_offset for metadata in written})

    def _where(self, index: int, lines: list[int]) -> str:
        number = self.records + index + 1
        return f"record {number} of the input" + (f" (line {lines[index]})" if lines[index] != number else "")

    def appended(self) -> int:
        """Return the number of records that this run has appended. A failed chunk may have reached some partitions."""
        return sum(end - self._before.get(partition, end) for partition, end in self._ends().items())

    def _ends(self) -> dict[int, int]:
        # The only writer of the directory is this process. A partition out of service gets no record.
        ends = {}
        for partition in range(self._target.partitions):
            with contextlib.suppress(TieredError):
                ends[partition] = self._target.positions(partition).end_offset
        return ends


def _standard_input(app: Application) -> ByteStream:
    buffer = getattr(sys.stdin, "buffer", None)
    if not isinstance(buffer, ByteStream) or _is_write_only(sys.stdin):
        raise ConfigError("standard input is closed", hint="pipe the records in, or redirect a file: < FILE")
    if sys.stdin.isatty():
        app.out.say("reading records from the terminal, one a line; Ctrl-D ends them")
    return buffer


def _is_write_only(stream: TextIO) -> bool:
    """Return True if ``stream`` cannot be read: ``program.run`` opens a closed standard input for writing only."""
    try:
        return fcntl.fcntl(stream.fileno(), fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    except (OSError, ValueError):  # no file behind it
        return False


def _chunks(
    source: LineSource, shape: InputShape, now_ms: int, limit_bytes: int
) -> Iterator[tuple[list[NewRecord], list[int]]]:
    """Yield (records, lines) for each chunk. ``lines``: the input line on which each record ends.

    A chunk ends early when the next record has to be waited for, and before a bad record.
    """
    shared_bytes = RECORD_OVERHEAD_BYTES + sum(len(name) * 4 + len(content or b"") for name, content in shape.headers)
    chunk: list[NewRecord] = []
    lines: list[int] = []
    size_bytes = 0
    records = read_records(source, shape, now_ms=now_ms)
    while True:
        try:
            record = next(records, None)
        except TieredError:
            if chunk:
                yield chunk, lines
            raise
        if record is None:
            break
        record_bytes = len(record.value or b"") + len(record.key or b"") + shared_bytes
        if chunk and size_bytes + record_bytes > limit_bytes:
            yield chunk, lines
            chunk, lines, size_bytes = [], [], 0
        chunk.append(record)
        lines.append(source.number)
        size_bytes += record_bytes
        if len(chunk) >= CHUNK_RECORDS or source.drained:
            yield chunk, lines
            chunk, lines, size_bytes = [], [], 0
    if chunk:
        yield chunk, lines


def _shape(options: Mapping[str, Any]) -> InputShape:
    if options["nul"] and options["input_format"] == "csv":
        raise ConfigError("-0 belongs to lines and json, not to csv", hint="leave -0 out")
    separator = None if options["delimiter"] is None else _delimiter("--delimiter", options["delimiter"])
    return InputShape(
        format=options["input_format"],
        delimiter=None if options["key_delimiter"] is None else _delimiter("-K", options["key_delimiter"]),
        separator=None if separator is None else separator.decode("utf-8", "replace"),
        binary=options["binary"],
        key_field=options["key_field"],
        timestamp_field=options["timestamp_field"],
        headers=tuple(map(_header, options["headers"])),
        null_empty=options["null_empty"],
    )


def _delimiter(option: str, text: str) -> bytes:
    for escape, char in ((r"\t", "\t"), (r"\0", "\0"), (r"\n", "\n")):
        if text == escape:
            return char.encode()
    if len(text) == 4 and text.startswith("\\x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise ConfigError(f"{option} {text!r} is no character code", hint=r"two hex digits follow \x") from None
    return text.encode("utf-8", "surrogateescape")


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"-H {text!r} is not K=V", hint="for example -H trace=abc")
    return name, value.encode("utf-8", "surrogateescape")
