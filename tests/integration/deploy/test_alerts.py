"""Each state that an alert is for, under a real Prometheus; and the board over a daemon at work."""

from __future__ import annotations

import asyncio
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
from tests.support.moto import locked_moto
from tests.support.proxy import Fault, FaultKind, FaultProxy
from tests.support.uploaded import RETAINED, upload_topics
from tiered.cli.main import run
from tiered.clock import SystemClock, SystemIds
from tiered.local.disk.files import DiskSpace, PosixFiles
from tiered.program.maintenance_loop import MaintenanceLoop
from tiered.program.output import write_metrics
from tiered.remote.maintain import Maintainer
from tiered.store.base import Steps
from tiered.store.location import StoreLocation, open_store
from uploader.config import Settings
from uploader.service import Service, ServicePlace

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1"}
HOUR = 3600
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
    assert len(names) == len(set(names)) == 16
    assert [name for name in names if f'{{alertname="{name}"}}' not in tests] == []


def test_refused(directory: Path, prometheus: Prometheus) -> None:
    with locked_moto() as server, FaultProxy(server) as proxy:
        proxy.add(Fault(FaultKind.ERROR, status=403, code="AccessDenied", times=-1))
        place = ("--log-dir", str(directory), "--remote", f"s3://bucket/p?endpoint={proxy.url}")
        with Daemon(*place, **KEYS) as daemon:
            prometheus.scrape("w", daemon.wait_for("started")["http_port"])
            prometheus.wait_for_alert("TieredUploadsRefused", instance="w", topic="t", severity="critical")
            assert prometheus.firing() >= {"TieredUploadsRefused", "TieredCheckOverdue"}


def test_behind(directory: Path, url: str, prometheus: Prometheus) -> None:
    old = SystemClock().now_ms() / 1000 - HOUR
    for path in (directory / "t-0").glob("*.log"):
        os.utime(path, (old, old))
    with Daemon("--log-dir", str(directory), "--remote", url, "--bytes-per-second", "100") as daemon:
        prometheus.scrape("w", daemon.wait_for("started")["http_port"])
        prometheus.wait_for_alert("TieredUploadsBehind", instance="w", topic="t", severity="critical")
        daemon.kill()
    prometheus.wait_for_alert("TieredDaemonDown", instance="w")


def test_fenced(tmp_path: Path, prometheus: Prometheus) -> None:
    remote = Remote(f"file://{tmp_path / 'store'}")
    first_run(tmp_path / "original", remote)
    subprocess.run(["cp", "-a", str(tmp_path / "original"), str(tmp_path / "copy")], check=True)
    with Application(tmp_path / "original", remote) as wins, Application(tmp_path / "copy", remote) as loses:
        wins.append(30)
        loses.append(40)
        assert wins.sync() == 90
        with Daemon("--log-dir", str(tmp_path / "copy"), *remote.options) as daemon:
            prometheus.scrape("copy", daemon.wait_for("started")["http_port"])
            prometheus.wait_for_alert("TieredFenced", instance="copy", severity="critical")
        assert (wins.end(), loses.end()) == (0, 0)


def test_the_disk_is_low(directory: Path, url: str, prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PosixFiles, "space", lambda *_: DiskSpace(9 * 2**30, 100 * 2**30))
    service = Service(ServicePlace(directory, StoreLocation.parse(url)), Settings(http=("127.0.0.1", 0), scan=20))

    async def story() -> None:
        started = asyncio.Event()
        running = asyncio.create_task(service.run(started=started.set))
        await started.wait()
        prometheus.scrape("w", service.http_port)
        await asyncio.to_thread(prometheus.wait_for_alert, "TieredDiskLow", instance="w", severity="critical")
        service.drain()
        await running

    asyncio.run(story())


def test_a_check_is_overdue_until_one_ends(directory: Path, url: str, prometheus: Prometheus) -> None:
    assert call("sync", "--log-dir", str(directory), "--remote", url).returncode == 0
    folder = directory.parent / "metrics"
    folder.mkdir()
    prometheus.wait_for_alert("TieredCheckOverdue", severity="warning")
    with textfiles(folder) as port:
        prometheus.scrape("u", port, "/check.prom")
        assert run(["check", "--remote", url, "--metrics", str(folder / "check.prom")]) == 0
        prometheus.wait_for('tiered_check_errors == 0 and on() absent(ALERTS{alertname="TieredCheckOverdue"})')
        (segment,) = sorted((directory.parent / "store").glob("??/*/s/*/*.log*"))[:1]
        segment.write_bytes(segment.read_bytes()[:-1])
        assert run(["check", "--remote", url, "--metrics", str(folder / "check.prom")]) == 13
        prometheus.wait_for_alert("TieredCheckFoundDamage", instance="u", severity="critical")
        overdue = re.sub(r"(?<=timestamp_seconds )\S+", "1000", (folder / "check.prom").read_text())
        (folder / "check.prom").write_text(overdue)
        prometheus.wait_for_alert("TieredCheckOverdue", severity="warning")


def test_another_maintainer_takes_the_lease(
    tmp_path: Path, prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the claim and the commit of an action."""
    store, clock, ids = open_store(upload_topics(tmp_path, RETAINED)), SystemClock(), SystemIds()
    (tmp_path / "metrics").mkdir()
    path = tmp_path / "metrics" / "maintain.prom"
    mine, other = (MaintenanceLoop(store, owner=name, clock=clock, ids=ids) for name in ("mine", "other"))
    claimed = Maintainer._claimed

    def raced(self: Maintainer) -> Steps[None]:
        yield from claimed(self)
        if self._owner == "mine":
            other.turn()

    monkeypatch.setattr(Maintainer, "_claimed", raced)
    write_metrics(path, mine.view.metrics())
    with textfiles(path.parent) as port:
        prometheus.scrape("u", port, "/maintain.prom")
        prometheus.wait_for("tiered_maintenance_fenced_total == 0")
        mine.turn()
        assert (mine.view.fenced, other.view.fenced, sum(other.view.actions.values())) == (1, 0, 1)
        write_metrics(path, mine.view.metrics())
        prometheus.wait_for_alert("TieredMaintainerLeaseLost", instance="u", severity="warning")
        assert {"TieredMaintenanceFails", "TieredMaintainerLeaseLost"} <= prometheus.firing()
    store.close()


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
