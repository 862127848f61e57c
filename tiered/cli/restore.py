"""``tiered restore``: build a log directory from the bucket alone, follow the bucket with it, promote it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import click

from tiered import admin
from tiered.check.check import EXIT_WARNINGS
from tiered.check.findings import emit_handler
from tiered.config import parse_duration_ms
from tiered.errors import ConfigError, RemoteUnavailableError
from tiered.format.keys import check_topic_name
from tiered.local.disk.files import PosixFiles
from tiered.program.application import Application, Command, pass_application, topic_or_partition
from tiered.program.open_reader import refuse_file
from tiered.program.open_store import open_remote
from tiered.program.output import Progress, columns, counted, human_bytes
from tiered.program.places import LogPlace, range_of, range_options
from tiered.restore.restore import RestoreReport
from tiered.restore.standby import PullReport, Standby, promote
from tiered.store.driver import Runner

EVERY = "5s"
"""Rest between two pulls."""


@click.command("restore", cls=Command, exits={3: "restored, with warnings"})
@click.argument("selected", nargs=-1, metavar="[TOPIC[:P]...]")
@range_options
@click.option("--newest", metavar="SIZE", help="only the newest segments of each partition, up to SIZE: 10GiB")
@click.option("--as-of", metavar="WHAT", help="the bucket as it was: a snapshot's name, a version, or a time")
@click.option("--name", metavar="NEW", help="another name, and id, for the one topic that is selected")
@click.option("--pin", is_flag=True, help="keep garbage collection away from what is fetched, however long it takes")
@click.option("--if-empty", is_flag=True, help="do nothing, successfully, if the directory holds something already")
@click.option("--follow", is_flag=True, help="keep pulling what the bucket gets into --log-dir, a read-only standby")
@click.option("--every", metavar="REST", help=f"with --follow: the rest between two pulls ({EVERY})")
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
    every: str | None,
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
    if name is not None:
        check_topic_name(name)
    if not follow and (once or every is not None):
        raise ConfigError(f"{'--once' if once else '--every'} needs --follow", hint="add --follow, or leave it out")
    if follow or promote:
        _refuse_selection(selected, begin, end, newest, as_of, name, pin, if_empty, app.dry_run)
        return run_standby(app, EVERY if every is None else every, follow=follow, once=once, promoted=promote)
    directory, dry_run = app.need_log_dir(), app.dry_run
    first, last = range_of(begin, end, app.clock.now_ms())
    _refuse_offsets(first, last)
    chosen = [topic_or_partition(text) for text in selected]
    refuse_file(directory)
    app.out.start("restore", directory=str(directory), dry_run=dry_run, complete=False)
    with contextlib.closing(open_remote(app)) as store, Progress(app, "restoring", is_bytes=True) as progress:
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
    return _conclude(app, report)


def _refuse_selection(*given: object) -> None:
    """Raise ConfigError if any of the options that a standby does not have is given."""
    if any(given):
        raise ConfigError(
            "--follow, --once and --promote are for the whole bucket: no topic, range, name, --pin or --dry-run goes "
            "with them",
            hint="pass only --remote, --log-dir and --every with them",
        )


def _refuse_offsets(first: LogPlace, last: LogPlace) -> None:
    """Raise ConfigError if ``first`` is not a time, or if ``last`` would leave nothing to restore."""
    if first.offset not in (None, "earliest"):
        raise ConfigError(
            f"--from {first.text} is not a time, and a restore begins at a time",
            hint="write a time, or use --newest SIZE",
        )
    if last.offset == "earliest":
        raise ConfigError(
            "--to beginning selects no record to restore", hint="write a time or an offset, or leave it out"
        )


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


def run_standby(app: Application, every: str, *, follow: bool, once: bool, promoted: bool) -> int:
    """Follow a bucket with a standby, or promote it. Return the exit code."""
    if follow and promoted:
        raise ConfigError("--follow and --promote exclude each other", hint="choose one of them")
    refuse_file(app.need_log_dir())
    return _promote(app) if promoted else _follow(app, every, once=once)


def _follow(app: Application, every: str, *, once: bool) -> int:
    """Pull at the interval ``every`` until the process is stopped, or a single time with ``once``."""
    rest_seconds = parse_duration_ms(every, "--every") / 1000
    if rest_seconds <= 0:
        raise ConfigError(
            f"--every {every}: the pause between downloads must be longer than 0", hint="for example 5s or 1m"
        )
    app.out.start("restore", directory=str(app.need_log_dir()), segments=0, size_bytes=0)
    store, never, warned = open_remote(app), threading.Event(), set[str]()
    try:
        with Standby(store.url, app.need_log_dir(), clock=app.clock, ids=app.ids, files=PosixFiles()) as standby:
            while True:
                try:
                    with Progress(app, "pulling", is_bytes=True) as progress:
                        steps = standby.pull()
                        report = Runner(store, app.clock, app.ids).run(steps, emit_handler(progress.show))
                except RemoteUnavailableError as outage:
                    report = PullReport(errors=(outage,))
                _show(app, report, warned, once=once)
                if once:
                    break
                app.clock.wait(never, rest_seconds)
    finally:
        store.close()
    app.out.summary(0)
    return 0


def _show(app: Application, report: PullReport, warned: set[str], *, once: bool) -> None:
    """Print the result of a pull. An error is a warning, unless the pull before had it; with ``once`` it is raised.

    ``warned``: messages of the errors of the last pull.
    """
    for name in report.dropped:
        app.out.warn(f"topic {name} was deleted in the bucket, and here")
    for note in report.notes:
        app.out.warn(note)
    app.out.summary_fields["segments"] += report.segments
    app.out.summary_fields["size_bytes"] += report.size_bytes
    if app.out.json_mode and not report.is_empty:
        app.out.message("pulled", segments=report.segments, size_bytes=report.size_bytes)
    elif report.segments or once:
        app.out.line(f"{counted(report.segments, 'segment')}, {human_bytes(report.size_bytes)} pulled")
    app.out.flush()
    for error in report.errors:
        if once:
            raise error
        if error.message not in warned:
            app.out.warn(str(error))
    warned.clear()
    warned.update(error.message for error in report.errors)


def _promote(app: Application) -> int:
    """Promote the standby to the writer, and print the end of each partition. Return the exit code."""
    directory, store = app.need_log_dir(), open_remote(app)
    try:
        with Progress(app, "pulling", is_bytes=True) as progress:
            take = emit_handler(progress.show)
            ends, notes = promote(store, directory, clock=app.clock, ids=app.ids, files=PosixFiles(), take=take)
    finally:
        store.close()
    for note in notes:
        app.out.warn(note)
    partitions = [{"topic": tp.topic, "partition": tp.partition, "end_offset": end} for tp, end in ends.items()]
    text = [
        *columns(["partition", "end"], [[tp, end] for tp, end in ends.items()]),
        f"{directory} is the writer of {store.url} now: start the application with it",
    ]
    return app.out.result("restore", {"directory": str(directory), "partitions": partitions}, text)
