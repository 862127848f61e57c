"""``tiered maintain``: what it says is to be done, and what it does to the bucket."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import ClassVar
from uuid import UUID

import pytest

import tiered
from tests.support.uploaded import COMPACTED, RETAINED, upload_topics
from tests.unit.cli.conftest import Cli
from tiered.clock import SystemClock
from tiered.config import StoreLimits
from tiered.format.keys import pin_key
from tiered.program import application
from tiered.store.base import ABSENT, Put
from tiered.store.directory import DirectoryStore
from tiered.store.limit import Limits
from tiered.store.location import open_store
from tiered.testing.clock import FakeClock


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return upload_topics(tmp_path, RETAINED)


def test_a_plan_names_its_price_and_its_reason(cli: Cli, bucket: str) -> None:
    seen = cli("maintain", "--dry-run", "--remote", bucket, "--json")
    (partition,) = seen.summary["partitions"]
    (action,) = partition["actions"]
    assert (action["action"], action["reason"], action["start_offset"]) == ("retention", "retention.bytes", 0)
    assert action["garbage_objects"] == 2 * action["rows_in"] > 0
    table = cli("maintain", "--dry-run", "t:0", "--remote", bucket).text
    assert "retention.bytes" in table
    assert f" {action['end_offset']} " in table
    assert cli("maintain", "--dry-run", "--only", "merge", "--remote", bucket).text == "nothing is to be done\n"


def test_a_run_trims_and_a_second_one_finds_nothing(cli: Cli, bucket: str, tmp_path: Path) -> None:
    (plan,) = cli("maintain", "--dry-run", "--remote", bucket, "--json").summary["partitions"]
    end = plan["actions"][0]["end_offset"]
    assert cli("maintain", "--remote", bucket, "--dry-run").code == 0
    assert cli("maintain", "--remote", bucket).code == 2  # nobody can answer
    assert (
        cli("maintain", "--dry-run", "--remote", bucket, "--json").summary["partitions"][0]["version"]
        == plan["version"]
    )
    assert cli("maintain", "--remote", bucket, "--yes").text == "1 action done, 0 B read, 0 B written\n"
    with tiered.open_reader(bucket) as reader:
        assert next(iter(reader.topic("t").read(0))).offset == end
    assert cli("maintain", "--remote", bucket, "--yes").text == "nothing was to be done\n"
    assert cli("check", "--remote", bucket, "--log-dir", tmp_path / "log").code == 0


def test_a_partition_begins_where_an_operator_says(cli: Cli, bucket: str) -> None:
    line = ("maintain", "t:0", "--only", "retention", "--remote", bucket, "--yes", "--start-offset")
    assert cli(*line, "41").code == 14
    assert cli(*line, "39").code == 0
    assert cli("maintain", "--dry-run", "t", "--start-offset", "3", "--remote", bucket).code == 2
    assert cli("maintain", "--dry-run", "--only", "nothing", "--remote", bucket).code == 2
    assert "--start-offset needs retention" in cli(*line, "39", "--only", "merge,compact").err


@pytest.fixture
def compacted(tmp_path: Path) -> str:
    return upload_topics(tmp_path, COMPACTED)


def test_the_life_of_a_compacted_topic(cli: Cli, compacted: str, tmp_path: Path) -> None:
    """Compacted, collected, and everything else as before: for readers, the writer and `check`."""
    remote = ("--remote", compacted)
    seen = cli("maintain", *remote, "--yes", "--json")
    assert (seen.code, [done["action"] for done in seen.summary["done"]]) == (0, ["compact"])
    with tiered.open_reader(compacted) as reader:
        values = [record.value for record in reader.topic("t").read(0)]
    assert len(values) < 12
    assert {value[:2] for value in values if value} >= {b"36", b"37", b"38", b"39"}
    objects = set((tmp_path / "store").rglob("*.log.obj"))
    (plan,) = cli("maintain", "--only", "collect", "--dry-run", *remote, "--orphans", "--json").summary["partitions"]
    assert plan["actions"][0]["garbage_objects"] > 0
    assert plan["orphans"]["count"] == 0
    assert cli("maintain", "--only", "collect", *remote).code == 2
    done = cli("maintain", "--only", "collect", *remote, "--yes", "--orphans", "--json")
    assert done.code == 0
    assert done.summary["done"][0]["collected"]["objects"] == plan["actions"][0]["garbage_objects"]
    assert set((tmp_path / "store").rglob("*.log.obj")) < objects
    assert list((tmp_path / "store").rglob("jobs/gc/*/*"))
    with tiered.open_reader(compacted) as reader:
        assert [record.value for record in reader.topic("t").read(0)] == values
    with tiered.open(tmp_path / "log", remote=compacted) as log:
        log.topic("t").append(b"more", key=b"9")
        log.sync(timeout=60)
    assert cli("check", "--remote", compacted, "--read-data").code == 0
    assert cli("maintain", "--only", "collect", *remote, "--yes").text == "nothing was to be done\n"


def test_gc_plan_tells_who_holds_garbage_and_what_no_longer_does(cli: Cli, bucket: str, tmp_path: Path) -> None:
    remote = ("--remote", bucket)
    (root,) = (tmp_path / "store").rglob("*root.obj")
    topic_id = UUID(root.parent.name[:32])
    version = cli("maintain", "--only", "collect", "--dry-run", *remote, "--json").summary["partitions"][0]["version"]
    assert "pin" not in cli("maintain", "--only", "collect", "--dry-run", *remote).err
    assert cli("snapshot", "create", "before", *remote).code == 0
    store, long_ago = open_store(bucket), DirectoryStore(tmp_path / "store", clock=FakeClock(1_000_000))
    for uid, where in (("0a" * 16, store), ("0b" * 16, long_ago)):
        pin = json.dumps({"uid": uid, "version": version + 7}).encode()
        where.execute(Put(pin_key(topic_id, 0, uid), pin, ABSENT))
    told = cli("maintain", "--only", "collect", "--dry-run", *remote).err
    assert f"t-0: 1 pin of readers and 1 snapshot hold what left the catalog after version {version}" in told
    assert "t-0: nothing is held by 1 expired pin" in told
    (pins,) = [
        one
        for one in cli("maintain", "--only", "collect", "--dry-run", *remote, "--json").messages
        if one["message_type"] == "pins"
    ]
    assert [pins[name] for name in ("readers", "snapshots", "lowest", "expired")] == [1, 1, version, 1]
    store.execute(Put(pin_key(topic_id, 0, "0c" * 16), b"garbage", ABSENT))
    damaged = cli("maintain", "--only", "collect", "--dry-run", *remote)
    assert (damaged.code, "pin/" + "0c" * 16 in damaged.err) == (13, True)


def test_settings_change_in_the_bucket_and_on_the_disk(cli: Cli, bucket: str, tmp_path: Path) -> None:
    both = ("--remote", bucket, "--log-dir", tmp_path / "log")
    seen = cli("topic", "set", "t", "retention.bytes=8000", "gc.grace.ms=1h", *both, "--json")
    assert (seen.code, seen.summary["tiers"]) == (0, ["local", "remote"])
    for tier in (both[:2], both[2:]):
        config = cli("topic", "show", "t", *tier, "--json").summary["config"]
        assert (config["retention.bytes"], config["gc.grace.ms"], config["segment.bytes"]) == (
            "8000",
            "3600000",
            "1000",
        )
    assert cli("maintain", "--dry-run", "--remote", bucket).text == "nothing is to be done\n"
    reset = ("topic", "set", "t", "--reset", "retention.bytes", "--remote", bucket)
    assert [text.split()[:2] for text in cli(*reset).text.splitlines()[1:]] == [
        ["setting", "value"],
        ["retention.bytes", "-1"],
    ]
    assert "gc.grace.ms" in cli(*reset, "-v").text
    assert cli("topic", "show", "t", *both[:2], "--json").summary["config"]["retention.bytes"] == "-1"


def test_settings_that_cannot_be_change_nothing(cli: Cli, bucket: str, tmp_path: Path) -> None:
    both = ("--remote", bucket, "--log-dir", tmp_path / "log")
    line = ("topic", "set", "t")
    assert "pass --remote URL" in cli(*line, "retention.ms=1", *both[2:]).err
    for change in (("retention.byte=1",), ("retention.ms=-5",), (), ("--reset", "nothing")):
        assert cli(*line, *change, *both).code == 2, change
    contradiction = ("local.retention.bytes=9999999",)
    assert cli(*line, *contradiction, *both).code == 2
    assert cli(*line, "retention.ms=1", "--reset", "retention.ms", *both).code == 2
    assert cli("topic", "set", "u", "retention.ms=1", *both).code == 10
    config = cli("topic", "show", "t", *both, "--json").summary["config"]
    assert (config["retention.bytes"], config["retention.ms"], config["local.retention.bytes"]) == ("4000", "-1", "-1")


def test_what_is_wrong_with_one_partition_keeps_no_other_from_its_turn(cli: Cli, tmp_path: Path) -> None:
    url = upload_topics(tmp_path, {**RETAINED, "merge.min.bytes": 0}, "abc")
    ids = {name: cli("topic", "show", name, "--remote", url, "--json").summary["topic_id"] for name in "abc"}
    (root,) = (tmp_path / "store").glob(f"??/{ids['b'].replace('-', '')}-0/root.obj")
    root.write_bytes(root.read_bytes()[:-1])
    seen = cli("maintain", "--remote", url, "--yes", "--json")
    assert seen.code == 13
    assert [entry["topic"] for entry in seen.summary["partitions"]] == ["a", "c"]
    assert [done["action"] for done in seen.summary["done"]] == ["retention", "retention"]
    assert any(warning.startswith("b-0: ") for warning in seen.summary["warnings"])


class Terminating(FakeClock):
    """``number`` comes in the second rest between two rounds; ``rests`` are those that were begun."""

    rests: ClassVar[list[float]] = []
    number: ClassVar[signal.Signals] = signal.SIGTERM

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        if seconds is None or seconds < 60:  # another thread's: it must not move the time of the command's own limits
            return event.wait(seconds)
        self.rests.append(seconds)
        if len(self.rests) == 2:
            os.kill(os.getpid(), self.number)
            return event.wait()
        return super().wait(event, seconds)


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the loop rested; it is terminated in the second rest."""
    monkeypatch.setattr(application, "SystemClock", Terminating)
    monkeypatch.setattr(Terminating, "rests", [])
    return Terminating.rests


