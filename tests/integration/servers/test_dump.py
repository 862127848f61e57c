"""Our dump and Kafka's own dump tool, side by side over every kind of directory that we write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.servers.commands import require
from tests.integration.servers.commands import run as command
from tests.integration.servers.kafka_desk import Desk
from tests.integration.servers.kafka_kinds import KINDS
from tests.integration.servers.kafka_view import now_clock, open_for_writing
from tests.support.kafka_dump import print_as_kafka
from tiered.config import TopicConfig
from tiered.model import TopicPartition

SEGMENT_FILE = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)")
RUNS = (
    ("--print-data-log",),
    ("--deep-iteration",),
    (),
    ("--verify-index-only",),
    ("--index-sanity-check",),
    ("--print-data-log", "--skip-record-metadata", "--max-bytes", "3000"),
)
"""Options that both know."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two log directories, and a partition of every kind in them."""
    require("kafka")
    directory, clock = tmp_path_factory.mktemp("dump"), now_clock()
    topics = {name: TopicPartition(name, 0) for name in KINDS}
    with open_for_writing([directory / "a", directory / "b"], clock) as log:
        for name, kind in KINDS.items():
            log.create_topic(name, 1, TopicConfig.from_properties(kind.settings))
            kind.write(Desk(log, topics[name], clock))
    return directory


@pytest.mark.parametrize("flags", RUNS, ids=" ".join)
def test_both_tools_print_the_same(ours: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]) -> None:
    monkeypatch.chdir(ours)
    names = sorted(str(path.relative_to(ours)) for path in ours.rglob("*") if SEGMENT_FILE.fullmatch(path.name))
    assert len(names) > len(KINDS)
    theirs = command("kafka", "tool", "kafka.tools.DumpLogSegments", *flags, "--files", ",".join(names))
    code, printed, _ = print_as_kafka(*flags, "--files", ",".join(names))
    assert (code, printed.splitlines()) == (0, theirs.splitlines())
