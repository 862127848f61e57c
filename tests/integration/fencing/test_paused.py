"""A process that sleeps with a request under way, while another host takes over: it wakes fenced, and breaks nothing.

The proxy holds the request, so that the process is stopped at exactly that moment; what it held arrives while the
process still sleeps, after the other host's first commit.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fencing.hosts import Application, Remote, daemon, judge, on_disk, stopped
from tests.integration.uploader.daemons import Daemon
from tests.proxy import Fault, FaultKind, FaultProxy
from tiered.testing.moto import CREDENTIALS, locked_moto, make_bucket

_numbers = itertools.count()
HOLD, ANSWER = FaultKind.HOLD, FaultKind.HOLD_ANSWER


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    bucket = f"fencing-{next(_numbers)}"
    with locked_moto() as url:
        make_bucket(url, bucket)
        yield Remote(f"s3://{bucket}/log", url)


@pytest.fixture
def proxy(remote: Remote) -> Iterator[FaultProxy]:
    assert remote.endpoint is not None
    with FaultProxy(remote.endpoint) as one:
        yield one


def uploader_of(driver: str, directory: Path, remote: Remote) -> contextlib.AbstractContextManager[Daemon | None]:
    """The daemon, where it is one that uploads."""
    return daemon(directory, remote) if driver == "daemon" else contextlib.nullcontext()


WITH_SERVERS = pytest.mark.servers
"""These take a minute more: with the real servers."""


@pytest.mark.parametrize(
    ("driver", "kind", "path", "landed"),
    [
        pytest.param("inline", HOLD, "*/root", False, id="inline-before-the-commit"),
        pytest.param("inline", ANSWER, "*/root", True, id="inline-after-the-commit"),
        pytest.param("inline", HOLD, "*/s/*.log", False, id="inline-before-the-data", marks=WITH_SERVERS),
        pytest.param("inline", ANSWER, "*/s/*.idx", False, id="inline-after-the-index", marks=WITH_SERVERS),
        pytest.param("component", HOLD, "*/root", False, id="component-before-the-commit", marks=WITH_SERVERS),
        pytest.param("component", ANSWER, "*/root", True, id="component-after-the-commit", marks=WITH_SERVERS),
        pytest.param("daemon", HOLD, "*/root", False, id="daemon-before-the-commit"),
        pytest.param("daemon", ANSWER, "*/root", True, id="daemon-after-the-commit", marks=WITH_SERVERS),
        pytest.param("daemon", HOLD, "*/s/*.log", False, id="daemon-before-the-data", marks=WITH_SERVERS),
    ],
)
def test_a_host_that_sleeps_in_an_upload(
    tmp_path: Path, remote: Remote, proxy: FaultProxy, driver: str, kind: FaultKind, path: str, landed: bool
) -> None:
    sleepy = remote.through(proxy.url)
    with (
        Application(tmp_path / "one", sleepy, component=driver == "component") as one,
        uploader_of(driver, tmp_path / "one", sleepy) as uploader,
    ):
        one.append(30)
        assert one.sync() == 30
        proxy.add(Fault(kind, method="PUT", path=path))
        one.append(10)
        one.send("sync 60")
        assert proxy.held().status == (200 if kind is ANSWER else 0)
        with contextlib.ExitStack() as asleep:
            for process in (one.process, *([uploader.process] if uploader else [])):
                asleep.enter_context(stopped(process))
            two = asleep.enter_context(Application(tmp_path / "two", remote))
            assert two.opened == {"end_offset": 40 if landed else 30}
            two.append(40)
            two.sync()
            proxy.release()
            two.append(5)
            two.sync()
            assert two.end() == 0
        answer = one.answer()
        if not landed:
            assert (answer["code"], answer["exit_code"]) == ("fenced", 11), answer
            assert "30..40" in answer["message"] or driver != "inline"
        refused = one.ask("append 1")
        refused = one.ask("sync 60") if "acked" in refused else refused
        assert (refused["code"], refused["exit_code"]) == ("fenced", 11)
        if uploader is not None:
            assert uploader.stop() == 75  # a commit whose root it never read back is none to it
        assert one.end() == 0
    held = judge(remote, one.written, two.written)
    assert held == {o: v for o, v in one.written.acked.items() if o < (40 if landed else 30)} | two.written.acked
    assert on_disk(tmp_path / "one") == one.written.acked
