"""``tiered local tasks`` and ``tiered local run``: the background work of a log directory."""

from __future__ import annotations

from dataclasses import asdict

import click

from tiered.cli.application import Application, Command, pass_application
from tiered.cli.output import columns
from tiered.errors import NotFoundError
from tiered.local.directory.manager import LocalLog
from tiered.local.directory.tasks import TaskStatus, read_status
from tiered.local.disk.files import PosixFiles


@click.command("tasks", cls=Command)
@pass_application
def tasks_command(app: Application) -> int:
    """The tasks of a log directory: period, last run and last error, as its writer noted them last.

    \b
    Example:
      tiered local tasks --log-dir data
    """
    directory = app.need_log_dir()
    if not directory.is_dir():
        raise NotFoundError(f"there is no log directory {directory}", hint="correct --log-dir")
    tasks = read_status(directory, PosixFiles())
    if not tasks:
        app.out.say("no writer has noted its tasks yet: it does so once a minute and when it closes")
    names = ["task", "period ms", "last run ms", "took ms", "runs", "failures", "last error"]
    text = columns(names, [_row(task) for task in tasks]) if tasks else []
    return app.out.result("local tasks", {"tasks": [asdict(task) for task in tasks]}, text)


@click.command("run", cls=Command)
@click.argument("task")
@pass_application
def run_command(app: Application, task: str) -> int:
    """Run one task now. The directory must have no writer at the moment.

    \b
    Examples:
      tiered local run retention --log-dir data
      tiered local run deletion --log-dir data
    """
    directory = app.need_log_dir()
    if not directory.is_dir():
        raise NotFoundError(f"there is no log directory {directory}", hint="correct --log-dir")
    with LocalLog.open(directory, clock=app.clock, ids=app.ids) as log:
        log.roster.wake_all()
        status = log.tasks.run(task)
    return app.out.result("local run", asdict(status), [f"{task} ran in {status.last_duration_ms} ms"])


def _row(task: TaskStatus) -> list[object]:
    period = task.period_ms or "each tick"
    last = task.last_run_ms if task.last_run_ms >= 0 else "never"
    return [task.name, period, last, task.last_duration_ms, task.runs, task.failures, task.last_error or "-"]
