"""Several log directories on one bucket: copies, older snapshots, fresh disks. One of them owns the partition."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.fencing.hosts import Application, Remote, daemon, first_run, judge, on_disk, program
from tests.integration.uploader.daemons import call


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(f"file://{tmp_path / 'store'}")


def copy(source: Path, target: Path) -> None:
    """As an administrator does it: owners, modes and times too."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


@pytest.mark.parametrize("first", ["original", "copy"])
def test_a_copied_volume_runs_beside_its_original(tmp_path: Path, remote: Remote, first: str) -> None:
    """Whichever commits first goes on, the other is told that it is a copy and keeps what only it holds."""
    places = {"original": tmp_path / "original", "copy": tmp_path / "copy"}
    before = first_run(places["original"], remote)
    copy(places["original"], places["copy"])
    (other,) = places.keys() - {first}
    with (
        Application(places[first], remote) as wins,
        Application(places[other], remote) as loses,
        daemon(places[first], remote) as goes_on,
    ):
        wins.append(30)
        loses.append(40)
        assert wins.sync() == 90
        refused = loses.ask("sync 60")
        assert (refused["code"], refused["exit_code"]) == ("fenced", 11)
        assert "it is a copy" in refused["message"]
        assert "offsets 60..100 of t-0" in refused["message"]
        assert loses.ask("append 1")["code"] == "fenced"
        wins.append(20)
        assert wins.sync() == 110
        assert goes_on.stop() == 0
        assert (wins.end(), loses.end()) == (0, 0)
    ended = call("sync", "--log-dir", str(places[other]), *remote.options)
    assert ended.returncode == 11, ended.stderr
    assert judge(remote, wins.written) == before | wins.written.acked
    assert on_disk(places[other]) == before | loses.written.acked  # nothing of the loser's was deleted


def put_back(directory: Path, remote: Remote) -> tuple[dict[int, str], Application]:
    """What the first run wrote, and who wrote 50 records more before an older snapshot of the disk was put back."""
    snapshot = directory.with_name("snapshot")
    before = first_run(directory, remote)
    copy(directory, snapshot)
    with Application(directory, remote, name="later") as writer:
        writer.append(50)
        assert writer.sync() == 110
        assert writer.end() == 0
    shutil.rmtree(directory)
    copy(snapshot, directory)
    return before, writer


def test_an_older_snapshot_of_a_disk_is_refused_until_it_rejoins(tmp_path: Path, remote: Remote) -> None:
    directory = tmp_path / "log"
    before, writer = put_back(directory, remote)
    with Application(directory, remote, name="restored") as restored:
        assert restored.opened == {"end_offset": 60}
        unaware = restored.append(5)  # acknowledged by this disk alone
        refused = restored.ask("sync 60")
        assert (refused["code"], "older snapshot" in refused["message"]) == ("fenced", True)
        assert "offsets 60..65 of t-0" in refused["message"]
        restored.end()
    assert call("sync", "--log-dir", str(directory), *remote.options).returncode == 11
    assert judge(remote, writer.written) == before | writer.written.acked
    assert on_disk(directory) == before | unaware

    rejoined = program("--log-dir", str(directory), *remote.options, "repair", "rejoin", "t:0", "--yes")
    assert rejoined.returncode == 0, rejoined.stderr
    with Application(directory, remote, name="again") as again:
        assert again.opened == {"end_offset": 110}
        again.append(5)
        assert again.sync() == 115
        again.end()
    assert judge(remote, writer.written, again.written) == before | writer.written.acked | again.written.acked
