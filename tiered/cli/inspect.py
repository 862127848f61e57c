"""``tiered inspect FILE...``: print the content of a log's files, from this disk or a bucket."""

from __future__ import annotations

from typing import Any

import click

from tiered.config import parse_bytes
from tiered.errors import ConfigError
from tiered.inspect.items import DECODERS, RECORD_DECODERS, BatchWindow, Content
from tiered.inspect.run import DumpRun
from tiered.program.application import Application, Command, pass_application


@click.command("inspect", cls=Command)
@click.argument("names", nargs=-1, required=True, metavar="FILE...")
@click.option("--records", is_flag=True, help="print every record, with key and value")
@click.option("--deep", is_flag=True, help="print every record, without key and value")
@click.option("--key-decoder", type=click.Choice(DECODERS), default="auto", help="how keys are shown")
@click.option("--value-decoder", type=click.Choice(DECODERS), default="auto", help="how values are shown")
@click.option("--decoder", type=click.Choice(RECORD_DECODERS), default="auto", help="of Kafka's internal topics")
@click.option("--from", "begin", type=click.IntRange(min=0), metavar="OFFSET", help="begin at the batch that holds it")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="at most N batches of each .log")
@click.option("--max-bytes", metavar="SIZE", help="of each .log at most so many bytes of whole batches")
@pass_application
def command(app: Application, *, names: tuple[str, ...], **options: Any) -> int:
    """Print what the files of any Kafka log directory hold.

    These are batches, records, index entries, snapshots and checkpoints. FILE is a file, a folder, a pattern, a
    partition of --log-dir (flights-0 or flights:0), or the URL of an object. Damage is printed with its position, and
    the next file follows. `tiered check` compares the files of a segment with each other.

    \b
    Examples:
      tiered inspect data/flights-0/00000000000000000000.log --records
      tiered inspect flights-0 --log-dir data --from 4711 --limit 1 --records
      tiered inspect __consumer_offsets-0 --log-dir data --records --json
      tiered inspect s3://acme-logs/prod/3f/.../00000000000000000000-0123.log --json
    """
    decoder, size = str(options["decoder"]), options["max_bytes"]
    max_bytes = None if size is None else parse_bytes(size)
    if max_bytes is not None and max_bytes < 0:
        raise ConfigError(f"--max-bytes: {size!r} is less than 0", hint="write 0 or more, for example 64KiB")
    chosen = decoder in ("offsets", "transactions")
    data = bool(options["records"]) or chosen or options["key_decoder"] != "auto" or options["value_decoder"] != "auto"
    content = Content(
        deep=data or bool(options["deep"]),
        data=data,
        key=options["key_decoder"],
        value=options["value_decoder"],
        decoder=decoder,
    )
    window = BatchWindow(options["begin"], options["limit"], max_bytes)
    app.out.start("inspect", files=0, findings=0)
    run = DumpRun(app, content, window)
    for name in names:
        run.dump(name, is_only=len(names) == 1)
    return run.finish()
