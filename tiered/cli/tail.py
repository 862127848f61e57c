"""``tiered tail TOPIC``: print the last records, and with ``-f`` every new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import click

from tiered.cli.cat import ISOLATION, begin_each, last_start, print_records, renderer
from tiered.config import MAX_LONG
from tiered.format.kernels import ConsumerRecord
from tiered.program.application import Application, Command, Seconds, pass_application, split_topic
from tiered.program.open_reader import chosen_partitions, open_reader, topic_to_read
from tiered.read.topic import TopicReads

LAST_RECORDS = 10
"""Records of each partition that are printed first."""

POLL_SECONDS = 0.5
"""Seconds between two looks for new records. Of a remote tier each is a conditional GET a partition."""


@click.command("tail", cls=Command)
@click.argument("topic", metavar="TOPIC[:P]")
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=0),
    default=LAST_RECORDS,
    show_default=True,
    help="records of each partition",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="go on with new records until Ctrl-C, of the partitions that there are at the start",
)
@click.option("-c", "--count", type=click.IntRange(min=1, max=MAX_LONG), metavar="N", help="stop after N records")
@click.option("--isolation", type=ISOLATION, default="read_uncommitted", show_default=True)
@click.option("--format", "text_format", metavar="FORMAT", help="as cat -f")
@click.option("--interval", type=Seconds(min=0.05), default=POLL_SECONDS, show_default=True, help="seconds")
@pass_application
def command(
    app: Application,
    *,
    topic: str,
    last: int,
    follow: bool,
    count: int | None,
    isolation: str,
    text_format: str | None,
    interval: float,
) -> int:
    r"""Print the last records of a topic.

    \b
    Examples:
      tiered tail flights --log-dir data
      tiered tail -f flights:0 --log-dir data --json
    """
    name, partition = split_topic(topic)
    render = renderer(app, text_format)
    app.out.begin("tail", topic=name, records=0)
    app.out.endless = follow and count is None
    with open_reader(app) as reader:
        source = topic_to_read(reader, name)
        chosen = chosen_partitions(name, source.partitions, partition)
        find = partial(last_start, app, source, last=last, isolation=isolation)
        next_offsets, code = begin_each(app, name, chosen, find)
        printed = 0
        while True:
            left = None if count is None else count - printed
            records = _new_records(source, next_offsets, isolation)
            printed += _round(app, records, render=render, limit=left)
            app.out.summary_fields["records"] = printed
            if not follow or printed == count or not next_offsets:
                break
            app.clock.sleep(interval)
            app.out.need_reader()
    app.out.summary(code, records=printed)
    return code


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
        # "jump": a follower that retention has overtaken goes on at the new beginning.
        for record in source.read(partition, start=start, isolation=isolation, on_trimmed="jump"):
            next_offsets[partition] = record.offset + 1
            yield record
