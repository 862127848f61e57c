"""A topic that exists: a program that names settings is held to these, and to no others."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.unit.cli.conftest import Cli
from tiered.config import TopicConfig
from tiered.errors import ConfigError

NAMED = {"seal.ms": 600_000}  # as the program says it; it is the default, too
WANTED = TopicConfig(segment_bytes=100_000)
ALTERED = ("retention.ms=90d", "local.retention.ms=1d")


@pytest.fixture(params=["disk", "both tiers", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, cli: Cli) -> tuple[Path, str | None]:
    """A log whose topic was made by the program and altered by an operator since; of ``bucket`` the disk is lost."""
    remote = None if request.param == "disk" else (tmp_path / "bucket").as_uri()
    with tiered.open(tmp_path / "log", remote=remote) as log:
        log.topic("t", create=True, config={**NAMED, "segment_bytes": 100_000}).append(b"1")
        if remote:
            log.sync(timeout=60)
    tiers = ("--log-dir", str(tmp_path / "log"), *(("--remote", remote) if remote else ()))
    assert cli("topic", "set", "t", *tiers, *ALTERED).code == 0
    return (tmp_path / "other" if request.param == "bucket" else tmp_path / "log"), remote


def test_the_library(place: tuple[Path, str | None]) -> None:
    for config in (NAMED, WANTED, {**NAMED, "segment.bytes": 100_000}, None):
        with tiered.open(place[0], remote=place[1]) as log:
            topic = log.topic("t", create=True, config=config)
            assert (topic.config.retention_ms, topic.config.segment_bytes) == (90 * 86_400_000, 100_000)
            topic.append(b"2")


def test_a_setting_that_is_named_is_compared_also_with_its_default(place: tuple[Path, str | None]) -> None:
    with tiered.open(place[0], remote=place[1]) as log:
        for config in ({"retention.ms": -1}, {"retention_ms": "1h"}, TopicConfig(retention_ms=3_600_000)):
            with pytest.raises(ConfigError, match=r"settings: retention\.ms is 7776000000, not -?\d+ ") as refused:
                log.topic("t", create=True, config=config)
            assert "leave config out" in refused.value.hint


def test_the_command_line(place: tuple[Path, str | None], cli: Cli) -> None:
    tiers = ("--log-dir", str(place[0]), *(("--remote", place[1]) if place[1] else ()), "--create")
    assert cli("append", "t", *tiers, "--set", "seal.ms=10m", stdin=b"2\n").code == 0
    refused = cli("append", "t", *tiers, "--set", "retention.ms=-1", stdin=b"3\n")
    assert (refused.code, refused.err.partition(";")[0].splitlines()[0]) == (
        2,
        "error: topic t exists with other settings: retention.ms is 7776000000, not -1",
    )
