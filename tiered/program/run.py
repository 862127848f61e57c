"""What both programs do around their work: streams that are open, an interrupt without a traceback, a quiet end.

A descriptor that the shell closed (``>&-``) would be given to the next file that is opened, a segment of the log for
example, and what is printed would land in it: it is opened on the null device first, the wrong way round, so that data
which is read or printed there is an error instead of nothing. The imports of a program take a
good part of a second; until they are done an interrupt ends it as it ends any program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from tiered.errors import install_command

EXIT_INTERRUPTED = 130
EXIT_USAGE = 2
_STREAMS = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_RDWR))
"""Name, mode, and how the null device is opened for one that is closed: talk on stderr may be lost."""


def run_program(load: Callable[[], Callable[[], object]], *, extra: str) -> NoReturn:
    """Imports the program's ``main`` with ``load``, runs it, and ends with the status that it asks for.

    ``extra`` installs what the program imports: without it one sentence says so, and the status is 2.
    """
    _open_what_is_closed()
    interrupt = signal.getsignal(signal.SIGINT)
    ours = interrupt is signal.default_int_handler  # else somebody ignores it for us: nohup, a script's background
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main = load()
    except ModuleNotFoundError as error:
        sys.stderr.write(f"error: {error.name} is not installed\n  next: {install_command(extra)}\n")
        sys.exit(EXIT_USAGE)
    status: object = 0
    try:
        if ours:
            signal.signal(signal.SIGINT, interrupt)
        main()
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    except BrokenPipeError:
        status = 0  # whoever read our output has had enough
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name, _, _ in _STREAMS[1:]:
        _settle(name)
    sys.exit(status if isinstance(status, int | str) else 0)


def _open_what_is_closed() -> None:
    for number, (name, mode, access) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, access)  # the lowest number that is free: those below are open by now
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _settle(name: str) -> None:
    """Flushes a stream. If its reader is gone the null device takes its place, so that the flush at exit succeeds."""
    stream = getattr(sys, name)
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
