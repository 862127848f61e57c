"""An erasure of what the sink wrote, on MinIO; without a session."""

from __future__ import annotations

from tests.integration.servers.commands import BUCKET, S3Server
from tests.spark.jobs.building import inline, run
from tests.spark.staging import job_and_its_repetition, need_first_job_alone

__all__ = ["inline"]

REGION = "us-east-1"


def test_what_the_sink_wrote_is_erased(minio: S3Server, inline: None) -> None:
    place = f"s3://{BUCKET}/sink"
    need_first_job_alone(job_and_its_repetition(place, minio.url))
    options = ("--remote", f"{place}?endpoint={minio.url}&region={REGION}", "--json")
    scrubbed = run("check", *options)
    assert (scrubbed.code, scrubbed.summary["errors"], scrubbed.summary["remote_segments"]) == (0, 0, 6), scrubbed.err
    erased = run("erase", "flights", "--key", "first-7", "--now", "--yes", *options)
    assert (erased.code, erased.summary["proven"]) == (0, True), erased.err
    assert sum(each["records"] for each in erased.summary["partitions"]) == 3
    assert run("check", *options).summary["errors"] == 0
