"""``tiered cat TOPIC``: print records of both tiers, then end, or follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import click

from tiered.arguments import chosen_partitions
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, OffsetGapError, UnknownTopicError
from tiered.format.kernels import ConsumerRecord
from tiered.program.application import Application, Command, Seconds, pass_application, split_topic
from tiered.program.open_reader import open_reader, pass_over, topic_to_read
from tiered.program.output import counted
from tiered.program.places import LogPlace, need_one_partition, range_of, range_options
from tiered.program.record_format import compile_format, envelope_line, need_field, plain_line, terminal_line
from tiered.read.topic import TopicReads

ISOLATION = click.Choice(["read_uncommitted", "read_committed"])
WRITE_BYTES = 64 * 1024
"""Bytes printed at once. A closed pipe is noticed as often."""

LOOK_BACK_OFFSETS = 1_000_000
"""Most offsets, beyond the number of records, in which the last records are searched."""

POLL_SECONDS = 0.5
"""Seconds between two looks for new records. Of a remote tier each is a conditional GET a partition."""


@click.command("cat", cls=Command, exits={14: "offset in no tier"})
@click.argument("topic", metavar="TOPIC[:P]")
@range_options
@click.option("--last", type=click.IntRange(min=0), metavar="N", help="begin with the last N records of each partition")
@click.option("-n", "--limit", type=click.IntRange(min=0, max=MAX_LONG), metavar="N", help="stop after N records")
@click.option("-f", "--follow", is_flag=True, help="continue with new records until Ctrl-C")
@click.option("--key", metavar="K", help="only records of this key (UTF-8)")
@click.option("--as-of", metavar="WHAT", help="read the bucket as it was: a snapshot's name, a version, or a time")
@click.option("--template", metavar="T", help=r"format of a record: %s value %k key %o offset %p %t %T %h \n")
@click.option("--isolation", type=ISOLATION, default="read_uncommitted", show_default=True)
@click.option("--pin", is_flag=True, help="keep garbage collection away from what is read, however long it takes")
@click.option(
    "--interval", type=Seconds(min=0.05), default=POLL_SECONDS, show_default=True, help="of --follow, seconds"
)
@pass_application
def command(app: Application, *, topic: str, begin: str | None, end: str | None, **options: Any) -> int:
    r"""Print records: those in the bucket first, then those on this disk.

    \b
    Examples:
      tiered cat flights --log-dir data
      tiered cat flights --log-dir data --last 10 --follow
      tiered cat flights --remote s3://acme-logs/prod --from 2013-01-01 --to 2013-01-08 --json
      tiered cat flights:0 --remote s3://acme-logs/prod --from 4711 --limit 1
      tiered cat flights --remote s3://acme-logs/prod --key N14228 --as-of before-release
      tiered cat flights --log-dir data --template '%p/%o %k: %s\n'
    """
    name, partition = split_topic(topic)
    ends = range_of(begin, end, app.clock.now_ms())
    last, follow, limit = options["last"], options["follow"], options["limit"]
    _refuse_pairs({"--from": begin, "--to": end, "--follow": follow or None, **_named(options, "last", "key", "as_of")})
    render = renderer(app, options["template"])
    wanted = _with_key(options["key"])
    app.out.begin("cat", topic=name, records=0, complete=False)
    with open_reader(app, options["as_of"], pin=options["pin"]) as reader:
        source = topic_to_read(reader, name)
        partitions = chosen_partitions(name, source.partitions, partition)
        if options["as_of"] is not None:
            for tp, taken in reader.taken(name, partition=partition).items():
                app.out.say(f"{tp}: {taken}")
        need_one_partition(name, len(partitions), *ends)
        begins: Mapping[int, int | str | None] = dict.fromkeys(partitions, ends[0].offset)
        code = 0
        if last is not None:
            find = partial(last_start, app, source, last=last, isolation=options["isolation"])
            begins, code = begin_each(app, name, partitions, find)
        elif follow:
            begins, code = begin_each(app, name, partitions, partial(_first, source, ends[0]))
        if follow:
            printed = _follow(app, source, begins, wanted, render=render, limit=limit, options=options)
        else:
            reading = _CatReading(
                app, source, name, ends, options["isolation"], on_trimmed="raise" if last is None else "jump"
            )
            printed = print_records(app, islice(wanted(reading.records(begins)), limit), render)
            code = reading.code or code
    app.out.summary(code, records=printed, complete=not code)
    app.out.detail(counted(printed, "record"))
    return code


def _named(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {"--" + name.replace("_", "-"): options[name] for name in names}


def _refuse_pairs(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for two options that exclude each other."""
    pairs = (
        ("--last", "--from"),
        ("--last", "--to"),
        ("--last", "--key"),
        ("--follow", "--to"),
        ("--follow", "--as-of"),
    )
    for one, other in pairs:
        if given[one] is not None and given[other] is not None:
            raise ConfigError(f"{one} and {other} exclude each other", hint="give one of them")


