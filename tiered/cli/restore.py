"""``tiered restore``: a log directory from the bucket alone."""

from __future__ import annotations

import click

from tiered.care.check import EXIT_WARNINGS
from tiered.care.restore import RestoreOptions, RestoreReport
from tiered.care.run import restore
from tiered.config import parse_bytes
from tiered.errors import ConfigError
from tiered.program.application import Application, Command, pass_application, split_topic
from tiered.program.doors import folder, open_remote, refuse_file
from tiered.program.output import columns, counted, human_bytes
from tiered.program.progress import Progress
from tiered.times import parse_time


@click.command("restore", cls=Command)
@click.argument("selected", nargs=-1, metavar="[TOPIC[:P]...]")
@click.option("--to", "target", metavar="DIR", help="the new log directory (default: --log-dir)")
@click.option("--newest", metavar="SIZE", help="only the newest segments of each partition, up to SIZE: 10GiB")
@click.option("--since", metavar="TIME", help="only segments from the first that holds a record at or after TIME")
@click.option("--dry-run", is_flag=True, help="print what would be restored")
@click.option("--if-empty", is_flag=True, help="do nothing, successfully, if the directory holds something already")
@pass_application
def command(
    app: Application,
    *,
    selected: tuple[str, ...],
    target: str | None,
    newest: str | None,
    since: str | None,
    dry_run: bool,
    if_empty: bool,
) -> int:
    """Build a log directory from the bucket alone, ready to be opened for writing.

    The directory is a new volume of the same log; older segments that were left out stay readable in the bucket.

    \b
    Examples:
      tiered restore --remote s3://acme-logs/prod --to /var/lib/tiered
      tiered restore flights --remote s3://acme-logs/prod --to data --newest 10GiB --dry-run
    """
    directory = folder("--to", target) if target is not None else app.need_log_dir()
    newest_bytes = None if newest is None else parse_bytes(newest)
    if newest_bytes is not None and newest_bytes < 1:
        raise ConfigError(f"--newest {newest} keeps nothing", hint="a size above zero, for example 10GiB")
    options = RestoreOptions(
        selected=tuple(split_topic(text) for text in selected),
        newest_bytes=newest_bytes,
        since_ms=None if since is None else parse_time(since, now_ms=app.clock.now_ms()),
        if_empty=if_empty,
        dry_run=dry_run,
    )
    refuse_file(directory)
    app.out.begin("restore", directory=str(directory), dry_run=dry_run, complete=False)
    store = open_remote(app)
    try:
        with Progress(app, "restoring", is_bytes=True) as progress:
            report = restore(store, directory, options, clock=app.clock, ids=app.ids, progress=progress.show)
    finally:
        store.close()
    return _conclude(app, report)


def _conclude(app: Application, report: RestoreReport) -> int:
    for note in report.notes:
        app.out.warn(note)
    code = EXIT_WARNINGS if report.notes else 0
    entries = [
        {
            "topic": plan.tp.topic,
            "partition": plan.tp.partition,
            "start_offset": plan.start_offset,
            "end_offset": plan.end_offset,
            "segments": len(plan.rows),
            "size_bytes": plan.size_bytes,
            "root_version": plan.pinned.version if plan.pinned is not None else None,
        }
        for plan in report.plans
    ]
    app.out.summary(
        code,
        complete=True,
        skipped=report.skipped,
        volume_id=report.volume_id or None,
        segments=report.segments,
        size_bytes=report.size_bytes,
        partitions=entries,
    )
    if app.out.json_mode:
        return code
    if report.skipped:
        app.out.line(f"{report.directory} holds something already: nothing was done")
        return code
    dry = "dry run: " if report.dry_run else ""
    header = ["partition", "start", "end", "segments", "size"]
    rows = [
        [plan.tp, plan.start_offset, plan.end_offset, len(plan.rows), human_bytes(plan.size_bytes)]
        for plan in report.plans
    ]
    verb = "would be restored" if report.dry_run else "restored"
    for line in columns(header, rows):
        app.out.line(line)
    app.out.line(
        f"{dry}{counted(report.segments, 'segment')}, {human_bytes(report.size_bytes)} {verb} into {report.directory}"
        + (f", volume {report.volume_id}" if report.volume_id else "")
    )
    return code
