"""The story, act by act. Each act hands what it learned to the next one and claims what it compared."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiered
from demo import picture, positions, tiers
from demo.flights import AIRCRAFT, FLIGHTS, TOPIC, flights
from demo.processes import Daemon, DemoError, Job
from demo.stage import Stage, without_java
from tiered.local.disk.uploader_files import JOURNAL_NAME

APPEND_TIMEOUT_S = 600
READ_TIMEOUT_S = 300
SPARK_TIMEOUT_S = 600
KILL_AFTER_BYTES = 25_000_000
WEEK_END_MS = 1_357_603_200_000  # 2013-01-08T00:00Z
NEW_RECORDS = 1_000


def play(stage: Stage) -> None:
    """All acts, in order."""
    _read_csv(stage)
    sampler = tiers.Sampler(stage.log_dir)
    sampler.start()
    try:
        _write(stage, sampler)
        _lose_disk(stage, sampler)
        _read_back(stage)
        _find(stage)
        _restore(stage, sampler)
    finally:
        sampler.close()
    java = "FAST=1 leaves Spark out" if stage.fast else without_java()
    delays = _pipeline(stage, java)
    landings = positions.play(stage, java)
    picture.draw(stage.output / "tiers.png", sampler, delays or stage.truth.delays, landings)
    (stage.output / "tiers.json").write_text(
        json.dumps([[round(s.seconds, 2), s.local_bytes, s.remote_bytes] for s in sampler.samples]) + "\n"
    )


def _read_csv(stage: Stage) -> None:
    with stage.report.progress("reading the CSV", FLIGHTS) as update:
        for at, flight in enumerate(flights(), 1):
            stage.truth.add(flight)
            if at % 10_000 == 0:
                update(at, FLIGHTS)
        update(FLIGHTS, FLIGHTS)
    stage.report.tell(
        f"read {stage.truth.digest.count:,} flights from the CSV; its checksum is what all else is compared with"
    )
    stage.report.claim(
        "the whole CSV is used",
        stage.truth.digest.count == FLIGHTS,
        f"{stage.truth.digest.count:,} of {FLIGHTS:,} rows",
    )


def _write(stage: Stage, sampler: tiers.Sampler) -> None:
    report = stage.report
    daemon = Daemon(
        stage.children, log_dir=stage.log_dir, remote=stage.place.url, endpoint_url=stage.place.endpoint_url
    )
    with report.progress("appending, uploading", FLIGHTS) as update:
        writer = Job(
            stage.children,
            ["demo.steps", "append", "--log-dir", str(stage.log_dir), *stage.where],
            name="append",
            progress=update,
        )
        _wait((stage.log_dir / "meta.properties").exists, writer, "the writer made no log directory")
        daemon.start()
        sampler.mark("daemon starts")
        caught = _kill_mid_upload(stage, daemon, writer, sampler)
        sampler.mark("SIGKILL")
        daemon.start()
        sampler.mark("daemon again")
        while writer.running:
            daemon.sample()
            time.sleep(0.1)
        result = writer.result(APPEND_TIMEOUT_S)
    sampler.mark("all committed")
    daemon.sample()
    status = daemon.stop()
    report.tell(
        f"one process appended {result['records']:,} records to 3 partitions while a daemon uploaded them; "
        f"the daemon was killed with SIGKILL {caught} and started again"
    )
    report.claim("the daemon was killed in the middle of an upload", caught != "between two uploads", caught)
    ends = {int(p): end for p, end in result["ends"].items()}
    report.claim(
        "everything appended is committed in the store",
        sum(ends.values()) == FLIGHTS and status == 0,
        f"committed ends {ends}, daemon's exit status {status}",
    )
    rate = result["records"] / result["append_calls_s"]
    megabytes = result["bytes"] / 1e6
    report.figure(
        "append",
        f"{rate:,.0f} records/s, {megabytes / result['append_calls_s']:.0f} MB/s inside append_many; "
        f"{result['synced_s']:.1f} s with pacing, from the first record to the last commit",
        records_per_s=rate,
        mb_per_s=megabytes / result["append_calls_s"],
        synced_s=result["synced_s"],
    )
    report.memory("the writer", result["peak_rss_bytes"])
    report.memory("the daemon", daemon.peak_rss_bytes)


def _wait(condition: Callable[[], bool], writer: Job, complaint: str, timeout_s: float = 180) -> None:
    deadline = time.perf_counter() + timeout_s
    while not condition():
        if not writer.running:
            writer.result(5)  # its own error, if it has one
            raise DemoError(complaint)
        if time.perf_counter() > deadline:
            raise DemoError(f"{complaint} within {timeout_s:.0f} s")
        time.sleep(0.02)


def _kill_mid_upload(stage: Stage, daemon: Daemon, writer: Job, sampler: tiers.Sampler) -> str:
    """Kills the daemon while its journal names an upload that is not settled; says what it was doing."""
    _wait(lambda: sampler.remote_bytes >= KILL_AFTER_BYTES, writer, "the daemon committed nothing")
    deadline = time.perf_counter() + 30
    while writer.running and time.perf_counter() < deadline:
        before = _open_uploads(stage.log_dir)
        if before:
            daemon.kill()
            still = _open_uploads(stage.log_dir)
            if still:
                return f"while uploading {Path(sorted(still)[0]).name}"
            daemon.start()
        time.sleep(0.002)
    daemon.kill()
    return "between two uploads"


def _open_uploads(log_dir: Path) -> set[str]:
    """Keys that the daemon's journal names as begun and not yet settled."""
    opened: set[str] = set()
    for line in (log_dir / JOURNAL_NAME).read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the last line, being written
        if entry.get("op") == "put":
            opened.add(entry["log"])
        elif entry.get("op") == "done":
            opened.discard(entry["log"])
    return opened


