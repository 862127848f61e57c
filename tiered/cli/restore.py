"""``tiered restore``: build a log directory from the bucket alone."""

from __future__ import annotations

import dataclasses

import click

from tiered.checking.check import EXIT_WARNINGS
from tiered.config import parse_bytes
from tiered.errors import ConfigError
from tiered.program.application import Application, Command, pass_application, split_topic
from tiered.program.open_reader import folder, refuse_file
from tiered.program.open_store import open_remote
from tiered.program.output import columns, counted, human_bytes
from tiered.program.progress import Progress
from tiered.restoring.plan import RestoreOptions
from tiered.restoring.restore import RestoreReport
from tiered.restoring.run import restore
from tiered.times import parse_time


@click.command("restore", cls=Command)
@click.argument("selected", nargs=-1, metavar="[TOPIC[:P]...]")
@click.option("--to", "target", metavar="DIR", help="the new log directory (default: --log-dir)")
@click.option("--newest", metavar="SIZE", help="only the newest segments of each partition, up to SIZE: 10GiB")
@click.option("--since", metavar="TIME", help="only segments from the first that holds a record at or after TIME")
@click.option("--as-of", metavar="WHAT", help="the bucket as it was: a snapshot's name, a version, or a time")
@click.option(
    "--until", "--until-time", metavar="TIME", help="each partition ends before the first record of TIME or later"
)
@click.option(
    "--end", "--until-offset", type=click.IntRange(min=0), metavar="OFFSET", help="the one partition ends there"
)
@click.option("--name", metavar="NEW", help="another name, and id, for the one topic that is selected")
@click.option("--pin", is_flag=True, help="hold what is fetched: no collection takes it away, however long it lasts")
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
    as_of: str | None,
    until: str | None,
    end: int | None,
    name: str | None,
    pin: bool,
    dry_run: bool,
    if_empty: bool,
) -> int:
    """Build a log directory from the bucket alone, ready to be opened for writing.

    The directory is a new volume of the same log; older segments that were left out stay readable in the bucket.
    With --as-of, --until, --end or --name it is a log of its own: it can be read, written, and uploaded to another
    prefix, with --name also to the same one. It ends between two batches: the batch that holds the first record that
    is not wanted stays out whole. A transaction that is cut open is aborted, by a marker behind it.

    \b
    Examples:
      tiered restore --remote s3://acme-logs/prod --to /var/lib/tiered
      tiered restore flights --remote s3://acme-logs/prod --to data --newest 10GiB --dry-run
      tiered restore flights --remote s3://acme-logs/prod --to data --as-of before-release --name flights-old
      tiered restore --remote s3://acme-logs/prod --to data --until 2026-01-31T05:00:00Z
    """
    directory = folder("--to", target) if target is not None else app.need_log_dir()
    newest_bytes = None if newest is None else parse_bytes(newest)
    if newest_bytes is not None and newest_bytes < 1:
        raise ConfigError(f"--newest {newest} keeps nothing", hint="a size above zero, for example 10GiB")
    options = RestoreOptions(
        selected=tuple(split_topic(text) for text in selected),
        newest_bytes=newest_bytes,
        since_ms=None if since is None else parse_time(since, now_ms=app.clock.now_ms()),
        as_of=as_of,
        until_ms=None if until is None else parse_time(until, now_ms=app.clock.now_ms()),
        until_offset=end,
        name=name or "",
        pin=pin,
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
    for plan in report.plans:
        if plan.taken is not None:
            app.out.say(f"{plan.tp}: {plan.taken}")
    entries = [
        {
            "topic": plan.tp.topic,
            "partition": plan.tp.partition,
            "start_offset": plan.start_offset,
            "end_offset": plan.end_offset,
            "segments": len(plan.rows),
            "size_bytes": plan.size_bytes,
            "aborted_transactions": plan.aborted,
            "undone": [dataclasses.asdict(one) for one in plan.undone],
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
