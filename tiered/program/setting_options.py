"""Options of the command line from the table of settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tiered.program.settings import DAEMON, LIMITS, PLACE

F = TypeVar("F", bound=Callable[..., Any])

_BY_NAME = {setting.name: setting for setting in (*PLACE, *DAEMON)}


def setting_option(name: str, *names: str, **more: Any) -> Callable[[F], F]:
    """Return the option of a setting, with its sentence and default as help. ``names``: others than its own."""
    setting = _BY_NAME[name]
    return click.option(*(names or (setting.flag,)), help=setting.help, **more)


LIMIT_OPTIONS = tuple(setting_option(setting.name) for setting in LIMITS)
"""Options of limits, with the same words on every command line."""


def with_limits(command: F) -> F:
    """Give a command ``LIMIT_OPTIONS``."""
    for option in reversed(LIMIT_OPTIONS):
        command = option(command)
    return command
