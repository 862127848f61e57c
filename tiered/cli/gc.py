"""``tiered gc``: delete objects from the bucket that left the catalog."""

from __future__ import annotations

import click

from tiered.cli.maintain import MaintainScope, maintain
from tiered.plan.maintenance import MaintenanceKind
from tiered.program.application import Application, Command, Group, pass_application

_SELECTED = click.argument("selected", required=False, metavar="[TOPIC[:P]]")
_ORPHANS = click.option(
    "--orphans", is_flag=True, help="also objects that no root ever named, unfinished uploads; lists"
)


@click.group("gc", cls=Group)
def command() -> None:
    """Delete what the catalog names no more, once nobody can need it."""


@command.command("plan", cls=Command)
@_SELECTED
@_ORPHANS
@pass_application
def plan_command(app: Application, *, selected: str | None, orphans: bool) -> int:
    """Print what is out of the catalog for longer than gc.grace.ms. Nothing is changed.

    \b
    Example:
      tiered gc plan --remote s3://acme-logs/prod --orphans
    """
    return maintain(app, "gc plan", MaintainScope(selected, (MaintenanceKind.COLLECT,), orphans=orphans), dry_run=True)


@command.command("run", cls=Command)
@_SELECTED
@_ORPHANS
@click.option("--yes", is_flag=True, help="do not ask")
@pass_application
def run_command(app: Application, *, selected: str | None, orphans: bool, yes: bool) -> int:
    """Delete it, but for what a reader's pin or a snapshot holds. Each cycle leaves a line below jobs/gc/.

    Orphans are deleted a day after they came, if the key tells that nobody can commit them any more; multipart uploads
    that were never finished are aborted then, too. What a Spark sink staged and did not commit goes after gc.grace.ms,
    once it is decided that it is never committed. If no topic is named, so do old decisions of sinks, and strays: what
    came below a topic after it was destroyed, the roots of a registration that did not end, and what a probe left.

    \b
    Example:
      tiered gc run --remote s3://acme-logs/prod --yes
    """
    return maintain(
        app, "gc run", MaintainScope(selected, (MaintenanceKind.COLLECT,), orphans=orphans), dry_run=False, yes=yes
    )
