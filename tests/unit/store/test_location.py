"""URLs: what is accepted, in one spelling, and what each wrong one is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tiered.errors import ConfigError
from tiered.store.base import ABSENT, Get, Object, Put
from tiered.store.location import StoreLocation, open_store
from tiered.store.memory import MemoryStore
from tiered.store.metrics import StoreMetrics
from tiered.store.options import StoreOptions

GOOD = {
    "s3://logs": "s3://logs",
    "s3://logs/": "s3://logs",
    "S3://logs/prod/": "s3://logs/prod",
    "s3://my.logs-1/a/b c/ü%20": "s3://my.logs-1/a/b c/ü%20",
    "file:///mnt/bucket": "file:///mnt/bucket",
    "file://localhost/mnt/a%20b": "file:///mnt/a%20b",
    "/mnt/a b%41": "file:///mnt/a%20b%2541",
    "memory://": "memory://",
    "memory://x-1/p/q": "memory://x-1/p/q",
}

WRONG = {
    "": "empty",
    " s3://logs": "space at its start or end",
    "s3://logs/a\nb": "control",
    "s3:logs": "two slashes",
    "s3:key:secret@logs": "two slashes",
    "s3://": "names no bucket",
    "s3:///prefix": "names no bucket",
    "s3://lo": "not a bucket name",
    "s3://Logs": "not a bucket name",
    "s3://my_logs": "not a bucket name",
    "s3://-logs": "not a bucket name",
    "s3://lo..gs": "not a bucket name",
    "s3://192.168.1.1": "not a bucket name",
    "s3://" + "x" * 64: "not a bucket name",
    "s3://localhost:9000/logs": "?endpoint=",
    "s3://logs:99999999/x": "cannot be read",
    "s3://key:secret@logs/x": "take them out of the URL",
    "s3://logs//x": "leading, trailing or double",
    "s3://logs/x//y": "leading, trailing or double",
    "s3://logs//": "empty part",
    "s3://logs/../x": "'..'",
    "s3://logs/./x": "'.'",
    "s3://logs/x?versionId=1": "'versionId' in the query",
    "s3://logs/x?region=": "is empty",
    "s3://logs/x?region=a&region=b": "given twice",
    "memory://x?region=a": "only s3:// has a query",
    "s3://logs/x#y": "fragment",
    "s3://arn:aws:s3:::logs": "ARN",
    "s3://logs/" + "x" * 256: "256 bytes",
    "s3://logs/" + "/".join(["x" * 200] * 3): "602 bytes",
    "https://key:secret@host/logs": "?endpoint=",
    "gs://logs": "is not supported",
    "file://": "names no folder",
    "file:///": "names no folder",
    "file://mnt/bucket": "names a host",
    "file:///a/../b": "'..'",
    "file:///a%00b": "names no folder",
    "memory://a b": "is not a name",
    "memory://x/../y": "'..'",
}


@pytest.mark.parametrize("url", GOOD)
def test_good_urls_have_one_spelling(url: str) -> None:
    location = StoreLocation.parse(url, environ={})
    assert location.url == str(location) == GOOD[url]
    assert StoreLocation.parse(location.url, environ={}) == location
    assert StoreLocation.parse(location) is location


@pytest.mark.parametrize("url", WRONG)
def test_wrong_urls_say_what_to_write(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreLocation.parse(url, environ={})
    assert WRONG[url] in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["localhost:9000", "ftp://x", "http://", "http://k:secret@h", "http://h:99999", "http://h?x"]
)
def test_wrong_endpoints(endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreLocation.parse("s3://logs", endpoint_url=endpoint)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="TIERED_ENDPOINT_URL"):
        StoreLocation.parse("s3://logs", environ={"TIERED_ENDPOINT_URL": endpoint})


def test_environment_and_arguments() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://low:1", "TIERED_ENDPOINT_URL": "http://high:1/", "AWS_REGION": "eu-west-1"}
    location = StoreLocation.parse("s3://logs/p", environ=environ)
    assert (location.s3.endpoint_url, location.s3.region) == ("http://high:1", "eu-west-1")
    location = StoreLocation.parse("s3://logs/p", endpoint_url="https://h", region="us-west-2", environ=environ)
    assert (location.s3.endpoint_url, location.s3.region) == ("https://h", "us-west-2")
    url = "s3://logs/p?endpoint=http://h:1&region=eu-1&owner=123456789012&sse=aws:kms&kms_key=arn:aws:kms:eu-1:1:key/a"
    queried = StoreLocation.parse(url, endpoint_url="https://h", environ=environ)
    assert (queried.url, queried.s3.endpoint_url, queried.s3.region) == ("s3://logs/p", "http://h:1", "eu-1")
    assert (queried.s3.expected_bucket_owner, queried.s3.sse) == ("123456789012", "aws:kms")
    assert queried.s3.sse_kms_key_id == "arn:aws:kms:eu-1:1:key/a"
    assert StoreLocation.parse("memory://x", environ=environ).target is None
    with pytest.raises(ConfigError, match="for s3://"):
        StoreLocation.parse("memory://x", endpoint_url="http://h")


def test_path_style_goes_with_an_endpoint() -> None:
    def style(endpoint_url: str | None) -> str:
        target = StoreLocation.parse("s3://logs", environ={}, endpoint_url=endpoint_url).s3
        return str(target.config_arguments()["s3"]["addressing_style"])

    assert style(None) == "auto"
    assert style("http://h") == "path"


async def test_opened_stores_share_a_memory_name() -> None:
    metrics = StoreMetrics()
    store, other = (
        open_store("memory://opened/p", StoreOptions(metrics=metrics)),
        StoreLocation.parse("memory://opened/p").open_aio(),
    )
    store.execute(Put("k", b"v", ABSENT))
    got = await other.execute(Get("k"))
    assert isinstance(got, Object)
    assert (got.data, store.url, other.url) == (b"v", "memory://opened/p", "memory://opened/p")
    assert [(f.op, f.status, f.sent_bytes) for f in metrics.snapshot()] == [("put", "landed", 1)]
    store.close()
    await other.close()
    MemoryStore.forget("opened")


def test_paths_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for path in ("there", "./there", "here/../there", tmp_path / "there"):
        assert open_store(path).url == (tmp_path / "there").as_uri()


def test_no_sdk_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, tiered.store.location as l; l.open_store('s3://logs'); l.StoreLocation.parse('s3://logs').open_aio();"
        "print([m for m in ('boto3', 'botocore', 'aiobotocore', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
