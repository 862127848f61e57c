"""The plan of `tiered cost` beside what a store counts for the same work; the report beside what a proxy counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.support.proxy import FaultProxy
from tiered.cli.main import run
from tiered.clock import SystemClock, SystemIds
from tiered.plan.cost import PRICES, Workload, plan_cost, price
from tiered.program.maintenance_loop import MaintenanceLoop
from tiered.read.topic import TopicReads
from tiered.store.base import StoreRequest
from tiered.store.directory import DirectoryStore
from tiered.store.location import open_store

RECORD = b"x" * 1000
BATCH_BYTES = 1071
"""One record in a batch of its own."""
ROUNDS = 66
SHAPES: dict[str, Workload] = {
    "sealed by time": Workload(1, 1000, seal_seconds=5),
    "eight partitions": Workload(8, 1000, partitions=8, seal_seconds=5),
    "sealed by size": Workload(10, 1000, seal_seconds=60, segment_bytes=10 * BATCH_BYTES, ratio=BATCH_BYTES / 1000),
    "two readers follow": Workload(1, 1000, seal_seconds=40, readers=2),
    "maintained": Workload(2, 1000, partitions=2, seal_seconds=4, maintain_every_seconds=8),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_is_within_five_percent_of_what_a_store_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = SHAPES[name]
    counted: Counter[str] = Counter()
    execute = DirectoryStore.execute

    def count(self: DirectoryStore, request: StoreRequest) -> Any:
        counted[type(request).__name__.lower()] += 1
        return execute(self, request)

    monkeypatch.setattr(DirectoryStore, "execute", count)
    url = f"file://{tmp_path / 'store'}"
    by_size = work.segment_bytes < work.seal_seconds * work.records_per_second * work.record_bytes
    every = work.segment_bytes / BATCH_BYTES / work.records_per_second if by_size else work.seal_seconds
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", partitions=work.partitions, create=True, config={"segment.bytes": work.segment_bytes})
        readers = [tiered.open_reader(url) for _ in range(work.readers)]
        followed: list[TopicReads] = []
        positions: Counter[tuple[int, int]] = Counter()
        loop = MaintenanceLoop(open_store(url), owner="m", clock=SystemClock(), ids=SystemIds())
        for number in range(ROUNDS):
            for partition in range(work.partitions):
                for _ in range(round(every * work.records_per_second / work.partitions)):
                    topic.append(RECORD, partition=partition)
            log.sync(timeout=60)
            followed = followed or [reader.topic("t") for reader in readers]
            for reader_number, each in enumerate(followed):
                for _ in range(4):  # looks in one interval, every ten seconds
                    for record in each.read(0, start=positions[reader_number, 0]):
                        positions[reader_number, 0] = record.offset + 1
            if work.maintain_every_seconds and number % 2:
                loop.turn()
        for reader in readers:
            reader.close()
    plan = plan_cost(work, ROUNDS * every)
    assert price(plan.requests) == pytest.approx(price(counted), rel=0.05), (plan.requests, counted)
    assert all(positions[number, 0] == ROUNDS * 40 for number in range(work.readers))


def test_prices_of_requests_by_kind() -> None:
    assert price({"put": 1_000_000, "get": 1_000_000, "delete": 9, "abortupload": 9}) == pytest.approx(5.40)
    assert price({"list": 1, "uploadpart": 1, "head": 1}) == 2 * PRICES.write + PRICES.read


def test_a_large_segment_goes_in_parts() -> None:
    plan = plan_cost(Workload(1, 100 * 2**20, seal_seconds=1, segment_bytes=2**30), 64)
    assert plan.requests == {"put": 129, "get": 64, "startupload": 64, "uploadpart": 448, "completeupload": 64}
    assert plan_cost(Workload(0, 1)).requests == {"put": 0, "get": 0}
    rare = plan_cost(Workload(2, 1000, partitions=4, seal_seconds=0.01), 64)  # no more segments than records
    assert (rare.requests, rare.segment_bytes) == ({"put": 386, "get": 128}, 1000)


@pytest.mark.parametrize(
    ("retention", "stored", "together"),
    [
        ((), "+2.4 GiB and $0.06 each month", "together: $0.07 a month, and $0.06 more each month"),
        (("--retention", "-1"), "+2.4 GiB and $0.06 each month", "together: $0.07 a month, and $0.06 more each month"),
        (("--retention", "7d"), "576.8 MiB stored", "together: $0.08 a month"),
    ],
)
def test_a_plan_repeats_its_inputs_and_states_what_it_keeps(
    capsys: pytest.CaptureFixture[str], retention: tuple[str, ...], stored: str, together: str
) -> None:
    assert run(["cost", "--records-per-second", "1", "--record-bytes", "1000", *retention]) == 0
    lines = capsys.readouterr().out.splitlines()
    kept = "7d" if "7d" in retention else "unlimited"
    assert lines[0] == (
        "for 1 record per second of 1000 B in 1 partition, seal 10m, segment 64MiB,"
        f" retention {kept}, 0 readers, ratio 1.0, maintained never"
    )
    assert lines[1].startswith(stored)
    assert lines[2].endswith(" PUT requests a month")
    assert lines[-2] == together


def test_the_report_has_the_requests_that_a_store_counted_and_its_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.integration.uploader.daemons import Daemon, call
    from tests.integration.uploader.logs import make_log

    make_log(tmp_path / "log", partitions=2)
    with locked_moto() as server, FaultProxy(server) as proxy:
        make_bucket(server, "logs")
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        place = ["--log-dir", str(tmp_path / "log"), "--remote", f"s3://logs/p?endpoint={proxy.url}"]
        with Daemon(*place, "--drain", "sealed", **CREDENTIALS) as daemon:
            daemon.wait_for("started")
            assert call("sync", *place, **CREDENTIALS).returncode == 0
            sent = Counter(one.method.lower() for one in proxy.seen)
            assert run(["cost", *place, "--json"]) == 0
            report = json.loads(capsys.readouterr().out)
            assert run(["cost", *place]) == 0
            text = capsys.readouterr().out
        assert report["requests"]["put"] == sent["put"]
        assert report["requests"]["get"] + report["requests"].get("list", 0) == sent["get"]
        assert report["request_dollars"] == pytest.approx(price(report["requests"]))
        listed = sum(each["bytes"] for each in report["bytes"] if each["kind"] == "segments")
        assert (report["live_segment_bytes"], report["garbage_bytes"]) == (listed, 0)
    assert re.search(r"^prices of \d{4}-\d\d-\d\d: ", text, re.MULTILINE)
    assert re.search(r"^\d+ PUT requests$", text, re.MULTILINE)
    assert re.search(r"^the daemon's requests in .*; too short to extrapolate to a month$", text, re.MULTILINE)
    assert report["request_month_dollars"] is None
    for wrong in (("--seal", "0s"), ("--seal", "10"), ("--retention", "-2d")):
        assert run(["cost", "--records-per-second", "10", *wrong]) == 2
