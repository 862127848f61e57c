"""The entry point: finds the command, runs it, and turns whatever ends it into an exit code.

::

    0    done, complete                      12       credentials or permission
    1    failed                              13       corruption
    2    usage or configuration              14       offsets that are in no tier
    3    finished with warnings, incomplete  75       try again: store unreachable, data still local, disk full
    4    nothing matched                     130/143  stopped by Ctrl-C / SIGTERM before it finished
    10   no such log, topic or bucket
    11   locked, fenced
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import click

from tiered.errors import TieredError
from tiered.program.application import Group
from tiered.program.output import Output, StdoutClosed, counted
from tiered.program.run import EXIT_INTERRUPTED
from tiered.program.wording import KAFKA_OPTIONS, as_error, in_cli_words

EXIT_TERMINATED = 143

COMMANDS = {
    "append": "tiered.cli.append",
    "cat": "tiered.cli.cat",
    "tail": "tiered.cli.tail",
    "topics": "tiered.cli.topics",
    "offsets": "tiered.cli.offsets",
    "status": "tiered.cli.status",
    "segments": "tiered.cli.segments",
    "dump-segment": "tiered.cli.dump_segment",
    "doctor": "tiered.cli.doctor",
    "iam-policy": "tiered.cli.iam_policy",
    "check": "tiered.cli.check",
    "restore": "tiered.cli.restore",
    "repair": "tiered.cli.repair",
    "maintain": "tiered.cli.maintain",
    "gc": "tiered.cli.gc",
    "snapshot": "tiered.cli.snapshot",
    "local": "tiered.cli.local",
    "transactions": "tiered.cli.transactions",
    "truncate": "tiered.cli.truncate",
    "config": "tiered.cli.config",
}
"""Command and module; a module is imported only when its command is asked for, which keeps the start quick."""


class Terminated(BaseException):
    """SIGTERM came; like KeyboardInterrupt it passes every ``except Exception``, so that files get closed."""


class Commands(Group):
    """The top group: imports a command's module when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a working day, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The module's ``command``."""
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command


@click.group(cls=Commands, name="tiered")
def tiered() -> None:
    """A log in Kafka's file format: the hot tail on this disk, everything older on S3.

    Data goes to stdout, talk to stderr. Settings: flag, then TIERED_*, then --config FILE, then default.
    """


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code. Never raises, never prints a traceback without ``--debug``."""
    if "_TIERED_COMPLETE" in os.environ:
        tiered.main(args=list(arguments), prog_name="tiered")
    output = Output(json_mode="--json" in arguments)
    flags: dict[str, Any] = {"output": output}
    try:
        with _sigterm_raises(), _library_warnings(output):
            code = _invoke(list(arguments), flags)
            output.flush()
            return code
    except (StdoutClosed, BrokenPipeError):  # click prints the help itself
        _discard_stdout()
        return 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _stopped(output, "interrupted", EXIT_INTERRUPTED)
    except Terminated:
        return _stopped(output, "terminated", EXIT_TERMINATED)
    except Exception as cause:  # noqa: BLE001 - the last line of defence: one sentence instead of a traceback
        return _failed(cause, output, debug=_wants_debug(flags, arguments))


def _invoke(arguments: list[str], flags: dict[str, Any]) -> int:
    # Not Group.main: it turns a closed pipe into a failure and catches what this module has to see.
    with tiered.make_context("tiered", arguments, obj=flags) as context:
        code = tiered.invoke(context)
        return code if isinstance(code, int) else 0


def _failed(cause: Exception, output: Output, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(cause)
    error = as_error(cause, "tiered", KAFKA_OPTIONS)
    in_cli_words(error)
    try:
        output.failure(error)
        output.flush()
    except (StdoutClosed, TieredError):
        # The output itself may be what failed, and it has been told.
        _discard_stdout()
    return error.exit_code


def _stopped(output: Output, word: str, code: int) -> int:
    done = output.summary_fields.get("records")
    shown = counted(done, "record") if isinstance(done, int) else ""
    if output.command == "append" and shown:
        output.say(f"{word}: {shown} of the input {'was' if done == 1 else 'were'} appended")
    elif output.endless:
        output.say(word + (f" after {shown}" if shown else ""))
    else:
        output.say(f"{word} before the end" + (f", after {shown}" if shown else ""))
    with contextlib.suppress(StdoutClosed, TieredError):
        if output.command:
            output.summary(code, complete=output.endless)
        output.flush()
    return code


def _wants_debug(flags: dict[str, Any], arguments: Sequence[str]) -> bool:
    return bool(flags.get("debug")) or "--debug" in arguments


def _discard_stdout() -> None:
    """Points stdout at nothing, so that the interpreter's last flush does not complain about the closed pipe."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


class _Talk(logging.Handler):
    """What the library warns of is talk of the command that is running."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """One line on stderr."""
        self._output.caution(record.getMessage())


@contextlib.contextmanager
def _library_warnings(output: Output) -> Iterator[None]:
    handler, logger = _Talk(output), logging.getLogger("tiered")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