def _with_key(key: str | None) -> Callable[[Iterator[ConsumerRecord]], Iterator[ConsumerRecord]]:
    """Return a filter for records of this key."""
    if key is None:
        return lambda records: records
    raw = key.encode("utf-8", "surrogateescape")  # as the shell gave it
    return lambda records: (record for record in records if record.key == raw)


class _CatReading:
    """Records of several partitions, one after the other. ``code``: exit code of partitions that were passed over."""

    def __init__(
        self,
        app: Application,
        source: TopicReads,
        name: str,
        ends: tuple[LogPlace, LogPlace],
        isolation: str,
        *,
        on_trimmed: str,
    ) -> None:
        self._app, self._source, self._name, self._ends = app, source, name, ends
        self._isolation, self._on_trimmed = isolation, on_trimmed
        self.code = 0

    def records(self, begins: Mapping[int, int | str | None]) -> Iterator[ConsumerRecord]:
        """Yield the records. A partition in another directory of the log is a warning, unless it is the only one."""
        first, last = self._ends
        for chosen, begin in begins.items():
            try:
                yield from self._source.read(
                    chosen,
                    start=begin,
                    end=last.offset,
                    since=first.time_ms,
                    until=last.time_ms,
                    isolation=self._isolation,
                    on_trimmed=self._on_trimmed,
                )
            except UnknownTopicError as elsewhere:
                if len(begins) == 1:
                    raise
                self.code = max(self.code, pass_over(self._app, self._name, chosen, elsewhere))


def _first(source: TopicReads, begin: LogPlace, partition: int) -> int:
    """Return the offset of a place in a partition. A time after all records is the end."""
    stream = source.stream(partition)
    if begin.time_ms is not None:
        found = stream.offset_for_time(begin.time_ms)
        return stream.latest() if found is None else found[0]
    return stream.offset("earliest" if begin.offset is None else begin.offset)


def _follow(
    app: Application,
    source: TopicReads,
    begins: Mapping[int, Any],
    wanted: Callable[[Iterator[ConsumerRecord]], Iterator[ConsumerRecord]],
    *,
    render: Callable[[ConsumerRecord], bytes],
    limit: int | None,
    options: Mapping[str, Any],
) -> int:
    """Print records in rounds until ``limit`` is reached. Return their number."""
    app.out.endless = limit is None
    printed, next_offsets = 0, dict(begins)
    while True:
        left = None if limit is None else limit - printed
        new = wanted(_new_records(source, next_offsets, options["isolation"]))
        printed += _round(app, new, render=render, limit=left)
        app.out.summary_fields["records"] = printed
        if printed == limit or not next_offsets:
            return printed
        app.clock.sleep(options["interval"])
        app.out.need_reader()


def _round(
    app: Application, records: Iterator[ConsumerRecord], *, render: Callable[[ConsumerRecord], bytes], limit: int | None
) -> int:
    """Print the records that exist now. Return their number."""
    printed = print_records(app, records if limit is None else islice(records, limit), render)
    app.out.flush()
    return printed


def _new_records(source: TopicReads, next_offsets: dict[int, int], isolation: str) -> Iterator[ConsumerRecord]:
    """Yield records from ``next_offsets`` on, and advance it with each record."""
    for partition, start in list(next_offsets.items()):
        # "jump": a follower that retention has overtaken continues at the new beginning.
        for record in source.read(partition, start=start, isolation=isolation, on_trimmed="jump"):
            next_offsets[partition] = record.offset + 1
            yield record


def renderer(app: Application, text_format: str | None) -> Callable[[ConsumerRecord], bytes]:
    """Return the function that makes bytes of a record: the envelope, the given template, or the value as a line."""
    if app.out.json_mode:
        if text_format is not None:
            raise ConfigError("--template and --json exclude each other", hint="give one of them")
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
        app.out.warn(
            f"{stream.tp}: {told}: `tiered cat {stream.tp.topic}:{partition} --from OFFSET` reads from there on"
        )
    return first


def _last_of(offsets: Iterator[int], most: int, span: int) -> tuple[int, int]:
    """Return the number of offsets, at most ``most``, and the first of the last ``most``. ``span``: most offsets."""
    if span <= most:  # all of them: none has to be stored
        first = next(offsets, None)
        return (0, 0) if first is None else (1 + sum(1 for _ in offsets), first)
    kept = deque(offsets, maxlen=most)
    return len(kept), kept[0] if kept else 0
