"""Metrics of a command as a file that the textfile collector of Prometheus's node exporter reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from tiered.arguments import at_home
from tiered.errors import ConfigError
from tiered.metrics import Metric, render

F = TypeVar("F", bound=Callable[..., Any])


def metrics_option(function: F) -> F:
    """Add ``--metrics FILE`` to a command."""
    return click.option(
        "--metrics",
        "metrics_file",
        metavar="FILE",
        callback=_place,
        help="also write metrics to FILE, ending in .prom, for the textfile collector of Prometheus's node exporter",
    )(function)


def _place(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path | None:
    if value is None:
        return None
    path = at_home("--metrics", Path(value))
    if not path.parent.is_dir():
        raise ConfigError(f"--metrics {value}: there is no directory {path.parent}", hint=f"mkdir -p {path.parent}")
    return path


def write_metrics(path: Path | None, figures: Iterable[Metric]) -> None:
    """Replace the file in one step, so that no reader sees a half of it; no file for None. Raises ConfigError."""
    if path is None:
        return
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(render(figures))
        beside.replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write the metrics to {path}: {error.strerror}", hint="choose another --metrics"
        ) from (error)
