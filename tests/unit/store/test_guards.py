"""What guards a bucket: whose it must be, and how what is written there is encrypted; every request, both SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.moto import CREDENTIALS
from tests.unit.store.scripted import Answer, Script
from tiered.errors import ConfigError, RemotePermissionError
from tiered.model import BytesSource
from tiered.store.aio_s3 import AioS3Store
from tiered.store.base import (
    ABSENT,
    AbortUpload,
    AioStore,
    CompleteUpload,
    Delete,
    Get,
    Head,
    List,
    ListUploads,
    Match,
    Object,
    PartStored,
    Put,
    StartUpload,
    Store,
    StoreRequest,
    UploadPart,
)
from tiered.store.location import StoreLocation
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import S3Target
from tiered.testing.store_contract import BlockingStore

OWNER = "123456789012"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/1111"
REQUESTS: list[StoreRequest] = [
    Get("k"),
    Get("k", 3, 3),
    Head("k"),
    Put("k", b"body", ABSENT),
    Put("k", BytesSource(b"body"), Match('"e"')),
    Delete(("k",)),
    Delete(("k", "l")),
    List("k"),
    StartUpload("k"),
    UploadPart("k", "id", 1, BytesSource(b"body"), 0, 4),
    CompleteUpload("k", "id", (PartStored(1, '"e"'),)),
    AbortUpload("k", "id"),
    ListUploads("k"),
]
KMS = {
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-server-side-encryption-aws-kms-key-id": KEY,
    "x-amz-server-side-encryption-bucket-key-enabled": "true",
}


def stores(script: Script, sdk: str, **guards: str) -> Iterator[Store]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        target = S3Target("logs", "prod", endpoint_url=script.url, read_timeout_seconds=5, **guards)  # type: ignore[arg-type]  # texts

        async def make() -> AioStore:
            await asyncio.sleep(0)
            return AioS3Store(target)

        store: Store = S3Store(target) if sdk == "boto3" else BlockingStore(make)
        yield store
        store.close()


@pytest.fixture(scope="module", params=["boto3", "aiobotocore"])
def guarded(request: pytest.FixtureRequest, script: Script) -> Iterator[Store]:
    yield from stores(script, request.param, expected_bucket_owner=OWNER, sse="aws:kms", sse_kms_key_id=KEY)


def sent(store: Store, script: Script, request: StoreRequest) -> dict[str, str]:
    """The headers of the one request; the refusal that answers it is raised or given back, and not looked at."""
    script.requests.clear()
    script.answer = Answer(403, "AccessDenied")
    with pytest.raises(RemotePermissionError):
        store.execute(request)
    return script.requests[0][2]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_every_request_names_the_owner_and_every_beginning_of_an_object_its_encryption(
    guarded: Store, script: Script, request_: StoreRequest
) -> None:
    headers = sent(guarded, script, request_)
    assert headers["x-amz-expected-bucket-owner"] == OWNER
    begins = isinstance(request_, Put | StartUpload)
    assert {name: headers[name] for name in headers if "encryption" in name} == (KMS if begins else {})


@pytest.mark.parametrize("sdk", ["boto3", "aiobotocore"])
def test_the_keys_of_s3_need_no_key_and_nothing_is_asked_for_unasked(script: Script, sdk: str) -> None:
    for guards, expected in (({"sse": "AES256"}, {"x-amz-server-side-encryption": "AES256"}), ({}, {})):
        for store in stores(script, sdk, **guards):
            headers = sent(store, script, Put("k", b"", ABSENT))
            assert {name: headers[name] for name in headers if "encryption" in name} == expected
            assert "x-amz-expected-bucket-owner" not in headers


def test_a_refusal_tells_what_else_it_may_mean(guarded: Store, script: Script) -> None:
    hints = {}
    for request in (List("k"), Get("k"), Put("k", b"", ABSENT), Delete(("k",))):
        script.answer = Answer(403, "AccessDenied")
        with pytest.raises(RemotePermissionError) as refused:
            guarded.execute(request)
        hints[type(request).__name__] = refused.value.hint
    assert all(hint.endswith(f"the bucket is not of the account {OWNER}: is it another's?") for hint in hints.values())
    assert {name for name, hint in hints.items() if "kms:Decrypt" in hint} == {"Get", "Put"}
    assert {name for name, hint in hints.items() if "kms:GenerateDataKey" in hint} == {"Put"}


def test_the_encryption_of_an_object_is_told(guarded: Store, script: Script) -> None:
    told = (("ETag", '"e"'), *KMS.items())
    for method, expected in ((told, f"aws:kms {KEY}"), (told[:1], "")):
        script.answer = Answer(200, headers=method, body=b"")
        found = guarded.execute(Head("k"))
        assert isinstance(found, Object)
        assert found.encryption == expected


def test_the_guards_come_from_arguments_or_the_environment() -> None:
    environ = {"TIERED_EXPECTED_BUCKET_OWNER": OWNER, "TIERED_SSE": "aws:kms", "TIERED_SSE_KMS_KEY_ID": KEY}
    found = StoreLocation.parse("s3://logs", environ=environ).s3
    assert (found.expected_bucket_owner, found.sse, found.sse_kms_key_id) == (OWNER, "aws:kms", KEY)
    found = StoreLocation.parse("s3://logs", environ=environ, expected_bucket_owner="0" * 12, sse_kms_key_id="k").s3
    assert (found.expected_bucket_owner, found.sse, found.sse_kms_key_id) == ("0" * 12, "aws:kms", "k")
    assert StoreLocation.parse("memory://x", environ=environ).target is None
    with pytest.raises(ConfigError, match="sse cannot be used with memory://"):
        StoreLocation.parse("memory://x", sse="AES256")


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"expected_bucket_owner": "1234"}, "expected_bucket_owner '1234' is not an account id", "12 digits"),
        ({"expected_bucket_owner": "१२३४५६७८९०१२"}, "is not an account id", "12 digits"),
        ({"sse": "aes256"}, "sse is 'aes256'", "AES256 or aws:kms"),
        ({"sse_kms_key_id": KEY}, "sse_kms_key_id is given without sse aws:kms", "set sse to aws:kms"),
        ({"sse": "AES256", "sse_kms_key_id": KEY}, "given without sse aws:kms", "leave the key out"),
    ],
)
def test_guards_that_guard_nothing_are_refused(given: dict[str, str], message: str, hint: str) -> None:
    environ = {f"TIERED_{name.upper()}": value for name, value in given.items()}
    for arguments, around in ((given, {}), ({}, environ)):
        with pytest.raises(ConfigError, match=message if around == {} else None) as refused:
            StoreLocation.parse("s3://logs", environ=around, **arguments)  # type: ignore[arg-type]  # per case
        assert hint in refused.value.hint
