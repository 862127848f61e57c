"""Run of one command line: every end becomes one sentence, a hint and an exit code.

Hints of the library are translated into options of the command line, because keyword arguments mean nothing there.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import logging
import os
import re
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import click

from tiered.errors import ConfigError, DiskFullError, LocalIOError, LocalPermissionError, NotFoundError, TieredError
from tiered.program.output import Output, StdoutClosed, counted, output_error
from tiered.program.run import EXIT_INTERRUPTED
from tiered.program.settings import boolean

EXIT_TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM as an exception. Like KeyboardInterrupt it passes every ``except Exception``, so files get closed."""


def run_command(group: click.Group, program: str, arguments: Sequence[str]) -> int:
    """Run one command line of ``group`` and return its exit code. It never raises."""
    # Guessed before the line is parsed, because a line that cannot be parsed needs an answer, too.
    output = Output(json_mode="--json" in arguments or boolean(os.environ.get("TIERED_JSON", "")) is True)
    flags: dict[str, Any] = {"output": output}
    try:
        with _sigterm_raises(), _library_warnings(output):
            code = _invoke(group, program, list(arguments), flags)
            output.flush()
            return code
    except (StdoutClosed, BrokenPipeError):  # click prints the help itself
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
    error = as_error(cause, "tiered")
    in_cli_words(error)
    with contextlib.suppress(StdoutClosed, TieredError):  # the output itself may have failed
        output.failure(error)
        output.flush()
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


WORDS = (
    ("create=True makes it", "--create makes it (append, topic create)"),
    ("create=True makes one", "`tiered topic create` makes one"),
    ("restore rebuilds a lost one", "`tiered restore` rebuilds a lost one"),
    ("leave partitions out", "leave --partitions out"),
    ("leave config out", "leave --set out"),
    ('open it with remote="s3://bucket/prefix"', "pass --remote URL"),
    ("open the log with remote=URL", "pass --remote URL"),
    ("open the directory read-only", "read with cat or status, which take no lock"),
)
"""Phrases of the library's hints, and their translations here."""

_SUGGESTION = re.compile(r"\s*\(?Did you mean .*$")
"""Click's own suggestion, which our hint replaces."""

_KINDS = (
    ("is not a valid integer range", "is not a whole number"),
    ("is not a valid float range", "is not a number"),
)
"""Click's words for a range, and ours for its members."""


def in_cli_words(error: TieredError) -> None:
    """Replace the error's hint, in place: keyword arguments of the library become options and commands."""
    for library, ours in WORDS:
        error.hint = error.hint.replace(library, ours)


def as_error(cause: Exception, program: str) -> TieredError:
    """Convert any exception of ``program`` to a TieredError with a sentence, a hint and an exit code."""
    if isinstance(cause, TieredError):
        return cause
    if isinstance(cause, click.ClickException):
        return ConfigError(_sentence(cause), hint=_usage_hint(cause, program))
    if isinstance(cause, OSError):
        return output_error(cause) if _is_echo(cause) else _os_error(cause)
    if isinstance(cause, MemoryError):
        return TieredError("the command failed: this machine has no memory left for it", hint="read a smaller range")
    error = TieredError(
        f"the program failed: {type(cause).__name__}: {cause}",
        hint="this is a defect; run again with --debug and report the traceback",
    )
    error.__cause__ = cause
    return error


def _is_echo(cause: BaseException) -> bool:
    """Return True if click's output raised ``cause``. Files of the log have errors of their own."""
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    return any((frame.f_globals.get("__name__"), frame.f_code.co_name) == ("click.utils", "echo") for frame in frames)


def _sentence(cause: click.ClickException) -> str:
    text = cause.format_message().strip().replace("\n", " ")
    text = _SUGGESTION.sub("", text)
    for theirs, plain in _KINDS:
        text = text.replace(theirs, plain)
    return text[:1].lower() + text[1:].rstrip(".")


def _usage_hint(cause: click.ClickException, program: str) -> str:
    context = getattr(cause, "ctx", None)
    names = {name.lstrip("-"): name for name in getattr(cause, "possibilities", None) or ()}
    near = difflib.get_close_matches(str(getattr(cause, "option_name", "")).lstrip("-"), names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {names[near[0]]}?"
    return f"see {context.command_path} --help" if context is not None else f"see {program} --help"


def _os_error(cause: OSError) -> TieredError:
    name = cause.filename if cause.filename is not None else "the system"
    reason = cause.strerror or str(cause)
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{name}: {reason}", hint="free space and run the command again")
    if isinstance(cause, FileNotFoundError | NotADirectoryError):
        return NotFoundError(f"{name}: {reason}", hint="correct the path")
    if isinstance(cause, PermissionError):
        return LocalPermissionError(f"{name}: {reason}", hint="check the owner and mode")
    return LocalIOError(f"{name}: {reason}")