def test_a_loop_goes_on_until_it_is_terminated(cli: Cli, bucket: str, rests: list[float]) -> None:
    seen = cli("maintain", "--remote", bucket, "--loop", "1h", "--yes", "--json")
    assert (seen.code, rests) == (0, [3600.0, 3600.0])
    assert (seen.summary["rounds"], seen.summary["actions"]) == (2, 1)
    done = [message for message in seen.messages if message["message_type"] == "done"]
    assert [(one["topic"], one["partition"], one["action"]) for one in done] == [("t", 0, "retention")]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_loop_that_is_interrupted_says_what_it_did(
    cli: Cli, bucket: str, rests: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Terminating, "number", signal.SIGINT)
    seen = cli("maintain", "--remote", bucket, "--loop", "10m", "--yes", "--json")
    assert (seen.code, len(rests)) == (130, 2)
    assert (seen.summary["rounds"], seen.summary["actions"]) == (2, 1)


def test_metrics_are_for_a_loop_and_need_a_directory(cli: Cli, bucket: str, tmp_path: Path) -> None:
    line = ("maintain", "--remote", bucket, "--metrics", str(tmp_path / "maintain.prom"))
    assert "--metrics needs --loop" in cli(*line, "--yes").err
    missing = cli("check", "--remote", bucket, "--metrics", str(tmp_path / "none" / "check.prom"))
    assert (missing.code, "there is no directory" in missing.err) == (2, True)
    (tmp_path / "check.prom").mkdir()
    assert cli("check", "--remote", bucket, "--metrics", str(tmp_path / "check.prom")).code == 2


