"""``tiered dump-segment NAME...``: print the content of a log's files, from this disk or a bucket."""

from __future__ import annotations

from typing import Any

import click

from tiered.config import parse_bytes
from tiered.errors import ConfigError
from tiered.inspect.content import DECODERS, RECORD_DECODERS, Content
from tiered.inspect.items import BatchWindow
from tiered.inspect.run import DumpOptions, DumpRun
from tiered.program.application import Application, Command, pass_application


@click.command("dump-segment", cls=Command)
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--files", "listed", metavar="FILE,...", help="more names, with commas, as Kafka's tool takes them")
@click.option("-r", "--records", "--print-data-log", is_flag=True, help="print every record, with key and value")
@click.option("--deep", "--deep-iteration", is_flag=True, help="print every record, without key and value")
@click.option("--key-decoder", type=click.Choice(DECODERS), default="auto", help="how keys are shown")
@click.option("--value-decoder", type=click.Choice(DECODERS), default="auto", help="how values are shown")
@click.option("--decoder", type=click.Choice(RECORD_DECODERS), default="auto", help="of Kafka's internal topics")
@click.option("--offsets-decoder", is_flag=True, help="the same as --records --decoder offsets")
@click.option("--transaction-log-decoder", is_flag=True, help="the same as --records --decoder transactions")
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    help="from the batch or index entry that holds it on; of a folder or partition: of its .log files",
)
@click.option("--max-batches", type=click.IntRange(min=0), help="of each .log at most so many batches")
@click.option("--max-bytes", metavar="SIZE", help="of each .log at most so many bytes of whole batches")
@click.option("--verify", is_flag=True, help="check CRCs, offsets, records and indexes against each other")
@click.option("--verify-only", "--verify-index-only", is_flag=True, help="the same, without printing what is there")
@click.option("--index-sanity-check", is_flag=True, help="of indexes: would a broker that starts keep them?")
@pass_application
def command(app: Application, *, names: tuple[str, ...], listed: str | None, **options: Any) -> int:
    """Print batches, records, index entries, snapshots and checkpoints; works on any Kafka log directory.

    NAME is a file, a folder, a pattern, a partition of --log-dir (flights-0 or flights:0), or the URL of an object.
    Damage is told with its position, and the next file follows. Exit code 13 if something is damaged.

    \b
    Examples:
      tiered dump-segment data/flights-0/00000000000000000000.log --records
      tiered dump-segment flights-0 --log-dir data --offset 4711 --max-batches 1 --records
      tiered dump-segment --verify-only 'data/*/*.log'
      tiered dump-segment __consumer_offsets-0 --log-dir data --records --json
      tiered dump-segment s3://acme-logs/prod/3f/.../00000000000000000000-0123.log --json
    """
    wanted_names = [*names, *(name for name in (listed or "").split(",") if name)]
    if not wanted_names:
        raise ConfigError("missing argument 'NAME...'", hint="name a file, a folder, or topic-partition with --log-dir")
    wanted = _wanted(options)
    app.out.begin("dump-segment", files=0, findings=0)
    run = DumpRun(app, wanted)
    for name in wanted_names:
        run.dump(name, is_only=len(wanted_names) == 1)
    return run.finish()


def _wanted(options: dict[str, Any]) -> DumpOptions:
    decoder = str(options["decoder"])
    for flag, name in (("offsets_decoder", "offsets"), ("transaction_log_decoder", "transactions")):
        if options[flag]:
            if decoder not in ("auto", name):
                raise ConfigError(f"--{flag.replace('_', '-')} contradicts {decoder}", hint="choose one decoder")
            decoder = name
    chosen = decoder in ("offsets", "transactions")
    data = bool(options["records"]) or chosen or options["key_decoder"] != "auto" or options["value_decoder"] != "auto"
    max_bytes = options["max_bytes"]
    return DumpOptions(
        Content(
            deep=data or bool(options["deep"]),
            data=data,
            key=options["key_decoder"],
            value=options["value_decoder"],
        ),
        BatchWindow(options["offset"], options["max_batches"], None if max_bytes is None else parse_bytes(max_bytes)),
        decoder,
        verify=bool(options["verify"] or options["verify_only"]),
        verify_only=bool(options["verify_only"]),
        sanity=bool(options["index_sanity_check"]),
    )
