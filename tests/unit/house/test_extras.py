"""A hint that installs an extra names packages that an index has: this one need not be on any."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tiered.errors import install_command

DISTRIBUTION = "tieredlog"
ROOT = Path(__file__).parents[3]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
LOCKED = (ROOT / "requirements.lock").read_text() + (ROOT / "docs" / "requirements.lock").read_text()
NAME = re.compile(r"[A-Za-z0-9._-]+")


def packages(extra: str) -> set[str]:
    """The names of what an extra brings, those of the extras in it included."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        name, _, inner = requirement.partition("[")
        if name == DISTRIBUTION:
            found.update(*map(packages, inner.rstrip("]").split(",")))
        else:
            found.add(NAME.match(requirement)[0])  # type: ignore[index]  # each begins with a name
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_hint_names_the_packages_of_the_extra(extra: str) -> None:
    pip, install, *named = shlex.split(install_command(extra))
    assert (pip, install) == ("pip", "install")
    names = {NAME.match(each)[0] for each in named}  # type: ignore[index]  # each begins with a name
    assert names == packages(extra)
    assert names <= set(re.findall(r"^([\w.-]+)", LOCKED, re.MULTILINE))


def test_a_checkout_that_nothing_installed_is_installed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert shlex.split(install_command("s3")) == ["pip", "install", f"{ROOT}[s3]"]


def test_no_message_installs_by_the_name_alone() -> None:
    sources = [path for package in ("tiered", "uploader") for path in (ROOT / package).rglob("*.py")]
    assert [str(path) for path in sources if f"pip install '{DISTRIBUTION}" in path.read_text()] == []
