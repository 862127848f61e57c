"""``tiered check``: both tiers verified, read-only; exit code 13 if anything is damaged."""

from __future__ import annotations

import math

import click

from tiered.checking.check import CheckOptions
from tiered.checking.run import check
from tiered.checking.versions import versions_warning
from tiered.config import DAY_MS
from tiered.errors import ConfigError
from tiered.findings import Finding
from tiered.program.application import Application, Command, pass_application
from tiered.program.checking import conclude_check, show_finding
from tiered.program.doors import need_directory
from tiered.program.progress import Progress
from tiered.program.stores import open_remote
from tiered.store.driver import drive

MAX_PARTS = 10_000
"""Parts of one whole."""


@click.command("check", cls=Command)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@click.option(
    "--read-data",
    is_flag=True,
    help="read every byte of the bucket, not only sizes, checksums and indexes; decode every record",
)
@click.option(
    "--read-data-subset",
    metavar="PART",
    help="as --read-data, of a part of the segments: 7/20, or 5%: another one each day, all of them in 20 days",
)
@click.option("--no-pin", is_flag=True, help="make no pin while data is read (a role that may not needs no --no-pin)")
@click.option("--orphans", is_flag=True, help="list objects that no catalog names (one LIST a partition)")
@pass_application
def command(  # noqa: PLR0917 - the options
    app: Application,
    topics: tuple[str, ...],
    read_data: bool,
    read_data_subset: str | None,
    no_pin: bool,
    orphans: bool,
) -> int:
    """Verify a log: every local byte, the catalog's invariants, every object and index of the bucket.

    Takes no lock and changes nothing, so that it may run beside a writer. While data is read a pin keeps collections
    from taking what is still to be read; a role that may not make one reads without. Exit code 0: nothing wrong; 3:
    warnings; 12: something may not be read, nothing else is wrong; 13: something is damaged or missing.

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
        "--orphans": orphans,
    }
    if app.remote is None and any(asked.values()):
        name = next(name for name, given in asked.items() if given)
        raise ConfigError(f"{name} looks into the bucket, and none is named", hint="pass --remote URL, or leave it out")
    need_directory(app)
    app.out.begin("check", complete=False)
    store = open_remote(app) if app.remote is not None else None
    subset = None if read_data_subset is None else _part(read_data_subset, app.clock.now_ms())
    if subset is not None:
        app.out.say(
            f"reading part {subset[0]} of {subset[1]} of the segments: --read-data-subset {subset[0]}/{subset[1]}"
        )
    options = CheckOptions(
        topics=topics,
        read_data=read_data or subset is not None,
        orphans=orphans,
        subset=None if read_data else subset,
        pin=not no_pin,
    )

    def show(finding: Finding) -> None:
        show_finding(app, finding, everything=orphans)

    try:
        with Progress(app, "checking", is_bytes=True) as progress:
            report = check(app.log_dir, store, options, progress=progress.show, on_finding=show)
        if store is not None and options.read_data:
            warning = drive(store, versions_warning(1 if options.subset is None else options.subset[1]))
            if warning:
                app.out.warn(warning)
    finally:
        if store is not None:
            store.close()
    return conclude_check(app, report)


def _part(text: str, now_ms: int) -> tuple[int, int]:
    """``7/20``, or the part that a share of all makes today: part after part, day after day."""
    number, slash, parts = text.strip().partition("/")
    if slash and number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts) <= MAX_PARTS:
        return int(number), int(parts)
    try:
        share = float(text.strip().removesuffix("%")) if text.strip().endswith("%") else 0.0
    except ValueError:
        share = 0.0
    if not 100 / MAX_PARTS <= share <= 100:
        raise ConfigError(
            f"--read-data-subset {text} is no part of all", hint="for example 7/20, or 5%; --read-data reads everything"
        )
    count = math.ceil(100 / share)
    return now_ms // DAY_MS % count + 1, count
