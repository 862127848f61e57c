"""``tiered local tasks`` and ``tiered local run``: the background work of a log directory."""

from __future__ import annotations

from dataclasses import asdict

import click

from tiered.cli.application import Application, Command, pass_application
from tiered.cli.doors import need_directory
from tiered.cli.output import columns, human_duration
from tiered.local.directory.manager import LocalLog
from tiered.local.directory.reports import read_report
from tiered.local.directory.tasks import TaskStatus
from tiered.local.disk.files import PosixFiles
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
    tasks = read_report(directory, PosixFiles()).tasks
    if not tasks:
        app.out.say("no writer has noted its tasks yet: it does so once a minute and when it closes")
    names = ["task", "every", "last run", "took", "runs", "failures", "last error"]
    text = columns(names, [_row(task) for task in tasks]) if tasks else []
    return app.out.result("local tasks", {"tasks": [asdict(task) for task in tasks]}, text)


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
        log.roster.wake_all()
        status = log.tasks.run(task)
    return app.out.result("local run", asdict(status), [f"{task} ran in {status.last_duration_ms:,} ms"])


def _row(task: TaskStatus) -> list[object]:
    ran = task.last_run_ms >= 0
    return [
        task.name,
        human_duration(task.period_ms) if task.period_ms else "tick",
        format_time(task.last_run_ms) if ran else "never",
        f"{task.last_duration_ms:,} ms" if ran else "-",
        task.runs,
        task.failures,
        task.last_error or "-",
    ]
