"""Run of one command line: every end becomes one sentence, a hint and an exit code."""

from __future__ import annotations

import contextlib
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
from tiered.program.error_text import KAFKA_OPTIONS, as_error, in_cli_words
from tiered.program.output import Output, StdoutClosed, counted
from tiered.program.run import EXIT_INTERRUPTED
from tiered.program.settings import boolean

EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM as an exception. Like KeyboardInterrupt it passes every ``except Exception``, so files get closed."""


def run_command(group: click.Group, program: str, arguments: Sequence[str]) -> int:
    """Run one command line of ``group`` and return its exit code.

    Never raises, never prints a traceback without ``--debug``.
    """
    # Guessed before the line is parsed, because a line that cannot be parsed needs an answer, too.
    output = Output(json_mode="--json" in arguments or boolean(os.environ.get("TIERED_JSON", "")) is True)
    flags: dict[str, Any] = {"output": output}
    try:
        with _sigterm_raises(), _library_warnings(output):
            code = _invoke(group, program, list(arguments), flags)
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
    except Exception as cause:  # noqa: BLE001 - the last resort: one sentence instead of a traceback
        return _failed(cause, output, debug=_wants_debug(flags, arguments))


def _invoke(group: click.Group, program: str, arguments: list[str], flags: dict[str, Any]) -> int:
    # Not Group.main: it turns a closed pipe into a failure and catches exceptions that this module needs.
    with group.make_context(program, arguments, obj=flags) as context:
        code = group.invoke(context)
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
        # The output itself may have failed. The error was printed on stderr.
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
    """Redirect stdout to the null device, so that the interpreter's last flush ignores the closed pipe."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


class _StderrWarnings(logging.Handler):
    """Handler that prints the library's warnings on the stderr of the running command."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line on stderr."""
        self._output.caution(record.getMessage())


@contextlib.contextmanager
def _library_warnings(output: Output) -> Iterator[None]:
    handler, logger = _StderrWarnings(output), logging.getLogger("tiered")
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
