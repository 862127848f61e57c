"""Every answer that S3 and its look-alikes give, as our outcome or our error; both SDKs run for real."""

from __future__ import annotations

import gc
import importlib

import pytest

from tests.unit.store.scripted import Answer, Script
from tiered.errors import (
    ClosedError,
    ConditionalWritesUnsupportedError,
    ConfigError,
    CorruptionError,
    NotFoundError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.model import BytesSource
from tiered.store.base import (
    ABSENT,
    AbortUpload,
    CompleteUpload,
    Delete,
    Deleted,
    Get,
    Head,
    List,
    ListPage,
    Match,
    Missing,
    NotModified,
    Object,
    PartStored,
    Put,
    PutResult,
    PutStatus,
    StartUpload,
    Store,
    StoreRequest,
    UploadPart,
)
from tiered.store.s3 import S3Store
from tiered.store.s3_requests import BOTOCORE_THROTTLED, BOTOCORE_TRANSIENT, EXPECT_BYTES, TRANSIENT_STATUSES, S3Target

CREATE = Put("a/k", b"body", ABSENT)
SWAP = Put("a/k", b"body", Match('"e"'))
PART = UploadPart("a/k", "id", 1, BytesSource(b"body"), 0, 4)
COMPLETE = CompleteUpload("a/k", "id", (PartStored(1, '"e"'),))

BUSY_KEYS = b"<DeleteResult><Error><Key>prod/a/l</Key><Code>SlowDown</Code></Error></DeleteResult>"

REFUSALS: list[tuple[Answer, StoreRequest, type[TieredError], str]] = [
    (Answer(403, "AccessDenied"), Get("a/k"), RemotePermissionError, "s3:ListBucket"),
    (Answer(403, "AccessDenied"), CREATE, RemotePermissionError, "s3:PutObject"),
    (
        Answer(403, "AccessDenied"),
        List("a"),
        RemotePermissionError,
        "s3:ListBucket to this role or key, also for the prefix 'prod/a'",
    ),
    (Answer(403, "AccessDenied"), List(""), RemotePermissionError, "also for the prefix 'prod/'"),
    (Answer(403, "AccessDenied"), Delete(("a/k",)), RemotePermissionError, "s3:DeleteObject"),
    (Answer(403), Head("a/k"), RemotePermissionError, "s3:GetObject"),
    (Answer(401, "Unauthorized"), Get("a/k"), RemotePermissionError, "grant"),
    (Answer(403, "InvalidAccessKeyId"), CREATE, RemotePermissionError, "AWS_ACCESS_KEY_ID"),
    (Answer(403, "SignatureDoesNotMatch"), Get("a/k"), RemotePermissionError, "these credentials"),
    (Answer(400, "ExpiredToken"), CREATE, RemotePermissionError, "expired"),
    (Answer(403, "RequestTimeTooSkewed"), SWAP, RemotePermissionError, "clock"),
    (Answer(404, "NoSuchBucket"), Get("a/k"), NotFoundError, "create the bucket"),
    (Answer(404, "NoSuchBucket"), CREATE, NotFoundError, "create the bucket"),
    (Answer(404, "NoSuchBucket"), List(""), NotFoundError, "create the bucket"),
    (Answer(404, "NoSuchUpload"), PART, NotFoundError, "start it again"),
    (Answer(301, "PermanentRedirect"), CREATE, ConfigError, "region"),
    (Answer(400, "AuthorizationHeaderMalformed"), Delete(("a/k",)), ConfigError, "region"),
    (Answer(400, "BadDigest"), CREATE, CorruptionError, "checksum"),
    (Answer(400, "XAmzContentChecksumMismatch"), PART, CorruptionError, "checksum"),
    (Answer(400, "InvalidArgument"), CREATE, ConfigError, "refuses this request"),
    (Answer(400, "EntityTooSmall"), COMPLETE, ConfigError, "refuses this request"),
    (Answer(501, "NotImplemented"), SWAP, ConditionalWritesUnsupportedError, "conditional"),
    (Answer(500, "InternalError"), Get("a/k"), RemoteUnavailableError, "again"),
    (Answer(503, "SlowDown"), List(""), RemoteUnavailableError, "again"),
    (Answer(429, "TooManyRequests"), Delete(("a/k",)), RemoteUnavailableError, "again"),
    (Answer(400, "RequestTimeout"), PART, RemoteUnavailableError, "again"),
    (Answer(400, "KMS.ThrottlingException"), Get("a/k"), RemoteUnavailableError, "again"),
    (Answer(400, "RequestLimitExceeded"), List(""), RemoteUnavailableError, "again"),
    (Answer(509, "BandwidthLimitExceeded"), Get("a/k"), RemoteUnavailableError, "again"),
    (Answer(400, "RequestThrottled"), Delete(("a/k",)), RemoteUnavailableError, "again"),
    (Answer(403, "ThrottledException"), Get("a/k"), RemoteUnavailableError, "again"),
    (Answer(400, "PriorRequestNotComplete"), StartUpload("a/k"), RemoteUnavailableError, "again"),
    (Answer(409, "OperationAborted"), List(""), RemoteUnavailableError, "again"),
    (Answer(400, "KMS.DependencyTimeoutException"), Get("a/k"), RemoteUnavailableError, "again"),
    (Answer(200, body=BUSY_KEYS), Delete(("a/k", "a/l")), RemoteUnavailableError, "is retried later"),
    (Answer(503), Head("a/k"), RemoteUnavailableError, "again"),
    (Answer(502, body=b"<html>a proxy</html>"), Get("a/k"), RemoteUnavailableError, "again"),
    (Answer(200, body=b"not xml"), List(""), ConfigError, "endpoint"),
    (Answer(200, body=b"<ListBucketResult><Cont"), List(""), RemoteUnavailableError, "again"),
    (Answer(0), Get("a/k"), RemoteUnavailableError, "network"),
    (Answer(0), StartUpload("a/k"), RemoteUnavailableError, "network"),
    (Answer(200, body=b"half", declared=8, headers=(("ETag", '"e"'),)), Get("a/k"), RemoteUnavailableError, ""),
]


@pytest.mark.parametrize("case", range(len(REFUSALS)))
def test_refusals_name_operation_place_and_next_step(client: Store, script: Script, case: int) -> None:
    script.answer, request, kind, hint = REFUSALS[case]
    script.requests.clear()
    with pytest.raises(TieredError) as caught:
        client.execute(request)
    assert type(caught.value) is kind, caught.value
    assert len(script.requests) == (2 if isinstance(request, Head) and kind is NotFoundError else 1)
    told = str(caught.value)
    assert hint in told
    assert type(request).__name__ in told or kind is NotFoundError
    assert "s3://logs/prod" in told
    assert "testing" not in told, "credentials stay out of messages"
    assert "AWS4-HMAC" not in told


OUTCOMES: list[tuple[Answer, StoreRequest, PutStatus]] = [
    (Answer(412, "PreconditionFailed"), CREATE, PutStatus.LOST),
    (Answer(412, "PreconditionFailed"), SWAP, PutStatus.LOST),
    (Answer(412, "PreconditionFailed"), COMPLETE, PutStatus.LOST),
    (Answer(409, "ConditionalRequestConflict"), CREATE, PutStatus.CONFLICT),
    (Answer(409, "OperationAborted"), SWAP, PutStatus.CONFLICT),
    (Answer(404, "NoSuchKey"), SWAP, PutStatus.ABSENT),
    (Answer(500, "InternalError"), CREATE, PutStatus.UNKNOWN),
    (Answer(503, "SlowDown"), SWAP, PutStatus.UNKNOWN),
    (Answer(504), CREATE, PutStatus.UNKNOWN),
    (Answer(400, "RequestTimeout"), CREATE, PutStatus.UNKNOWN),
    (Answer(400, "KMS.ThrottlingException"), CREATE, PutStatus.UNKNOWN),
    (Answer(400, "RequestThrottled"), SWAP, PutStatus.UNKNOWN),
    (Answer(429, "SlowDown"), CREATE, PutStatus.UNKNOWN),
    (Answer(0), CREATE, PutStatus.UNKNOWN),
    (Answer(0), COMPLETE, PutStatus.UNKNOWN),
    (Answer(404, "NoSuchUpload"), COMPLETE, PutStatus.UNKNOWN),
    (Answer(200, "InternalError"), COMPLETE, PutStatus.UNKNOWN),
]


@pytest.mark.parametrize("case", range(len(OUTCOMES)))
def test_puts_are_landed_lost_or_unknown_in_one_attempt(client: Store, script: Script, case: int) -> None:
    script.answer, request, wanted = OUTCOMES[case]
    script.requests.clear()
    outcome = client.execute(request)
    assert isinstance(outcome, PutResult)
    assert outcome.status is wanted
    assert len(script.requests) == 1, "one attempt: a repeat would lie about our own write"
    assert (outcome.cause != "") == (wanted in (PutStatus.UNKNOWN, PutStatus.CONFLICT))


TOO_MANY: list[tuple[Answer, bool]] = [
    (Answer(503, "SlowDown"), True),
    (Answer(503, "ServiceUnavailable"), True),
    (Answer(503), True),
    (Answer(429, "TooManyRequests"), True),
    (Answer(400, "ThrottlingException"), True),
    (Answer(500, "InternalError"), False),
    (Answer(504), False),
    (Answer(0), False),
]


@pytest.mark.parametrize("request_", [Get("a/k"), CREATE, PART], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("case", range(len(TOO_MANY)))
def test_a_store_that_is_asked_too_often_is_told_from_one_that_fails(
    client: Store, script: Script, case: int, request_: StoreRequest
) -> None:
    script.answer, slow_down = TOO_MANY[case]
    answer: object
    try:
        answer = client.execute(request_)
    except RemoteUnavailableError as error:
        answer = error
    assert isinstance(answer, PutResult | RemoteUnavailableError)
    assert answer.slow_down is slow_down


PAGE = b"<!DOCTYPE html><html><head><title>Console</title></head><body><br>Welcome</body></html>"
HTML = (("Content-Type", "text/html; charset=utf-8"),)
STRANGE: list[tuple[Answer, StoreRequest]] = [
    (answer, request)
    for answer in (
        Answer(200, body=PAGE, headers=HTML),
        Answer(200, body=PAGE, headers=(*HTML, ("ETag", '"5f-61"'))),
        Answer(404, body=PAGE, headers=HTML),
        Answer(200, body=b"<html><body/></html>", headers=(("ETag", '"5f-61"'), ("Content-Type", "text/html"))),
    )
    for request in (
        Get("k"),
        Get("k", 0, 4),
        Head("k"),
        List(""),
        Delete(("k",)),
        Delete(("k", "l")),
        StartUpload("k"),
        PART,
    )
] + [
    (Answer(200, body=b"<html/>"), List("")),
    (Answer(200, body=b"{}"), Get("k")),
    (Answer(200), Head("k")),
    (Answer(200), PART),
    (Answer(200, body=b"<InitiateMultipartUploadResult/>"), StartUpload("k")),
]


@pytest.mark.parametrize("case", range(len(STRANGE)))
def test_what_does_not_answer_as_s3_does_is_refused(client: Store, script: Script, case: int) -> None:
    """A web page is not "no such key", and not a bucket without objects."""
    script.answer, request = STRANGE[case]
    with pytest.raises(ConfigError, match="does not answer as S3 does") as caught:
        client.execute(request)
    assert caught.value.hint.startswith("correct the endpoint")
    assert script.url in caught.value.message
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("request_", [CREATE, SWAP, COMPLETE])
def test_a_server_of_pages_that_takes_no_write_is_no_store_without_conditional_writes(
    client: Store, script: Script, request_: Put | CompleteUpload
) -> None:
    """501 alone is what a web server says to PUT; of a store that lacks it S3's own code stands beside it."""
    script.answer = Answer(501, body=PAGE, headers=HTML)
    with pytest.raises(ConfigError, match="does not answer as S3 does"):
        client.execute(request_)


@pytest.mark.parametrize("request_", [CREATE, SWAP, COMPLETE])
@pytest.mark.parametrize("answer", [Answer(200, body=PAGE, headers=HTML), Answer(200), Answer(404, body=PAGE)])
def test_a_conditional_write_that_a_page_answers_may_have_landed(
    client: Store, script: Script, request_: Put | CompleteUpload, answer: Answer
) -> None:
    script.answer = answer
    outcome = client.execute(request_)
    assert isinstance(outcome, PutResult)
    assert outcome.status is PutStatus.UNKNOWN
    assert "does not answer as S3 does" in outcome.cause


def test_an_object_that_is_a_page_is_an_object(client: Store, script: Script) -> None:
    script.answer = Answer(200, body=PAGE, headers=(*HTML, ("ETag", '"e"'), ("x-amz-request-id", "4711")))
    outcome = client.execute(Get("k"))
    assert isinstance(outcome, Object)
    assert outcome.data == PAGE


def test_a_lost_answer_on_a_kept_connection_is_not_repeated_below_us(client: Store, script: Script) -> None:
    """aiohttp repeats idempotent methods on a reused connection by itself; the second PUT would be told "lost"."""
    script.requests.clear()
    script.answer = Answer(200, headers=(("ETag", '"e"'),), keep_alive=True)
    client.execute(CREATE)
    script.answer = Answer(0)
    outcome = client.execute(CREATE)
    assert isinstance(outcome, PutResult)
    assert outcome.status is PutStatus.UNKNOWN
    assert len(script.requests) == 2


def test_another_region_is_named(client: Store, script: Script) -> None:
    script.answer = Answer(301, "PermanentRedirect", headers=(("x-amz-bucket-region", "eu-west-1"),))
    with pytest.raises(ConfigError, match="the bucket is in eu-west-1"):
        client.execute(CREATE)


def test_answers_that_are_outcomes(client: Store, script: Script) -> None:
    script.answer = Answer(404, "NoSuchKey")
    assert client.execute(Get("k")) == Missing()
    assert client.execute(Head("k")) == Missing()
    assert client.execute(AbortUpload("k", "id")) is None
    assert client.execute(Delete(("k",))) == Deleted()
    script.answer = Answer(304)
    assert client.execute(Get("k", if_none_match='"e"')) == NotModified()
    script.answer = Answer(200, body=b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
    assert client.execute(List("")) == ListPage((), more=False)
    script.answer = Answer(
        200,
        body=b"<DeleteResult><Error><Key>prod/b</Key><Code>AccessDenied</Code></Error>"
        b"<Error><Key>prod/c</Key><Code>NoSuchKey</Code></Error></DeleteResult>",
    )
    assert client.execute(Delete(("a", "b", "c"))) == Deleted((("b", "AccessDenied"),))


def test_head_of_an_absent_bucket_asks_again_with_a_get(client: Store, script: Script) -> None:
    script.answer = Answer(404, "NoSuchBucket")
    script.requests.clear()
    with pytest.raises(NotFoundError):
        client.execute(Head("k"))
    assert [method for method, *_ in script.requests] == ["HEAD", "GET"]


def test_a_server_without_ranges_still_gives_the_range(client: Store, script: Script) -> None:
    script.answer = Answer(200, body=b"0123456789", headers=(("ETag", '"e"'),))
    outcome = client.execute(Get("k", 2, 5))
    assert isinstance(outcome, Object)
    assert (outcome.data, outcome.size) == (b"234", 10)


def test_what_is_sent(client: Store, script: Script) -> None:
    script.answer = Answer(200, headers=(("ETag", '"e"'), ("x-amz-checksum-crc32c", "wrong"), ("Date", "nonsense")))
    script.requests.clear()
    body = BytesSource(b"x" * 3_000_000)
    outcome = client.execute(Put("a/k", body, Match('"old"'), 0x01020304, (("kind", "seg ment"),)))
    assert outcome == PutResult(PutStatus.LANDED, '"e"', None)
    client.execute(CREATE)
    (method, target, headers, sent), (_, _, create, _) = script.requests
    assert (method, target, sent) == ("PUT", "/logs/prod/a/k", 3_000_000)
    assert headers["if-match"] == '"old"'
    assert "if-none-match" not in headers
    assert create["if-none-match"] == "*"
    assert headers["x-amz-checksum-crc32c"] == "AQIDBA=="
    assert headers["x-amz-sdk-checksum-algorithm"] == "CRC32C"
    assert headers["x-amz-tagging"] == "kind=seg+ment"
    assert "transfer-encoding" not in headers
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


def test_only_a_large_body_waits_until_the_store_asks_for_it(client: Store, script: Script) -> None:
    script.answer = Answer(200, headers=(("ETag", '"e"'),))
    script.requests.clear()
    for size in (0, 4, EXPECT_BYTES - 1, EXPECT_BYTES):
        client.execute(Put("k", bytes(size), ABSENT))
        client.execute(UploadPart("k", "id", 1, BytesSource(bytes(size)), 0, size))
    asked = [(headers.get("expect"), sent) for _, _, headers, sent in script.requests]
    assert asked == [
        (expect, size)
        for size in (0, 4, EXPECT_BYTES - 1, EXPECT_BYTES)
        for expect in ["100-continue" if size == EXPECT_BYTES else None] * 2
    ]


class FailingSource:
    """A file that cannot be read in its second piece."""

    size = 3_000_000

    def read_at(self, position: int, length: int) -> bytes:
        if position:
            raise CorruptionError("the file is shorter than it was", path_or_key="x.log", position=position)
        return bytes(length)

    def close(self) -> None:
        """Nothing to release."""


def test_an_error_of_the_source_is_not_taken_for_one_of_the_network(client: Store, script: Script) -> None:
    script.answer = Answer(200, headers=(("ETag", '"e"'),))
    with pytest.raises(CorruptionError, match="shorter than it was"):
        client.execute(Put("k", FailingSource(), ABSENT, 1))
    gc.collect()


class CountingSource:
    """Remembers the longest read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.longest = 0

    def read_at(self, position: int, length: int) -> bytes:
        self.longest = max(self.longest, length)
        return bytes(length)

    def close(self) -> None:
        """Nothing to release."""


def test_bodies_are_read_in_pieces(client: Store, script: Script) -> None:
    script.answer = Answer(200, headers=(("ETag", '"e"'),))
    source = CountingSource(20 * 1024 * 1024 + 1)
    client.execute(Put("k", source, ABSENT, 1))
    client.execute(UploadPart("k", "id", 1, source, 5, source.size - 5, 1))
    assert script.requests[-1][3] == source.size - 10
    assert source.longest == 1024 * 1024


def test_nothing_answers() -> None:
    store = S3Store(S3Target("logs", endpoint_url="http://127.0.0.1:1"))
    assert "127.0.0.1:1" not in repr(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIDSECRET")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "TOPSECRET")
        with pytest.raises(RemoteUnavailableError, match="the store did not answer") as caught:
            store.execute(Get("k"))
        outcome = store.execute(CREATE)
    assert isinstance(outcome, PutResult)
    assert outcome.status is PutStatus.UNKNOWN
    assert "SECRET" not in f"{caught.value} {caught.value.__cause__} {outcome} {store!r}"
    store.close()
    with pytest.raises(ClosedError):
        store.execute(Get("k"))


def test_no_credentials_is_a_permission_error(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3Store(S3Target("logs", endpoint_url=script.url))
    with pytest.raises(RemotePermissionError, match="no usable credentials"):
        store.execute(CREATE)
    store.close()


@pytest.mark.parametrize("target", [S3Target("no such bucket"), S3Target("logs", region="no region!")])
def test_wrong_names_are_config_errors(target: S3Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    store = S3Store(target)
    with pytest.raises(ConfigError):
        store.execute(Get("k"))
    store.close()


@pytest.mark.parametrize("bundle", ["/nonexistent/ca.pem", "/", __file__])
def test_unreadable_certificates_are_a_config_error(
    bundle: str, monkeypatch: pytest.MonkeyPatch, script: Script
) -> None:
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "CA_BUNDLE": bundle}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    store = S3Store(S3Target("logs", endpoint_url=script.url.replace("http:", "https:")))
    with pytest.raises(ConfigError, match="no trusted TLS connection"):
        store.execute(Get("k"))
    store.close()


def test_unknown_profile_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    store = S3Store(S3Target("logs"))
    with pytest.raises(ConfigError, match="nobody"):
        store.execute(Get("k"))


def test_the_table_of_codes_is_botocores() -> None:
    standard = importlib.import_module("botocore.retries.standard")
    assert set(standard.ThrottledRetryableChecker._THROTTLED_ERROR_CODES) == BOTOCORE_THROTTLED
    assert set(standard.TransientRetryableChecker._TRANSIENT_ERROR_CODES) == BOTOCORE_TRANSIENT
    assert set(standard.TransientRetryableChecker._TRANSIENT_STATUS_CODES) <= TRANSIENT_STATUSES
