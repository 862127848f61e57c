"""``tiered metrics``: print the metrics of a log directory."""

from __future__ import annotations

import click

from tiered.local.directory.figures import read_metrics
from tiered.metrics import render
from tiered.program.application import Application, Command, pass_application
from tiered.program.open_log import open_view


@click.command("metrics", cls=Command)
@pass_application
def command(app: Application) -> int:
    """Print the metrics of a log directory, as Prometheus reads them.

    The command takes no lock. Figures of background tasks are as the writer noted them, at most a minute ago. A program
    that has the log open gets current ones from log.metrics(). The daemon serves more on /metrics, under the same
    names.

    \b
    Examples:
      tiered metrics --log-dir data
      tiered metrics --log-dir data --json
    """
    with open_view(app) as view:
        found = read_metrics(view, app.clock.now_ms())
    return app.out.result("metrics", {"metrics": [each.as_json() for each in found]}, render(found).splitlines())
