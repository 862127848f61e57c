"""``tiered offsets TOPIC``: print first and last offsets over both tiers, and the offset of a time."""

from __future__ import annotations

import click

from tiered.errors import ConfigError
from tiered.program.application import Application, Command, pass_application, split_topic
from tiered.program.open_reader import chosen_partitions, of_each, open_reader, topic_to_read
from tiered.program.output import columns
from tiered.read.topic import TopicReads
from tiered.times import format_time, parse_time

MAX_TIMES = 100
"""Most times of one command."""


@click.command("offsets", cls=Command)
@click.argument("topic", metavar="TOPIC[:P]")
@click.option(
    "--time",
    "times",
    default="earliest,latest",
    show_default=True,
    metavar="TIMES",
    help="earliest, latest or times, separated by commas",
)
@pass_application
def command(app: Application, topic: str, times: str) -> int:
    """Print offsets: the earliest, the latest (where the next record goes), and the first at or after a time.

    \b
    Examples:
      tiered offsets flights --log-dir data --remote s3://acme-logs/prod
      tiered offsets flights:0 --remote s3://acme-logs/prod --time 2013-01-01,2013-01-02
    """
    name, partition = split_topic(topic)
    wanted = _wanted(times, app.clock.now_ms())
    with open_reader(app) as reader:
        source = topic_to_read(reader, name)
        chosen = chosen_partitions(name, source.partitions, partition)
        entries, code = of_each(
            app, name, chosen, lambda one: [_entry(source, one, word, moment) for word, moment in wanted]
        )
    header = ["topic", "partition", "time", "offset", "timestamp"]
    rows = [
        [name, entry["partition"], entry["time"], entry["offset"], format_time(entry["timestamp"])]
        if isinstance(entry["timestamp"], int)
        else [name, entry["partition"], entry["time"], entry["offset"], None]
        for entry in entries
    ]
    return app.out.result("offsets", {"topic": name, "offsets": entries}, columns(header, rows), code)


def _wanted(times: str, now_ms: int) -> list[tuple[str, int | None]]:
    words = [word.strip() for word in times.split(",")]
    if len(words) > MAX_TIMES:
        raise ConfigError(f"--time names {len(words)} times, more than {MAX_TIMES}", hint="ask for fewer")
    return [(word, None if word in ("earliest", "latest") else parse_time(word, now_ms=now_ms)) for word in words]


def _entry(source: TopicReads, partition: int, word: str, moment: int | None) -> dict[str, object]:
    stream = source.stream(partition)
    found: tuple[int, int] | None = None
    if moment is not None:
        found = stream.offset_for_time(moment)
    elif word == "earliest":
        found = stream.earliest(), -1
    else:
        found = stream.latest(), -1
    offset, timestamp = found if found is not None else (None, -1)
    return {"partition": partition, "time": word, "offset": offset, "timestamp": timestamp if timestamp >= 0 else None}
