"""What destructive commands share: the plan on stderr, the question, ``--yes`` and ``--dry-run``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from tiered.errors import ConfigError
from tiered.format.coordinator_records import is_state_log
from tiered.model import TopicPartition
from tiered.program.application import Application, split_topic


def destructive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--dry-run`` and ``--yes``."""
    function = click.option("--yes", is_flag=True, help="do not ask")(function)
    return click.option("--dry-run", is_flag=True, help="print the plan only")(function)


def confirm(app: Application, command: str, question: str, *, yes: bool) -> None:
    """Asks; raises ConfigError if the answer is no, or if nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty() or app.out.json_mode:
        raise ConfigError(f"{command} asks before it acts, and nobody can answer here", hint="pass --yes")
    if not click.confirm(question, err=True):
        raise ConfigError("nothing was done", hint="--dry-run prints the plan only")


def refuse_internal(topic: str) -> None:
    """Raises ConfigError for the coordinator's own topic, which ``Log.delete_topic`` refuses, too."""
    if is_state_log(topic):
        raise ConfigError(
            f"{topic} is internal: it holds the decisions of transactions",
            hint="`tiered transactions` shows them, and ends those that hang",
        )


def one_partition(text: str) -> TopicPartition:
    """``TOPIC:P``. Raises ConfigError for anything else."""
    topic, partition = split_topic(text)
    if partition is None:
        stem, dash, number = text.rpartition("-")
        like = f"{stem}:{number}" if stem and dash and number.isdigit() else f"{text}:0"
        raise ConfigError(f"{text} names no partition", hint=f"write {like}")
    return TopicPartition(topic, partition)
