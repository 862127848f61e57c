"""Conversion of any exception into one sentence, a hint and an exit code.

Hints of the library are translated into options of the command line, because keyword arguments mean nothing there.
"""

from __future__ import annotations

import difflib
import errno
import re
import traceback
from collections.abc import Mapping

import click

from tiered.errors import ConfigError, DiskFullError, LocalIOError, LocalPermissionError, NotFoundError, TieredError
from tiered.program.output import output_error

WORDS = (
    ("create=True makes it", "--create makes it (append, topic create)"),
    ("create=True makes one", "`tiered topic create` makes one"),
    ("restore rebuilds a lost one", "`tiered restore` rebuilds a lost one"),
    ("leave partitions out", "leave --partitions out"),
    ("leave config out", "leave --set out"),
    ("open(path, remote=...)", "pass --remote URL"),
    ("open the directory read-only", "read with cat or status, which take no lock"),
    ("call sync(), pass uploader=Uploader() to open, or run tiered-uploader", "run tiered-uploader"),
)
"""Phrases of the library's hints, and their translations here."""

KAFKA_OPTIONS = {
    "--bootstrap-server": "there is no broker: --log-dir names a directory, --remote a bucket",
    "--from-beginning": "cat begins at the beginning; --from WHERE begins elsewhere",
    "--isolation-level": "write --isolation",
    "--max-messages": "write --limit N",
    "--partition": "write TOPIC:P",
    "--replication-factor": "leave it out: a partition is on one disk, and in the bucket",
    "--topic": "the topic is an argument: TOPIC or TOPIC:P",
}
"""Options of Kafka's tools that a command may lack, and their replacements."""

_SUGGESTION = re.compile(r"\s*\(?Did you mean .*$")
"""Click's own suggestion, which our hint replaces."""

_KINDS = (
    ("is not a valid integer range", "is not a whole number"),
    ("is not a valid float range", "is not a number"),
)
"""Click's words for a range, and ours for its members."""


def in_cli_words(error: TieredError) -> None:
    """Translate the error's hint, in place, into options and commands."""
    for library, ours in WORDS:
        error.hint = error.hint.replace(library, ours)


def as_error(cause: Exception, program: str, options: Mapping[str, str] | None = None) -> TieredError:
    """Return any exception of ``program`` as an error of ours: a sentence, a hint and an exit code.

    ``options``: hints for options that the program does not have.
    """
    if isinstance(cause, TieredError):
        return cause
    if isinstance(cause, click.ClickException):
        return ConfigError(_sentence(cause), hint=_usage_hint(cause, program, options or {}))
    if isinstance(cause, OSError):
        return output_error(cause) if _is_echo(cause) else _os_error(cause)
    if isinstance(cause, MemoryError):
        return TieredError("this machine has no memory left for the command", hint="read a smaller range")
    error = TieredError(
        f"the program failed: {type(cause).__name__}: {cause}",
        hint="this is a defect; run again with --debug and report the traceback",
    )
    error.__cause__ = cause
    return error


def _is_echo(cause: BaseException) -> bool:
    """Return whether click's output raised it. Files of the log have errors of their own."""
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    return any((frame.f_globals.get("__name__"), frame.f_code.co_name) == ("click.utils", "echo") for frame in frames)


def _sentence(cause: click.ClickException) -> str:
    text = cause.format_message().strip().replace("\n", " ")
    text = _SUGGESTION.sub("", text)
    for theirs, plain in _KINDS:
        text = text.replace(theirs, plain)
    return text[:1].lower() + text[1:].rstrip(".")


def _usage_hint(cause: click.ClickException, program: str, options: Mapping[str, str]) -> str:
    context = getattr(cause, "ctx", None)
    names = {name.lstrip("-"): name for name in getattr(cause, "possibilities", None) or ()}
    near = difflib.get_close_matches(str(getattr(cause, "option_name", "")).lstrip("-"), names, n=1, cutoff=0.6)
    if isinstance(cause, click.NoSuchOption) and cause.option_name in options:
        return options[cause.option_name]
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
