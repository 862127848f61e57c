"""The sink on an S3 server: conditions, checksums and tags of a real protocol."""

from __future__ import annotations

import pytest

from tests.spark.staging import job_and_its_repetition, need_first_job_alone
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket


def test_a_job_and_its_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as endpoint:
        make_bucket(endpoint, "sink")
        need_first_job_alone(job_and_its_repetition("s3://sink/logs", endpoint))
