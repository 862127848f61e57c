"""``tiered spark VERB``: start ``python -m tiered.spark VERB`` and end with its exit code.

Spark starts a JVM and keeps threads, so the verb runs in a process of its own. No other command imports Spark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import click

from tiered.program.application import Group
from tiered.spark.__main__ import PARENT_FD
from tiered.spark.commands import jobs

FLAGS = ("json", "quiet", "debug", "dry_run", "yes")
WORDS = ("log_dir", "remote", "config", "progress")


class SparkVerbs(Group):
    """Group of the Spark verbs, for their help. Their arguments are passed on unchanged."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return jobs.list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return jobs.get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> int:
        """Run the verb and return its exit code. Global options before the verb are appended to its arguments."""
        name, *rest = [*ctx._protected_args, *ctx.args]
        self.resolve_command(ctx, [name])  # a misspelt verb is an error here
        return start([name, *rest, *_before(ctx.find_root().obj)])


@click.group("spark", cls=SparkVerbs, help=jobs.help)
def command() -> None:
    """Maintenance, checks, erasures and exports on Spark."""


def _before(flags: dict[str, Any]) -> list[str]:
    words = [(word, flags[word]) for word in WORDS if flags.get(word) is not None]
    given = [text for word, value in words for text in ("--" + word.replace("_", "-"), str(value))]
    return (
        given
        + ["--" + flag.replace("_", "-") for flag in FLAGS if flags.get(flag)]
        + ["-v"] * int(flags.get("verbose") or 0)
    )


def start(arguments: list[str]) -> int:
    """Run a verb in a child process with its own process group, and return its exit code.

    SIGINT and SIGTERM are passed on, once each. The child ends with this process, even if this process is killed, so
    that no two drivers run at once.
    """
    theirs, ours = os.pipe()  # the child reads its end, which comes when the last writer, this process, is gone
    line = [sys.executable, "-m", "tiered.spark", *arguments]
    environment = {**os.environ, PARENT_FD: str(theirs)}
    child = subprocess.Popen(line, process_group=0, pass_fds=(theirs,), env=environment)  # noqa: S603 - this program
    os.close(theirs)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _frame: child.send_signal(number)) for number in numbers]
    try:
        code = child.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        os.close(ours)
    return 128 - code if code < 0 else code
