"""A process whose user has no home directory: containers run with any uid, without HOME and without a passwd entry."""

from __future__ import annotations

import pwd

import pytest


def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the home directory away from the test."""

    def absent(uid: int) -> object:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", absent)
