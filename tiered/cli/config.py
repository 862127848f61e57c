"""``tiered config``: print every setting, its value and its source."""

from __future__ import annotations

import os
import re

import click

from tiered.program.application import Application, Command, pass_application
from tiered.program.output import columns
from tiered.program.settings import SETTINGS, TABLE, Scalar, Value, daemon_values


@click.command("config", cls=Command)
@pass_application
def command(app: Application) -> int:
    """Print every setting, its value and its origin.

    A flag has precedence over TIERED_*, that over the file, that over the default. Settings of the daemon are those of
    the table [uploader].

    \b
    Example:
      tiered config --config tiered.toml
    """
    values = {setting.name: app.values[setting.name] for setting in SETTINGS}
    values |= {f"{TABLE}.{name}": value for name, value in daemon_values(os.environ, app.config).items()}
    shown = {name: (_shown(value), value.origin) for name, value in values.items()}
    fields = {
        "config": str(app.config) if app.config else None,
        "settings": {name: {"value": text, "origin": origin} for name, (text, origin) in shown.items()},
    }
    rows = [[name, text, origin] for name, (text, origin) in shown.items()]
    return app.out.result("config", fields, columns(["setting", "value", "origin"], rows))


def _shown(value: Value) -> Scalar:
    """Return the value as it was given, with credentials in a URL masked."""
    found = value.value if value.text is None or isinstance(value.value, bool) else value.text
    return re.sub(r"://[^/]*@", "://***@", found) if isinstance(found, str) else found
