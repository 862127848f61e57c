"""Requests and responses of S3, without an SDK, for both S3 stores.

``call_for`` turns a request into the name and parameters of a botocore operation; ``outcome_of`` turns the parsed
response into an outcome. The error side is ``store.s3_errors``. Checksums: the header ``x-amz-checksum-crc32c``
(big-endian base64) together with ``ChecksumAlgorithm`` is understood by all servers tried; the algorithm alone
would need awscrt, the header alone is dropped by some.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import email.utils
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from tiered.errors import ConfigError, RemoteUnavailableError
from tiered.format.kernels import crc32c
from tiered.model import ByteSource
from tiered.store.base import (
    AbortUpload,
    Absent,
    CompleteUpload,
    Delete,
    Deleted,
    Get,
    Head,
    List,
    ListEntry,
    ListPage,
    ListUploads,
    ListVersions,
    Object,
    ObjectVersion,
    Outcome,
    PartStored,
    Put,
    PutResult,
    PutStatus,
    StartUpload,
    StoreRequest,
    UnfinishedUpload,
    UploadPage,
    UploadPart,
    UploadStarted,
    Versions,
)
from tiered.store.sources import SourceReader, pieces_of

CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 30.0
POOL_CONNECTIONS = 16
"""Connections kept open for one store: at least the requests that run at once."""

EXPECT_BYTES = 1024 * 1024
"""Size below which a body is sent without asking first whether the store wants it."""

KMS = "aws:kms"
SSE = ("AES256", KMS)
"""Server-side encryption: keys of S3, or of KMS."""

_CONTENT_RANGE = re.compile(r"bytes (?:\d+-\d+|\*)/(\d+)")
_CRC32C_BASE64_CHARS = 8
_PAGE_LOOK_BYTES = 64
_HTML = (b"<!doctype html", b"<html")
NO_XML = "NoXML"
"""Our own code for a response that :func:`mark_foreign_page` found to be no XML."""

CUT_SHORT = "CutShort"
"""Our own code for a 404 whose body, as :func:`mark_foreign_page` found, is shorter than its length: a truncated
response does not say what is absent.
"""
ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes whose objects must be restored first; ``INTELLIGENT_TIERING`` has a status of its own."""

_PAGES = frozenset({"text/html", "application/xhtml+xml"})
_LIST_FIELDS = ("IsTruncated", "KeyCount", "MaxKeys", "Name")
"""Fields of S3's response to a listing, present also if the listing is empty."""


@dataclass(frozen=True, slots=True)
class S3Target:
    """Address and settings of a bucket: everything except credentials, which come only from the SDK's AWS chain."""

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    expected_bucket_owner: str | None = None
    sse: str | None = None
    sse_kms_key_id: str | None = None
    connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    read_timeout_seconds: float = READ_TIMEOUT_SECONDS

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def full_key(self, key: str) -> str:
        """Return the key in the bucket: the prefix and ``key``."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def place(self) -> dict[str, Any]:
        """Return the parameters that every request has: bucket and expected owner.

        The owner guards against a bucket that another account has created again.
        """
        owner = {"ExpectedBucketOwner": self.expected_bucket_owner} if self.expected_bucket_owner else {}
        return {"Bucket": self.bucket, **owner}

    def encryption(self) -> dict[str, Any]:
        """Return the encryption parameters of requests that create an object."""
        if self.sse is None:
            return {}
        if self.sse != KMS:
            return {"ServerSideEncryption": self.sse}
        key = {"SSEKMSKeyId": self.sse_kms_key_id} if self.sse_kms_key_id else {}
        return {"ServerSideEncryption": KMS, **key, "BucketKeyEnabled": True}  # else one KMS request each

    def resource(self, request: StoreRequest) -> str:
        """Return ``s3://bucket/key`` of a request, for error messages."""
        match request:
            case List(prefix) | ListUploads(prefix):
                return f"s3://{self.bucket}/{self.full_key(prefix)}*"
            case Delete(keys):
                first = f"s3://{self.bucket}/{self.full_key(keys[0])}" if keys else self.url
                return first + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")
            case _:
                return f"s3://{self.bucket}/{self.full_key(request.key)}"

    def client_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``create_client("s3")`` except ``config``.

        The region defaults to that of the AWS profile, then to us-east-1, whatever the endpoint.
        """
        return {"region_name": self.region, "endpoint_url": self.endpoint_url}

    def config_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of botocore's ``Config``.

        One attempt: a repeat by the SDK after a lost response turns our own landed PUT into "someone else won".
        ``when_required``: several servers refuse the defaults of the SDK. The payload is not signed, as its CRC32C is
        in a signed header and hashing it again would double the cost of an upload.
        """
        style = "auto" if self.endpoint_url is None else "path"
        return {
            "signature_version": "s3v4",
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "connect_timeout": self.connect_timeout_seconds,
            "read_timeout": self.read_timeout_seconds,
            "max_pool_connections": POOL_CONNECTIONS,
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "s3": {"addressing_style": style, "payload_signing_enabled": False},
        }


