"""A catalog is rebuilt without the copies of roots that claims, intervals and sinks leave."""

from __future__ import annotations

import pytest

from tests.lost_copies import lose_copies

WITHOUT_COPIES = ("test_rebuild.py", "test_rebuild_decided.py", "test_rebuild_older.py", "test_rebuild_staged.py")


@pytest.fixture(autouse=True)
def copies_are_lost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.path.name in WITHOUT_COPIES:
        lose_copies(monkeypatch)
