"""Units, manifests and the container file: their tools read them, and their commands run."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.integration.deploy.monitor import DEPLOY, WAIT_SECONDS
from tests.integration.uploader.daemons import ROOT, environment
from tests.integration.uploader.logs import make_log
from tiered.cli.main import tiered as tiered_command
from tiered.program.settings import SETTINGS
from uploader.cli import program

UNITS = DEPLOY / "systemd"
SERVICES = {"tiered-uploader": 30, "tiered-maintain": 20, "tiered-check": 20}
"""Highest exposure of each service, in tenths."""
OVERLAYS = ("aws", "minio")


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def unit(name: str) -> dict[str, list[str]]:
    """The keys of the section Service, each with all its values."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / f"{name}.service").read_text().split("[Service]")[1].split("[Install]")[0].splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def command_of(name: str, places: dict[str, Path]) -> list[str]:
    """``ExecStart`` on this machine: the programs of this checkout, and directories of the test."""
    (line,) = unit(name)["ExecStart"]
    words = shlex.split(line.replace("%%", "%"))
    for there, here in places.items():
        words = [word.replace(there, str(here)) for word in words]
    module = {"tiered-uploader": "uploader", "tiered": "tiered"}[Path(words[0]).name]
    return [sys.executable, "-m", module, *words[1:]]


def parse(words: list[str]) -> None:
    """Raises click.UsageError, unless the program knows the command and its options."""
    command: click.Command = {"tiered": tiered_command, "tiered-uploader": program}[Path(words[0]).name]
    context, rest = click.Context(command), words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, words
        command, context, rest = found, click.Context(found, parent=context), rest[1:]
    command.make_parser(context).parse_args(list(rest))


