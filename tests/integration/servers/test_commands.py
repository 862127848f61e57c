"""The commands of ``localstack/``: what a developer types."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

from tests.integration.servers.commands import ROOT, exported, run


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``localstack/moto``, the quickest of them."""
    line = [str(ROOT / "localstack" / "moto"), *arguments]
    return subprocess.run(line, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_start_is_repeatable_and_stop_ends_it(tmp_path: Path) -> None:
    folder = ("--dir", str(tmp_path / "moto"))
    assert command("status", *folder).returncode == 1
    assert command("env", *folder).returncode == 1
    first = run("moto", "start", "--port", "0", "--bucket", "some-logs", *folder)
    try:
        names = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "TIERED_ENDPOINT_URL", "TIERED_REMOTE"}
        assert set(exported(first)) == names
        assert exported(first)["TIERED_REMOTE"] == "s3://some-logs/dev"
        assert run("moto", "start", "--port", "0", *folder) == first
        assert run("moto", "env", *folder) == first
        assert command("status", *folder).returncode == 0
    finally:
        stopped = command("stop", *folder)
    assert stopped.returncode == 0
    assert command("status", *folder).returncode == 1
    assert "was not running" in command("stop", *folder).stderr


def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(tmp_path: Path) -> None:
    """Pids are reused: the command line must be the one that was started."""
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            note = {"pid": other.pid, "command": "python -m moto", "port": 1, "bucket": "b"}
            (tmp_path / "process.json").write_text(json.dumps(note))
            assert "was not running" in command("kill", "--dir", str(tmp_path)).stderr
            assert other.poll() is None
        finally:
            other.kill()


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        failed = command("start", "--port", port, "--dir", str(tmp_path))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert f"port {port} is taken" in failed.stderr
