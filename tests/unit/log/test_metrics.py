"""``log.metrics()``: figures of an open log in the vocabulary of the uploader's ``/metrics``."""

from __future__ import annotations

import re
from pathlib import Path

import tiered
from tiered.local.directory.log_directory import LocalLog
from tiered.metrics import HELP, Metric, metric, render
from tiered.model import NewRecord, TopicPartition
from tiered.testing.clock import FakeClock, SeededIds


def found(metrics: list[Metric], name: str, **labels: str) -> list[float]:
    return [m.value for m in metrics if m.name == f"tiered_{name}" and labels.items() <= dict(m.labels).items()]


def test_offsets_tasks_cleaner_and_requests(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path}/bucket") as log:
        topic = log.topic("t", partitions=2, create=True)
        for _ in range(3):
            topic.append(b"x", partition=1)
        log.flush()
        log.sync()
        metrics = log.metrics()
    assert found(metrics, "end_offset", topic="t") == [0, 3]
    assert found(metrics, "uploaded_offset", partition="1") == [3]
    assert found(metrics, "local_segments", topic="t") == [1, 2]
    assert found(metrics, "directory_offline") == [0]
    assert len(found(metrics, "task_runs_total")) == len({dict(m.labels).get("task") for m in metrics} - {None})
    assert found(metrics, "cleaner_uncleanable_partitions", log_dir=str(tmp_path / "log")) == [0]
    assert sum(found(metrics, "store_requests_total", op="put", status="landed")) >= 3
    assert found(metrics, "disk_free_bytes")[0] > 0
    text = render(metrics)
    assert "# TYPE tiered_task_runs_total counter\n" in text
    assert 'tiered_end_offset{topic="t",partition="1"} 3\n' in text


def test_a_partition_that_sleeps_tells_its_end(tmp_path: Path) -> None:
    for _ in range(2):
        with LocalLog.open(tmp_path, clock=FakeClock(), ids=SeededIds(1)) as log:
            if "t" not in log.topics():
                log.create_topic("t")
                log.partition(TopicPartition("t", 0)).append([NewRecord(b"x")] * 4)
            metrics = log.metrics()
    assert found(metrics, "directory_idle_partitions") == [1]
    assert found(metrics, "end_offset", topic="t") == found(metrics, "flushed_offset", topic="t") == [4]


def test_text_is_escaped_and_whole_numbers_are_whole() -> None:
    some = [metric("disk_free_bytes", 0.5, {"log_dir": 'C:\\x"\n'}), metric("store_slow_downs_total", 2.0)]
    assert render(some).splitlines() == [
        "# HELP tiered_disk_free_bytes Free bytes of the log directory's file system.",
        "# TYPE tiered_disk_free_bytes gauge",
        'tiered_disk_free_bytes{log_dir="C:\\\\x\\"\\n"} 0.5',
        "# HELP tiered_store_slow_downs_total Responses of the store that asked for fewer requests (503 SlowDown).",
        "# TYPE tiered_store_slow_downs_total counter",
        "tiered_store_slow_downs_total 2",
    ]
    assert some[1].as_json() == {"name": "tiered_store_slow_downs_total", "value": 2.0, "labels": {}}


def test_each_figure_has_a_help_text() -> None:
    sources = [path.read_text() for path in Path(tiered.__file__).parent.rglob("*.py")]
    names = {name for text in sources for name in re.findall(r'\bmetric\(\s*"(\w+)"', text)}
    assert names | {"disk_free_bytes", "disk_total_bytes"} == set(HELP)
