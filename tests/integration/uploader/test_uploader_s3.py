"""The whole way over HTTP: aiobotocore against a server that speaks S3, in parts of which one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.uploader.daemons import call
from tests.integration.uploader.logs import T0, judge, make_log, open_log
from tests.integration.uploader.stores import Hasty
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.support.proxy import Fault, FaultKind, FaultProxy
from tiered.engine.drain import DrainMode
from tiered.format.batch import encode_batch
from tiered.model import NewRecord
from tiered.store.base import MIN_PART_BYTES
from tiered.store.location import StoreLocation
from uploader.config import Settings
from uploader.service import Service, ServicePlace


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as url:
        make_bucket(url, "logs")
        yield url


@pytest.mark.parametrize(("status", "code", "slow_downs"), [(503, "SlowDown", 3), (500, "InternalError", 0)])
async def test_a_part_that_is_refused_is_sent_again_alone(
    tmp_path: Path, endpoint: str, status: int, code: str, slow_downs: int
) -> None:
    with open_log(tmp_path / "log") as log:
        log.create_topic("t", 1)
        for _ in range(12):
            log.partition(T0).append_batches(encode_batch([NewRecord(b"v" * 1_000_000, timestamp=1)]))
    settings = Settings(http=None, multipart_above=MIN_PART_BYTES, part_size=MIN_PART_BYTES)
    with FaultProxy(endpoint) as proxy:
        remote = f"s3://logs/refused-{status}"
        place = ServicePlace(tmp_path / "log", StoreLocation.parse(remote, endpoint_url=proxy.url))
        fault = Fault(FaultKind.ERROR, method="PUT", query="partNumber=2", times=3, status=status, code=code)
        proxy.add(fault)
        service = Service(place, settings, ids=Hasty())
        ending = await service.run(oneshot=DrainMode.ALL)
        assert ending.code == 0, ending.reason
        parts = [one.target.split("partNumber=")[1][0] for one in proxy.seen if "partNumber=" in one.target]
        begun = [one for one in proxy.seen if one.method == "POST" and one.target.endswith("?uploads")]
    assert (sorted(parts), len(begun)) == (["1", "2", "2", "2", "2", "3"], 1)
    assert service.status()["store"]["slow_downs"] == slow_downs
    assert judge(remote, tmp_path / "log", [T0], endpoint=endpoint) == 1


def test_a_bucket_that_is_not_there(tmp_path: Path, endpoint: str) -> None:
    make_log(tmp_path / "log", records=10)
    place = ("--log-dir", str(tmp_path / "log"), "--remote", f"s3://absent-bucket?endpoint={endpoint}")
    done = call("sync", *place)
    assert done.returncode == 10, done.stderr
    assert "absent-bucket" in done.stderr
