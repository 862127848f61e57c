"""``tiered check``: both tiers verified, read-only; exit code 13 if anything is damaged."""

from __future__ import annotations

import dataclasses

import click

from tiered.care.check import CheckOptions, CheckReport
from tiered.care.run import check
from tiered.errors import ConfigError
from tiered.findings import Finding, Severity
from tiered.program.application import Application, Command, pass_application
from tiered.program.doors import need_directory, open_remote
from tiered.program.output import counted, human_bytes
from tiered.program.progress import Progress


@click.command("check", cls=Command)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@click.option(
    "--read-data",
    is_flag=True,
    help="read every byte of the bucket, not only sizes, checksums and indexes; decode every record",
)
@click.option("--orphans", is_flag=True, help="list objects that no catalog names (one LIST a partition)")
@pass_application
def command(app: Application, topics: tuple[str, ...], read_data: bool, orphans: bool) -> int:
    """Verify a log: every local byte, the catalog's invariants, every object and index of the bucket.

    Takes no lock and changes nothing, so that it may run beside a writer. Exit code 0: nothing wrong; 3: warnings;
    13: something is damaged or missing.

    \b
    Examples:
      tiered check --log-dir data --remote s3://acme-logs/prod
      tiered check --remote s3://acme-logs/prod --read-data flights
    """
    app.need_a_tier()
    if app.remote is None and (read_data or orphans):
        name = "--read-data" if read_data else "--orphans"
        raise ConfigError(f"{name} looks into the bucket, and none is named", hint="pass --remote URL, or leave it out")
    need_directory(app)
    app.out.begin("check", complete=False)
    store = open_remote(app) if app.remote is not None else None
    options = CheckOptions(topics=topics, read_data=read_data, orphans=orphans)

    def show(finding: Finding) -> None:
        if app.out.json_mode:
            app.out.message("finding", **finding.as_json())
        elif finding.severity is not Severity.INFO or orphans or app.out.verbosity:
            app.out.line(str(finding))

    try:
        with Progress(app, "checking", is_bytes=True) as progress:
            report = check(app.log_dir, store, options, progress=progress.show, on_finding=show)
    finally:
        if store is not None:
            store.close()
    return _conclude(app, report)


def _conclude(app: Application, report: CheckReport) -> int:
    fields = {
        field.name: getattr(report, field.name)
        for field in dataclasses.fields(report)
        if field.name not in ("findings", "unlisted")
    }
    app.out.summary(report.exit_code, complete=True, **fields)
    if not app.out.json_mode:
        app.out.line(
            f"{counted(report.partitions, 'partition')}"
            f"; local {counted(report.local_segments, 'segment')}, {human_bytes(report.local_bytes)}"
            f"; remote {counted(report.remote_segments, 'segment')}, {human_bytes(report.remote_bytes)}"
        )
        if report.unchecked:
            number, have = counted(report.unchecked, "object"), "has" if report.unchecked == 1 else "have"
            app.out.line(f"{number} {have} no checksum that the store tells: --read-data judges the bytes")
        app.out.line(
            "OK"
            if not report.exit_code
            else f"{counted(report.errors, 'error')}, {counted(report.warnings, 'warning')}: read them above"
        )
    return report.exit_code
