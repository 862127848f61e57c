"""Command ``tiered cat TOPIC``: print the records of bucket and disk, then end, or wait for more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import click

from tiered.arguments import chosen_partitions
from tiered.config import MAX_LONG
from tiered.errors import ConfigError, CorruptionError, OffsetGapError, UnknownTopicError
from tiered.format.kernels import ConsumerRecord
from tiered.program.application import Application, Command, pass_application, split_topic
from tiered.program.open_reader import open_reader, pass_over, topic_to_read
from tiered.program.output import counted
from tiered.program.places import LogPlace, need_one_partition, range_of, range_options
from tiered.program.records import compile_format, envelope_line, need_field, plain_line, terminal_line
from tiered.read.topic import TopicReads

ISOLATION = click.Choice(["read_uncommitted", "read_committed"])
WRITE_BYTES = 64 * 1024
"""Bytes printed at once. A closed pipe is noticed as often."""

LOOK_BACK_OFFSETS = 1_000_000
"""Most offsets, beyond the number of records, in which the last records are searched."""


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
    printer = _Printer(app, renderer(app, options["template"]))
    wanted = _with_key(options["key"])
    app.out.start("cat", topic=name, records=0, complete=False)
    with open_reader(app, options["as_of"], pin=options["pin"]) as reader:
        source = topic_to_read(reader, name)
        partitions = chosen_partitions(name, source.partitions, partition)
        if options["as_of"] is not None:
            for tp, taken in reader.taken(name, partition=partition).items():
                app.out.say(f"{tp}: {taken}")
        need_one_partition(name, len(partitions), *ends)
        reading = _CatReading(app, source, ends, options["isolation"])
        if last is not None:
            reading.find_starts(partitions, partial(last_start, app, source, last=last, isolation=options["isolation"]))
        elif follow:
            reading.find_starts(partitions, partial(_first, source, ends[0]))
        if follow:
            app.out.endless = limit is None
            records = reading.follow(whole_topic=partition is None, before_wait=printer.pause)
        else:
            records = reading.records(partitions)
        printed = printer.print(islice(wanted(records), limit))
        code = reading.code
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
    """Return a filter that passes the records of this key; None: all records."""
    if key is None:
        return lambda records: records
    raw = key.encode("utf-8", "surrogateescape")  # as the shell gave it
    return lambda records: (record for record in records if record.key == raw)


class _CatReading:
    """Reader of several partitions. ``code``: exit code for the first partition that was skipped, 0 without one."""

    def __init__(self, app: Application, source: TopicReads, ends: tuple[LogPlace, LogPlace], isolation: str) -> None:
        self._app, self._source, self._ends, self._isolation = app, source, ends, isolation
        self._begins: dict[int, int] | None = None
        self.code = 0

    def find_starts(self, partitions: Sequence[int], find: Callable[[int], int]) -> None:
        """Store the first offset of each partition. ``find``: function from the partition's number to that offset."""
        self._begins = {}
        for partition in partitions:
            try:
                self._begins[partition] = find(partition)
            except UnknownTopicError as elsewhere:
                self._pass_over(partition, elsewhere, len(partitions))

    def records(self, partitions: Sequence[int]) -> Iterator[ConsumerRecord]:
        """Yield the records that exist now, one partition after the other.

        They begin at the offsets of :meth:`find_starts`. If it was not called, the range on the command line counts.
        """
        (first, last), begins = self._ends, self._begins
        for partition in partitions if begins is None else begins:
            try:
                yield from self._source.read(
                    partition,
                    start=first.offset if begins is None else begins[partition],
                    end=last.offset,
                    since=first.time_ms,
                    until=last.time_ms,
                    isolation=self._isolation,
                    on_trimmed="raise" if begins is None else "jump",
                )
            except UnknownTopicError as elsewhere:
                self._pass_over(partition, elsewhere, len(partitions))

    def follow(self, *, whole_topic: bool, before_wait: Callable[[], None]) -> Iterator[ConsumerRecord]:
        """Return an endless iterator over the records from the offsets of :meth:`find_starts` on.

        ``whole_topic``: partitions that are added are read, too. ``before_wait``: called before each wait.
        """
        return self._source._follow_from(
            self._begins or {},
            isolation=self._isolation,
            whole_topic=whole_topic and not self.code,
            before_wait=before_wait,
        )

    def _pass_over(self, partition: int, elsewhere: UnknownTopicError, partitions: int) -> None:
        if partitions == 1:
            raise elsewhere
        self.code = self.code or pass_over(self._app, self._source.name, partition, elsewhere)


def _first(source: TopicReads, begin: LogPlace, partition: int) -> int:
    """Return the offset of a place in a partition. A time after all records is the end."""
    stream = source.stream(partition)
    if begin.time_ms is not None:
        found = stream.offset_for_time(begin.time_ms)
        return stream.latest() if found is None else found[0]
    return stream.offset("earliest" if begin.offset is None else begin.offset)


def renderer(app: Application, text_format: str | None) -> Callable[[ConsumerRecord], bytes]:
    """Return a function that encodes a record: as JSON, by the template ``text_format``, or its value as a line."""
    if app.out.json_mode:
        if text_format is not None:
            raise ConfigError("--template and --json exclude each other", hint="give one of them")
        return envelope_line
    if text_format is not None:
        return compile_format(need_field(text_format))
    return terminal_line if app.out.is_terminal else plain_line


class _Printer:
    """Printer of records on standard output. It collects the lines of many records for one write."""

    def __init__(self, app: Application, render: Callable[[ConsumerRecord], bytes]) -> None:
        self._out, self._render = app.out, render
        self._lines: list[bytes] = []
        self._printed = 0

    def print(self, records: Iterable[ConsumerRecord]) -> int:
        """Print all of ``records``. Return their number."""
        waiting_bytes = 0
        try:
            for record in records:
                line = self._render(record)
                waiting_bytes = waiting_bytes + len(line) if self._lines else len(line)
                self._lines.append(line)
                if waiting_bytes >= WRITE_BYTES:
                    self._write()
        finally:
            self._write()  # records read before damage or Ctrl-C are printed, too
        return self._printed

    def pause(self) -> None:
        """Write the collected lines, before a wait for new records. Raises StdoutClosed if the pipe has no reader."""
        self._write()
        self._out.flush()
        self._out.need_reader()

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        self._printed += len(lines)
        self._out.data(b"".join(lines))
        self._out.summary_fields["records"] = self._printed


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
        searched = f"{counted(found, 'record')} among the last {end - least} offsets; the search went no further back"
        app.out.warn(
            f"{stream.tp}: {searched}: `tiered cat {stream.tp.topic}:{partition} --from OFFSET` reads from there on"
        )
    return first


def _last_of(offsets: Iterator[int], most: int, span: int) -> tuple[int, int]:
    """Return the number of the last offsets, at most ``most``, and the first of these; (0, 0) without any.

    ``span``: an upper bound for the number of offsets.
    """
    if span <= most:  # all of them: none has to be stored
        first = next(offsets, None)
        return (0, 0) if first is None else (1 + sum(1 for _ in offsets), first)
    kept = deque(offsets, maxlen=most)
    return len(kept), kept[0] if kept else 0
