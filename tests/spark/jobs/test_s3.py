"""Jobs over a bucket of an S3 server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import tiered
from tests.spark.jobs.building import inline, records, run
from tiered.store.base import Get, Object, list_all
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.testing.moto import CREDENTIALS, make_bucket

__all__ = ["inline"]

BUCKET, REGION = "bulk", "us-east-1"

SERVER = """
import sys
from tiered.testing.moto import locked_moto
with locked_moto() as url:
    print(url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server in a process of its own: no lock of this one can keep it from answering."""
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
def options(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Of a job over a log of several segments."""
    url = f"s3://{BUCKET}/log"
    with tiered.open(tmp_path_factory.mktemp("s3"), url, endpoint_url=endpoint, region=REGION) as log:
        topic = log.topic("flights", create=True, config={"segment.bytes": 2000})
        for at in range(0, 100, 20):
            topic.append_many(records(at, 20))
        log.sync(timeout=60)
    return ("--remote", url, "--endpoint-url", endpoint, "--region", REGION, "--json")


def test_scrub_and_its_receipt(options: tuple[str, ...], inline: None) -> None:
    done = run("scrub", *options, "--task-bytes", "4KiB", "--job", "nightly")
    assert (done.code, done.done["errors"], done.done["remote_segments"] > 3) == (0, 0, True)
    again = run("scrub", *options, "--task-bytes", "4KiB", "--job", "nightly")
    assert again.summary == done.summary


def test_maintenance(options: tuple[str, ...], inline: None) -> None:
    assert run("merge", *options).code == 0
    assert run("retention", *options).code == 0


def test_no_secret_is_told(options: tuple[str, ...], inline: None) -> None:
    run("scrub", *options, "--job", "told")
    store = open_store(options[1], endpoint_url=options[3], region=REGION)
    for entry in drive(store, list_all("jobs/told/")):
        found = store.execute(Get(entry.key))
        assert isinstance(found, Object)
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode() not in found.data
