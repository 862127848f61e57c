"""The store contract and the manuals on a bucket of the user: ``make test-servers REMOTE=s3://bucket/prefix``.

Everything happens below a new prefix. The prefix is deleted afterwards, with old versions and unfinished uploads.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

import tiered
from tests.support.pages import ROOT, Reader
from tiered import NewRecord
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import AioStore, Store
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target
from tiered.testing.store_contract import BlockingStore, StoreContract

REMOTE = os.environ["TIERED_TEST_REMOTE"]
ENDPOINT = os.environ.get("TIERED_TEST_ENDPOINT") or None
PAGES = ("retention", "snapshots", "erase", "restore")
"""How-to pages that use every command that writes to a bucket."""
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    """A prefix that nothing else uses; empty again after the tests."""
    url = f"{REMOTE.rstrip('/')}/tieredlog-test-{uuid.uuid4().hex}"
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    with closing(boto3.client("s3", endpoint_url=ENDPOINT)) as client:
        try:
            yield url
        finally:
            left = empty(client, bucket, f"{prefix}/")
    assert left == 0, f"{left} objects, versions or uploads are left below {url}"


def empty(client: Any, bucket: str, prefix: str) -> int:
    """Delete all below a prefix: objects, versions, unfinished uploads. Return the number of what is left."""
    while found := below(client, bucket, prefix):  # again: on some servers an object hides keys that continue its own
        for _, key, version in found:
            client.delete_object(Bucket=bucket, Key=key, **({"VersionId": version} if version else {}))
    uploads = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", [])
    for each in uploads:
        client.abort_multipart_upload(Bucket=bucket, Key=each["Key"], UploadId=each["UploadId"])
    uploads = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", [])
    return len(uploads) + len(below(client, bucket, prefix))


def below(client: Any, bucket: str, prefix: str) -> list[tuple[str, str, str]]:
    """Return kind, key and version of all below a prefix; of a store without versions its objects."""
    pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    found = [
        (kind, each["Key"], each["VersionId"])
        for page in pages
        for kind in ("Versions", "DeleteMarkers")
        for each in page.get(kind, [])
    ]
    if found:
        return found
    objects = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [("Contents", each["Key"], "") for page in objects for each in page.get("Contents", [])]


class OnRemote(StoreContract):
    race_writers, race_rounds = 4, 1
    lists_keys_below_keys = ENDPOINT is None  # AWS does; the log does not need it

    @pytest.fixture(autouse=True)
    def place(self, remote: str) -> None:
        self.bucket, _, self.prefix = remote.removeprefix("s3://").partition("/")
        with closing(boto3.client("s3", endpoint_url=ENDPOINT)) as client:
            self.keeps_versions = client.get_bucket_versioning(Bucket=self.bucket).get("Status") == "Enabled"

    def target(self) -> S3Target:
        return S3Target(self.bucket, f"{self.prefix}/contract/{next(NUMBERS)}", endpoint_url=ENDPOINT)


class TestRemoteOverBoto3(OnRemote):
    def make_store(self) -> Store:
        return S3Store(self.target())

    def same_place(self, store: Store) -> Store:
        assert isinstance(store, S3Store)
        return S3Store(store.target)


class TestRemoteOverAiobotocore(OnRemote):
    def make_store(self) -> Store:
        target = self.target()

        async def make() -> AioStore:
            await asyncio.sleep(0)
            return AioS3Store(target)

        return BlockingStore(make)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """A reader whose shell has the credentials of this process."""
    shell = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return Reader(tmp_path, {}, {**shell, **({"TIERED_ENDPOINT_URL": ENDPOINT} if ENDPOINT else {})})


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_on_the_bucket(page: str, remote: str, reader: Reader) -> None:
    url = f"{remote}/{page}"
    with tiered.open(reader.folder / "data" / "log", remote=url, endpoint_url=ENDPOINT) as log:
        for name, key in (("flights", b"N14228"), ("users", b"alice@example.org")):
            log.topic(name, partitions=3, create=True).append_many([NewRecord(b"%d" % at, key) for at in range(60)])
        log.sync(timeout=60)
    reader.places["s3://acme-logs/prod"] = url
    reader.follow(ROOT / "docs" / "how-to" / f"{page}.md")


def test_the_tutorial_runs_on_the_bucket(remote: str, reader: Reader) -> None:
    reader.environ["TIERED_REMOTE"] = f"{remote}/tutorial"
    reader.places['eval "$(localstack/minio start)"'] = "true"
    reader.places['endpoint_url=os.environ["TIERED_ENDPOINT_URL"]'] = f"endpoint_url={ENDPOINT!r}"
    reader.places['"endpoint_url": os.environ["TIERED_ENDPOINT_URL"]'] = f'"endpoint_url": {ENDPOINT!r}'
    for page in sorted((ROOT / "docs" / "tutorial").glob("[1-4]-*.md")):
        reader.follow(page)
