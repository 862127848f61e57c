"""``tiered local``: care of log directories as such."""

from __future__ import annotations

import click

from tiered.cli.local_clean import clean_command
from tiered.cli.local_move import move_command
from tiered.cli.local_tasks import metrics_command, run_command, tasks_command
from tiered.program.application import Group


@click.group(cls=Group, name="local")
def command() -> None:
    """Background tasks and log directories of this machine."""


command.add_command(tasks_command)
command.add_command(run_command)
command.add_command(metrics_command)
command.add_command(clean_command)
command.add_command(move_command)
