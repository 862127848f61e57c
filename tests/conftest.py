"""Fixtures and settings that every test shares."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.golden.fixtures import unpack

# The same examples on every run of a revision, and no deadline: a slow machine is not a bug.
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", settings.get_profile("suite"), derandomize=False, max_examples=2000)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def kafka_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked and verified golden log directories (``tests.golden.fixtures``). Read only: copy before changing."""
    return unpack(tmp_path_factory.mktemp("golden"))
