"""How to install what an extra brings, for hints: a command that works wherever the package came from."""

from __future__ import annotations

import importlib.metadata
import shlex
from pathlib import Path

DISTRIBUTION = "tieredlog"


def install_command(extra: str) -> str:
    """Return the command that installs the packages of ``extra``.

    The packages themselves are named: a wheel or a checkout may be all that there is of this one.
    """
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path, which nothing installed
        return f"pip install {shlex.quote(f'{Path(__file__).parents[1]}[{extra}]')}"
    parted = [line.partition("; extra == ") for line in required]
    packages = sorted(package for package, _, marker in parted if marker.strip("'\"") == extra)
    return f"pip install {shlex.join(packages)}"
