"""What the command line says to people, on stderr: how it ended, and what to do next. Worded as ``tiered`` does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import click

from tiered.errors import ConfigError, TieredError
from tiered.model import TopicPartition

NAMES = 5
"""Partitions that one sentence names."""


def failure(message: str, hint: str = "") -> None:
    """One sentence, and the next thing to do."""
    with contextlib.suppress(OSError):  # nobody listens to the talk any more; the status says it too
        click.echo(f"error: {message}", err=True)
        if hint:
            click.echo(f"  next: {hint}", err=True)


def usage(cause: click.ClickException) -> ConfigError:
    """A wrong command line as an error of ours."""
    text = cause.format_message().strip().replace("\n", " ").partition(" Did you mean ")[0].partition(" (Possible")[0]
    context = getattr(cause, "ctx", None)
    near = getattr(cause, "possibilities", None)
    path = context.command_path if context is not None else "tiered-uploader"
    hint = f"did you mean {sorted(near)[0]}?" if near else f"see {path} --help"
    return ConfigError(text[:1].lower() + text[1:].rstrip("."), hint=hint)


def committed(counts: Mapping[TopicPartition, int]) -> str:
    """``2,000 records committed in t-0, t-1``."""
    total = sum(counts.values())
    if not total:
        return "nothing to commit: the bucket holds all that was asked for"
    names = [str(tp) for tp in sorted(counts)]
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f"{total:,} record{'s' if total != 1 else ''} committed in {', '.join(names[:NAMES])}{more}"


def of_other_kind(error: Exception) -> TieredError:
    """A defect as one sentence."""
    return TieredError(
        f"the program failed: {type(error).__name__}: {error}",
        hint="this is a defect; run again with --debug and report the traceback",
    )