@dataclass(frozen=True, slots=True)
class S3Call:
    """One botocore call: ``getattr(client, method)(**parameters)``. ``reader``: the streaming request body, if any."""

    method: str
    parameters: dict[str, Any]
    reader: SourceReader | None = field(default=None, repr=False)


def forbid_redirect(params: dict[str, Any], **_: Any) -> None:
    """Handler for ``before-call.s3``: a bucket of another region becomes an error instead of a second request.

    The SDK would look the region up and send the PUT again, without end if the responses name no region.
    """
    params.get("context", {}).setdefault("s3_redirect", {})["redirected"] = True


def expect_of_large(params: dict[str, Any], **_: Any) -> None:
    """Handler for ``before-call.s3``: removes ``Expect: 100-continue`` from requests with a small body.

    The SDK sends this header with every body, which costs each commit a round trip, and reads the response to it byte
    by byte. It saves bytes only if a large body is refused. This handler must run after the SDK's own.
    """
    headers = params["headers"]
    if "Expect" in headers and int(headers.get("Content-Length", EXPECT_BYTES)) < EXPECT_BYTES:
        del headers["Expect"]


def mark_foreign_page(parsed_response: dict[str, Any] | None, response_dict: dict[str, Any] | None, **_: Any) -> None:
    """Handle ``response-received.s3``: give two kinds of wrong responses error codes of our own.

    A success whose body is no XML gets ``NO_XML``; the SDK would take it for truncated XML, which it retries. A
    truncated 404 gets ``CUT_SHORT``; the SDK would report the status as the code, as for a server that is not S3.
    """
    if parsed_response is None or response_dict is None or "Error" not in parsed_response:
        return
    body = response_dict.get("body")
    if response_dict["status_code"] == 404 and isinstance(body, bytes | bytearray):
        length = str(response_dict["headers"].get("content-length", ""))
        if length.isdigit() and 0 < len(body) < int(length):  # a HEAD has no body
            parsed_response["Error"] = {"Code": CUT_SHORT, "Message": f"{len(body)} of {length} bytes came"}
    begins = bytes(body[:_PAGE_LOOK_BYTES]).lstrip().lower() if isinstance(body, bytes | bytearray) else b"<"
    if 200 <= int(response_dict["status_code"]) < 300 and (not begins.startswith(b"<") or begins.startswith(_HTML)):
        parsed_response["Error"] = {"Code": NO_XML, "Message": ""}


