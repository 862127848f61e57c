"""``tiered config show [--origin]``: print every setting, its value and its source."""

from __future__ import annotations

import re

import click

from tiered.program.application import Application, Group, pass_application
from tiered.program.output import columns
from tiered.program.settings import SETTINGS, Scalar, foreign_tables


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
    fields: dict[str, object] = {
        "config": str(app.config) if app.config else None,
        "settings": {name: {"value": _shown(app, name), "origin": app.values[name].origin} for name in names},
    }
    header = ["setting", "value", "origin"] if origin else ["setting", "value"]
    rows = []
    for name in names:
        row: list[object] = [name, _shown(app, name)]
        rows.append([*row, app.values[name].origin] if origin else row)
    lines = columns(header, rows)
    foreign = foreign_tables(app.config)
    if foreign:
        fields["unchecked_tables"] = foreign
        shown = " and ".join(f"[{name}]" for name in foreign)
        lines.append(
            f"{shown} in {app.config}: not shown and not checked here; tiered-uploader checks it when it starts"
        )
    return app.out.result("config show", fields, lines)


def _shown(app: Application, name: str) -> Scalar:
    """Return the value to print. A key in a URL, which every command refuses, is masked."""
    value = app.values[name].value
    return re.sub(r"://[^/]*@", "://***@", value) if isinstance(value, str) else value
