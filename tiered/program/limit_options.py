"""Options of a command for limits of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tiered.config import MEMORY_BYTES, MIB

F = TypeVar("F", bound=Callable[..., Any])

LIMIT_OPTIONS = (
    click.option("--bytes-per-second", help="Limit of the traffic with the store, as 50MiB. Default none."),
    click.option("--requests-per-second", help="Limit of the requests. Default none."),
    click.option(
        "--memory", help=f"What uploads and maintenance hold at once, together. Default {MEMORY_BYTES // MIB}MiB."
    ),
)
"""Options with the same words on every command line."""


def with_limits(command: F) -> F:
    """Give a command ``LIMIT_OPTIONS``."""
    for option in reversed(LIMIT_OPTIONS):
        command = option(command)
    return command