def _lose_disk(stage: Stage, sampler: tiers.Sampler) -> None:
    local, _ = tiers.local_and_committed_bytes(stage.log_dir)
    objects, size = stage.place.size()
    stage.report.figure(
        "tiers",
        f"{local / 1e6:.1f} MB of segments on disk; {objects} objects, {size / 1e6:.1f} MB in the store",
        local_bytes=local,
        remote_objects=objects,
        remote_bytes=size,
    )
    shutil.rmtree(stage.log_dir)
    sampler.mark("disk lost")
    stage.report.tell("the disk was lost: the whole log directory was deleted")


def _read_back(stage: Stage) -> None:
    with stage.report.progress("reading back from the store alone", FLIGHTS) as update:
        job = Job(stage.children, ["demo.steps", "read", *stage.where], name="read", progress=update)
        result = job.result(READ_TIMEOUT_S)
    truth = stage.truth.digest
    same = result["count"] == truth.count and result["checksum"] == truth.checksum
    stage.report.tell(f"read back {result['count']:,} records from the store alone and compared them with the CSV")
    stage.report.claim(
        "the store alone holds every record",
        same,
        f"count {result['count']:,}, checksum {result['checksum'][:12]}… = CSV",
    )
    seconds = result["seconds"]
    stage.report.figure(
        "read back",
        f"{result['count'] / seconds:,.0f} records/s, {result['bytes'] / 1e6 / seconds:.0f} MB/s, "
        f"requests: {_requests(result)}",
        records_per_s=result["count"] / seconds,
        mb_per_s=result["bytes"] / 1e6 / seconds,
        requests=result["requests"],
    )
    stage.report.memory("a full read", result["peak_rss_bytes"])


def _requests(result: dict[str, Any]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(result["requests"].items())) or "none"


def _find(stage: Stage) -> None:
    result = Job(stage.children, ["demo.steps", "find", *stage.where], name="find", progress=None).result(
        READ_TIMEOUT_S
    )
    expected = sorted((ts, value) for ts, value in stage.truth.aircraft)
    week = [(ts, value) for ts, value in expected if ts < WEEK_END_MS]
    year_same = [tuple(r) for r in result["year"]] == expected
    week_same = [tuple(r) for r in result["week"]] == week
    stage.report.tell(
        f"found aircraft {AIRCRAFT} by key: {len(expected)} flights in 2013, {len(week)} in the first week"
    )
    stage.report.claim(
        f"all flights of {AIRCRAFT}, by key and time",
        year_same and week_same and result["complete"],
        f"{len(result['year'])} in the year, {len(result['week'])} in a week that "
        f"read {result['scanned_bytes_week'] / 1e6:.1f} MB",
    )


def _restore(stage: Stage, sampler: tiers.Sampler) -> None:
    stage.tiered("--log-dir", str(stage.log_dir), "restore", timeout_s=120)
    sampler.mark("restored")
    with tiered.open(stage.log_dir, remote=stage.place.url, endpoint_url=stage.place.endpoint_url) as log:
        topic = log.topic(TOPIC)
        before = {p: topic.positions(p).end_offset for p in range(topic.partitions)}
        for at in range(NEW_RECORDS):
            topic.append(b'{"new":%d}' % at, key=b"new-%d" % at)
        log.sync(timeout=60)
        after = {p: topic.positions(p) for p in range(topic.partitions)}
        appended = sum(after[p].end_offset - before[p] for p in after)
        committed = all(pos.uploaded_offset == pos.end_offset for pos in after.values())
        total = sum(1 for p in after for _ in topic.read(p))
    sampler.mark("appended, synced")
    stage.report.tell("restored a local log from the bucket alone, appended to it and committed the new records")
    stage.report.claim(
        "a restored log continues where the store ended",
        sum(before.values()) == FLIGHTS and appended == NEW_RECORDS and committed and total == FLIGHTS + NEW_RECORDS,
        f"restored to {sum(before.values()):,}, appended {appended:,}, {total:,} records over both tiers",
    )


def _pipeline(stage: Stage, without: str) -> dict[tuple[str, int], tuple[int, int]] | None:
    claim = "Spark's mean delay by carrier and month"
    if without:
        stage.report.skip(claim, without)
        return None
    result = Job(stage.children, ["demo.pipeline", *stage.where], name="spark", progress=None).result(SPARK_TIMEOUT_S)
    groups = {(carrier, month): (total, count) for carrier, month, total, count, _ in result["groups"] if carrier}
    means = {(carrier, month): mean for carrier, month, _, _, mean in result["groups"] if carrier}
    truth = stage.truth.delays
    same = groups == truth and all(means[group] == total / count for group, (total, count) in truth.items())
    stage.report.tell(f"Spark computed {len(groups)} means over the log; each is compared with the CSV's own")
    stage.report.claim(claim, same, f"{len(groups)} groups, sums, counts and means equal the CSV's")
    stage.report.figure(
        "Spark",
        f"{result['seconds']:.1f} s, of which {result['session_s']:.1f} s to start the session",
        seconds=result["seconds"],
        session_s=result["session_s"],
    )
    return groups
