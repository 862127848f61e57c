"""Start and end of both programs: open streams, an interrupt without a traceback, a quiet end.

The next opened file, for example a segment, would reuse a descriptor that the shell closed (``>&-``). Output would land
in that file. So the null device is opened there first, in the wrong direction: reading or printing data is then an
error. The imports of a program take a good part of a second. Until they are done an interrupt ends the process as
usual.
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
"""Name, mode, and access to the null device for a closed stream. Messages on stderr may be lost."""


def run_program(load: Callable[[], Callable[[], object]], *, extra: str) -> NoReturn:
    """Import the program's ``main`` with ``load``, run it, and exit with its status.

    ``extra``: extra of this distribution with the packages that the program imports. If one is missing, an error that
    names the extra is printed, and the status is 2.
    """
    _open_what_is_closed()
    interrupt = signal.getsignal(signal.SIGINT)
    ours = interrupt is signal.default_int_handler  # otherwise it is ignored for us, by nohup or a background job
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
        status = 0  # the reader of our output closed it
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name, _, _ in _STREAMS[1:]:
        _flush(name)
    sys.exit(status if isinstance(status, int | str) else 0)


def _open_what_is_closed() -> None:
    for number, (name, mode, access) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, access)  # gets the lowest free number, as those below are open by now
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _flush(name: str) -> None:
    """Flush a stream. If its reader is gone, replace it with the null device, so that the flush at exit succeeds."""
    stream = getattr(sys, name)
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
