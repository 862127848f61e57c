"""The tests of the alert rules, and the board over a daemon at work under a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deploy.monitor import BOARD, DEPLOY, Prometheus, textfiles
from tests.integration.fencing.hosts import Application, Remote, first_run
from tests.integration.uploader.daemons import Daemon, call
from tiered.cli.main import run

NAMES = re.compile(r"\btiered_[a-z_]+")


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    with Prometheus(tmp_path / "prometheus") as running:
        yield running


def test_the_alerts_pass_their_own_tests() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rules, tests = ((DEPLOY / "prometheus" / name).read_text() for name in ("alerts.yml", "alerts_test.yml"))
    names = re.findall(r"- alert: (\w+)", rules)
    assert len(names) == len(set(names)) == 15
    assert [name for name in names if f'{{alertname="{name}"}}' not in tests] == []


def test_the_metrics_of_a_check_count_damage(directory: Path, url: str) -> None:
    assert call("sync", "--log-dir", str(directory), "--remote", url).returncode == 0
    path = directory.parent / "check.prom"
    assert run(["check", "--remote", url, "--metrics", str(path)]) == 0
    assert "tiered_check_errors 0" in path.read_text()
    (segment,) = sorted((directory.parent / "store").glob("??/*/s/*/*.log*"))[:1]
    segment.write_bytes(segment.read_bytes()[:-1])
    assert run(["check", "--remote", url, "--metrics", str(path)]) == 13
    assert re.search(r"^tiered_check_errors [1-9]", path.read_text(), re.MULTILINE)
    assert "tiered_check_last_end_timestamp_seconds " in path.read_text()


def test_the_board_over_a_daemon_at_work(tmp_path: Path, prometheus: Prometheus) -> None:
    """Each metric of the board and of the alerts exists, and Prometheus evaluates each expression."""
    remote = Remote(f"file://{tmp_path / 'store'}")
    (tmp_path / "metrics").mkdir()
    check = tmp_path / "metrics" / "check.prom"
    first_run(tmp_path / "log", remote)
    with Application(tmp_path / "log", remote) as writer:
        place = ("--log-dir", str(tmp_path / "log"), *remote.options, "--maintain", "--maintain-every", "1s")
        with Daemon(*place) as daemon, textfiles(check.parent) as port:
            number = daemon.wait_for("started")["http_port"]
            prometheus.scrape("w", number)
            prometheus.scrape("u", port, "/check.prom")
            for _ in range(5):
                writer.append(60)
                assert writer.sync()
            assert run(["check", *remote.options, "--metrics", str(check)]) == 0
            assert run(["group", "reset", "billing", "t", "--to", "beginning", "--yes", *remote.options]) == 0
            prometheus.wait_for("rate(tiered_store_requests_total[10s]) > 0")
            prometheus.wait_for(
                "tiered_check_last_end_timestamp_seconds > 0 and on() tiered_maintenance_rounds_total > 0"
            )
            prometheus.wait_for('tiered_group_lag_records{group="billing", topic="t"} > 0')
            exported = set(NAMES.findall(daemon.get("/metrics", number)[1] + check.read_text()))
            empty = [each for each in BOARD["expressions"]("10s") if not prometheus.query(each)]
            assert [each for each in empty if "kind" not in each] == []  # no error happened, and no maintenance was due
            prometheus.wait_for('absent(ALERTS{alertstate="firing"})')
            if picture := os.environ.get("TIERED_BOARD"):
                Path(picture).write_text(BOARD["draw"](prometheus.url, seconds=60, step=1, interval="10s"))
        assert writer.end() == 0
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    board = (DEPLOY / "grafana" / "tieredlog.json").read_text()
    assert board == BOARD["as_text"](), "run scripts/dashboard.py"
    assert len(json.loads(board)["panels"]) == 27
    assert set(NAMES.findall(rules + board)) - exported == set()
