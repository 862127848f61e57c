"""Display of public objects in notebooks and at a prompt."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

MAX_ROWS = 100
"""Largest number of rows that a table shows. A last line gives the number of the other rows."""


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table of the first :data:`MAX_ROWS` rows, with every text escaped.

    A last line gives the number of other rows. Without rows the table has only the caption.
    """
    every = list(rows)
    lines = [_line("td", row) for row in every[:MAX_ROWS]]
    if len(every) > MAX_ROWS:
        lines.append(f'<tr><td colspan="{len(header)}">and {len(every) - MAX_ROWS} more</td></tr>')
    title = f"<caption>{html.escape(caption)}</caption>"
    return f"<table>{title}{_line('th', header) if every else ''}{''.join(lines)}</table>"


def _line(tag: str, cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in cells)}</tr>"


def names_without(*internal: str) -> Callable[[object], list[str]]:
    """Return a ``__dir__`` method that leaves out private names and the names in ``internal``."""
    hidden = frozenset(internal)

    def names(self: object) -> list[str]:
        every = object.__dir__(self)
        return sorted(name for name in every if name not in hidden and (name.startswith("__") or name[:1] != "_"))

    return names
