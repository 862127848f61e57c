"""The second act: the flights stream into a compacted topic of where each aircraft is.

A ``writeStream`` is killed in the middle of a batch and started again; the topic that it wrote is compacted and
exported to Parquet. The stream's records and the exported answer are compared with the CSV, value by value.
"""

from __future__ import annotations

import collections
import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import tiered
from demo.flights import PARTITIONS, POSITIONS
from demo.processes import Job
from demo.stage import Stage
from demo.store import Place
from tiered.format.keys import parse_staged_key, staged_stem

STREAM_TIMEOUT_S = 600
JOB_TIMEOUT_S = 600
READ_TIMEOUT_S = 90
COMMITTED_BEFORE_KILL = 2
"""Batches that the stream has committed when it is killed in the next one."""
SAMPLE_S = 0.25
_LOOPBACK = ("--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1")

_KILLED = "the stream was killed in the middle of a batch"
_ONCE = "the stream's topic holds each landing once"
_ANSWER = "the last position of each aircraft, compacted and exported"


@dataclass(slots=True)
class Landings:
    """What the picture shows. ``samples``: seconds since the act began, records in the topic of positions.

    ``aircraft``: how many aircraft landed last at an airport, by its code, as the export says.
    """

    samples: list[tuple[float, int]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)
    aircraft: dict[str, int] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)

    def sample(self, records: int) -> None:
        """Notes how many records there are now."""
        self.samples.append((time.perf_counter() - self._started, records))

    def mark(self, what: str) -> None:
        """Notes that ``what`` happened now."""
        self.marks.append((time.perf_counter() - self._started, what))


def play(stage: Stage, without: str) -> Landings | None:
    """The whole act; ``without``: why Spark cannot be used here, if it cannot. None then."""
    if without:
        for claim in (_KILLED, _ONCE, _ANSWER):
            stage.report.skip(claim, without)
        return None
    settings = ["--partitions", str(PARTITIONS), "--set", "cleanup.policy=compact"]
    stage.tiered("topic", "create", POSITIONS, *settings, timeout_s=READ_TIMEOUT_S)
    landings = Landings()
    landings.sample(0)
    stop = threading.Event()
    thread = threading.Thread(target=_sample, args=(stage.place, landings, stop), name="demo-positions", daemon=True)
    thread.start()
    try:
        _stream(stage, landings)
    finally:
        stop.set()
        thread.join()
    _compare_stream(stage)
    _compact(stage)
    landings.mark("compacted")
    rows = _export(stage)
    landings.samples.append((landings.marks[-1][0], len(rows)))  # so many since then: an export changes nothing
    landings.sample(len(rows))
    landings.mark("exported")
    _compare_answer(stage, rows)
    landings.aircraft = dict(collections.Counter(json.loads(value)["airport"] for _, _, value in rows))
    return landings


def _sample(place: Place, landings: Landings, stop: threading.Event) -> None:
    with tiered.open_reader(place.url, endpoint_url=place.endpoint_url) as reader:
        while not stop.wait(SAMPLE_S):
            landings.sample(sum(reader.topic(POSITIONS).end_offsets().values()))


def _stream(stage: Stage, landings: Landings) -> None:
    checkpoint = stage.scratch / "checkpoint"
    arguments = ["demo.stream", *stage.where, "--checkpoint", str(checkpoint)]
    with stage.report.progress("streaming positions", stage.truth.landed.count) as update:
        landings.mark("stream starts")
        first = Job(stage.children, arguments, name="stream", progress=None)
        caught = _kill_in_batch(stage, first, checkpoint)
        landings.mark("SIGKILL")
        committed = landings.samples[-1][1]
        second = Job(stage.children, arguments, name="stream", progress=None)
        landings.mark("stream again")
        while second.running:
            update(landings.samples[-1][1], stage.truth.landed.count)
            time.sleep(SAMPLE_S)
        result = second.result(STREAM_TIMEOUT_S)
    stage.report.tell(
        f"Spark streamed the flights that landed into the topic {POSITIONS}; its driver was killed with SIGKILL "
        f"{caught or 'between two batches'} and started again"
    )
    stage.report.claim(_KILLED, bool(caught), caught or "no batch was seen under way")
    stage.report.figure(
        "stream",
        f"{committed:,} records were committed before the kill; started again it read {result['records']:,} flights in "
        f"{len(result['batches'])} batches, {result['seconds']:.1f} s with the start of Spark",
        seconds=result["seconds"],
        records=result["records"],
    )


