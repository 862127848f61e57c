"""``tiered append TOPIC``: records from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

import tiered
from tiered.cli.application import Application, Command, pass_application, split_topic
from tiered.cli.doors import open_log, topic_config
from tiered.cli.progress import Progress
from tiered.cli.record_input import ByteStream, InputShape, LineSource, read_records
from tiered.errors import ConfigError, InvalidRecordError, TieredError
from tiered.format.keys import check_topic_name
from tiered.model import NewRecord

CHUNK_RECORDS = 1000
"""Records of one append; each append is atomic."""

CHUNK_BYTES = 512 * 1024
"""Bytes of keys and values after which a chunk is appended, well below the default ``max.message.bytes``."""

RECORD_OVERHEAD_BYTES = 32
"""Lengths, deltas and counts of one record, at most."""

SYNC_TIMEOUT_SECONDS = 300.0
"""How long ``--durability remote`` waits for the upload at the end."""


@click.command("append", cls=Command)
@click.argument("topic", metavar="TOPIC[:P]")
@click.option(
    "--format", "input_format", type=click.Choice(["lines", "json", "csv"]), default="lines", help="what stdin holds"
)
@click.option("--key-field", metavar="NAME", help="member or column that becomes the key")
@click.option("--timestamp-field", metavar="NAME", help="member or column that becomes the timestamp")
@click.option("-K", "--key-delimiter", metavar="DELIM", help=r"lines: key and value are separated by DELIM (\t, \xHH)")
@click.option("-H", "--header", "headers", multiple=True, metavar="K=V", help="a header of every record; repeatable")
@click.option("-Z", "--null-empty", is_flag=True, help="an empty key or value is null (a tombstone)")
@click.option("-0", "--null", "nul", is_flag=True, help="NUL ends a record instead of a line end")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="append to this partition only")
@click.option("--create", is_flag=True, help="create the log directory and the topic if they are missing")
@click.option("--partitions", type=click.IntRange(min=1), help="partitions of a topic that is created")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="setting of a topic that is created")
@click.option(
    "--durability",
    type=click.Choice(["memory", "disk", "remote"]),
    default="memory",
    help="what has to be true before the command ends: in the page cache, fsynced, committed in the bucket",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=SYNC_TIMEOUT_SECONDS, help="seconds to wait for remote"
)
@pass_application
def command(app: Application, topic: str, durability: str, timeout: float, **options: object) -> int:
    r"""Append records from standard input.

    \b
    Examples:
      echo hello | tiered append greetings --log-dir data --create --partitions 1
      tiered append flights --log-dir data --format csv --key-field tailnum --timestamp-field time_hour < flights.csv
      printf 'N14228\tdelayed\n' | tiered append events --log-dir data -K '\t' --durability disk
    """
    name, partition = split_topic(topic)
    check_topic_name(name)
    chosen = _partition(partition, options["partition"])
    shape = _shape(options)
    create = bool(options["create"])
    settings = [str(pair) for pair in _sequence(options["settings"])]
    config = topic_config(settings) if settings else None
    if not create and (options["partitions"] is not None or settings):
        raise ConfigError("--partitions and --set belong to --create", hint="add --create, or leave them out")
    if durability == "remote":
        app.need_remote()
    count = options["partitions"]
    app.out.begin("append", topic=name, records=0, partitions={})
    source = LineSource(_standard_input(app), end=b"\0" if options["nul"] else b"\n")
    with open_log(app, create=create) as log:
        target = log.topic(
            name,
            partitions=count if isinstance(count, int) else None,
            create=create,
            config=config,
        )
        tally = _Tally(target)
        try:
            with Progress(app, "appending") as progress:
                limit = min(CHUNK_BYTES, target.config.max_message_bytes // 2, target.config.segment_bytes // 2)
                for chunk in _chunks(source, shape, app.clock.now_ms(), limit):
                    tally.append(chunk, chosen)
                    app.out.summary_fields.update(records=tally.records, partitions=tally.ends)
                    progress.advance(len(chunk))
        except TieredError as cause:
            cause.message += f"; {tally.appended():,} records of the input were appended"
            raise
        finally:
            app.out.summary_fields["records"] = tally.appended()
        if durability == "disk":
            log.flush()
        elif durability == "remote":
            log.sync(timeout=timeout)
    return _report(app, name, tally, durability)


class _Tally:
    """Appends, and counts: records taken, and the end offset of each partition that got some."""

    def __init__(self, target: tiered.Topic) -> None:
        self._target = target
        self._before = self._ends()
        self.records = 0
        self.ends: dict[int, int] = {}

    def append(self, chunk: list[NewRecord], partition: int | None) -> None:
        """Appends one chunk; a record that the log refuses is named by its place in the input."""
        try:
            written = self._target.append_many(chunk, partition=partition)
        except InvalidRecordError as cause:
            cause.message = f"record {self.records + cause.index + 1} of the input: {cause.message}"
            raise
        self.records += len(chunk)
        self.ends.update({metadata.partition: metadata.end_offset for metadata in written})

    def appended(self) -> int:
        """Records that are in the log. A chunk that failed may have reached some of its partitions."""
        return sum(self._ends()) - sum(self._before)

    def _ends(self) -> list[int]:
        # The only writer of the directory is this process.
        return [self._target.positions(partition).end_offset for partition in range(self._target.partitions)]


def _report(app: Application, name: str, tally: _Tally, durability: str) -> int:
    app.out.summary(0, durability=durability)
    where = ", ".join(f"{partition}: {end}" for partition, end in sorted(tally.ends.items()))
    app.out.say(f"appended {tally.records:,} records to {name}" + (f" (next offsets {where})" if where else ""))
    return 0


def _standard_input(app: Application) -> ByteStream:
    buffer = getattr(sys.stdin, "buffer", None)
    if not isinstance(buffer, ByteStream):
        raise ConfigError("standard input is closed", hint="pipe the records in, or redirect a file: < FILE")
    if sys.stdin.isatty():
        app.out.say("reading records from the terminal, one a line; Ctrl-D ends them")
    return buffer


def _chunks(source: LineSource, shape: InputShape, now_ms: int, limit_bytes: int) -> Iterator[list[NewRecord]]:
    """Records in chunks; a chunk ends early when the next record has to be waited for, and before a bad one."""
    shared_bytes = RECORD_OVERHEAD_BYTES + sum(len(name) * 4 + len(content or b"") for name, content in shape.headers)
    chunk: list[NewRecord] = []
    size_bytes = 0
    records = read_records(source, shape, now_ms=now_ms)
    while True:
        try:
            record = next(records, None)
        except TieredError:
            if chunk:
                yield chunk
            raise
        if record is None:
            break
        record_bytes = len(record.value or b"") + len(record.key or b"") + shared_bytes
        if chunk and size_bytes + record_bytes > limit_bytes:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(record)
        size_bytes += record_bytes
        if len(chunk) >= CHUNK_RECORDS or source.drained:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk


def _shape(options: dict[str, object]) -> InputShape:
    delimiter, key_field, timestamp_field = (
        options[name] for name in ("key_delimiter", "key_field", "timestamp_field")
    )
    return InputShape(
        format=str(options["input_format"]),
        delimiter=_delimiter(delimiter) if isinstance(delimiter, str) else None,
        key_field=key_field if isinstance(key_field, str) else None,
        timestamp_field=timestamp_field if isinstance(timestamp_field, str) else None,
        headers=tuple(_header(str(text)) for text in _sequence(options["headers"])),
        null_empty=bool(options["null_empty"]),
    )


def _delimiter(text: str) -> bytes:
    for escape, char in ((r"\t", "\t"), (r"\0", "\0"), (r"\n", "\n")):
        if text == escape:
            return char.encode()
    if len(text) == 4 and text.startswith("\\x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise ConfigError(f"-K {text!r} is no character code", hint=r"two hex digits follow \x") from None
    return text.encode("utf-8", "surrogateescape")


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"-H {text!r} is not K=V", hint="for example -H trace=abc")
    return name, value.encode("utf-8", "surrogateescape")


def _partition(named: int | None, option: object) -> int | None:
    if isinstance(option, int):
        if named is not None and named != option:
            raise ConfigError(f"two partitions are named: {named} and {option}", hint="use TOPIC:P or -p P")
        return option
    return named


def _sequence(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, tuple | list) else ()
