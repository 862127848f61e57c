"""``tiered erase``: planned, done, proven, on a log with transactions and compressed batches."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.admin import check
from tests.unit.cli.conftest import Cli
from tiered.check.check import CheckOptions
from tiered.errors import ConfigError
from tiered.model import TopicPartition
from tiered.plan.erasure import Selection
from tiered.program.application import Application
from tiered.program.erasure import selection_of
from tiered.store.base import Get, Object
from tiered.store.location import StoreLocation

SETTINGS = {"segment.bytes": 1500, "compression.type": "zstd"}


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """Topic t with two partitions: plain records, a transaction that was committed and one that was aborted."""
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, partitions=2, config=SETTINGS)
        for number in range(120):
            topic.append(b"plain %03d" % number + b"x" * 40, key=b"key %d" % (number % 5), partition=number % 2)
        for ends in ("commit", "abort"):
            try:
                with topic.transaction("till") as txn:
                    for number in range(30):
                        value = b"%s %02d" % (ends.encode(), number) + b"y" * 40
                        txn.append(value, key=b"key %d" % (number % 5), partition=number % 2)
                    if ends == "abort":
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        for number in range(20):
            topic.append(b"last %02d" % number + b"z" * 40, key=b"key %d" % (number % 5), partition=number % 2)
        log.sync(timeout=60)
    return url


def read(url: str, isolation: str) -> dict[tuple[int, int], tuple[bytes | None, bytes | None, int]]:
    with tiered.open_reader(url) as reader:
        topic = reader.topic("t")
        return {
            (number, record.offset): (record.key, record.value, record.timestamp)
            for number in range(2)
            for record in topic.read(number, isolation=isolation)
        }


def named(**asked: Any) -> Selection:
    """What these options choose."""
    nothing = {"keys": (), "file": None, "prefixes": (), "as_hex": False, "before": None}
    return selection_of(Application({}), **{**nothing, **asked})


def without(found: dict[Any, Any], key: bytes) -> dict[Any, Any]:
    return {at: held for at, held in found.items() if held[0] != key}


def test_a_key_leaves_both_partitions_and_nothing_else_changes(cli: Cli, bucket: str, tmp_path: Path) -> None:
    before = {isolation: read(bucket, isolation) for isolation in ("read_committed", "read_uncommitted")}
    command = ("erase", "t", "--key", "key 3", "--remote", bucket)
    plan = cli(*command, "--dry-run", "--json").summary
    goes = sum(held[0] == b"key 3" for held in before["read_uncommitted"].values())
    assert sum(one["records"] for one in plan["partitions"]) == goes
    assert {isolation: read(bucket, isolation) for isolation in before} == before
    assert cli(*command).code == 2  # nobody can answer
    done = cli(*command, "--now", "--yes", "--json")
    assert (done.code, done.summary["proven"]) == (0, True)
    assert sum(one["records_now"] for one in done.summary["partitions"]) == goes
    for isolation, found in before.items():
        assert read(bucket, isolation) == without(found, b"key 3")
    receipts = [receipt_of(bucket, key) for key in done.summary["receipts"]]
    assert [[one["partition"] for one in receipt["partitions"]] for receipt in receipts] == [[0], [1]]
    for receipt in receipts:
        assert receipt["job"] == done.summary["job"]
        assert receipt["asked"]["keys"] != ["key 3"]
        assert "key 3" not in json.dumps(receipt)
    with contextlib.closing(StoreLocation.parse(bucket).open()) as store:
        report = check(None, store, CheckOptions(read_data=True))
    assert (report.errors, report.warnings) == (0, 0)
    again = cli(*command, "--yes", "--json").summary
    assert (again["job"], again["proven"]) == (done.summary["job"], True)
    assert sum(one["records_now"] for one in again["partitions"]) == 0
    assert sum(one["records"] for one in again["partitions"]) == goes
    directory = tmp_path / "restored"
    assert cli("restore", "--remote", bucket, "--log-dir", directory).code == 0
    with tiered.open_reader(log_dir=directory) as reader:
        held = {(n, r.offset): (r.key, r.value, r.timestamp) for n in range(2) for r in reader.topic("t").read(n)}
    assert held == without(before["read_uncommitted"], b"key 3")


def receipt_of(url: str, key: str) -> dict[str, Any]:
    with contextlib.closing(StoreLocation.parse(url).open()) as store:
        found = store.execute(Get(key))
    assert isinstance(found, Object)
    return json.loads(found.data)  # type: ignore[no-any-return]


def test_a_snapshot_and_words_that_are_wrong(cli: Cli, bucket: str, tmp_path: Path) -> None:
    assert cli("snapshot", "create", "kept", "t", "--remote", bucket).code == 0
    refused = cli("erase", "t:0", "--key", "key 3", "--now", "--remote", bucket, "--yes")
    assert refused.code == 2
    assert "is held by snapshot kept" in refused.err
    held = cli("erase", "t:0", "--key", "key 3", "--remote", bucket, "--yes", "--json")
    assert held.code == 3
    assert {each["why"] for each in held.summary["partitions"][0]["left"]} == {"held by snapshot kept"}
    for wrong in (
        ("t",),
        ("t", "--key", "xyz", "--hex"),
        ("t", "--keys", str(tmp_path / "none")),
        ("t", "--key-prefix", ""),
    ):
        assert cli("erase", *wrong, "--remote", bucket, "--yes").code == 2, wrong
    assert cli("erase", "nothing", "--key", "a", "--remote", bucket, "--yes").code == 10


def test_keys_of_a_file_prefixes_hex_and_times(cli: Cli, bucket: str, tmp_path: Path) -> None:
    before = read(bucket, "read_uncommitted")
    (tmp_path / "gone.txt").write_text("key 0\nkey 2\n")
    assert cli("erase", "t", "--keys", tmp_path / "gone.txt", "--now", "--remote", bucket, "--yes").code == 0
    left = without(without(before, b"key 0"), b"key 2")
    assert read(bucket, "read_uncommitted") == left
    assert cli("erase", "t", "--key", b"key 4".hex(), "--hex", "--now", "--remote", bucket, "--yes").code == 0
    left = without(left, b"key 4")
    assert read(bucket, "read_uncommitted") == left
    early = ("erase", "t", "--key-prefix", "key", "--to", "2001-01-01T00:00:00Z", "--remote", bucket, "--yes")
    assert cli(*early).code == 0
    assert read(bucket, "read_uncommitted") == left
    assert cli("erase", "t", "--key-prefix", "key", "--now", "--remote", bucket, "--yes").code == 0
    assert read(bucket, "read_uncommitted") == {}
    with tiered.open_reader(bucket) as reader:
        assert reader.topic("t").end_offsets()[TopicPartition("t", 0)] > 80


def test_what_the_disk_still_holds_is_counted(cli: Cli, bucket: str, tmp_path: Path) -> None:
    """Its sealed segments go by local retention, once the bucket has them; the tail stays, and is told."""
    both = ("--remote", bucket, "--log-dir", tmp_path / "log")
    with tiered.open_reader(log_dir=tmp_path / "log") as reader:
        offsets = {n: [r.offset for r in reader.topic("t").read(n) if r.key == b"key 3"] for n in range(2)}
    expected = [
        {"partition": n, "records": len(found), "from": found[0], "to": found[-1] + 1} for n, found in offsets.items()
    ]
    plan = cli("erase", "t", "--key", "key 3", *both, "--dry-run", "--json").summary
    assert plan["disk"] == expected
    done = cli("erase", "t", "--key", "key 3", "--now", *both, "--yes", "--json")
    assert (done.code, done.summary["proven"], done.summary["disk"]) == (3, True, expected)
    assert [receipt_of(bucket, key)["disk"] for key in done.summary["receipts"]] == [[one] for one in expected]
    one = cli("erase", "t:1", "--key", "key 3", *both, "--dry-run", "--json").summary["disk"]
    assert one == expected[1:]
    assert cli("erase", "t", "--key", "nobody", *both, "--yes").code == 0


def test_a_damaged_partition_of_the_disk_hinders_no_erasure(cli: Cli, bucket: str, tmp_path: Path) -> None:
    """No other partition is read. The report of this one says that it was not counted to its end."""
    segment = sorted((tmp_path / "log" / "t-1").glob("*.log"))[0]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    both = ("--remote", bucket, "--log-dir", tmp_path / "log")
    other = cli("erase", "t:0", "--key", "key 3", *both, "--dry-run", "--json")
    assert (other.code, [one["partition"] for one in other.summary["disk"]]) == (0, [0])
    assert "damaged" not in other.summary["disk"][0]
    plan = cli("erase", "t", "--key", "key 3", *both, "--dry-run", "--json")
    assert (plan.code, ["damaged" in one for one in plan.summary["disk"]]) == (0, [False, True])
    assert "partition 1 was not counted to its end" in cli("erase", "t:1", "--key", "key 3", *both, "--dry-run").text
    done = cli("erase", "t:1", "--key", "nobody", "--now", *both, "--yes", "--json")
    assert (done.code, done.summary["proven"], "damaged" in done.summary["disk"][0]) == (3, True, True)


def test_a_file_of_keys_that_is_empty_erases_nothing(cli: Cli, bucket: str, tmp_path: Path) -> None:
    """With ``--before`` it named no key, which means every one: all that was older went."""
    before = read(bucket, "read_uncommitted")
    line = ("erase", "t", "--keys", tmp_path / "gone.txt", "--to", "2100-01-01T00:00:00Z")
    for text in ("", "\n\r\n \n", "\ufeff\n"):
        (tmp_path / "gone.txt").write_text(text, "utf-8")
        refused = cli(*line, "--now", "--remote", bucket, "--yes")
        assert (refused.code, "names no key" in refused.err) == (2, True), refused.text
        assert read(bucket, "read_uncommitted") == before
    done = cli(*line, "--key", "key 1", "--now", "--remote", bucket, "--yes")
    assert (done.code, read(bucket, "read_uncommitted")) == (0, without(before, b"key 1"))


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"\xef\xbb\xbfkey 0\r\n\r\nkey 2", {b"key 0", b"key 2"}),
        (
            "key 0\u2028x\nkey 2\x85\n\x0c3\x1c\n".encode(),
            {"key 0\u2028x".encode(), "key 2\x85".encode(), b"\x0c3\x1c"},
        ),
        (b"key 0 \rkey 2\r", {b"key 0 ", b"key 2"}),
        (b"\n  \nkey 0\n\t\n", {b"key 0"}),
    ],
)
def test_a_line_of_a_file_is_one_key(data: bytes, keys: set[bytes], tmp_path: Path) -> None:
    """A key that held U+2028 or U+0085 was two: records of other keys went, and its own stayed, as did those of the
    first key of a file that an editor began with a byte order mark."""
    (tmp_path / "gone.txt").write_bytes(data)
    assert named(file=tmp_path / "gone.txt").keys == keys


def test_bytes_of_a_shell_and_a_file_that_is_no_utf_8(tmp_path: Path) -> None:
    assert named(keys=["k\udcff"]).keys == {b"k\xff"}
    (tmp_path / "gone.txt").write_text("key 0\n", "utf-16")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 0"):
        named(file=tmp_path / "gone.txt")