def encode_crc(value: int) -> str:
    """Return a CRC32C as S3 encodes it (base64)."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def decode_crc(text: str | None) -> int | None:
    """Return the CRC32C that S3 encoded as ``text``. None: no text, or a checksum of part checksums (``abc=-3``)."""
    if not text or len(text) != _CRC32C_BASE64_CHARS:
        return None
    try:
        return int.from_bytes(base64.b64decode(text, validate=True), "big")
    except (binascii.Error, ValueError):
        return None


def checksum_of(source: ByteSource, start: int, end: int) -> int:
    """Return the CRC32C of bytes ``start`` to ``end`` (exclusive) of a source, which is read in pieces."""
    value = 0
    for piece in pieces_of(source, start, end):
        value = crc32c(piece, value)
    return value


def call_for(target: S3Target, request: StoreRequest, *, at_once: bool = False) -> S3Call:
    """Return the call for ``request``. ``at_once``: the client sends each piece of a body before it reads the next."""
    place = target.place()
    match request:
        case List():
            return S3Call("list_objects_v2", {**place, **_list_parameters(target, request)})
        case ListUploads():
            return S3Call("list_multipart_uploads", {**place, **_uploads_parameters(target, request)})
        case Delete(keys):
            if len(keys) == 1:
                return S3Call("delete_object", {**place, "Key": target.full_key(keys[0])})
            objects = [{"Key": target.full_key(key)} for key in keys]
            return S3Call("delete_objects", {**place, "Delete": {"Objects": objects, "Quiet": True}})
    place["Key"] = target.full_key(request.key)
    match request:
        case Get():
            return _get_call(place, request)
        case Head():
            return S3Call("head_object", {**place, "ChecksumMode": "ENABLED"})
        case ListVersions(after=after):
            key = place.pop("Key")  # also a prefix of other keys, whose versions come after all of this one
            marker = {"KeyMarker": key, "VersionIdMarker": after} if after else {}
            return S3Call("list_object_versions", {**place, "Prefix": key, **marker})
        case Put():
            return _put_call({**place, **target.encryption()}, request, at_once)
        case StartUpload(tags=tags):
            begin = {**place, **target.encryption(), **_multipart_checksum(), **_tagging(tags)}
            return S3Call("create_multipart_upload", begin)
        case UploadPart():
            return _part_call(place, request, at_once)
        case CompleteUpload():
            return _complete_call(place, request)
        case AbortUpload(upload_id=upload_id):
            return S3Call("abort_multipart_upload", {**place, "UploadId": upload_id})


def _list_parameters(target: S3Target, request: List) -> dict[str, Any]:
    root = f"{target.prefix}/" if target.prefix else ""
    # Consoles make a marker object "prefix/"; starting after it keeps an empty key out of the results.
    after = root + request.start_after
    parameters: dict[str, Any] = {"Prefix": root + request.prefix, "MaxKeys": request.limit}
    return {**parameters, "StartAfter": after} if after else parameters


def _uploads_parameters(target: S3Target, request: ListUploads) -> dict[str, Any]:
    key, upload_id = request.after
    parameters: dict[str, Any] = {} if request.everywhere else {"Prefix": _uploads_prefix(target, request)}
    return {**parameters, "KeyMarker": key, "UploadIdMarker": upload_id} if key else parameters


def _uploads_prefix(target: S3Target, request: ListUploads) -> str:
    return (f"{target.prefix}/" if target.prefix else "") + request.prefix


def _get_call(place: dict[str, Any], request: Get) -> S3Call:
    parameters = dict(place)
    if request.if_none_match is not None:
        parameters["IfNoneMatch"] = request.if_none_match
    if request.version:
        parameters["VersionId"] = request.version
    if request.end is not None and request.end == request.start:
        return S3Call("head_object", {**parameters, "ChecksumMode": "ENABLED"})  # HTTP has no empty range
    if request.start or request.end is not None:
        last = "" if request.end is None else str(request.end - 1)
        parameters["Range"] = f"bytes={request.start}-{last}"
    else:
        parameters["ChecksumMode"] = "ENABLED"  # only for a whole object: with a range some servers send a wrong one
    return S3Call("get_object", parameters)


def _put_call(place: dict[str, Any], request: Put, at_once: bool) -> S3Call:
    body = request.body
    reader: SourceReader | None
    payload: bytes | SourceReader
    if isinstance(body, bytes):
        size = len(body)
        crc = crc32c(body) if request.crc32c is None else request.crc32c
        reader, payload = None, body
    else:
        size = body.size
        crc = checksum_of(body, 0, size) if request.crc32c is None else request.crc32c
        reader = SourceReader(body, 0, size, at_once=at_once)
        payload = b"" if size == 0 else reader
    condition = {"IfNoneMatch": "*"} if isinstance(request.condition, Absent) else {"IfMatch": request.condition.etag}
    parameters = {
        **place,
        **condition,
        **_tagging(request.tags),
        **_checksum(crc),
        "Body": payload,
        "ContentLength": size,
        "ContentType": "application/octet-stream",
    }
    return S3Call("put_object", parameters, reader)


def _part_call(place: dict[str, Any], request: UploadPart, at_once: bool) -> S3Call:
    size = request.end - request.start
    crc = checksum_of(request.body, request.start, request.end) if request.crc32c is None else request.crc32c
    reader = SourceReader(request.body, request.start, request.end, at_once=at_once)
    parameters = {
        **place,
        **_checksum(crc),
        "UploadId": request.upload_id,
        "PartNumber": request.number,
        "Body": reader if size else b"",
        "ContentLength": size,
    }
    return S3Call("upload_part", parameters, reader)


def _complete_call(place: dict[str, Any], request: CompleteUpload) -> S3Call:
    parts = []
    for part in request.parts:
        checksum = {} if part.crc32c is None else {"ChecksumCRC32C": encode_crc(part.crc32c)}
        parts.append({"PartNumber": part.number, "ETag": part.etag, **checksum})
    parameters = {
        **place,
        "UploadId": request.upload_id,
        "MultipartUpload": {"Parts": parts},
        "IfNoneMatch": "*",
    }
    return S3Call("complete_multipart_upload", parameters)


def _checksum(crc: int) -> dict[str, str]:
    return {"ChecksumCRC32C": encode_crc(crc), "ChecksumAlgorithm": "CRC32C"}


def _multipart_checksum() -> dict[str, str]:
    return {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "FULL_OBJECT"}


def _tagging(tags: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {"Tagging": urlencode(tags)} if tags else {}


def not_s3(target: S3Target, request: StoreRequest, why: str) -> ConfigError:
    """Return the error for a server that does not speak S3: its response must not be read as empty or absent."""
    where = target.endpoint_url or "the endpoint"
    return ConfigError(
        f"{type(request).__name__} {target.resource(request)}: {where} does not answer as S3 does: {why}",
        hint="correct the endpoint: this may be the port of a web console, a proxy or another program",
    )


def _strangeness(request: StoreRequest, response: dict[str, Any]) -> str:
    """Return why a successful response cannot come from an S3 server; ``""`` if it can."""
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    kind = str(headers.get("content-type", "")).partition(";")[0].strip().lower()
    if kind in _PAGES and not any(str(name).lower().startswith("x-amz") for name in headers):
        return f"a page ({kind})"  # an object may be of that type, but S3 sends headers of its own with it
    match request:
        case ListUploads():
            return "" if "Bucket" in response else "the answer is no ListMultipartUploadsResult"
        case List() | ListVersions():
            known = any(name in response for name in _LIST_FIELDS)
            return "" if known else "the answer is no ListBucketResult"
        case Get() | Head():
            lacking = [name for name in ("ETag", "ContentLength") if name not in response]
        case Put() | CompleteUpload() | UploadPart():
            lacking = [] if "ETag" in response else ["ETag"]
        case StartUpload():
            lacking = [] if "UploadId" in response else ["UploadId"]
        case _:
            lacking = []
    return f"no {' and no '.join(lacking)}" if lacking else ""


def outcome_of(
    target: S3Target, request: StoreRequest, response: dict[str, Any], data: bytes | memoryview = b""
) -> Outcome:
    """Return the outcome of a successful call. ``data``: whole body of a GET, a view if it is lent.

    A response that is not S3's raises ConfigError, but gives UNKNOWN for a conditional write, which may have landed.
    Raises RemoteUnavailableError for a truncated body, and for keys that a busy store did not delete.
    """
    strange = _strangeness(request, response)
    if strange:
        error = not_s3(target, request, strange)
        if isinstance(request, Put | CompleteUpload):
            return PutResult(PutStatus.UNKNOWN, cause=str(error))
        raise error
    match request:
        case Get():
            return _object(target, request, response, data)
        case Head():
            return _described(response, b"", response["ContentLength"])
        case Put() | CompleteUpload():
            return PutResult(PutStatus.LANDED, response["ETag"], decode_crc(response.get("ChecksumCRC32C")))
        case Delete():
            return _deleted(target, request, response)
        case List():
            return _page(target, response)
        case ListUploads():
            return _uploads(target, request, response)
        case ListVersions():
            return _versions(target, request, response)
        case StartUpload():
            return UploadStarted(response["UploadId"])
        case UploadPart(number=number):
            return PartStored(number, response["ETag"], decode_crc(response.get("ChecksumCRC32C")))
        case AbortUpload():
            return None


def _deleted(target: S3Target, request: Delete, response: dict[str, Any]) -> Deleted:
    """Return the result. Raises RemoteUnavailableError if the store was busy for some keys: all are sent again."""
    root = len(target.full_key("x")) - 1
    failed = tuple(
        (error.get("Key", "")[root:], error.get("Code", "unknown"))
        for error in response.get("Errors", ())
        if error.get("Code") != "NoSuchKey"
    )
    busy = [(key, code) for key, code in failed if code in TRANSIENT_CODES]
    if busy:
        raise RemoteUnavailableError(
            f"Delete {target.resource(request)}: {len(busy)} of {len(request.keys)} keys were not deleted, "
            f"the first is {busy[0][0]}: {busy[0][1]}",
            hint="no action is needed: the delete is retried later",
            slow_down=any(code in TOO_MANY_CODES for _, code in busy),
        )
    return Deleted(failed)


def _object(target: S3Target, request: Get, response: dict[str, Any], data: bytes | memoryview) -> Object:
    if request.end is not None and request.end == request.start:
        return _described(response, b"", response["ContentLength"])
    if len(data) != response.get("ContentLength", len(data)):
        raise RemoteUnavailableError(
            f"GET {target.resource(request)} returned only {len(data)} of {response['ContentLength']} "
            "bytes: the connection was cut",
            hint="no action is needed: the read is repeated",
        )
    size = len(data)
    ranged = _CONTENT_RANGE.fullmatch(response.get("ContentRange") or "")
    if ranged is not None:
        size = int(ranged.group(1))
    elif request.start or request.end is not None:
        data = data[request.start : request.end]  # the server ignores ranges and sent everything
    return _described(response, data, size)


def _described(response: dict[str, Any], data: bytes | memoryview, size: int) -> Object:
    return Object(
        data if isinstance(data, bytes) else b"",
        response["ETag"],
        size,
        _ms(response.get("LastModified")),
        _date_ms(response),
        decode_crc(response.get("ChecksumCRC32C")),
        " ".join(filter(None, (response.get("ServerSideEncryption"), response.get("SSEKMSKeyId")))),
        _archive_of(response),
        data if isinstance(data, memoryview) else None,
    )


def _archive_of(response: dict[str, Any]) -> str:
    """Return the storage class of an archived object; ``""`` if it is not archived, or a restored copy can be read."""
    if 'ongoing-request="false"' in str(response.get("Restore", "")):
        return ""
    kind = str(response.get("StorageClass", ""))
    return kind if kind in ARCHIVES else str(response.get("ArchiveStatus", ""))


def _page(target: S3Target, response: dict[str, Any]) -> ListPage:
    root = len(target.full_key("x")) - 1
    entries = tuple(
        ListEntry(
            item["Key"][root:],
            item["Size"],
            item["ETag"],
            _ms(item.get("LastModified")),
            item.get("StorageClass", "STANDARD"),
        )
        for item in response.get("Contents", ())
        if len(item["Key"]) > root
    )
    return ListPage(entries, bool(response.get("IsTruncated")), _date_ms(response))


def _uploads(target: S3Target, request: ListUploads, response: dict[str, Any]) -> UploadPage:
    """Return the page, with keys without the store's prefix. Its marker is the server's, with any key of the bucket."""
    root, prefix = len(target.full_key("x")) - 1, _uploads_prefix(target, request)
    entries = tuple(
        UnfinishedUpload(item["Key"][root:], item["UploadId"], _ms(item.get("Initiated")))
        for item in response.get("Uploads", ())
        if len(item["Key"]) > root and item["Key"].startswith(prefix)
    )
    marker = response.get("NextKeyMarker", ""), response.get("NextUploadIdMarker", "")
    more = bool(
        response.get("IsTruncated")
    )  # without a marker the next page would be the first: list_unfinished raises
    by_key = not request.everywhere and _lists_uploads_by_key(response)
    return UploadPage(entries, marker if more else None, _date_ms(response), by_key)


def _versions(target: S3Target, request: ListVersions, response: dict[str, Any]) -> Versions:
    key = target.full_key(request.key)
    entries = tuple(
        ObjectVersion(item["VersionId"], item["Size"], item["ETag"], _ms(item.get("LastModified")))
        for item in response.get("Versions", ())
        if item["Key"] == key
    )
    marker = response.get("NextVersionIdMarker") if response.get("IsTruncated") else None
    more = marker and response.get("NextKeyMarker") == key
    return Versions(entries, marker if more else None)


def _lists_uploads_by_key(response: dict[str, Any]) -> bool:
    """Return True for MinIO, which takes the prefix for a key, and lists the bucket's uploads only without a prefix."""
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get("server", "")).lower().startswith("minio")


