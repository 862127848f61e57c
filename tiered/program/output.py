"""Output of a command: stdout has data, stderr has messages. JSON and text come from the same values.

In JSON mode every line is one object with a ``message_type``: ``record``, ``status``, ``warning``, ``error``,
``finding`` or ``summary``. Maintenance adds ``pins`` (pins that protect garbage of a partition) and ``done`` (an action
of a loop). ``inspect`` uses the kind of the item (``batch``, ``tail``, ...), and ``sane`` or ``verified`` for files. A
command that prints many lines begins with :meth:`Output.start`, and a summary ends its run, also after a failure.
Fields are added, never removed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

import click

from tiered.arguments import at_home
from tiered.errors import ConfigError, DiskFullError, LocalIOError, TieredError
from tiered.metrics import Metric, render

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from tiered.program.application import Application


F = TypeVar("F", bound=Callable[..., Any])


MAX_WARNINGS = 1000
"""Most warnings that the summary repeats."""

_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"
"""Terminal colours of the word before a problem. ``NO_COLOR`` turns them off."""

_GAP, _INDENT = "  ", "    "
"""Space between two columns, and before columns that are wrapped below others."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class StdoutClosed(Exception):
    """Closed pipe of standard output (``tiered cat t | head``). The work ends without an error."""


class Output:
    """Standard output and standard error of one run. Not thread-safe."""

    def __init__(self, *, json_mode: bool = False) -> None:
        self.json_mode = json_mode
        self.quiet = False
        self.verbosity = 0
        self.command = ""
        self.warnings: list[str] = []
        self.summary_fields: dict[str, Any] = {}
        self.endless = False
        self._summarised = False

    @property
    def is_terminal(self) -> bool:
        """Return True if standard output is a terminal, which raw bytes could damage."""
        return sys.stdout.isatty()

    def start(self, command: str, **fields: Any) -> None:
        """Start a run that prints many JSON lines. ``fields``: initial fields of its summary."""
        self.command = command
        self.summary_fields = fields

    def line(self, text: str) -> None:
        """Write one line of text to standard output."""
        self.data(text.encode("utf-8", "backslashreplace") + b"\n")

    def data(self, data: bytes) -> None:
        """Write bytes to standard output. Raises StdoutClosed if its reader is gone."""
        try:
            stream = getattr(sys.stdout, "buffer", None)
            if stream is None:
                sys.stdout.write(data.decode("utf-8", "backslashreplace"))
            else:
                sys.stdout.flush()
                stream.write(data)
        except BrokenPipeError as cause:
            raise StdoutClosed from cause
        except OSError as cause:
            raise output_error(cause) from cause

    def flush(self) -> None:
        """Flush standard output, at the end of a run and before each wait for new data."""
        try:
            sys.stdout.flush()
        except BrokenPipeError as cause:
            raise StdoutClosed from cause
        except OSError as cause:
            raise output_error(cause) from cause

    def need_reader(self) -> None:
        """Raise StdoutClosed if the pipe has no reader. Call it before a wait, in which no write would notice that."""
        try:
            fd = sys.stdout.fileno()
        except (OSError, ValueError, AttributeError):  # no file behind it
            return
        ends = select.poll()
        ends.register(fd, 0)
        if any(event & select.POLLERR for _, event in ends.poll(0)):
            raise StdoutClosed

    def message(self, message_type: str, **fields: Any) -> None:
        """Write one JSON line with a ``message_type`` and ``fields``."""
        self.line(json.dumps({"message_type": message_type, **fields}, ensure_ascii=False, default=str))

    def summary(self, exit_code: int = 0, **fields: Any) -> None:
        """Print the summary, the last JSON line of a run. Does nothing in text mode or if it was printed already."""
        if self._summarised or not self.json_mode:
            return
        self._summarised = True
        merged = {**self.summary_fields, **fields}
        if self.warnings:
            merged["warnings"] = self.warnings
        self.message("summary", command=self.command, exit_code=exit_code, **merged)

    def result(self, command: str, fields: dict[str, Any], text: Iterable[str], exit_code: int = 0) -> int:
        """Print the result of a command, as a summary in JSON or as lines. Return ``exit_code``."""
        if self.json_mode:
            self.command = command
            self.summary(exit_code, **fields)
        else:
            for line in text:
                self.line(line)
        return exit_code

    def say(self, text: str) -> None:
        """Print a message on stderr, unless ``-q`` is given."""
        if not self.quiet:
            _talk(text)

    def detail(self, text: str) -> None:
        """Print a message on stderr if ``-v`` is given."""
        if self.verbosity > 0:
            _talk(text)

    def warn(self, text: str) -> None:
        """Print a warning on stderr. In JSON mode also print it as a line, if :meth:`start` was called.

        The summary in JSON repeats it.
        """
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)
        _talk(text, "warning: ", _YELLOW)
        if self.json_mode and self.command:
            self.message("warning", message=text)

    def caution(self, text: str) -> None:
        """Print a warning on stderr only, from any thread. For a problem that may resolve itself."""
        _talk(text, "warning: ", _YELLOW)

    def failure(self, error: TieredError) -> None:
        """Print an error and its hint on stderr. In JSON mode also print it as an object, and then the summary."""
        complain(error.message, error.next_step)
        if self.json_mode:
            self.line(json.dumps(error.as_json(), ensure_ascii=False, default=str))
            if self.command:
                self.summary(error.exit_code)


