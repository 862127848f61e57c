"""``tiered check``: verify both tiers, read-only. Exit code 13 if anything is damaged."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from tiered import admin
from tiered.check.check import versions_warning
from tiered.errors import ConfigError
from tiered.program.application import Application, Command, pass_application
from tiered.program.checking import check_metrics, conclude_check, reading_options, show_finding, subset_of
from tiered.program.open_reader import need_directory
from tiered.program.open_store import open_remote
from tiered.program.output import Progress, metrics_option, write_metrics
from tiered.store.driver import drive


@click.command("check", cls=Command, exits={0: "nothing wrong", 3: "warnings", 13: "something is damaged or missing"})
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@reading_options("read every byte of the bucket, not only sizes, checksums and indexes; decode every record")
@metrics_option
@pass_application
def command(
    app: Application,
    topics: tuple[str, ...],
    read_data: bool,
    read_data_subset: str | None,
    metrics_file: Path | None,
) -> int:
    """Verify a log: bytes, indexes, catalog and objects.

    It reads every local byte, and compares every object and index of the bucket with the catalog. It takes no lock and
    changes nothing, so it may run beside a writer.

    \b
    Examples:
      tiered check --log-dir data --remote s3://acme-logs/prod
      tiered check --remote s3://acme-logs/prod --read-data flights
      tiered check --remote s3://acme-logs/prod --read-data-subset 5%
    """
    app.need_a_tier()
    asked = {
        "--read-data": read_data,
        "--read-data-subset": read_data_subset is not None,
    }
    if app.remote is None and any(asked.values()):
        name = next(name for name, given in asked.items() if given)
        raise ConfigError(f"{name} needs a bucket, and none is named", hint=f"pass --remote URL, or leave {name} out")
    need_directory(app)
    app.out.start("check", complete=False)
    subset = subset_of(app, read_data_subset, read_data=read_data)
    store = open_remote(app) if app.remote is not None else None
    reads = read_data or subset is not None

    try:
        with Progress(app, "checking", is_bytes=True) as progress:
            report = admin.check(
                app.log_dir,
                store,
                topics,
                read_data=reads,
                subset=subset,
                progress=progress.show,
                on_finding=partial(show_finding, app),
            )
        if store is not None and reads:
            warning = drive(store, versions_warning(1 if subset is None else subset[1]))
            if warning:
                app.out.warn(warning)
    finally:
        if store is not None:
            store.close()
    write_metrics(metrics_file, check_metrics(report, app.clock.now_ms()))
    return conclude_check(app, report)
