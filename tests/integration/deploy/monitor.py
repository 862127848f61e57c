"""A real Prometheus on loopback, with the alert rules and what a test lets it scrape."""

from __future__ import annotations

import functools
import json
import re
import runpy
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.pages import ROOT

DEPLOY = ROOT / "deploy"
BOARD = runpy.run_path(str(ROOT / "scripts" / "dashboard.py"))
WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.2

CONFIG = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: tiered
    file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
"""


class Prometheus:
    """Prometheus as a context manager. The rules are those of deploy/, but fire without waiting."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("prometheus") is None:
            pytest.skip("prometheus is not installed (apt-get install prometheus)")
        folder.mkdir()
        self._folder = folder
        self._targets: list[dict[str, Any]] = []
        rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
        (folder / "alerts.yml").write_text(re.sub(r"^( +for:) \w+$", r"\1 0s", rules, flags=re.MULTILINE))
        (folder / "prometheus.yml").write_text(CONFIG)
        (folder / "targets.json").write_text("[]")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        self.url = f"http://{address}"
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    "--config.file=prometheus.yml",
                    "--storage.tsdb.path=data",
                    f"--web.listen-address={address}",
                    "--log.level=warn",
                ],
                cwd=folder,
                stderr=log,
                stdout=log,
            )

    def scrape(self, name: str, port: int, path: str = "/metrics") -> None:
        """Add a target. ``name`` becomes the label ``instance``."""
        labels = {"instance": name, "__metrics_path__": path}
        self._targets.append({"targets": [f"127.0.0.1:{port}"], "labels": labels})
        new = self._folder / "targets.new"
        new.write_text(json.dumps(self._targets))
        new.rename(self._folder / "targets.json")

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = BOARD["ask"](self.url, "query", query=expression)
        return found

    def wait_for(self, expression: str) -> dict[str, Any]:
        """The first sample of an expression that has any, of Prometheus's own evaluations."""
        looks = threading.Event()
        for _ in range(int(WAIT_SECONDS / LOOK_SECONDS)):
            assert self.process.poll() is None, (self._folder / "log").read_text()
            try:
                if found := self.query(expression):
                    return found[0]
            except OSError:
                pass  # it is starting
            looks.wait(LOOK_SECONDS)
        raise AssertionError(f"{expression} stays empty; {self.query('up')}")

    def wait_for_alert(self, name: str, **labels: str) -> None:
        words = ", ".join(f'{key}="{value}"' for key, value in labels.items())
        self.wait_for(f'ALERTS{{alertname="{name}", alertstate="firing", {words}}}')

    def firing(self) -> set[str]:
        return {each["metric"]["alertname"] for each in self.query('ALERTS{alertstate="firing"}')}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait(WAIT_SECONDS)


class _Textfile(SimpleHTTPRequestHandler):
    """Files of a folder, as a node exporter's textfile collector serves them."""

    def guess_type(self, path: Any) -> str:
        return "text/plain; version=0.0.4"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def textfiles(folder: Path) -> Iterator[int]:
    """Serve a folder on loopback; yields the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Textfile, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
