"""``tiered cat TOPIC``: print records of both tiers, then end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import click

from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, OffsetGapError, UnknownTopicError
from tiered.format.kernels import ConsumerRecord
from tiered.program.application import Application, Command, pass_application, split_topic
from tiered.program.open_reader import chosen_partitions, open_reader, pass_over, topic_to_read
from tiered.program.output import counted
from tiered.program.record_format import compile_format, envelope_line, need_field, plain_line, terminal_line
from tiered.read.topic import TopicReads
from tiered.times import parse_time

ISOLATION = click.Choice(["read_uncommitted", "read_committed"])
WRITE_BYTES = 64 * 1024
"""Bytes printed at once. A closed pipe is noticed as often."""

LOOK_BACK_OFFSETS = 1_000_000
"""Most offsets, beyond the number of records, in which the last records are searched."""


@dataclass(frozen=True, slots=True)
class Start:
    """Place to begin: an offset (or "earliest", "latest"), a time, or the ``last`` records of the partition."""

    offset: int | str | None = None
    since: str | None = None
    last: int | None = None


@click.command("cat", cls=Command)
@click.argument("topic", metavar="TOPIC[:P]")
@click.option("-o", "--offset", "where", metavar="WHERE", help="beginning, end, N, -N (the last N records) or s@TIME")
@click.option("--end", "end", type=click.IntRange(min=0), metavar="OFFSET", help="stop before this offset")
@click.option("--since", metavar="TIME", help="first time wanted: 2013-01-01, 2013-01-01T05:00:00Z, ms, -3d, now")
@click.option("--until", metavar="TIME", help="first time not wanted any more; a record without a time is left out")
@click.option("--as-of", metavar="WHAT", help="of the bucket as it was: a snapshot's name, a version, or a time")
@click.option("--pin", is_flag=True, help="hold what is read: no collection takes it away, however long it lasts")
@click.option("-n", "--count", type=click.IntRange(min=0, max=MAX_LONG), metavar="N", help="stop after N records")
@click.option("--isolation", type=ISOLATION, default="read_uncommitted", show_default=True)
@click.option(
    "-f", "--format", "text_format", metavar="FORMAT", help=r"kcat's: %s value %k key %o offset %p %t %T %h \n"
)
@pass_application
def command(
    app: Application, topic: str, count: int | None, isolation: str, text_format: str | None, **at: object
) -> int:
    r"""Print records: what is on S3 first, then what is on this disk.

    \b
    Examples:
      tiered cat flights --log-dir data
      tiered cat flights:0 --remote s3://acme-logs/prod -o -10
      tiered cat flights --remote s3://acme-logs/prod --since 2013-01-01 --until 2013-01-08 --json
      tiered cat flights --remote s3://acme-logs/prod --as-of before-release
      tiered cat flights --remote s3://acme-logs/prod --pin | slow-import
      tiered cat flights --log-dir data -f '%p/%o %k: %s\n'
    """
    name, partition = split_topic(topic)
    where, end, since, until, as_of = (at[key] for key in ("where", "end", "since", "until", "as_of"))
    start = parse_start(_text(where), _text(since))
    if end is not None and until is not None:
        raise ConfigError("--end (an offset) and --until (a time) exclude each other", hint="give one of them")
    _check_order(start.since, _text(until), app.clock.now_ms())
    render = renderer(app, text_format)
    app.out.begin("cat", topic=name, records=0, complete=False)
    with open_reader(app, _text(as_of), pin=bool(at["pin"])) as reader:
        source = topic_to_read(reader, name)
        partitions = chosen_partitions(name, source.partitions, partition)
        if as_of is not None:
            for tp, taken in reader.taken(name, partition=partition).items():
                app.out.say(f"{tp}: {taken}")
        if len(partitions) > 1 and (isinstance(start.offset, int) or end is not None):
            raise ConfigError(
                f"offsets differ by partition, and {name} has {len(partitions)}", hint=f"name one: {name}:0"
            )
        stop = end if isinstance(end, int) else None
        begins: Mapping[int, int | str | None] = dict.fromkeys(partitions, start.offset)
        code = 0
        if start.last is not None:
            find = partial(last_start, app, source, last=start.last, isolation=isolation)
            begins, code = begin_each(app, name, partitions, find)
        away: list[int] = []

        def records() -> Iterator[ConsumerRecord]:
            for chosen, begin in begins.items():
                try:
                    yield from source.read(
                        chosen,
                        start=begin,
                        end=stop,
                        since=start.since,
                        until=_text(until),
                        isolation=isolation,
                        on_trimmed="raise" if start.last is None else "jump",  # it was found a while ago
                    )
                except UnknownTopicError as elsewhere:  # in another directory of the log
                    if len(partitions) == 1:
                        raise
                    away.append(pass_over(app, name, chosen, elsewhere))

        printed = print_records(app, islice(records(), count), render)
    code = max(away, default=code)
    app.out.summary(code, records=printed, complete=not code)
    app.out.detail(counted(printed, "record"))
    return code


def _check_order(since: str | None, until: str | None, now_ms: int) -> None:
    """Raise ConfigError if the times are reversed. The empty answer would look like an empty log."""
    if since is None or until is None:
        return
    if parse_time(until, now_ms=now_ms) < parse_time(since, now_ms=now_ms):
        raise ConfigError(f"--until {until} is before --since {since}", hint="exchange them, or leave one out")


def parse_start(where: str | None, since: str | None) -> Start:
    """Return the place that ``-o`` or ``--since`` names. Raises ``ConfigError``."""
    if where is None:
        return Start(since=since)
    if since is not None:
        raise ConfigError("-o and --since exclude each other", hint="give one of them")
    if where.startswith("s@"):
        return Start(since=where[2:])
    words = {"beginning": "earliest", "earliest": "earliest", "end": "latest", "latest": "latest"}
    if where in words:
        return Start(offset=words[where])
    digits = where.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 19:
        number = int(where)
        return Start(last=-number) if where.startswith("-") else Start(offset=number)
    raise ConfigError(
        f"-o {where!r} is no place in a log", hint="beginning, end, an offset, -N for the last N, or s@TIME"
    )


def renderer(app: Application, text_format: str | None) -> Callable[[ConsumerRecord], bytes]:
    """Return the function that makes bytes of a record: the envelope, the given format, or the value as a line."""
    if app.out.json_mode:
        if text_format is not None:
            raise ConfigError("-f and --json exclude each other", hint="give one of them")
        return envelope_line
    if text_format is not None:
        return compile_format(need_field(text_format))
    return terminal_line if app.out.is_terminal else plain_line


def print_records(
    app: Application, records: Iterator[ConsumerRecord], render: Callable[[ConsumerRecord], bytes]
) -> int:
    """Print all of ``records``. Return their number."""
    printed = 0
    waiting: list[bytes] = []
    waiting_bytes = 0
    try:
        for record in records:
            line = render(record)
            waiting.append(line)
            waiting_bytes += len(line)
            printed += 1
            if waiting_bytes >= WRITE_BYTES:
                app.out.data(b"".join(waiting))
                app.out.summary_fields["records"] = printed
                waiting, waiting_bytes = [], 0
    finally:
        # Records read before damage or Ctrl-C are printed, too.
        app.out.data(b"".join(waiting))
        app.out.summary_fields["records"] = printed
    return printed


def begin_each(
    app: Application, topic: str, partitions: Sequence[int], find: Callable[[int], int]
) -> tuple[dict[int, int], int]:
    """Return each partition's first offset, and the exit code. Those in another directory are warnings."""
    begins, code = dict[int, int](), 0
    for partition in partitions:
        try:
            begins[partition] = find(partition)
        except UnknownTopicError as elsewhere:
            if len(partitions) == 1:
                raise
            code = pass_over(app, topic, partition, elsewhere)
    return begins, code


