"""What a bench reads out of Spark's event log."""

from __future__ import annotations

import json

from bench.forecast import shuffled_bytes


def test_what_all_tasks_wrote_into_shuffles_is_added_up_and_nothing_else() -> None:
    def ended(shuffle: dict[str, int]) -> dict[str, object]:
        return {"Event": "SparkListenerTaskEnd", "Task Metrics": {"Shuffle Write Metrics": shuffle}}

    events: list[dict[str, object]] = [
        {"Event": "SparkListenerApplicationStart"},
        ended({"Shuffle Bytes Written": 100, "Shuffle Records Written": 7}),
        {"Event": "SparkListenerStageCompleted", "Shuffle Bytes Written": 1000},
        {"Event": "SparkListenerTaskEnd"},
        ended({"Shuffle Bytes Written": 23}),
    ]
    assert shuffled_bytes(map(json.dumps, events)) == 123
