"""Fixtures and settings that every test shares."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """A failed run says how to repeat its order, also where ``-q`` hides the header."""
    seed = config.getoption("randomly_seed", None)
    if exitstatus and seed is not None:
        terminalreporter.write_line(f"--randomly-seed={seed} repeats the order")


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of the test's own; a test that is marked ``real_disk`` gets one that is not in memory."""
    if request.node.get_closest_marker("real_disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="tiered-disk-", dir=os.environ.get("TIERED_REAL_TEMP")) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def kafka_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked and verified golden log directories (``tests.golden.fixtures``). Read only: copy before changing."""
    return unpack(tmp_path_factory.mktemp("golden"))
