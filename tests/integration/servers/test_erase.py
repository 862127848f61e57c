"""``tiered erase`` in one process on a real server whose bucket keeps versions: bucket, disk, old versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

import tiered
from tests.integration.servers.commands import S3Server
from tests.support.aws import run_lines
from tests.unit.cli.conftest import Cli, cli
from tiered.format.batch import decode_records

__all__ = ["cli"]

BUCKET = "versioned"
WHO = b"alice@example.org"


def holding(s3: Any, key: bytes) -> dict[str, set[bool]]:
    """Of every version of every object that holds a record of ``key``: its name, and whether it is the latest."""
    found: dict[str, set[bool]] = {}
    for version in s3.list_object_versions(Bucket=BUCKET).get("Versions", []):
        name = {"Key": version["Key"], "VersionId": version["VersionId"]}
        data, at = s3.get_object(Bucket=BUCKET, **name)["Body"].read(), 0
        while version["Key"].endswith(".log") and at < len(data):
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if any(record.key == key for record in decode_records(data[at:end])):
                found.setdefault(version["Key"], set()).add(version["IsLatest"])
            at = end
        assert version["Key"].endswith(".log") or key not in data
    return found


def test_nothing_holds_it_in_the_end(
    minio: S3Server, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in minio.credentials.items():
        monkeypatch.setenv(name, value)
    s3: Any = boto3.client("s3", endpoint_url=minio.url, region_name="us-east-1")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    url, log_dir = f"s3://{BUCKET}/log", tmp_path / "log"
    with tiered.open(log_dir, url, endpoint_url=minio.url, region="us-east-1") as log:
        topic = log.topic("users", create=True, config={"segment.bytes": 4000, "compression.type": "zstd"})
        for number in range(200):
            topic.append(b"%03d" % number + b"x" * 100, key=WHO if number % 50 == 7 else b"k%d" % (number % 9))
        log.sync(timeout=60)
    where = ("--remote", f"{url}?endpoint={minio.url}&region=us-east-1", "--log-dir", log_dir)
    before = holding(s3, WHO)
    assert len(before) == 4
    done = cli("erase", "users", "--key", WHO.decode(), "--now", "--yes", "--json", *where)
    assert (done.code, done.summary["proven"], done.summary["disk"][0]["records"]) == (3, True, 4)
    assert holding(s3, WHO) == {key: {False} for key in before}
    receipt = json.loads(s3.get_object(Bucket=BUCKET, Key=f"log/{done.summary['receipt']}")["Body"].read())
    assert len(receipt["noncurrent_versions"]) == 4
    run_lines(receipt["noncurrent_versions"], tmp_path)
    assert holding(s3, WHO) == {}
    assert cli("disk", "drop", "users", "--yes", *where).code == 0
    again = cli("erase", "users", "--key", WHO.decode(), "--yes", "--json", *where)
    assert (again.code, again.summary["disk"], again.summary["partitions"][0]["records_now"]) == (0, [], 0)
    with tiered.open_reader(url, log_dir=log_dir, endpoint_url=minio.url, region="us-east-1") as reader:
        offsets = [record.offset for record in reader.topic("users").read()]
    assert offsets == [number for number in range(200) if number % 50 != 7]
