"""A process that sleeps with a request under way, while another host takes over: it wakes fenced, and breaks nothing.

The proxy holds the request, so that the process is stopped at exactly that moment; what it held arrives while the
process still sleeps, after the other host's first commit.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fencing.application import TOPIC
from tests.integration.fencing.hosts import Application, Remote, daemon, judge, on_disk, program, started, stopped
from tests.integration.uploader.daemons import WAIT_SECONDS, Daemon
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.support.proxy import Fault, FaultKind, FaultProxy

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
        acknowledged = "acked" in refused  # the append came before anybody here had looked at the root
        refused = one.ask("sync 60") if acknowledged else refused
        assert (refused["code"], refused["exit_code"]) == ("fenced", 11)
        if uploader is not None:  # it owns up to what is on this disk alone, and to nothing else
            assert uploader.stop() == (0 if landed and not acknowledged else 75)
        assert one.end() == 0
    held = judge(remote, one.written, two.written)
    assert held == {o: v for o, v in one.written.acked.items() if o < (40 if landed else 30)} | two.written.acked
    assert on_disk(tmp_path / "one") == one.written.acked


@pytest.mark.parametrize(
    ("kind", "path", "skip", "landed"),
    [
        pytest.param(HOLD, "*/root", 1, False, id="before-the-commit"),
        pytest.param(ANSWER, "*/root", 1, True, id="after-the-commit", marks=WITH_SERVERS),
        pytest.param(HOLD, "*/s/m*.log", 0, False, id="before-the-data", marks=WITH_SERVERS),
        pytest.param(ANSWER, "*/s/m*.idx", 0, False, id="after-the-index", marks=WITH_SERVERS),
    ],
)
def test_a_maintainer_that_sleeps_in_a_merge(
    tmp_path: Path, remote: Remote, proxy: FaultProxy, kind: FaultKind, path: str, skip: int, landed: bool
) -> None:
    """Another one claims and merges meanwhile: what the first one had under way changes nothing when it arrives."""
    merge = ("maintain", "--only", "merge", "--yes", "--json")
    with Application(tmp_path / "log", remote, timestamp=1) as one:  # at rest, which only old records are
        for _ in range(8):  # small ones, which a merge joins
            one.append(3)
            one.sync()
        before = segments(remote)
        proxy.add(Fault(kind, method="PUT", path=path, skip=skip))
        with started(*merge, *remote.through(proxy.url).options) as sleepy:
            assert proxy.held().status == (200 if kind is ANSWER else 0)
            with stopped(sleepy):
                other = program(*merge, *remote.options)
                assert other.returncode == 0, other.stderr
                merged = segments(remote)
                assert len(merged) < len(before)
                proxy.release()
                one.append(3)
                one.sync()
            out, _ = sleepy.communicate(timeout=WAIT_SECONDS)
        assert sleepy.returncode == (0 if landed else 11), out
        now = segments(remote)
        assert now[: len(merged)] == merged  # nobody took what the second one made for his own
        assert len(set(now)) == len(now)
        again = program(*merge, *remote.options)
        assert again.returncode == 0, again.stderr
        assert one.end() == 0
    assert judge(remote, one.written) == one.written.acked


def segments(remote: Remote) -> list[tuple[int, int]]:
    """Which offsets the segments of the catalog hold."""
    done = program("topic", "show", TOPIC, "--segments", "--json", *remote.options)
    assert done.returncode == 0, done.stderr
    return [(one["base_offset"], one["end_offset"]) for one in json.loads(done.stdout)["segments"]]