def _date_ms(response: dict[str, Any]) -> int:
    header = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if not header:
        return 0
    try:
        return _ms(email.utils.parsedate_to_datetime(header))
    except ValueError:
        return 0


def _ms(moment: dt.datetime | None) -> int:
    return 0 if moment is None else int(moment.timestamp() * 1000)


TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 509})

TOO_MANY_STATUSES = frozenset({429, 503, 509})

BOTOCORE_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
"""botocore's own table (``botocore.retries.standard``), which is not imported: a test compares the two."""

BOTOCORE_TRANSIENT = frozenset({"PriorRequestNotComplete", "RequestTimeout", "RequestTimeoutException"})

# KMS answers in S3's name where a bucket is encrypted with its keys; the others are S3's, MinIO's and R2's.
TOO_MANY_CODES = BOTOCORE_THROTTLED | {
    "KMS.ThrottlingException",
    "SlowDownRead",
    "SlowDownWrite",
    "TooManyRequests",
}
"""Codes of too many requests. The 503 of a HEAD has no code."""

TRANSIENT_CODES = (
    TOO_MANY_CODES
    | BOTOCORE_TRANSIENT
    | {
        "IncompleteBody",
        "InternalError",
        "KMS.DependencyTimeoutException",
        "KMS.KMSInternalException",
        "OperationAborted",
        "ServerNotInitialized",
        "ServiceUnavailable",
    }
)
