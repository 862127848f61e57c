"""``tiered config``: print every setting, its value and its source."""

from __future__ import annotations

import re

import click

from tiered.program.application import Application, Command, pass_application
from tiered.program.output import columns
from tiered.program.settings import SETTINGS, Scalar, foreign_tables


@click.command("config", cls=Command)
@pass_application
def command(app: Application) -> int:
    """Print every setting, its value and its origin.

    A flag has precedence over TIERED_*, that over the file, that over the default.

    \b
    Example:
      tiered config --config tiered.toml
    """
    names = [setting.name for setting in SETTINGS]
    fields: dict[str, object] = {
        "config": str(app.config) if app.config else None,
        "settings": {name: {"value": _shown(app, name), "origin": app.values[name].origin} for name in names},
    }
    rows = [[name, _shown(app, name), app.values[name].origin] for name in names]
    lines = columns(["setting", "value", "origin"], rows)
    foreign = foreign_tables(app.config)
    if foreign:
        fields["unchecked_tables"] = foreign
        shown = " and ".join(f"[{name}]" for name in foreign)
        lines.append(
            f"{shown} in {app.config}: not shown and not checked here; tiered-uploader checks it when it starts"
        )
    return app.out.result("config", fields, lines)


def _shown(app: Application, name: str) -> Scalar:
    """Return the value to print. A key in a URL, which every command refuses, is masked."""
    value = app.values[name].value
    return re.sub(r"://[^/]*@", "://***@", value) if isinstance(value, str) else value
