"""Settings say where they come from when they are wrong, and metrics say nothing that is not known."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

import tiered
from tiered import __version__
from tiered.engine.drain import DrainMode
from tiered.errors import ConfigError
from tiered.local.directory.figures import MAX_GROUP_LAGS, group_metrics
from tiered.local.transactions.group_positions import GroupLag
from tiered.metrics import metric
from tiered.model import Position, TopicPartition
from tiered.program.settings import DAEMON, PLACE, parse_http
from tiered.store.metrics import StoreMetrics
from tiered.testing.clock import FakeClock
from uploader.cli import program
from uploader.config import Settings, resolve
from uploader.metrics import Metrics
from uploader.upkeep import GroupLags


@pytest.mark.parametrize("name", ["uploads", "scan", "http", "drain", "bytes_per_second", "part_size"])
def test_a_wrong_value_names_its_key_and_its_origin(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c5.toml"
    path.write_text(f'[uploader]\n{name} = "x"\n')
    variable = f"TIERED_UPLOADER_{name.upper()}"
    flag = "--" + name.replace("_", "-")
    for place, flags, environ, config in (
        (f"{name} in {path}: ", {}, {}, path),
        (f"{variable}: ", {}, {variable: "x"}, None),
        (f"{flag}: ", {name: "x"}, {}, None),
    ):
        with pytest.raises(ConfigError) as raised:
            resolve(flags, environ, config)
        assert raised.value.message.startswith(f"{place}'x' is ")


@pytest.mark.parametrize("remote", ["file:///store", "memory://m"])
@pytest.mark.parametrize("name", ["endpoint_url", "region"])
def test_what_only_s3_has_is_ignored_from_the_environment_and_refused_elsewhere(
    tmp_path: Path, remote: str, name: str
) -> None:
    variable = f"TIERED_{name.upper()}"
    found = resolve({"remote": remote, "log_dir": "/l"}, {variable: "http://x"}, None)
    assert (found.endpoint_url, found.region) == (None, None)
    found.place()
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')}: {name} does not apply to the remote {remote}"):
        resolve({"remote": remote, name: "http://x"}, {variable: "http://y"}, None)
    path = tmp_path / "c.toml"
    path.write_text(f'{name} = "http://x"\n')
    with pytest.raises(ConfigError, match=f"c.toml: {name} does not apply") as raised:
        resolve({}, {"TIERED_REMOTE": remote}, path)
    assert "TIERED_REMOTE names this one" in raised.value.hint
    kept = resolve({"remote": "s3://bucket"}, {variable: "http://x"}, None)
    assert getattr(kept, name) == "http://x"


def test_metrics_have_no_created_series_and_no_invented_figure() -> None:
    metrics = Metrics(StoreMetrics(), list)
    metrics.commits.labels("ok").inc()
    metrics.commit_seconds.observe(0.1)
    text = metrics.render().decode()
    assert "_created" not in text
    assert 'tiered_commit_total{result="ok"} 1.0' in text
    assert f'version="{__version__}"' in next(
        line for line in text.splitlines() if line.startswith("tiered_build_info")
    )
    assert "\ntiered_disk_free_bytes " not in text
    metrics.disk_free_bytes = 7
    assert "\ntiered_disk_free_bytes 7.0" in metrics.render().decode()


def test_metrics_tell_what_the_writer_noted() -> None:
    where = {"log_dir": "data", "task": "flush"}
    noted = [metric("task_runs_total", 3, where), metric("task_runs_total", 4, {**where, "task": "seal"})]
    metrics = Metrics(
        StoreMetrics(), list, writer=lambda: [*noted, metric("directory_offline", 1, {"log_dir": "data"})]
    )
    text = metrics.render().decode()
    assert 'tiered_task_runs_total{log_dir="data",task="flush"} 3.0' in text
    assert 'tiered_task_runs_total{log_dir="data",task="seal"} 4.0' in text
    assert "# TYPE tiered_task_runs_total counter" in text
    assert 'tiered_directory_offline{log_dir="data"} 1.0' in text


def test_metrics_have_the_lag_of_the_groups_of_the_directory(tmp_path: Path) -> None:
    lags = GroupLags(tmp_path / "log", FakeClock())
    lags.read()  # before the log is made
    assert lags.metrics() == ()
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True).append_many([b"x"] * 10)
        found = []
        for _ in range(2):
            with log.consumer("billing", "t") as consumer:
                consumer.poll(4)
                consumer.commit()
            lags.read()
            found += [each.value for each in lags.metrics() if each.name == "tiered_group_lag_records"]
        assert found == [6, 2]


def test_no_more_groups_than_the_limit_have_series() -> None:
    lags = [GroupLag(f"g{number}", TopicPartition("t", 0), Position(0), 1, number) for number in range(1_003)]
    figures = group_metrics(lags)
    assert MAX_GROUP_LAGS == 1_000
    assert len(figures) == 2 * MAX_GROUP_LAGS
    assert min(each.value for each in figures if each.name == "tiered_group_lag_seconds") == 3  # the longest stay


@pytest.mark.parametrize("name", ["log_dir", "remote", "endpoint_url", "region"])
def test_an_empty_flag_is_not_the_current_directory(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')}: it is empty") as raised:
        resolve({name: ""}, {}, None)
    assert raised.value.hint == "give it a value, or leave it out"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TIERED_SSE_KMS_KEYID", "TIERED_SSE_KMS_KEY_ID"),
        ("TIERED_REMOT", "TIERED_REMOTE"),
        ("TIERED_CONFG", "TIERED_CONFIG"),
    ],
)
def test_a_misspelt_variable_is_refused(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"the environment variable {variable} is not known") as raised:
        resolve({}, {variable: "x"}, None)
    assert raised.value.hint == f"did you mean {meant}?"
    assert resolve({}, {"TIERED_OTHERS_BUSINESS": "x"}, None).remote is None


def test_the_programs_agree_on_what_the_settings_of_the_daemon_are() -> None:
    """``tiered maintain`` reads some of them, and refuses a misspelt one as the daemon does."""
    assert [setting.name for setting in (*PLACE, *DAEMON)] == [field.name for field in fields(Settings)]


@pytest.mark.parametrize(("text", "found"), [("true", True), ("1", True), ('"yes"', True), ("0", False), ("2", None)])
def test_yes_or_no_may_be_a_number(tmp_path: Path, text: str, found: bool | None) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[uploader]\nmaintain = {text}\n")
    if found is not None:
        assert resolve({}, {}, path).maintain is found
        return
    with pytest.raises(ConfigError) as raised:
        resolve({}, {}, path)
    assert raised.value.message == f"maintain in {path}: 2 is neither true nor false"


def test_an_empty_name_of_a_file_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERED_CONFIG", raising=False)
    done = CliRunner().invoke(program, ["sync", "--config", "", "--log-dir", "none"])
    assert isinstance(done.exception, ConfigError)
    assert done.exception.message == "--config is empty"


@pytest.mark.parametrize("command", ["run", "sync"])
def test_nothing_is_uploaded_to_a_store_that_ends_with_the_process(tmp_path: Path, command: str) -> None:
    line = [command, "--log-dir", str(tmp_path), "--remote", "memory://x"]
    with pytest.raises(
        ConfigError, match="memory://x exists only in one process: uploaded segments would be lost when it ends"
    ):
        program.main(line, standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_settings_come_from_flag_environment_file_default_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "tiered.toml"
    text = 'log_dir = "/file"\nremote = "s3://b/${STAGE}"\njson = true\n[uploader]\nscan = "2s"\nuploads = 8\n'
    path.write_text(text)
    environ = {"STAGE": "prod", "TIERED_LOG_DIR": "/env", "TIERED_UPLOADER_UPLOADS": "9", "TIERED_OTHER": "x"}
    found = resolve({"uploads": 10, "scan": None, "drain": "sealed"}, environ, path)
    assert (found.log_dir, found.remote, found.uploads, found.scan) == (Path("/env"), "s3://b/prod", 10, 2000)
    assert (found.drain, found.http) == (DrainMode.SEALED, ("127.0.0.1", 9464))
    assert resolve({}, {}, None) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[uploader]\nuplods = 1", "the key uplods is not known .did you mean uploads?"),
        ("log-dri = 'x'", "the key log-dri is not known"),
        ("memory = '1GiB'", r"the key memory is not known .memory belongs in the table .uploader."),
        ("[uploder]\nuploads = 1", r"the key uploder is not known .did you mean uploader\?"),
        ("uploader = 3", "the key uploader must be a table"),
        ("[uploader]\nuploads = 0", "0 is not a whole number of at least 1"),
        ("[uploader]\nuploads = true", "not a whole number"),
        ("[uploader]\nscan = 'soon'", "soon"),
        ("[uploader]\nscan = 5", "scan in .*: 5 has no unit .write 5s"),
        ("[uploader]\nhttp = 9464", "9464 is not a text"),
        ("[uploader]\nhttp = 'x:y'", "is not host:port"),
        ("[uploader]\ndrain = 'most'", "none of inflight, sealed, all"),
        ("[uploader]\nscan = [1]", r"not a text or a number"),
        ("remote = '${NOWHERE}'", "is not in the environment"),
        ("[uploader]\nseal-idle = '1m'\nseal_idle = '2m'", "seal_idle is given twice"),
        ("= 3", "is not TOML"),
    ],
)
def test_wrong_settings_are_refused_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tiered.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        resolve({}, {}, path)
    assert "tiered.toml" in str(raised.value)


def test_the_http_address() -> None:
    assert parse_http("off") is None
    assert parse_http("[::1]:80") == ("::1", 80)
    assert parse_http(":0") == ("127.0.0.1", 0)
    with pytest.raises(ConfigError):
        parse_http("localhost:²")