def complain(message: str, hint: str = "") -> None:
    """Print an error and its hint on stderr."""
    _talk(message, "error: ", _RED)
    if hint:
        _talk(f"  next: {hint}")


def _talk(text: str, mark: str = "", colour: str = "") -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr has no reader any more; only data matters
        if mark and _has_colour(sys.stderr):
            mark = f"{colour}{mark}{_PLAIN}"
        sys.stderr.write(mark + printable(text) + "\n")
        sys.stderr.flush()


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def output_error(cause: OSError) -> TieredError:
    """Return the error for a failed write to standard output."""
    if cause.errno == errno.EBADF:
        return LocalIOError("standard output is closed", hint="redirect it: > FILE, or > /dev/null")
    text = f"standard output: {cause.strerror or cause}"
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(text, hint="free space where the output goes, and run the command again")
    return LocalIOError(text, hint="check the disk or pipe of the output")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1: ``1 record``, ``2,000 records``."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def printable(text: str) -> str:
    """Return ``text`` with control characters and lone surrogates escaped, so that a key cannot control a terminal."""
    return "".join(
        char
        if char.isprintable() or char in "\n\t"
        else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


class Problem(str):
    """Text of a table cell that names a problem. A terminal shows it in colour."""

    __slots__ = ()


def columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the rows as aligned lines, numbers to the right, with two spaces between columns. No text is truncated.

    On a narrow terminal a row becomes several lines. Columns that do not fit move below the others, and texts are
    wrapped between words.
    """
    given = [list(row) for row in rows]
    cells = [[_cell(value) for value in row] for row in given]
    numeric = [
        all(row[i].replace(",", "").lstrip("-").isdigit() or row[i] == "-" for row in cells) for i in range(len(header))
    ]
    table = [list(header), *cells]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    room = _room()
    runs = _runs(widths, room)
    red = [[], *([i for i, value in enumerate(row) if isinstance(value, Problem)] for row in given)]
    lines = []
    for row, marked in zip(table, red, strict=True):
        for run in runs:
            first = "" if run[0] == 0 else _INDENT
            shown = [row[i].rjust(widths[i]) if numeric[i] else row[i].ljust(widths[i]) for i in run]
            if len(run) == 1 and len(first) + widths[run[0]] > room > 0:
                lines += [first + _marked(each, run[0] in marked) for each in _wrapped(row[run[0]], room - len(first))]
                continue
            coloured = (_marked(each, i in marked) for i, each in zip(run, shown, strict=True))
            lines.append((first + _GAP.join(coloured)).rstrip())
    return lines


def fitted(lines: Iterable[str]) -> list[str]:
    """Wrap lines that are too wide for the terminal between words. Further lines are indented."""
    room = _room()
    found: list[str] = []
    for line in lines:
        text = line.lstrip(" ")
        indent = " " * (len(line) - len(text))
        first, *more = _wrapped(text, room - len(indent) - len(_INDENT)) if len(line) > room > 0 else [text]
        found += [indent + first, *(indent + _INDENT + each for each in more)]
    return found


def _room() -> int:
    """Return the width of the terminal, 0 if standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def _wrapped(text: str, room: int) -> list[str]:
    return textwrap.wrap(text, max(room, 1), break_long_words=False, break_on_hyphens=False) or [""]


def _runs(widths: Sequence[int], room: int) -> list[list[int]]:
    """Return the numbers of the columns on each line of a terminal. ``room``: its width; 0: all are on one line."""
    runs: list[list[int]] = [[]]
    used = 0
    for i, width in enumerate(widths):
        wanted = used + len(_GAP) + width if runs[-1] else width
        if room and runs[-1] and wanted > room:
            runs.append([])
            wanted = len(_INDENT) + width
        runs[-1].append(i)
        used = wanted
    return runs


def _marked(text: str, is_problem: bool) -> str:
    if not is_problem or not _has_colour(sys.stdout):
        return text
    bare = text.strip()
    return text.replace(bare, f"{_RED}{bare}{_PLAIN}")


def human_bytes(count: int) -> str:
    """Return a size such as ``11.2 MiB``; exact below one KiB, ``-`` for a negative (unknown) number."""
    if count < 0:
        return "-"
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def human_duration(duration_ms: int) -> str:
    """Return a duration in its two largest units: ``3m08s``, ``2d04h``; ``-`` for a negative (unknown) one."""
    if duration_ms < 0:
        return "-"
    seconds = duration_ms // 1000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{seconds % 60:02d}s" if minutes else f"{seconds}s"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 0 else "-"
    return printable("-" if value is None else str(value))


def metrics_option(function: F) -> F:
    """Decorate a command with the option ``--metrics FILE``."""
    return click.option(
        "--metrics",
        "metrics_file",
        metavar="FILE",
        callback=_place,
        help="also write metrics to FILE, ending in .prom, for the textfile collector of Prometheus's node exporter",
    )(function)


def _place(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path | None:
    if value is None:
        return None
    path = at_home("--metrics", Path(value))
    if path.suffix != ".prom":
        raise ConfigError(
            f"--metrics {value} does not end with .prom", hint="end it so: the node exporter reads no other file"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"--metrics {value}: there is no directory {path.parent}", hint=f"mkdir -p {path.parent}")
    return path


def write_metrics(path: Path | None, figures: Iterable[Metric]) -> None:
    """Replace the file ``path`` atomically by the metrics. None: write no file."""
    if path is None:
        return
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(render(figures))
        beside.replace(path)
    except OSError as error:
        raise write_failure(beside, "--metrics", error) from error


def write_failure(path: Path, option: str, error: OSError) -> TieredError:
    """Return the error for a failed write of the file of ``option``. On a full disk, delete the file."""
    text = f"cannot write {path}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        path.unlink(missing_ok=True)
        return DiskFullError(text, hint="free space and run the command again")
    return ConfigError(text, hint=f"choose another file for {option}")


PLAIN_SECONDS = 60.0
"""Seconds between two plain lines."""


class Progress:
    """Progress of one run: a bar on a terminal, otherwise a plain line each minute, or JSON lines.

    A context manager, which removes the bar at its end. ``title``: the work, such as "checking". ``total`` 0: unknown.
    ``is_bytes``: amounts are bytes.
    """

    def __init__(self, app: Application, title: str, *, total: int = 0, is_bytes: bool = False) -> None:
        self._app = app
        self._title = title
        self._total = total
        self._is_bytes = is_bytes
        self._done = 0
        self._last_line = app.clock.monotonic()
        mode = app.text("progress") or "auto"
        if app.out.quiet or mode == "none":
            mode = "none"
        elif mode == "auto":
            mode = "bar" if sys.stderr.isatty() else "plain"
        self._mode = mode
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if self._mode == "bar":
            from rich import progress as bars  # noqa: PLC0415  it slows down each start
            from rich.console import Console  # noqa: PLC0415

            amount = (
                [bars.DownloadColumn(True), bars.TransferSpeedColumn()]
                if self._is_bytes
                else [bars.MofNCompleteColumn()]
            )
            self._bar = bars.Progress(
                bars.TextColumn("{task.description}"),
                bars.BarColumn(),
                *amount,
                bars.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._bar.add_task(self._title, total=self._total or None)
        return self

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Add ``amount`` to the work that is done. ``note`` names the current item."""
        self.show(self._done + amount, self._total, note)

    def show(self, done: int, total: int = 0, note: str = "") -> None:
        """Show that ``done`` of ``total`` is done (0: total unknown). ``note`` names the current item."""
        self._done, self._total = done, total
        if self._bar is not None:
            title = f"{self._title} {note}" if note else self._title
            self._bar.update(self._bar.task_ids[0], completed=done, total=total or None, description=title)
        elif self._mode in ("plain", "json"):
            now = self._app.clock.monotonic()
            if now - self._last_line >= PLAIN_SECONDS:
                self._last_line = now
                self._line(note)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _line(self, note: str) -> None:
        if self._mode == "json" and self._app.out.json_mode:
            self._app.out.message("status", what=self._title, done=self._done, total=self._total or None, note=note)
            self._app.out.flush()
            return
        done, total = self._shown(self._done), self._shown(self._total)
        of = f" of {total}" if self._total else ""
        self._app.out.say(f"{self._title}: {done}{of}{' ' + note if note else ''}")

    def _shown(self, count: int) -> str:
        return human_bytes(count) if self._is_bytes else f"{count:,}"
