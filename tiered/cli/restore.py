"""``tiered restore``: build a log directory from the bucket alone."""

from __future__ import annotations

import dataclasses

import click

from tiered import admin
from tiered.check.check import EXIT_WARNINGS
from tiered.cli.restore_standby import EVERY, tend_standby
from tiered.errors import ConfigError
from tiered.program.application import Application, Command, pass_application, topic_or_partition
from tiered.program.open_reader import refuse_file
from tiered.program.open_store import open_remote
from tiered.program.output import columns, counted, human_bytes
from tiered.program.places import LogPlace, range_of, range_options
from tiered.program.progress import Progress
from tiered.restore.restore import RestoreReport


@click.command("restore", cls=Command, exits={3: "restored, with warnings"})
@click.argument("selected", nargs=-1, metavar="[TOPIC[:P]...]")
@range_options
@click.option("--newest", metavar="SIZE", help="only the newest segments of each partition, up to SIZE: 10GiB")
@click.option("--as-of", metavar="WHAT", help="the bucket as it was: a snapshot's name, a version, or a time")
@click.option("--name", metavar="NEW", help="another name, and id, for the one topic that is selected")
@click.option("--pin", is_flag=True, help="keep garbage collection away from what is fetched, however long it takes")
@click.option("--if-empty", is_flag=True, help="do nothing, successfully, if the directory holds something already")
@click.option("--follow", is_flag=True, help="keep pulling what the bucket gets into --log-dir, a read-only standby")
@click.option("--every", default=EVERY, metavar="REST", help=f"with --follow: the rest between two pulls ({EVERY})")
@click.option("--once", is_flag=True, help="with --follow: pull once and end, for cron")
@click.option("--promote", is_flag=True, help="make a standby the writer: one more pull, then claim every partition")
@pass_application
def command(
    app: Application,
    *,
    selected: tuple[str, ...],
    begin: str | None,
    end: str | None,
    newest: str | None,
    as_of: str | None,
    name: str | None,
    pin: bool,
    if_empty: bool,
    follow: bool,
    every: str,
    once: bool,
    promote: bool,
) -> int:
    """Build a log directory from the bucket alone.

    The directory, --log-dir, is a new volume of the same log. Older segments that were left out, by --from TIME or
    --newest, stay readable in the bucket.

    With --as-of, --to or --name the directory is an independent log. It can be uploaded to another prefix, with --name
    also to the same one. It ends between two batches: the batch that holds the first unwanted record is left out
    whole. A transaction that is open at the end is aborted by a marker.

    With --follow the directory is a standby of the whole bucket. It may be stopped at any time, and follows again with
    the same command. `tiered status` prints how late it is. --promote ends that: the old writer is fenced then.

    \b
    Examples:
      tiered restore --remote s3://acme-logs/prod --log-dir /var/lib/tieredlog
      tiered restore flights --remote s3://acme-logs/prod --log-dir data --newest 10GiB --dry-run
      tiered restore flights --remote s3://acme-logs/prod --log-dir data --as-of before-release --name flights-old
      tiered restore --remote s3://acme-logs/prod --log-dir data --to 2026-01-31T05:00:00Z
      tiered restore --remote s3://acme-logs/prod --log-dir standby --follow
      tiered restore --remote s3://acme-logs/prod --log-dir standby --promote
    """
    if follow or promote or once:
        if any((selected, begin, end, newest, as_of, name, pin, if_empty, app.dry_run)):
            raise ConfigError("a standby has the whole bucket, as it is", hint="leave the other options out")
        return tend_standby(app, every, follow=follow, once=once, promoted=promote)
    directory, dry_run = app.need_log_dir(), app.dry_run
    first, last = range_of(begin, end, app.clock.now_ms())
    _refuse_offsets(first, last)
    chosen = [topic_or_partition(text) for text in selected]
    refuse_file(directory)
    app.out.start("restore", directory=str(directory), dry_run=dry_run, complete=False)
    store = open_remote(app)
    try:
        with Progress(app, "restoring", is_bytes=True) as progress:
            report = admin.restore(
                directory,
                store,
                chosen,
                newest_bytes=newest,
                since=first.time_ms,
                as_of=as_of,
                until=last.time_ms,
                end=last.offset if isinstance(last.offset, int) else None,
                name=name or "",
                pin=pin,
                if_empty=if_empty,
                dry_run=dry_run,
                clock=app.clock,
                ids=app.ids,
                progress=progress.show,
            )
    finally:
        store.close()
    return _conclude(app, report)


def _refuse_offsets(first: LogPlace, last: LogPlace) -> None:
    """Raise ConfigError for ends that no restore has: it begins with a whole segment, and it restores something."""
    if first.offset not in (None, "earliest"):
        raise ConfigError(f"--from {first.text}: a restore begins at a time", hint="write a time, or use --newest SIZE")
    if last.offset == "earliest":
        raise ConfigError("--to beginning restores nothing", hint="write a time or an offset, or leave it out")


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
