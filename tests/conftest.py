"""Fixtures and settings that every test shares."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.golden.fixtures import unpack
from tiered.format import kernels, pure_kernels

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

# The same examples on every run of a revision, and no deadline: a slow machine is not a bug.
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("deep", settings.get_profile("suite"), derandomize=False, max_examples=2000)
settings.load_profile("suite")

pure_kernels.encode_varint(0)  # makes its tables, 2.4 MiB, which no test that counts memory shall find in its own

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in a shell's background, and each program that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)

TOGETHER = (
    "tests/spark/test_source.py",  # one session of Spark
    "tests/contract/",  # one server of S3
    "tests/damage/",  # logs that are copied
    "tests/golden/test_foreign.py",
    "tests/golden/test_remote_tier.py",
    "tests/unit/cli/test_refusals.py",
)
"""Files and folders whose tests share what is dear to make: each runs on one process."""

LONG = ("tests/sim/", "tests/explore/", "tests/crash/", "tests/property/", "tests/integration/")
"""Where single tests take seconds: they begin early, so that no process ends with one of them alone."""

FIRST = "tests/spark/"
"""Spark's callbacks wait in ``select``, which knows no descriptor above 1023: tests of crashes leave many open."""


def scope_of(nodeid: str) -> str:
    """What is not divided among processes: one test, or those of an entry of :data:`TOGETHER`."""
    return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Largest scopes first, then test by test. (``xdist_group`` marks have no effect on node ids of pytest 9.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def remove_node(self, node: WorkerController) -> str | None:
            """Return the test in which a process died, and give its later tests to the other processes.

            xdist 3.8 also gives them the scopes that are done, after which the new process waits for ever.
            """
            left = {scope: unit for scope, unit in self.assigned_work.pop(node).items() if not all(unit.values())}
            if not left:
                return None
            unit = next(iter(left.values()))
            crashed = next(test for test, done in unit.items() if not done)
            unit[crashed] = True
            self.workqueue.update((scope, unit) for scope, unit in left.items() if not all(unit.values()))
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After pytest-randomly has shuffled them."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (not item.nodeid.startswith(FIRST), not is_long(item)))


def is_long(item: pytest.Item) -> bool:
    """Return whether a test begins early: by its folder, or by its mark."""
    return item.nodeid.startswith(LONG) or item.get_closest_marker("long") is not None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Which kernels were at work; a failed run says how to repeat its order, also where ``-q`` hides the header."""
    terminalreporter.write_line(f"kernels: {kernels.KERNELS_IN_USE}")
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
