"""The jobs that run as processes of their own, so that each one's memory is its own: ``python -m demo.steps JOB``.

Each prints JSON lines on stdout: ``{"progress": n, "total": m}`` while it works and ``{"result": {...}}`` at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tiered
from demo.flights import AIRCRAFT, FLIGHTS, PARTITIONS, TOPIC, Digest, flights
from tiered.model import NewRecord

BATCH_RECORDS = 500
"""Flights of one ``append_many`` call."""

PROGRESS_RECORDS = 10_000
SEGMENT_BYTES = 3 * 1024 * 1024
TEN_YEARS_MS = 10 * 365 * 86_400_000
PACE_RECORDS_PER_S = 30_000
"""The writer's pace: slow enough that the daemon uploads, dies and comes back while records still arrive."""


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def peak_rss_bytes(pid: int | str = "self") -> int:
    """High-water mark of a process's resident memory; 0 where the system does not tell (not Linux)."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def append(args: argparse.Namespace) -> dict[str, Any]:
    """Appends every flight to a topic with three partitions, then waits until the store has them all."""
    started = time.perf_counter()
    spent = 0.0
    size = done = 0
    # The flights are of 2013: by segment.ms (7 days of record time) each week would begin a segment of its own.
    config = {"segment.bytes": SEGMENT_BYTES, "segment.ms": TEN_YEARS_MS}
    with tiered.open(args.log_dir, remote=args.remote, endpoint_url=args.endpoint_url) as log:
        topic = log.topic(TOPIC, partitions=PARTITIONS, create=True, config=config)
        batch: list[NewRecord] = []

        def put() -> None:
            nonlocal spent, done
            before = time.perf_counter()
            topic.append_many(batch)
            spent += time.perf_counter() - before
            done += len(batch)
            batch.clear()
            if done % PROGRESS_RECORDS == 0:
                _say(progress=done, total=FLIGHTS)
            ahead = done / PACE_RECORDS_PER_S - (time.perf_counter() - started)
            if ahead > 0:
                time.sleep(ahead)

        for flight in flights():
            batch.append(NewRecord(flight.value, flight.key, flight.timestamp))
            size += len(flight.value) + len(flight.key or b"")
            if len(batch) == BATCH_RECORDS:
                put()
        if batch:
            put()
        _say(progress=done, total=FLIGHTS)
        log.flush()
        appended_s = time.perf_counter() - started
        log.sync(timeout=120)
        ends = {p: topic.positions(p).uploaded_offset for p in range(PARTITIONS)}
    return {
        "records": done,
        "bytes": size,
        "append_calls_s": spent,
        "appended_s": appended_s,
        "synced_s": time.perf_counter() - started,
        "ends": ends,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def read(args: argparse.Namespace) -> dict[str, Any]:
    """Reads every record of a topic of the store, with no local state, and adds up count and checksum."""
    started = time.perf_counter()
    digest = Digest()
    size = 0
    with tiered.open_reader(args.remote, endpoint_url=args.endpoint_url) as reader:
        topic = reader.topic(args.topic)
        for partition in range(topic.partitions):
            for expected, record in enumerate(topic.read(partition)):
                if record.offset != expected:
                    raise SystemExit(f"demo: partition {partition} continues at {record.offset}, not at {expected}")
                digest.add(record.key, record.timestamp, record.value)
                size += len(record.value or b"") + len(record.key or b"")
                if digest.count % PROGRESS_RECORDS == 0:
                    _say(progress=digest.count, total=FLIGHTS)
        requests = reader.requests()
    _say(progress=digest.count, total=digest.count)
    return {
        "count": digest.count,
        "checksum": digest.checksum,
        "bytes": size,
        "seconds": time.perf_counter() - started,
        "requests": requests,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def find(args: argparse.Namespace) -> dict[str, Any]:
    """Finds one aircraft's flights by key and time: all of 2013, then one week of January."""
    with tiered.open_reader(args.remote, endpoint_url=args.endpoint_url) as reader:
        year = reader.find(TOPIC, key=AIRCRAFT.encode(), since="2013-01-01T00:00Z", until="2014-01-02T00:00Z")
        found = sorted((r.timestamp, (r.value or b"").decode()) for r in year)
        week = reader.find(TOPIC, key=AIRCRAFT.encode(), since="2013-01-01T00:00Z", until="2013-01-08T00:00Z")
        in_week = sorted((r.timestamp, (r.value or b"").decode()) for r in week)
        return {
            "year": found,
            "week": in_week,
            "complete": year.report.complete and week.report.complete,
            "scanned_bytes_week": week.report.bytes_read,
            "requests": reader.requests(),
        }


def main() -> None:
    """Runs one job in this process."""
    parser = argparse.ArgumentParser(prog="demo.steps")
    parser.add_argument("job", choices=["append", "read", "find"])
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--remote", required=True)
    parser.add_argument("--endpoint-url", default=os.environ.get("TIERED_ENDPOINT_URL"))
    args = parser.parse_args()
    job = {"append": append, "read": read, "find": find}[args.job]
    _say(result=job(args))


if __name__ == "__main__":
    main()
