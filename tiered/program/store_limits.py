"""Limits of what a program asks of its store: names, defaults and spelling, the same for the daemon and by hand.

They stand in the table ``[uploader]`` of the TOML file and in ``TIERED_UPLOADER_*``, whoever reads them: a limit that
was set for a machine holds for its daemon, and for ``tiered maintain run`` beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from tiered.config import MEMORY_BYTES, MIB, MIN_MEMORY_BYTES, S3_WORDS, StoreLimits, parse_bytes
from tiered.errors import ConfigError
from tiered.program import settings

F = TypeVar("F", bound=Callable[..., Any])
TABLE = "uploader"
PREFIX = f"TIERED_{TABLE.upper()}_"

PLACE = ("log_dir", "remote", *S3_WORDS)
"""Settings of all programs that may stand in the table, too; their variables are those of ``settings.SETTINGS``."""

OF_TABLE = (
    "http",
    "drain",
    "drain_timeout",
    "scan",
    "seal_idle",
    "uploads",
    "commit_wait",
    "lag_limit",
    "bytes_per_second",
    "requests_per_second",
    "memory",
    "multipart_above",
    "part_size",
    "partition_labels",
    "log_format",
    "sidecar",
    "sidecar_compacted",
    "sidecar_held",
    "maintain",
    "maintain_every",
)
"""All settings of the daemon's own: who reads some of them has to tell the others from a misspelt one."""

_SERVICE_LINK = re.compile(
    rf"{PREFIX}(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)"
)
"""Kubernetes puts these into each pod of a namespace that has a Service called ``tiered-uploader``."""

LIMIT_OPTIONS = (
    click.option("--bytes-per-second", help="Limit of the traffic with the store, as 50MiB. Default none."),
    click.option("--requests-per-second", help="Limit of the requests. Default none."),
    click.option(
        "--memory", help=f"What uploads and maintenance hold at once, together. Default {MEMORY_BYTES // MIB}MiB."
    ),
)
"""The same words on every command line."""


def whole(value: int | str) -> int:
    """A whole number of at least 1. Raises ConfigError."""
    if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
        raise ConfigError(f"{value!r} is not a whole number of at least 1")
    return int(value)


def size(value: int | str) -> int:
    """Bytes, at least 1, as ``16MiB``. Raises ConfigError."""
    found = parse_bytes(value)
    if found < 1:
        raise ConfigError(f"{value!r} is not a positive size")
    return found


def _memory(value: int | str) -> int:
    found = size(value)
    if found < MIN_MEMORY_BYTES:
        least = f"at least {MIN_MEMORY_BYTES // MIB}MiB"
        raise ConfigError(f"{value!r} is too small: one action of maintenance holds that much", hint=least)
    return found


PARSERS: Mapping[str, Callable[[Any], int]] = {
    "bytes_per_second": size,
    "requests_per_second": whole,
    "memory": _memory,
}


def with_limits(command: F) -> F:
    """Gives a command ``LIMIT_OPTIONS``."""
    for option in reversed(LIMIT_OPTIONS):
        command = option(command)
    return command


def store_limits(flags: Mapping[str, str | None], environ: Mapping[str, str], config: Path | None) -> StoreLimits:
    """Those of a command by hand: its flags, then ``TIERED_UPLOADER_*``, then the file, then the defaults.

    Raises ConfigError, which names where a limit came from, and for what is no setting of the daemon: a misspelt limit
    would be none.
    """
    refuse_unknown_variables(environ)
    variables = {variable(name): name for name in PARSERS}
    given = {name: (one.key, one.value) for name, one in settings.from_environment(environ, variables).items()}
    if config is not None:
        read = settings.some_of_table(config, environ, TABLE, tuple(PARSERS), known=(*PLACE, *OF_TABLE))
        given = {name: (f"{name} in {config}", one.value) for name, one in read.items()} | given
    given |= {name: ("--" + name.replace("_", "-"), value) for name, value in flags.items() if value is not None}
    return StoreLimits(**{name: _parsed(name, origin, value) for name, (origin, value) in given.items()})


def variable(name: str) -> str:
    """The environment variable of a setting of the table."""
    return f"TIERED_{name.upper()}" if name in PLACE else f"{PREFIX}{name.upper()}"


def refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    """Raises ConfigError for a ``TIERED_UPLOADER_*`` that is no setting of the daemon."""
    known = [variable(name) for name in (*PLACE, *OF_TABLE)]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINK.fullmatch(name):
            hint = settings.suggestion(name, known) or f"known variables: {', '.join(sorted(known))}"
            raise ConfigError(f"the environment variable {name} is not known", hint=hint)


def _parsed(name: str, origin: str, value: Any) -> int:
    if not isinstance(value, str | int):
        raise ConfigError(f"{origin} is {value!r}, not a text or a number")
    try:
        return PARSERS[name](value)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.message}", hint=error.hint) from error
