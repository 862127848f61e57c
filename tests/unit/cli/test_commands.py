"""The commands over a log on disk and in a bucket: text and JSON from the same data."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.unit.check.building import RECORDS, TOPIC, Scenario, flip, record, scenario
from tests.unit.cli.conftest import Cli
from tiered.format.kernels import KERNELS_IN_USE
from tiered.times import format_time


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Scenario]:
    with scenario(tmp_path, partitions=2, unsealed=3) as built:
        yield built


def test_append_creates_reads_back_and_ends(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    made = cli("append", "t", "--log-dir", directory, "--create", "--partitions", "1", stdin=b"one\ntwo\n\nthree")
    assert (made.code, made.out) == (0, b"")
    assert "appended 4 records to t (next offsets 0: 4)" in made.err
    assert cli("cat", "t", "--log-dir", directory).out == b"one\ntwo\n\nthree\n"


def test_append_shapes(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    common = ("--log-dir", directory, "--create", "--json")
    lines = cli("append", "lines", *common, "-K", r"\t", "-H", "a=1", "-H", "a=2", "-Z", stdin=b"k\tv\nk\t\n\tv\n")
    assert lines.summary["records"] == 3
    rows = b'id,t,who\n1,2013-01-01T05:00:00Z,N1\n2,1357016400001,"N,\n2"\n'
    csv = cli("append", "csv", *common, "--format", "csv", "--key-field", "who", "--timestamp-field", "t", stdin=rows)
    assert csv.summary["partitions"] == {"0": 2}
    documents = b'{"k": {"b": 1}, "v": 2}\n\n [1] \n'
    cli("append", "json", *common, "--format", "json", "--durability", "disk", stdin=documents)
    seen = cli("cat", "lines", "--log-dir", directory, "--json").messages[:-1]
    assert [(each["key"], each["value"]) for each in seen] == [("k", "v"), ("k", None), (None, "v")]
    assert seen[0]["headers"] == [["a", "1"], ["a", "2"]]
    seen = cli("cat", "csv", "--log-dir", directory, "--json").messages[:-1]
    assert [(each["key"], each["timestamp"]) for each in seen] == [("N1", 1357016400000), ("N,\n2", 1357016400001)]
    assert json.loads(seen[1]["value"]) == {"id": "2", "t": "1357016400001", "who": "N,\n2"}
    assert cli("cat", "json", "--log-dir", directory).out == b'{"k": {"b": 1}, "v": 2}\n[1]\n'


def test_append_nul_separated(cli: Cli, tmp_path: Path) -> None:
    cli("append", "t", "--log-dir", tmp_path / "data", "--create", "-0", stdin=b"a\nb\0c\0")
    assert cli("cat", "t", "--log-dir", tmp_path / "data", "--template", r"%s|").out == b"a\nb|c|"


def test_append_names_the_line_and_keeps_what_came_before(cli: Cli, tmp_path: Path) -> None:
    bad = cli("append", "t", "--log-dir", tmp_path / "d", "--create", "--format", "json", stdin=b"1\n2\n{\n4\n")
    assert bad.code == 2
    assert "error: line 3 of the input is not JSON" in bad.err
    assert "2 records of the input were appended" in bad.err
    assert cli("cat", "t", "--log-dir", tmp_path / "d").out == b"1\n2\n"


def test_a_record_that_the_log_refuses_is_named_by_its_place(cli: Cli, tmp_path: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(1500)) + b"x" * 2_000_000 + b"\nlast\n"
    refused = cli("append", "t", "--log-dir", tmp_path / "d", "--create", "--partitions", "3", "--json", stdin=lines)
    assert refused.code == 2
    assert "record 1501 of the input: " in refused.err
    assert "1,500 records of the input were appended" in refused.err
    assert refused.summary["records"] == 1500


def test_append_until_committed(cli: Cli, log: Scenario) -> None:
    done = cli(
        "append", TOPIC, "--log-dir", log.directory, "--remote", log.url, "--durability", "remote", stdin=b"x\ny\n"
    )
    assert done.code == 0
    assert cli("cat", TOPIC, "--remote", log.url, "--from", "-1h").out.endswith(b"x\ny\n")


def test_cat_over_both_tiers(cli: Cli, log: Scenario) -> None:
    both = cli("cat", f"{TOPIC}:0", "--log-dir", log.directory, "--remote", log.url, "--json")
    assert [each["offset"] for each in both.messages[:-1]] == list(range(RECORDS + 3))
    assert both.summary == {
        "message_type": "summary",
        "command": "cat",
        "exit_code": 0,
        "topic": TOPIC,
        "records": RECORDS + 3,
        "complete": True,
    }
    remote = cli("cat", f"{TOPIC}:0", "--remote", log.url, "--template", r"%o\n")
    assert remote.out.split() == [b"%d" % i for i in range(RECORDS)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "beginning", "-n", "2"), [0, 1]),
        (("--from", "end"), []),
        (("--from", "118"), [118, 119, 120, 121, 122]),
        (("--last", "2"), [121, 122]),
        (("--last", "9999", "-n", "1"), [0]),
        (("--from", f"s@{record(117).timestamp}", "--to", "119"), [117, 118]),
        (("--from", format_time(record(118).timestamp), "--to", f"s@{record(121).timestamp}"), [118, 119, 120]),
        (("--to", "beginning"), []),
        (("--from", "120", "--to", "end"), [120, 121, 122]),
        (("--key", (record(117).key or b"").decode(), "--from", "117", "--limit", "1"), [117]),
        (("-n", "0"), []),
    ],
)
def test_cat_ranges(cli: Cli, log: Scenario, options: tuple[str, ...], expected: list[int]) -> None:
    seen = cli("cat", f"{TOPIC}:0", "--log-dir", log.directory, *options, "--template", r"%o ")
    assert [int(word) for word in seen.out.split()][: len(expected) or None] == expected
    assert seen.code == 0


def test_cat_isolation_over_a_brokers_directory(cli: Cli, kafka_fixtures: Path) -> None:
    def offsets(isolation: str) -> int:
        done = cli("cat", "txn", "--log-dir", kafka_fixtures / "main", "--isolation", isolation, "--template", r"%o\n")
        return len(done.out.split())

    def expected(isolation: str) -> int:
        files = [kafka_fixtures / f"expected/main/txn-{number}.{isolation}.jsonl" for number in (0, 1)]
        return sum(len(file.read_text().splitlines()) for file in files)

    for isolation in ("read_uncommitted", "read_committed"):
        assert offsets(isolation) == expected(isolation)


def test_a_terminal_gets_no_control_characters(cli: Cli, tmp_path: Path) -> None:
    cli("append", "t", "--log-dir", tmp_path / "d", "--create", stdin=b"\x1b[31mred\xff\n")
    assert cli("cat", "t", "--log-dir", tmp_path / "d", terminal=True).out == b"\\x1b[31mred\\xff\n"
    assert cli("cat", "t", "--log-dir", tmp_path / "d").out == b"\x1b[31mred\xff\n"


def test_the_last_records_and_a_follower(cli: Cli, log: Scenario) -> None:
    seen = cli("cat", f"{TOPIC}:1", "--log-dir", log.directory, "--last", "3", "--template", r"%o\n")
    assert seen.out.split() == [b"117", b"118", b"119"]
    followed = cli("cat", "-f", TOPIC, "--log-dir", log.directory, "--last", "2", "-n", "4", "--json")
    assert [each["offset"] for each in followed.messages[:-1]] == [121, 122, 118, 119]
    assert followed.summary["records"] == 4


def test_topics(cli: Cli, log: Scenario, tmp_path: Path) -> None:
    listed = cli("topic", "list", "--log-dir", log.directory, "--remote", log.url, "--json")
    assert [(each["topic"], each["partitions"], each["tiers"]) for each in listed.summary["topics"]] == [
        (TOPIC, 2, ["local", "remote"])
    ]
    assert TOPIC in cli("topic", "list", "--remote", log.url).text
    made = cli(
        "topic", "create", "new", "--log-dir", log.directory, "--partitions", "3", "--set", "segment.ms=1h", "--json"
    )
    assert (made.code, made.summary["partitions"], made.summary["config"]["segment.ms"]) == (0, 3, 3_600_000)
    again = cli("topic", "create", "new", "--log-dir", log.directory)
    assert (again.code, "exists already" in again.err) == (2, True)
    assert cli("topic", "create", "new", "--log-dir", log.directory, "--if-not-exists").code == 0
    described = cli("topic", "show", TOPIC, "--log-dir", log.directory, "--remote", log.url, "--json").summary
    assert described["config"]["segment.bytes"] == "4096"
    assert [each["end_offset"] for each in described["partitions"]] == [RECORDS + 3, RECORDS]
    assert [each["uploaded_offset"] for each in described["partitions"]] == [RECORDS, RECORDS]
    text = cli("topic", "show", TOPIC, "--remote", log.url).text
    assert any(line.split() == ["*", "segment.bytes", "4096", "4.0", "KiB"] for line in text.splitlines())
    assert any(line.split() == ["retention.ms", "-1", "no", "limit"] for line in text.splitlines())


def test_a_topic_in_the_bucket_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    create = ("topic", "create", "flights", "--remote", tmp_path / "bucket", "--partitions", "3", "--json")
    made = cli(*create, "--set", "segment.bytes=1MiB")
    assert made.code == 0
    assert (made.summary["created"], made.summary["partitions"]) == (True, 3)
    assert made.summary["config"]["segment.bytes"] == 1 << 20
    assert "topic flights exists already" in cli(*create).err
    again = cli(*create, "--if-not-exists")
    assert (again.summary["created"], again.summary["topic_id"]) == (False, made.summary["topic_id"])
    listed = cli("topic", "list", "--remote", tmp_path / "bucket", "--json")
    assert listed.summary["topics"] == [
        {
            "topic": "flights",
            "partitions": 3,
            "topic_id": made.summary["topic_id"],
            "tiers": ["remote"],
            "deleting": False,
        }
    ]


def test_the_offset_of_a_time(cli: Cli, log: Scenario) -> None:
    for time, expected in ((str(record(50).timestamp), 50), ("+1d", None)):
        seen = cli("topic", "show", TOPIC, "--log-dir", log.directory, "--at", time, "--json")
        assert [(each["partition"], each["offset_at"]) for each in seen.summary["partitions"]] == [
            (0, expected),
            (1, expected),
        ]
    assert "offset at" in cli("topic", "show", f"{TOPIC}:1", "--remote", log.url, "--at", "-1d").text


def test_status(cli: Cli, log: Scenario) -> None:
    seen = cli("status", "--log-dir", log.directory, "--remote", log.url, "--json")
    first = seen.summary["partitions"][0]
    assert (seen.code, seen.summary["safe"], seen.summary["reason"]) == (3, False, "stopped")
    assert (first["end_offset"], first["uploaded_offset"], first["lag_records"]) == (RECORDS + 3, RECORDS, 3)
    assert first["remote"]["segments"] == len(log.rows())
    text = cli("status", "--log-dir", log.directory).text
    assert text.splitlines()[0] == seen.summary["verdict"] == "NOT SAFE: no uploader runs, 3 records on this disk only"
    assert seen.summary["notes"] == []
    assert f"{TOPIC}-0   end 123   flushed 123   uploaded 120   lag 3 records" in text
    with tiered.open(log.directory, log.url):
        assert cli("status", "--log-dir", log.directory, "--json").summary["log_dir"]["locks"]["writer"]["pid"] > 0


def test_segments(cli: Cli, log: Scenario) -> None:
    seen = cli(
        "topic", "show", f"{TOPIC}:0", "--segments", "--log-dir", log.directory, "--remote", log.url, "--json"
    ).summary["segments"]
    assert [each["state"] for each in seen] == ["both"] * len(log.rows()) + ["active"]
    assert [each["crc32c"] for each in seen[:-1]] == [row.crc for row in log.rows()]
    assert [each["base_offset"] for each in seen] == [*[row.base for row in log.rows()], RECORDS]
    local = cli("topic", "show", TOPIC, "--segments", "--log-dir", log.directory, "--json").summary["segments"]
    assert {each["state"] for each in local} == {"local", "active"}
    assert "both" in cli("topic", "show", TOPIC, "--segments", "--log-dir", log.directory, "--remote", log.url).text


def test_check_of_a_part(cli: Cli, log: Scenario) -> None:
    read = 0
    for number in (1, 2):
        seen = cli("check", "--read-data-subset", f"{number}/2", "--remote", log.url, "--json")
        assert seen.code == 0
        read += seen.summary["data_bytes_read"]
    assert read == seen.summary["remote_bytes"]
    today = cli("check", "--read-data-subset", "5%", "--remote", log.url)
    assert (today.code, "of 20 of the segments" in today.err) == (0, True)
    for part in ("0/3", "4/3", "0%", "101%", "5", "a/b", "%"):
        assert cli("check", "--read-data-subset", part, "--remote", log.url).code == 2, part
    assert cli("check", "--read-data-subset", "5%", "--log-dir", str(log.directory)).code == 2


def test_check(cli: Cli, log: Scenario) -> None:
    both = ("--log-dir", log.directory, "--remote", log.url)
    clean = cli("check", *both)
    assert (clean.code, clean.text.splitlines()[-1]) == (0, "OK")
    flip(log.logs()[0], 400)
    seen = cli("check", *both, "--json")
    assert seen.code == seen.summary["exit_code"] == 13
    found = [each for each in seen.messages if each["message_type"] == "finding"]
    assert {each["code"] for each in found} == {"log_crc", "tiers_differ"}
    text = cli("check", *both, TOPIC)
    assert (text.code, "2 errors, 0 warnings" in text.text) == (13, True)


def test_restore(cli: Cli, log: Scenario, tmp_path: Path) -> None:
    dry = cli("restore", "--remote", log.url, "--log-dir", tmp_path / "new", "--dry-run")
    assert (dry.code, "dry run:" in dry.text, (tmp_path / "new").exists()) == (0, True, False)
    done = cli("restore", "--remote", log.url, "--log-dir", tmp_path / "new", "--json")
    assert (done.code, done.summary["segments"]) == (0, len(log.rows(0)) + len(log.rows(1)))
    assert cli("check", "--log-dir", tmp_path / "new", "--remote", log.url).code == 0
    assert cli("restore", "--remote", log.url, "--log-dir", tmp_path / "new").code == 2
    skipped = cli("restore", "--remote", log.url, "--log-dir", tmp_path / "new", "--if-empty", "--json")
    assert (skipped.code, skipped.summary["skipped"]) == (0, True)
    part = cli(
        "restore", f"{TOPIC}:1", "--remote", log.url, "--log-dir", tmp_path / "part", "--newest", "1KiB", "--json"
    ).summary
    assert [each["segments"] for each in part["partitions"]] == [0, 1]
    log.delete(log.index_key(log.rows()[0]))
    noted = cli("restore", "--remote", log.url, "--log-dir", tmp_path / "noted", "--json")
    assert (noted.code, len(noted.summary["warnings"])) == (3, 1)


def test_a_standby_is_pulled_looked_at_and_promoted(cli: Cli, log: Scenario, tmp_path: Path) -> None:
    standby = ("--remote", log.url, "--log-dir", tmp_path / "standby")
    assert cli("restore", *standby, "--promote").code == 2
    pulled = cli("restore", *standby, "--follow", "--once", "--json").summary
    assert pulled["segments"] == len(log.rows(0)) + len(log.rows(1))
    assert "0 segments" in cli("restore", *standby, "--follow", "--once").text
    seen = cli("status", *standby, "--json").summary["standby"]
    assert (seen["remote"], seen["late_records"], seen["late_seconds"]) == (log.url, 0, 0)
    rests = (("--follow", "--every", rest) for rest in ("0s", "5"))
    for refused in (("--follow", "--promote"), ("--once",), ("--follow", TOPIC), *rests):
        assert cli("restore", *standby, *refused).code == 2
    refused = cli("append", TOPIC, *standby)
    assert (refused.code, "--promote" in refused.err) == (2, True)
    done = cli("restore", *standby, "--promote", "--json").summary
    assert [each["end_offset"] for each in done["partitions"]] == [RECORDS, RECORDS]
    assert cli("status", *standby, "--json").summary["standby"] is None
    assert cli("restore", *standby, "--follow", "--once").code == 2


def test_doctor(cli: Cli, log: Scenario) -> None:
    seen = cli("doctor", "--log-dir", log.directory, "--remote", log.url, "--write-probe", "--json")
    states = {each["name"]: each["state"] for each in seen.summary["checks"]}
    assert {"fail"} & set(states.values()) == set()
    assert states["write"] == states["read"] == states["list"] == "ok"
    assert seen.summary["versions"]["python"] == sys.version.split()[0]
    assert {each["name"]: each["found"] for each in seen.summary["checks"]}["kernels"] == KERNELS_IN_USE
    assert "skip" in cli("doctor").text
    missing = cli("doctor", "--log-dir", log.directory / "nothing", "--json")
    assert (missing.code, missing.summary["checks"][2]["state"]) == (10, "fail")


def test_errors_are_json_too_and_a_summary_ends_the_run(cli: Cli, log: Scenario) -> None:
    failed = cli("cat", "flihgts", "--log-dir", log.directory, "--json")
    assert failed.code == 10
    assert [each["message_type"] for each in failed.messages] == ["error", "summary"]
    assert failed.messages[0]["hint"] == f"did you mean {TOPIC}?"
    assert failed.summary["exit_code"] == 10
    one = cli("topic", "show", "flihgts", "--segments", "--log-dir", log.directory, "--json")
    assert [each["message_type"] for each in one.messages] == ["error"]


def test_damage_met_while_reading_is_exit_code_13(cli: Cli, log: Scenario) -> None:
    flip(log.logs()[0], 400)
    seen = cli("cat", f"{TOPIC}:0", "--log-dir", log.directory, "--json")
    assert (seen.code, seen.summary["complete"], seen.messages[-2]["code"]) == (13, False, "corruption")
