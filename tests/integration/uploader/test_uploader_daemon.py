"""The daemon as a process: kill -9, SIGTERM, SIGHUP, probes, one-shot runs, exit statuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.integration.uploader.daemons import Daemon, call
from tests.integration.uploader.logs import T0, T1, append, judge, make_log, open_log


def test_sigterm_drains_and_says_what_stays_local(tmp_path: Path) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    make_log(directory)
    with Daemon("--log-dir", str(directory), "--remote", url) as daemon:
        daemon.wait_for("committed")
        assert daemon.stop() == 0
    assert judge(url, directory, [T0, T1]) == 10

    log = open_log(directory)  # a writer that does not roll when it is asked to
    try:
        append(log, T0, 1)
        with Daemon("--log-dir", str(directory), "--remote", url, "--drain-timeout", "300ms") as daemon:
            daemon.wait_for("claimed")
            daemon.wait_for("claimed")
            assert daemon.stop() == 75
        assert "t-0 from offset 100 is only on this disk" in daemon.talk[-1]
    finally:
        log.close()


def test_probes_metrics_and_status_of_a_daemon(tmp_path: Path) -> None:
    directory, url = tmp_path / "log", f"file://{tmp_path / 'store'}"
    make_log(directory)
    with Daemon("--log-dir", str(directory), "--remote", url) as daemon:
        port = daemon.wait_for("started")["http_port"]
        daemon.wait_for("committed")
        assert daemon.get("/livez", port) == (200, "alive\n")
        assert daemon.get("/healthz", port)[0] == 200
        assert daemon.get("/nothing", port)[0] == 404
        status, text = daemon.get("/metrics", port)
        assert status == 200
        assert 'tiered_uploaded_offset{partition="0",topic="t"}' in text
        assert 'tiered_store_requests_total{op="put",status="landed"}' in text
        document = json.loads(daemon.get("/status", port)[1])
        assert [line["least_end_offset"] for line in document["partitions"]] == [100, 100]
        second = call("run", "--http", "off", "--log-dir", str(directory), "--remote", url)
        assert second.returncode == 11
        assert f"process {daemon.process.pid}" in second.stderr
        followed = call("sync", "--wait", "--log-dir", str(directory), "--remote", url, "--timeout", "30s")
        assert followed.returncode == 0, followed.stderr
        assert judge(url, directory, [T0, T1]) == 10
        assert daemon.stop() == 0
    assert "Traceback" not in "".join(daemon.talk)


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    directory, url, config = tmp_path / "log", f"file://{tmp_path / 'store'}", tmp_path / "tiered.toml"
    make_log(directory, records=10)
    config.write_text(f'log_dir = "{directory}"\nremote = "{url}"\n[uploader]\nuploads = 2\n')
    with Daemon("--config", str(config)) as daemon:
        daemon.wait_for("claimed")
        config.write_text(f'log_dir = "{directory}"\nremote = "file:///elsewhere"\n[uploader]\nuploads = 8\n')
        daemon.process.send_signal(signal.SIGHUP)
        assert "a restart is needed for remote" in daemon.wait_for("reloaded")["message"]
        config.write_text("[uploader]\nuplods = 8\n")
        daemon.process.send_signal(signal.SIGHUP)
        assert "did you mean uploads?" in daemon.wait_for("reload_failed")["message"]
        assert daemon.stop() == 0


def test_exit_statuses_and_hints(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    absent = call("sync", "--log-dir", str(tmp_path / "absent"), "--remote", url)
    assert absent.returncode == 10
    assert "there is no log directory" in absent.stderr
    assert "Traceback" not in absent.stderr
