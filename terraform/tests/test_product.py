"""The product itself, with each role's credentials, on a server that enforces the policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import BUCKET, Enforcing

import tiered
from tiered.errors import RemotePermissionError

REMOTE = f"s3://{BUCKET}/logs"
VALUES = [b"%04d" % number * 50 for number in range(200)]


@pytest.fixture
def become(enforcing: Enforcing, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Puts a role's credentials where SDKs look; returns the server's URL."""

    def role(name: str) -> str:
        access, secret = enforcing.keys[name]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        return enforcing.url

    return role


def write(folder: Path, url: str, topic_name: str) -> None:
    """Appends all values in small segments and waits until they are in the bucket."""
    with tiered.open(folder, remote=REMOTE, endpoint_url=url) as log:
        topic = log.topic(topic_name, create=True, config={"segment.bytes": 8192})
        for at in range(0, len(VALUES), 20):
            topic.append_many(VALUES[at : at + 20])
        log.sync(timeout=60)


def test_a_writer_writes_and_a_reader_reads(tmp_path: Path, become: Callable[[str], str]) -> None:
    write(tmp_path / "log", become("writer"), "orders")
    with tiered.open_reader(REMOTE, endpoint_url=become("reader")) as reader:
        assert "orders" in reader.topics()
        assert [record.value for record in reader.topic("orders").read()] == VALUES


def test_a_reader_cannot_write(tmp_path: Path, become: Callable[[str], str]) -> None:
    with pytest.raises(RemotePermissionError):
        write(tmp_path / "log", become("reader"), "stolen")


def test_a_writer_goes_on_after_a_restart(tmp_path: Path, become: Callable[[str], str]) -> None:
    url = become("writer")
    write(tmp_path / "log", url, "restarted")
    with tiered.open(tmp_path / "log", remote=REMOTE, endpoint_url=url) as log:
        log.topic("restarted").append(b"more")
        log.sync(timeout=60)
        assert log.topic("restarted").positions(0).uploaded_offset == len(VALUES) + 1
