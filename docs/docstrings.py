"""An extension of Griffe: sections of docstrings that name several errors or arguments in one line."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^(?P<indent> *)(?P<name>Raises|Args):\n(?P<body>(?:(?P=indent) +\S.*\n?|\n)+)", re.MULTILINE)
NAMES = re.compile(r"^( +)([\w.]+(?:, [\w.]+)+)(: .*|\.)$")


class SplitNames(griffe.Extension):
    """Give each name of ``Raises: A, B.`` and ``Args: a, b: text`` a line of its own, as the Google style has it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of each object that is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub(_split, obj.docstring.value)


def _split(match: re.Match[str]) -> str:
    lines = []
    for line in match["body"].split("\n"):
        found = NAMES.match(line)
        if found is not None:
            text = found[3] if found[3] != "." else ": "
            lines += [f"{found[1]}{name}{text}" for name in found[2].split(", ")]
        elif match["name"] == "Raises" and line.strip() and ": " not in line:
            lines.append(f"{line[: len(line) - len(line.lstrip())]}{line.strip().rstrip('.')}: ")
        else:
            lines.append(line)
    return f"{match['indent']}{match['name']}:\n" + "\n".join(lines)