@pytest.mark.parametrize("name", SERVICES)
def test_the_exposure_of_a_unit(name: str, tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    path = UNITS / f"{name}.service"
    words = [analyze, "security", "--offline=yes", f"--threshold={SERVICES[name]}", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
    here = path.read_text().replace("/opt/tieredlog/bin/", f"{tmp_path}/")
    (tmp_path / path.name).write_text(re.sub(r"^Documentation=.*\n", "", here, flags=re.MULTILINE))
    shutil.copy(UNITS / "tiered-check.timer", tmp_path)
    for each in ("tiered", "tiered-uploader"):
        (tmp_path / each).symlink_to("/bin/true")
    done = subprocess.run([analyze, "verify", str(tmp_path / path.name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_daemon_of_the_unit_reports_ready_reload_and_stop(tmp_path: Path) -> None:
    make_log(tmp_path / "log", partitions=1)
    settings = tmp_path / "tieredlog.toml"
    settings.write_text(f'remote = "file://{tmp_path / "store"}"\n[uploader]\nhttp = "off"\n')
    words = command_of(
        "tiered-uploader", {"/etc/tieredlog/tieredlog.toml": settings, "/var/lib/tieredlog": tmp_path / "log"}
    )
    said = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_SECONDS)
        watch = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
        with subprocess.Popen(words, env=environment(**watch), cwd=ROOT, stderr=subprocess.DEVNULL) as daemon:

            def hear(word: bytes) -> None:
                nonlocal said
                while word not in said:
                    said = manager.recv(4096)

            hear(b"READY=1")
            hear(b"WATCHDOG=1")
            daemon.send_signal(signal.SIGHUP)  # ExecReload
            hear(b"RELOADING=1")
            hear(b"READY=1")
            daemon.send_signal(signal.SIGTERM)
            hear(b"STOPPING=1")
            assert daemon.wait(WAIT_SECONDS) == 0
    assert unit("tiered-uploader")["ReadWritePaths"] == ["/var/lib/tieredlog"]
    settings.write_text("remote = 7\n")
    (prevented,) = unit("tiered-uploader")["RestartPreventExitStatus"]
    assert subprocess.run(words, env=environment(), cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == int(
        prevented
    )


def test_the_upkeep_of_the_units_writes_metrics(tmp_path: Path) -> None:
    make_log(tmp_path / "log", partitions=1)
    settings = tmp_path / "tieredlog.toml"
    settings.write_text(f'remote = "file://{tmp_path / "store"}"\n')
    places = {"/etc/tieredlog/tieredlog.toml": settings, "/var/lib/tieredlog-upkeep": tmp_path}
    sync = [sys.executable, "-m", "uploader", "sync", "--config", str(settings), "--log-dir", str(tmp_path / "log")]
    subprocess.run(sync, env=environment(), cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    checked = subprocess.run(
        command_of("tiered-check", places), env=environment(), cwd=ROOT, check=False, capture_output=True
    )
    assert checked.returncode == 0, checked.stderr
    assert "tiered_check_errors 0" in (tmp_path / "check.prom").read_text()
    with subprocess.Popen(
        command_of("tiered-maintain", places), env=environment(), cwd=ROOT, stdout=subprocess.PIPE
    ) as maintainer:
        while not (tmp_path / "maintain.prom").exists():
            assert maintainer.poll() is None
            os.sched_yield()
        maintainer.send_signal(signal.SIGTERM)
        assert maintainer.wait(WAIT_SECONDS) == 0
    assert "tiered_maintenance_rounds_total 1" in (tmp_path / "maintain.prom").read_text()
    timer = configparser.ConfigParser()
    timer.read(UNITS / "tiered-check.timer")
    assert timer["Timer"]["OnCalendar"] == "daily"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_manifests_are_rendered_and_name_commands_that_exist(overlay: str) -> None:
    words = [tool("kubectl"), "kustomize", str(DEPLOY / "kubernetes" / "overlays" / overlay)]
    rendered = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(rendered)}
    assert {kind for kind, _ in found} == {
        "ConfigMap", "Deployment", "NetworkPolicy", "PodMonitor", "Service", "ServiceAccount", "ServiceMonitor",
        "StatefulSet",
    }  # fmt: skip
    known = {each.variable for each in SETTINGS}
    for each in found.values():
        assert each["metadata"]["namespace"] == "tieredlog"
        if each["kind"] == "ConfigMap":
            assert set(each["data"]) <= known
        if each["kind"] in ("Deployment", "StatefulSet"):
            pod = each["spec"]["template"]
            assert pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "tieredlog"  # the NetworkPolicy's choice
            assert ("ServiceAccount", pod["spec"]["serviceAccountName"]) in found
            for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
                _check_container(container, known)
    policy = found["NetworkPolicy", "tieredlog"]["spec"]
    ports = [rule["ports"] for rule in policy["egress"]]
    assert ports[1] == [{"port": {"aws": 443, "minio": 9000}[overlay], "protocol": "TCP"}]


def _check_container(container: dict[str, Any], known: set[str]) -> None:
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"requests", "limits"} <= set(container["resources"])
    assert {each["name"] for each in container.get("env", ())} <= known
    if container["name"] == "uploader":
        assert container["restartPolicy"] == "Always"  # a native sidecar
        parse(["tiered-uploader", *container["args"]])
        parse(container["lifecycle"]["preStop"]["exec"]["command"])
    elif container["name"] == "maintain":
        parse(container["command"])
    elif container["name"] == "check":
        parse(shlex.split(re.findall(r"do (tiered check [^;]*);", container["command"][2])[0]))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_manifests_fit_the_schemas_of_kubernetes(overlay: str) -> None:
    """The resources of the Prometheus operator have none there."""
    validate = import_module("kubernetes_validate")
    words = [tool("kubectl"), "kustomize", str(DEPLOY / "kubernetes" / "overlays" / overlay)]
    rendered = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for each in yaml.safe_load_all(rendered):
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            validate.validate(each, "1.33", strict=True)


def test_the_container_file_copies_what_a_build_needs_and_starts_the_daemon() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    command = [*re.findall(r'"([^"]+)"', re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)[0])]
    parse(["tiered-uploader", *command])
    assert "USER 10001" in text
    assert set(re.findall(r"\bTIERED_(?!REQUIRE)\w+", text)) <= {each.variable for each in SETTINGS}
