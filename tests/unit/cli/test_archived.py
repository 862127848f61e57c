"""Segments that a lifecycle rule has moved to an archive: readers and ``check`` say so, and how to get them back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import tiered
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.unit.cli.conftest import Cli
from tiered import aio
from tiered.errors import RemotePermissionError

REMOTE = "s3://archived/p"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The key of the one segment of a log, or of its other object, after that was moved to GLACIER."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as url:
        make_bucket(url, "archived")
        monkeypatch.setenv("TIERED_ENDPOINT_URL", url)
        with tiered.open(tmp_path / "log", REMOTE) as log:
            log.topic("t", create=True).append(b"v")
            log.sync()
        s3: Any = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
        keys = [item["Key"] for item in s3.list_objects_v2(Bucket="archived")["Contents"]]
        (found,) = [each for each in keys if each.endswith(getattr(request, "param", ".log"))]
        place = {"Bucket": "archived", "Key": found}
        s3.copy_object(**place, CopySource=place, StorageClass="GLACIER", MetadataDirective="COPY")
        yield found
        for each in keys:  # the server outlives the test
            s3.delete_object(Bucket="archived", Key=each)


def test_an_archived_segment_is_named_with_the_way_back(cli: Cli, key: str) -> None:
    words = ["is archived (GLACIER", f"aws s3api restore-object --bucket archived --key {key}"]
    with tiered.open_reader(REMOTE) as reader, pytest.raises(RemotePermissionError) as sync:
        list(reader.topic("t").read())

    async def read() -> None:
        async with aio.open_reader(REMOTE) as reader:
            async for _ in (await reader.topic("t")).read():
                pass

    with pytest.raises(RemotePermissionError) as on_the_loop:
        asyncio.run(read())
    for error in (sync.value, on_the_loop.value):
        assert [word in str(error) for word in words] == [True, True]
        assert "grant" not in str(error)
    for options in ([], ["--read-data"]):
        seen = cli("check", "--remote", REMOTE, *options, "--json")
        assert (seen.code, seen.summary["archived"]) == (3, {"GLACIER": 1})
    assert "archived: 1 segment of storage class GLACIER" in cli("check", "--remote", REMOTE).text


@pytest.mark.parametrize("key", [".idx"], indirect=True)
def test_an_archived_index_is_a_finding_of_its_segment_alone(cli: Cli, key: str) -> None:
    for options in ([], ["--read-data"]):
        seen = cli("check", "--remote", REMOTE, *options, "--json")
        assert (seen.code, seen.summary["archived"], seen.summary["errors"]) == (3, {"GLACIER": 1}, 0)
        (found,) = [each for each in seen.messages if each["message_type"] == "finding"]
        index = key.removeprefix("p/")
        assert found["message"].startswith(f"the index bundle {index} is archived (GLACIER), no reader gets it")


@pytest.mark.parametrize("key", [".log", ".idx"], indirect=True)
def test_what_needs_an_archived_object_says_so(cli: Cli, key: str, tmp_path: Path) -> None:
    for line in (("restore", "--log-dir", tmp_path / "new"), ("erase", "t", "--key", "k", "--dry-run")):
        if line[0] == "erase" and key.endswith(".idx"):
            continue  # the plan reads segments alone
        seen = cli(*line, "--remote", REMOTE)
        assert (seen.code, len(seen.err.splitlines())) == (12, 2), line
        assert f"{key} is archived (GLACIER" in seen.err
        assert f"next: restore it: aws s3api restore-object --bucket archived --key {key} " in seen.err
    for line in (("status",), ("topic", "show", "t", "--segments"), ("topic", "show", "t")):
        assert cli(*line, "--remote", REMOTE).code == 0, line
