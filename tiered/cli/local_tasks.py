"""``tiered local tasks`` and ``tiered local run``: the background work of a log directory."""

from __future__ import annotations

from dataclasses import asdict

import click

from tiered.local.directory.manager import LocalLog
from tiered.local.directory.reports import read_report
from tiered.local.directory.tasks import TaskStatus
from tiered.local.disk.files import PosixFiles
from tiered.metrics import render
from tiered.program.application import Application, Command, pass_application
from tiered.program.doors import need_directory
from tiered.program.output import columns, counted, human_bytes, human_duration
from tiered.times import format_time


@click.command("tasks", cls=Command, short_help="List the background tasks and how they did.")
@pass_application
def tasks_command(app: Application) -> int:
    """The tasks of a log directory: period, last run and last error, as its last writer noted them.

    \b
    Example:
      tiered local tasks --log-dir data
    """
    directory = app.need_log_dir()
    need_directory(app)
    report = read_report(directory, PosixFiles())
    tasks = report.tasks
    if not tasks:
        app.out.say("no writer has noted its tasks yet: it does so once a minute and when it closes")
    names = ["task", "every", "last run", "took", "runs", "failures", "partitions", "bytes", "last error"]
    text = columns(names, [_row(task) for task in tasks]) if tasks else []
    if report.noted_ms >= 0:
        text.append(f"noted {human_duration(max(app.clock.now_ms() - report.noted_ms, 0))} ago")
    text += [f"problem: {problem}" for problem in report.problems]
    fields = {
        "noted_ms": report.noted_ms,
        "tasks": [asdict(task) for task in tasks],
        "cleaner": asdict(report.cleaner),
        "uncleanable": report.uncleanable,
        "offline": report.offline,
        "problems": report.problems,
    }
    return app.out.result("local tasks", fields, text)


@click.command("metrics", cls=Command, short_help="Print the figures of a log directory.")
@pass_application
def metrics_command(app: Application) -> int:
    """Figures of a log directory as Prometheus reads them: disk, offsets, background tasks, compaction.

    It takes no lock. Tasks and compaction are as the writer noted them last, at most a minute ago; a program that has
    the log open gets them as of now from log.metrics(). Names are those of the uploader's /metrics.

    \b
    Examples:
      tiered local metrics --log-dir data
      tiered local metrics --log-dir data --json
    """
    directory = app.need_log_dir()
    need_directory(app)
    with LocalLog.open(directory, clock=app.clock, ids=app.ids, read_only=True) as log:
        found = log.metrics()
    text = render(found).splitlines()
    return app.out.result("local metrics", {"metrics": [each.as_json() for each in found]}, text)


@click.command("run", cls=Command, short_help="Run one background task now.")
@click.argument("task")
@pass_application
def run_command(app: Application, task: str) -> int:
    """Run one task now, whatever its period says. The directory must have no writer at the moment.

    TASK is one of those that `tiered local tasks` lists.

    \b
    Examples:
      tiered local run retention --log-dir data
      tiered local run deletion --log-dir data
    """
    directory = app.need_log_dir()
    need_directory(app)
    with LocalLog.open(directory, clock=app.clock, ids=app.ids) as log:
        asleep = log.roster.wake_all()
        status = log.tasks.run(task)
        if asleep is not None:
            raise asleep
    return app.out.result("local run", asdict(status), [_ran(status)])


def _ran(status: TaskStatus) -> str:
    done = f"{counted(status.last_partitions, 'partition')}, {human_bytes(status.last_bytes)}"
    return f"{status.name} ran in {status.last_duration_ms:,} ms: {done if status.last_partitions else 'nothing to do'}"


def _row(task: TaskStatus) -> list[object]:
    ran = task.last_run_ms >= 0
    return [
        task.name,
        human_duration(task.period_ms) if task.period_ms else "tick",
        format_time(task.last_run_ms) if ran else "never",
        f"{task.last_duration_ms:,} ms" if ran else "-",
        f"{task.runs:,}{' (at work)' if task.running else ''}",
        task.failures,
        task.partitions,
        human_bytes(task.bytes) if task.bytes else "-",
        task.last_error or "-",
    ]
