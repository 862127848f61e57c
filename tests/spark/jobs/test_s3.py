"""The verbs over a bucket of an S3 server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import tiered
from tests.spark.jobs.building import inline, records, run
from tests.support.moto import CREDENTIALS, make_bucket
from tiered.spark.jobs.run import JobRunner, TaskCall, Work

__all__ = ["inline"]

BUCKET, REGION = "bulk", "us-east-1"

SERVER = """
import sys
from tests.support.moto import locked_moto
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
    """Options of a verb over a log of several segments."""
    url = f"s3://{BUCKET}/log"
    with tiered.open(tmp_path_factory.mktemp("s3"), url, endpoint_url=endpoint, region=REGION) as log:
        topic = log.topic("flights", create=True, config={"segment.bytes": 2000})
        for at in range(0, 100, 20):
            topic.append_many(records(at, 20))
        log.sync(timeout=60)
    return ("--remote", f"{url}?endpoint={endpoint}&region={REGION}", "--json")


def test_every_verb_but_the_export_without_a_secret(
    options: tuple[str, ...], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, seen = JobRunner._collect, list[str]()

    def noted(self: JobRunner, title: str, work: Work, tasks: Any) -> Any:
        rows = collect(self, title, work, tasks)
        seen.extend([repr(TaskCall(work, self.url, self.s3)), *map(json.dumps, tasks), *(text for _, text in rows)])
        return rows

    monkeypatch.setattr(JobRunner, "_collect", noted)
    checked = run("check", *options, "--task-bytes", "4KiB")
    assert (checked.code, checked.summary["errors"], checked.summary["remote_segments"] > 3) == (0, 0, True), (
        checked.err
    )
    assert run("maintain", *options, "--yes").code == 0
    erased = run("erase", "flights", "--key", "key-3", "--now", "--yes", *options)
    assert (erased.code, erased.summary["proven"]) == (0, True), erased.err
    assert all("--endpoint-url" in line for line in erased.summary["noncurrent_versions"])
    assert run("check", *options).code == 0
    assert seen
    assert not [text for text in seen if CREDENTIALS["AWS_SECRET_ACCESS_KEY"] in text]
