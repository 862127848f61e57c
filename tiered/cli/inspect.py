"""``tiered inspect FILE...``: print the content of a log's files, from this disk or a bucket."""

from __future__ import annotations

from typing import Any

import click

from tiered.inspect.items import BatchWindow, Content
from tiered.inspect.run import DumpRun
from tiered.program.application import Application, Command, pass_application


@click.command("inspect", cls=Command)
@click.argument("names", nargs=-1, required=True, metavar="FILE...")
@click.option("--records", is_flag=True, help="print every record, with key and value")
@click.option("--from", "begin", type=click.IntRange(min=0), metavar="OFFSET", help="begin at the batch that holds it")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="at most N batches of each .log")
@pass_application
def command(app: Application, *, names: tuple[str, ...], **options: Any) -> int:
    """Print what the files of any Kafka log directory hold.

    These are batches, records, index entries, snapshots and checkpoints. FILE is a file, a folder, a partition of
    --log-dir (flights-0 or flights:0), or the URL of an object. Damage is printed with its position, and the next file
    follows. `tiered check` compares the files of a segment with each other.

    \b
    Examples:
      tiered inspect data/flights-0/00000000000000000000.log --records
      tiered inspect flights-0 --log-dir data --from 4711 --limit 1 --records
      tiered inspect __consumer_offsets-0 --log-dir data --records --json
      tiered inspect s3://acme-logs/prod/3f/.../00000000000000000000-0123.log --json
    """
    data = bool(options["records"])
    content, window = Content(deep=data, data=data), BatchWindow(options["begin"], options["limit"])
    app.out.start("inspect", files=0, findings=0)
    run = DumpRun(app, content, window)
    for name in names:
        run.dump(name, is_only=len(names) == 1)
    return run.finish()
