"""Jobs over a bucket of an S3 server, and exports into one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest

from tests.spark.jobs.building import inline, run
from tests.spark.jobs.lake import COUNT, Lake
from tiered.store.base import Get, Object, list_all
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.testing.moto import CREDENTIALS, make_bucket

__all__ = ["inline"]

BUCKET = "bulk"


SERVER = """
import sys
from tiered.testing.moto import locked_moto
with locked_moto() as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server in a process of its own: deltalake waits for it with Python's lock in its hands."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    with server, pytest.MonkeyPatch.context() as patch:
        url = server.stdout.readline().strip()
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        make_bucket(url, BUCKET)
        yield url
        server.stdin.close()


@pytest.fixture(scope="module")
def lake(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(BUCKET, endpoint)
    lake.fill(tmp_path_factory.mktemp("s3"))
    return lake


@pytest.fixture
def options(lake: Lake) -> tuple[str, ...]:
    return lake.options


def test_scrub_and_its_receipt(options: tuple[str, ...], inline: None) -> None:
    done = run("scrub", *options, "--task-bytes", "4KiB", "--job", "nightly")
    assert (done.code, done.done["errors"], done.done["remote_segments"] > 3) == (0, 0, True)
    again = run("scrub", *options, "--task-bytes", "4KiB", "--job", "nightly")
    assert again.summary == done.summary


def test_exports_into_a_bucket(options: tuple[str, ...], endpoint: str, inline: None) -> None:
    line = ("export", "flights", *options, "--format", "parquet", "--to", f"s3://{BUCKET}/lake", "--task-bytes", "3KiB")
    done = run(*line)
    assert (done.code, done.done["rows"]) == (0, 100), done.err
    assert run(*line).done["ranges"] == {}
    place = pafs.S3FileSystem(endpoint_override=endpoint, region="us-east-1")
    offsets = ds.dataset(f"{BUCKET}/lake", filesystem=place, format="parquet").to_table()["offset"]
    assert sorted(offsets.to_pylist()) == list(range(100))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_in_a_bucket(
    kind: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: None
) -> None:
    pytest.importorskip("deltalake")
    done = lake.export_twice_killed_once(kind, tmp_path, monkeypatch)
    assert (done.code, done.done["rows"], done.done["committed"]) == (0, COUNT, True), done.err
    assert lake.offsets(kind) == list(range(COUNT))
    assert lake.export(kind).done["ranges"] == {}
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in done.out + done.err


def test_maintenance(options: tuple[str, ...], inline: None) -> None:
    assert run("merge", *options).code == 0
    assert run("retention", *options).code == 0


def test_no_secret_is_told(options: tuple[str, ...], inline: None) -> None:
    run("scrub", *options, "--job", "told")
    store = open_store(options[1], endpoint_url=options[3], region="us-east-1")
    for entry in drive(store, list_all("jobs/told/")):
        found = store.execute(Get(entry.key))
        assert isinstance(found, Object)
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode() not in found.data
