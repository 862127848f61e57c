"""Progress of a long run: a bar on a terminal, otherwise a plain line each minute, or JSON lines."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

from tiered.program.application import Application
from tiered.program.output import human_bytes

PLAIN_SECONDS = 60.0
"""Seconds between two plain lines."""


class Progress:
    """Progress of one run, as a context manager that removes the bar at its end. ``total`` 0: unknown."""

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
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        if self._mode == "bar":
            amount = [DownloadColumn(True), TransferSpeedColumn()] if self._is_bytes else [MofNCompleteColumn()]
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                *amount,
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._bar.add_task(self._title, total=self._total or None)
        return self

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Add ``amount`` to the work done. ``note`` names the current item."""
        self.show(self._done + amount, self._total, note)

    def show(self, done: int, total: int = 0, note: str = "") -> None:
        """Show ``done`` of ``total``."""
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