def last_start(app: Application, source: TopicReads, partition: int, *, last: int, isolation: str) -> int:
    """Return the offset at which the ``last`` records that this isolation sees begin, or all if there are fewer.

    Markers, aborted records and compacted ones have offsets, too. So the search moves further back, in growing steps,
    until it has found enough, but at most :data:`LOOK_BACK_OFFSETS` offsets further. Then a warning names the number.
    """
    stream = source.stream(partition)
    earliest, latest = stream.earliest(), stream.latest()
    end = min(latest, stream.last_stable_offset()) if last and isolation == "read_committed" else latest
    if end - earliest <= last or not last:
        return earliest if last else latest
    least = max(earliest, end - last - LOOK_BACK_OFFSETS)
    first, low, found = end, end, 0
    while found < last and low > least:
        high, low = low, max(least, low - max(last, end - low))
        records = source.read(partition, start=low, end=high, isolation=isolation, on_trimmed="jump")
        try:
            count, at = _last_of((record.offset for record in records), last - found, high - low)
        except (CorruptionError, OffsetGapError) as damage:
            if high == end:
                return low  # a reader gets the records before the damage from there, and its error
            app.out.warn(f"{stream.tp}: looked back to offset {high} for the last {last} records: {damage.message}")
            return first
        first, found = at if count else first, found + count
    if found < last and least > earliest:
        told = f"{counted(found, 'record')} among the last {end - least} offsets, it was looked no further back"
        app.out.warn(f"{stream.tp}: {told}: `tiered cat {stream.tp.topic}:{partition} -o OFFSET` reads from there on")
    return first


def _last_of(offsets: Iterator[int], most: int, span: int) -> tuple[int, int]:
    """Return the number of offsets, at most ``most``, and the first of the last ``most``. ``span``: most offsets."""
    if span <= most:  # all of them: none has to be stored
        first = next(offsets, None)
        return (0, 0) if first is None else (1 + sum(1 for _ in offsets), first)
    kept = deque(offsets, maxlen=most)
    return len(kept), kept[0] if kept else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