def test_a_loop_is_refused_where_it_makes_no_sense(cli: Cli, bucket: str) -> None:
    line = ("maintain", "t:0", "--remote", bucket)
    for more in ((), ("--yes", "--dry-run"), ("--yes", "--start-offset", "1"), ("--yes", "--orphans")):
        assert cli(*line, "--loop", "1m", *more).code == 2, more
    assert cli(*line, "--loop", "0s", "--yes").code == 2
    assert "--loop: 10 has no unit" in cli(*line, "--loop", "10", "--yes").err
    assert cli("maintain", "u", "--remote", bucket, "--loop", "10m", "--yes").code == 10


def test_a_run_by_hand_has_the_limits_of_the_daemon(
    cli: Cli, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same table and the same variables; what the daemon alone knows in that table is left to it."""
    seen: list[StoreLimits] = []
    of = Limits.from_config
    monkeypatch.setattr(Limits, "from_config", lambda limits, **more: (seen.append(limits), of(limits, **more))[1])
    config = tmp_path / "tiered.toml"
    config.write_text('[uploader]\nscan = "5s"\nmemory = "96MiB"\nbytes-per-second = "50MiB"\n')
    line = ("maintain", "--remote", bucket, "--config", config, "--yes")
    assert cli(*line).code == 0
    monkeypatch.setenv("TIERED_UPLOADER_MEMORY", "128MiB")
    monkeypatch.setenv("TIERED_UPLOADER_REQUESTS_PER_SECOND", "700")
    assert cli(*line).code == 0
    assert cli(*line, "--memory", "64MiB").code == 0
    rate = 50 * 1024 * 1024
    assert seen == [
        StoreLimits(memory=96 << 20, bytes_per_second=rate),
        StoreLimits(memory=128 << 20, bytes_per_second=rate, requests_per_second=700),
        StoreLimits(memory=64 << 20, bytes_per_second=rate, requests_per_second=700),
    ]
    refused = cli(*line, "--memory", "1MiB")
    assert refused.code == 2
    assert "--memory: '1MiB' is too small" in refused.err
    monkeypatch.setenv("TIERED_UPLOADER_MEMORY", "much")
    assert "TIERED_UPLOADER_MEMORY" in cli(*line).err
    monkeypatch.delenv("TIERED_UPLOADER_MEMORY")
    for name in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR"):
        monkeypatch.setenv(f"TIERED_UPLOADER_{name}", "10.0.0.1")  # of a Service called tiered-uploader
    assert cli(*line).code == 0
    monkeypatch.setenv("TIERED_UPLOADER_REQUEST_PER_SECOND", "5")
    assert "did you mean TIERED_UPLOADER_REQUESTS_PER_SECOND?" in cli(*line).err
    config.write_text("[uploader]\nrequest-per-second = 5\n")
    monkeypatch.delenv("TIERED_UPLOADER_REQUEST_PER_SECOND")
    assert "did you mean requests_per_second?" in cli(*line).err


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Six small segments that were just uploaded."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 100_000})
        for number in range(6):
            topic.append(b"%d" % number)
            log.sync(timeout=60)
    return url


def test_a_plan_says_when_a_merge_that_waits_is_due(cli: Cli, small: str) -> None:
    lines = cli("maintain", "--dry-run", "--remote", small).text.splitlines()
    assert lines[0] == "nothing is to be done now"
    assert re.fullmatch(r"t-0: a merge of small segments is due in (59m\d\ds|1h00m), by merge.idle.ms", lines[1])
    (partition,) = cli("maintain", "--dry-run", "--remote", small, "--json").summary["partitions"]
    assert (partition["actions"], partition["merge_due_ms"] > 0) == ([], True)
    assert cli("maintain", "--dry-run", "--remote", small, "--only", "retention").text == "nothing is to be done\n"
    assert cli("topic", "set", "t", "--remote", small, "merge.idle.ms=0").code == 0
    (partition,) = cli("maintain", "--dry-run", "--remote", small, "--json").summary["partitions"]
    assert [(action["action"], action["rows_in"]) for action in partition["actions"]] == [("merge", 6)]
    assert partition["merge_due_ms"] is None


def test_a_clock_that_is_400_days_ahead_expires_nothing_of_a_folder(
    cli: Cli, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("topic", "set", "t", "--remote", small, "retention.ms=30d").code == 0
    right = SystemClock.now_ms
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: right(self) + 400 * 86_400_000)
    seen = cli("maintain", "--dry-run", "--remote", small)
    assert seen.text.startswith("nothing is to be done")
    assert cli("maintain", "--remote", small, "--yes").code == 0
    with tiered.open_reader(small) as reader:
        assert [record.offset for record in reader.topic("t").read(0)] == list(range(6))