def _kill_in_batch(stage: Stage, job: Job, checkpoint: Path) -> str:
    """Kills the driver while a batch is staged and not done; says what it was doing, nothing if it ended before."""
    deadline = time.perf_counter() + STREAM_TIMEOUT_S
    while job.running and time.perf_counter() < deadline:
        if _under_way(stage.place, checkpoint):
            # It stands still while it is looked at again: what is true now is true when it dies.
            job.signal(signal.SIGSTOP)
            try:
                caught = _under_way(stage.place, checkpoint)
                if caught:
                    job.signal(signal.SIGKILL)
                    job.child.wait()
                    return caught
            finally:
                job.signal(signal.SIGCONT)
        time.sleep(0.005)
    job.result(1)
    return ""


def _under_way(place: Place, checkpoint: Path) -> str:
    """What the batch at hand has done, if it has staged segments and Spark has not noted it as done; else nothing."""
    begun, done = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    if len(done) < COMMITTED_BEFORE_KILL or begun <= done:
        return ""
    batch = max(begun)
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    stem = staged_stem(query, batch)
    staged = [key for key in map(parse_staged_key, place.keys()) if key is not None and key.uid.startswith(stem)]
    if not staged or batch in _numbers(checkpoint / "commits"):
        return ""
    return f"in batch {batch}, objects of which were in the store"


def _numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("*") if path.name.isdecimal()}


def _compare_stream(stage: Stage) -> None:
    job = Job(stage.children, ["demo.steps", "read", *stage.where, "--topic", POSITIONS], name="read", progress=None)
    result = job.result(READ_TIMEOUT_S)
    truth = stage.truth.landed
    stage.report.claim(
        _ONCE,
        result["count"] == truth.count and result["checksum"] == truth.checksum,
        f"count {result['count']:,}, checksum {result['checksum'][:12]}… = CSV",
    )


def _compact(stage: Stage) -> None:
    with _timed(stage, "compact"):
        words = ("maintain", POSITIONS, "--only", "compact", "--yes")
        stage.tiered("spark", *words, *_LOOPBACK, timeout_s=JOB_TIMEOUT_S)


def _export(stage: Stage) -> list[tuple[bytes, int, bytes]]:
    """Key, timestamp in ms and value of all records that the Parquet files hold."""
    import pyarrow as pa  # noqa: PLC0415  (heavy, and only here)
    from pyarrow import parquet  # noqa: PLC0415

    folder = stage.scratch / "export"
    target = ["--format", "parquet", "--to", folder.as_uri(), "--checkpoint", f"{folder.as_uri()}-checkpoint"]
    with _timed(stage, "export"):
        stage.tiered("spark", "export", POSITIONS, *target, *_LOOPBACK, timeout_s=JOB_TIMEOUT_S)
    table = parquet.read_table(folder, columns=["key", "timestamp", "value"])
    times = table["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    return list(zip(table["key"].to_pylist(), times.to_pylist(), table["value"].to_pylist(), strict=True))


@contextlib.contextmanager
def _timed(stage: Stage, verb: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    stage.report.figure(f"{verb} on Spark", f"{seconds:.1f} s with the start of Spark", seconds=seconds)


def _compare_answer(stage: Stage, rows: list[tuple[bytes, int, bytes]]) -> None:
    truth = stage.truth.positions
    answer = {key: (timestamp, value) for key, timestamp, value in rows}
    stage.report.tell(
        f"{POSITIONS} was compacted from {stage.truth.landed.count:,} records to {len(rows):,} and exported to Parquet"
    )
    stage.report.claim(
        _ANSWER,
        len(rows) == len(truth) and answer == truth,
        f"{len(rows):,} aircraft, time, airport, carrier and flight of each equal the CSV's",
    )
