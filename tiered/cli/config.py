"""``tiered config show [--origin]``: every setting, its value and where it comes from."""

from __future__ import annotations

import click

from tiered.cli.application import Application, Group, pass_application
from tiered.cli.output import columns
from tiered.cli.settings import SETTINGS


@click.group(cls=Group, name="config")
def command() -> None:
    """Settings of the command line."""


@command.command("show")
@click.option("--origin", is_flag=True, help="say where each value comes from")
@pass_application
def show(app: Application, origin: bool) -> int:
    """Print every setting: flag, then TIERED_*, then the file, then the default.

    \b
    Example:
      tiered --config tiered.toml config show --origin
    """
    names = [setting.name for setting in SETTINGS]
    fields = {
        "config": str(app.config) if app.config else None,
        "settings": {name: {"value": app.values[name].value, "origin": app.values[name].origin} for name in names},
    }
    header = ["setting", "value", "origin"] if origin else ["setting", "value"]
    rows = []
    for name in names:
        row: list[object] = [name, app.values[name].value]
        rows.append([*row, app.values[name].origin] if origin else row)
    return app.out.result("config show", fields, columns(header, rows))
