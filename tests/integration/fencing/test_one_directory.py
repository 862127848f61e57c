"""Several processes on one log directory: one of them uploads, the others are told who, and nothing goes amiss."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.fencing.hosts import Application, Remote, daemon, judge, on_disk, stopped
from tests.integration.uploader.daemons import call


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(f"file://{tmp_path / 'store'}")


def test_a_second_daemon_is_refused_also_while_the_first_is_paused(tmp_path: Path, remote: Remote) -> None:
    directory = tmp_path / "log"
    place = ("--log-dir", str(directory), *remote.options)
    with Application(directory, remote) as writer, daemon(directory, remote) as first:
        first.wait_for("claimed")
        writer.append(60)
        with stopped(first.process):
            second = call("run", "--http", "off", *place)
            assert second.returncode == 11, second.stderr
            assert f"process {first.process.pid}" in second.stderr
            beside = call("sync", *place, "--timeout", "1s")
            assert beside.returncode == 75, beside.stderr
            writer.append(30)  # an application does not need its uploader
        assert writer.sync() == 90
        assert first.stop() == 0
        assert writer.end() == 0
    assert judge(remote, writer.written) == writer.written.acked == on_disk(directory)


def test_a_component_beside_a_daemon_is_refused_and_the_application_may_go_without(
    tmp_path: Path, remote: Remote
) -> None:
    directory = tmp_path / "log"
    with Application(directory, remote, name="first") as writer:
        writer.append(10)
        assert writer.end() == 0
    with daemon(directory, remote) as uploader:
        uploader.wait_for("claimed")
        with Application(directory, remote, component=True) as refused:
            answer = refused.opened
            assert (answer["code"], answer["exit_code"]) == ("locked", 11)
            assert f"process {uploader.process.pid}" in answer["message"]
            assert refused.wait() == 11
        with Application(directory, remote, name="second") as other:
            other.append(50)
            assert other.sync() == 60
            assert other.end() == 0
        assert uploader.stop() == 0
    assert judge(remote, other.written) == writer.written.acked | other.written.acked
