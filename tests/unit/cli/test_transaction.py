"""``tiered transaction``: by id, by partition, and an end for what hangs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.cli import cat
from tiered.local.directory.read_only_log import LogView
from tiered.model import NewRecord, TopicPartition
from tiered.plan.producer import ProducerStamp

TP = TopicPartition("orders", 0)


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    """One committed transaction, and one of an unknown coordinator that hangs at offset 2."""
    with tiered.open(tmp_path / "log") as log:
        orders = log.topic("orders", partitions=2, create=True)
        with orders.transaction("billing") as txn:
            txn.append(b"1", partition=0)
        orders.log(0).append_as_producer([NewRecord(b"hangs", timestamp=1_700_000_000_000)], ProducerStamp(77, 3, 0))
    return str(tmp_path / "log")


def test_ids_and_their_states(cli: Cli, log_dir: str) -> None:
    (listed,) = cli("transaction", "list", "--log-dir", log_dir, "--json").summary["transactions"]
    assert (listed["transactional_id"], listed["state"]) == ("billing", "COMPLETE_COMMIT")
    assert (listed["producer_epoch"], listed["timeout_ms"], listed["partitions"]) == (1, 60_000, [])
    assert "billing  COMPLETE_COMMIT" in cli("transaction", "list", "--log-dir", log_dir).text


def test_what_is_open_and_for_whom(cli: Cli, log_dir: str) -> None:
    (one,) = cli("transaction", "list", "--log-dir", log_dir, "--json").summary["open"]
    assert one == {
        "topic": "orders",
        "partition": 0,
        "producer_id": 77,
        "producer_epoch": 3,
        "first_offset": 2,
        "last_timestamp": 1_700_000_000_000,
        "transactional_id": None,
        "hangs": True,
    }
    assert "hangs" in cli("transaction", "list", "--log-dir", log_dir).text


def test_a_running_one_has_an_owner(cli: Cli, log_dir: str) -> None:
    with tiered.open(log_dir) as log:
        txn = log.topic("orders").transaction("busy")
        txn.append(b"2", partition=1)
        found = cli("transaction", "list", "--log-dir", log_dir, "--json").summary["open"]
        assert [(one["partition"], one["transactional_id"], one["hangs"]) for one in found] == [
            (0, None, True),
            (1, "busy", False),
        ]
        assert cli("transaction", "abort", "orders:0", "--producer-id", "77", "--yes", "--log-dir", log_dir).code == 11


def test_abort_ends_it_after_a_yes(cli: Cli, log_dir: str) -> None:
    words = ("transaction", "abort", "orders:0", "--producer-id", "77", "--log-dir", log_dir)
    assert cli(*words).code == 2
    assert cli(*words, "--dry-run", "--json").summary["dry_run"] is True
    with LogView.open(log_dir) as log:
        assert [txn.producer_id for txn in log.partition(TP).open_txns()] == [77]
        assert log.partition(TP).last_stable_offset() == 2
    assert cli(*words, "--yes").code == 0
    with LogView.open(log_dir) as log:
        partition = log.partition(TP)
        assert (partition.open_txns(), partition.last_stable_offset()) == ([], 4)
        assert [(t.producer_id, t.first_offset, t.last_offset) for t in partition.aborted_txns(0, 4)] == [(77, 2, 3)]
    assert cli(*words, "--yes").code == 10


def test_abort_of_what_the_coordinator_knows(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with tiered.open(path) as log:
        txn = log.topic("t", create=True).transaction("busy")
        txn.append(b"v")
        log.flush()
        shutil.copytree(path, tmp_path / "killed")  # as a kill leaves it
    killed = str(tmp_path / "killed")
    (one,) = cli("transaction", "list", "--log-dir", killed, "--json").summary["open"]
    words = ("transaction", "abort", "t:0", "--producer-id", str(one["producer_id"]), "--log-dir", killed)
    for _ in range(2):  # a dry run settles nothing
        planned = cli(*words, "--dry-run", "--json").summary
        assert (planned["transactional_id"], planned["hangs"], planned["dry_run"]) == ("busy", False, True)
    assert "opening the log for writing may settle it" in cli(*words, "--dry-run").text
    assert "was settled by its coordinator" in cli(*words, "--yes").text
    assert cli(*words, "--yes").code == 10
    with tiered.open(killed) as log:
        assert list(log.topic("t").read(isolation="read_committed")) == []


def test_the_state_log_is_not_cut_or_deleted(cli: Cli, log_dir: str) -> None:
    for words in (("topic", "delete", "__transaction_state"), ("disk", "truncate", "__transaction_state:0", "0")):
        done = cli(*words, "--yes", "--log-dir", log_dir)
        assert (done.code, "is internal" in done.err) == (2, True)
    assert len(cli("transaction", "list", "--log-dir", log_dir, "--json").summary["transactions"]) == 1


def test_nothing_and_nowhere(cli: Cli, tmp_path: Path) -> None:
    assert cli("transaction", "list", "--log-dir", str(tmp_path / "none")).code == 10
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True)
    path = str(tmp_path / "log")
    assert cli("transaction", "list", "--log-dir", path, "--json").summary["transactions"] == []
    assert cli("transaction", "list", "--log-dir", path).code == 0
    assert cli("transaction", "abort", "t:0", "--producer-id", "1", "--log-dir", path, "--yes").code == 10
    assert cli("transaction", "abort", "nope:0", "--producer-id", "1", "--log-dir", path, "--yes").code == 10


def test_status_waits_for_no_upload_of_the_state_log(cli: Cli, tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    with tiered.open(tmp_path / "log", url) as log:
        with log.topic("t", create=True).transaction("x") as txn:
            txn.append(b"v")
        log.sync(timeout=60)
    done = cli("status", "--log-dir", str(tmp_path / "log"), "--remote", url, "--json")
    by_topic = {entry["topic"]: entry for entry in done.summary["partitions"]}
    state = by_topic["__transaction_state"]
    assert (state["internal"], state["lag_records"], state["local"]["only_here"]) == (True, 0, 0)
    assert (by_topic["t"]["internal"], by_topic["t"]["lag_records"]) == (False, 0)
    assert done.summary["notes"] == []
    assert cli("status", "--log-dir", str(tmp_path / "log"), "--remote", url).text.splitlines()[0] == "safe"


@pytest.fixture
def marked(tmp_path: Path) -> tuple[str, ...]:
    """Offsets 0 to 19 hold records, then one is aborted twenty times: its record, its marker; all in both tiers."""
    url = f"file://{tmp_path / 'bucket'}"
    with tiered.open(tmp_path / "d", url) as log:
        topic = log.topic("t", create=True)
        topic.append_many([b"%d" % number for number in range(20)])
        for number in range(20, 40):
            txn = topic.transaction("tx")
            txn.append(b"%d" % number)
            txn.abort()
        log.sync(timeout=60)
    return "--remote", url


@pytest.mark.parametrize("number", [1, 12, 20, 21])
def test_the_last_records_are_as_many_as_were_asked_for(
    cli: Cli, tmp_path: Path, marked: tuple[str, ...], number: int
) -> None:
    line = ("cat", "t", "--last", f"{number}", "--isolation")
    for place in (marked, ("--log-dir", tmp_path / "d"), ("--log-dir", tmp_path / "d", *marked)):
        seen = cli(*line, "read_committed", *place)
        assert (seen.code, seen.err) == (0, "")
        assert [int(value) for value in seen.text.split()] == list(range(20))[-number:]
        assert [int(value) for value in cli(*line, "read_uncommitted", *place).text.split()] == list(range(40))[
            -number:
        ]


def test_an_open_transaction_hides_none_of_the_last_records(cli: Cli, tmp_path: Path) -> None:
    with tiered.open(tmp_path / "d") as log:
        topic = log.topic("t", create=True)
        topic.append_many([b"1", b"2", b"3"])
        topic.transaction("tx").append_many([b"open"] * 50)
        topic.append(b"behind")
        log.flush()
        seen = cli("cat", "t", "--last", "2", "--log-dir", tmp_path / "d", "--isolation", "read_committed")
        assert seen.text == "2\n3\n"


def test_how_far_the_last_records_are_looked_for_is_bounded_and_said(
    cli: Cli, tmp_path: Path, marked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cat, "LOOK_BACK_OFFSETS", 37)
    for place in (marked, ("--log-dir", tmp_path / "d")):
        seen = cli("cat", "t", "--last", "6", "--isolation", "read_committed", *place)
        assert seen.text == "17\n18\n19\n"
        assert seen.err == (
            "warning: t-0: 3 records among the last 43 offsets; the search went no further back: "
            "`tiered cat t:0 --from OFFSET` reads from there on\n"
        )
    monkeypatch.setattr(cat, "LOOK_BACK_OFFSETS", 40)
    seen = cli("cat", "t", "--last", "3", "--isolation", "read_committed", *marked)
    assert (seen.text, seen.err) == ("17\n18\n19\n", "")


def test_damage_further_back_leaves_the_last_records(cli: Cli, tmp_path: Path, marked: tuple[str, ...]) -> None:
    path = tmp_path / "d" / "t-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1  # in the batch of the twenty
    path.write_bytes(data)
    seen = cli("cat", "t", "--last", "25", "--log-dir", tmp_path / "d")
    assert [int(value) for value in seen.text.split()] == list(range(28, 40))
    assert "looked back to offset 35 for the last 25 records" in seen.err
