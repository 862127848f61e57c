"""What the demo says: a story with progress bars, the table of what was proven, and ``report.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

RSS_LIMIT_BYTES = 300 * 1024 * 1024


class Report:
    """Collects claims and figures; a claim that does not hold makes the run fail, the others still run."""

    def __init__(self, remote: str) -> None:
        self._console = Console(highlight=False)
        self._claims: list[tuple[str, str, str]] = []
        self._figures: dict[str, str] = {}
        self._data: dict[str, Any] = {"remote": remote}
        self._console.print(f"[bold]tieredlog[/bold]: a log on local disk, tiered onto [cyan]{remote}[/cyan]\n")

    def tell(self, text: str) -> None:
        """One sentence of the story."""
        self._console.print(f"[green]•[/green] {text}")

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Any]:
        """A progress bar on a terminal, one line elsewhere; yields ``update(done, total)``."""
        bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        with bar:
            task = bar.add_task(what, total=total)

            def update(done: int, of: int) -> None:
                bar.update(task, completed=done, total=of)

            yield update

    def claim(self, what: str, holds: bool, detail: str) -> None:
        """One row of the final table."""
        self._claims.append((what, "proven" if holds else "DIFFERS", detail))

    def skip(self, what: str, reason: str) -> None:
        """A row that could not be tried here."""
        self._claims.append((what, "skipped", reason))

    def fail(self, why: str) -> None:
        """The run stopped early."""
        self._claims.append(("the demo ran to its end", "FAILED", why))

    def figure(self, name: str, text: str, **values: Any) -> None:
        """One measured figure: ``text`` for people, ``values`` for ``report.json``."""
        self._figures[name] = text
        self._data.setdefault("figures", {})[name] = values or text

    def memory(self, who: str, peak_bytes: int) -> None:
        """Peak resident memory of one process, as a claim against the limit."""
        self.claim(
            f"memory of {who}",
            0 < peak_bytes < RSS_LIMIT_BYTES,
            f"{peak_bytes / 2**20:.0f} MiB resident at most (limit 300)",
        )
        self._data.setdefault("peak_rss_bytes", {})[who] = peak_bytes

    @property
    def all_proven(self) -> bool:
        """Whether there are claims and none of them failed."""
        return bool(self._claims) and all(state in {"proven", "skipped"} for _, state, _ in self._claims)

    def finish(self, output: Path, seconds: float, *, kept: str | None) -> None:
        """Prints both tables and writes ``report.json``."""
        colours = {"proven": "green", "skipped": "yellow"}
        table = Table(title="What was proven", title_justify="left", show_edge=False)
        for column in ("claim", "result", "detail"):
            table.add_column(column)
        for what, state, detail in self._claims:
            colour = colours.get(state, "red")
            table.add_row(what, f"[{colour}]{state}[/{colour}]", detail)
        figures = Table(title="Figures", title_justify="left", show_edge=False, show_header=False)
        for name, text in self._figures.items():
            figures.add_row(name, text)
        self._console.print()
        self._console.print(table)
        self._console.print()
        self._console.print(figures)
        verdict = "[green]everything held[/green]" if self.all_proven else "[red]not everything held[/red]"
        self._console.print(f"\n{verdict}, in {seconds:.0f} s; report and picture are in {output}/")
        if kept:
            self._console.print(f"the objects were kept: {kept}")
        self._data["claims"] = [dict(zip(("claim", "result", "detail"), row, strict=True)) for row in self._claims]
        self._data["seconds"] = round(seconds, 1)
        (output / "report.json").write_text(json.dumps(self._data, indent=2) + "\n")
