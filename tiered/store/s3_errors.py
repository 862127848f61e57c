"""Translation of SDK errors into outcomes or our errors, for both S3 stores.

Works on class names and response dictionaries, so that neither SDK is imported here. The messages name the
operation, ``s3://bucket/key`` and the next step; they never contain credentials, headers or signed URLs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiered.errors import (
    ConditionalWritesUnsupportedError,
    ConfigError,
    CorruptionError,
    NotFoundError,
    RemotePermissionError,
    RemoteUnavailableError,
    TieredError,
)
from tiered.store.base import (
    AbortUpload,
    CompleteUpload,
    Delete,
    Deleted,
    Get,
    Head,
    List,
    Match,
    Missing,
    NotModified,
    Object,
    Outcome,
    Put,
    PutResult,
    PutStatus,
    StoreRequest,
    UploadPart,
)
from tiered.store.s3_requests import (
    CUT_SHORT,
    KMS,
    NO_XML,
    TOO_MANY_CODES,
    TOO_MANY_STATUSES,
    TRANSIENT_CODES,
    TRANSIENT_STATUSES,
    S3Call,
    S3Target,
    not_s3,
)

_CHECKSUM_CODES = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})
_REGION_CODES = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307"}
)
_CREDENTIAL_CODES = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "TokenRefreshRequired",
        "RequestTimeTooSkewed",
        "InvalidSecurity",
        "AccountProblem",
        "NotSignedUp",
        "AllAccessDisabled",
    }
)
_CREDENTIAL_HINT = (
    "the store refuses these credentials: check the key (AWS_ACCESS_KEY_ID, AWS_PROFILE or role), that its session has "
    "not expired, the endpoint, and this machine's clock"
)

# Class names of botocore, aiobotocore and aiohttp, looked up along the bases of the error.
_CREDENTIAL_ERRORS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "UnauthorizedSSOTokenError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
    }
)
_CERTIFICATES = (
    "CERTIFICATE_VERIFY_FAILED",
    "certificate verify failed",
    "No such file",
    "Is a directory",
    "Permission denied",
    "NO_CERTIFICATE_OR_CRL_FOUND",
)
"""Words of an SSLError about certificates, or the file of them: no repeat helps."""
_CONFIG_ERRORS = frozenset(
    {
        "ParamValidationError",
        "ProfileNotFound",
        "InvalidConfigError",
        "ConfigParseError",
        "ConfigNotFound",
        "InvalidRegionError",
        "NoRegionError",
        "InvalidEndpointConfigurationError",
        "EndpointProviderError",
        "UnknownEndpointError",
        "InvalidS3AddressingStyleError",
        "InvalidProxiesConfigError",
        "UnsupportedSignatureVersionError",
        "MissingDependencyException",
        "ValueError",
    }
)


Settled = Outcome | Get | Head | TieredError
"""Result of translating an error of the SDK. A request is the follow-up of one whose answer says too little."""


def translate(target: S3Target, request: StoreRequest, call: S3Call, error: Exception) -> Settled:
    """Return the outcome that the SDK's ``error`` stands for, or a :class:`TieredError` that the caller must raise.

    ``call``: the call that failed. A :class:`Get` or :class:`Head`: the caller must send this request, too. If the
    source of the uploaded body failed, its error is raised here.
    """
    failure = call.reader.failure if call.reader is not None else None
    if failure is not None:
        raise failure  # the source failed, so that the server never had the whole body
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return _from_answer(target, request, response)
    raised = _from_sdk(target, request, error)
    if isinstance(raised, RemoteUnavailableError) and _writes(request):
        return PutResult(PutStatus.UNKNOWN, cause=str(raised))
    return raised


def without_data(outcome: Outcome) -> Outcome:
    """Return the outcome of a follow-up GET without its data, which is one byte that was not requested."""
    return replace(outcome, data=b"") if isinstance(outcome, Object) else outcome


def _from_answer(target: S3Target, request: StoreRequest, response: dict[str, Any]) -> Settled:
    metadata = response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode") or 0)
    code = str(response["Error"].get("Code") or status)
    detail = str(response["Error"].get("Message") or "")
    what = f"{_name(request)} {target.resource(request)}: {status} {code}" + (f", {detail}" if detail else "")
    if code == "NoSuchBucket":
        return NotFoundError(
            f"the bucket {target.bucket!r} does not exist: {what}",
            hint="create the bucket, or correct the URL, the endpoint or the region",
        )
    if status == 304:
        return NotModified()
    if code in _REGION_CODES or status in (301, 307):
        region = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region") or response["Error"].get("Region")
        where = f"the bucket is in {region}: " if region else "the bucket is in another region: "
        return ConfigError(what, hint=where + "set region= or AWS_REGION")
    if code == CUT_SHORT:
        return _refused(target, request, status, code, what)
    strange = _strangeness(request, status, code)
    if strange:
        refused = not_s3(target, request, strange)
        # A 501 is a refusal: it is not repeated, and like each refusal it proves nothing, so a commit stays in doubt.
        # After any other foreign response to a write, the outcome is unknown.
        unknown = _writes(request) and status != 501
        return PutResult(PutStatus.UNKNOWN, cause=str(refused)) if unknown else refused
    if status == 404:
        # Some gateways respond so to the deletion of an absent key, which is a success on S3.
        gone = isinstance(request, Delete) and len(request.keys) == 1 and code == "NoSuchKey"
        return Deleted() if gone else _absent(request, what)
    if isinstance(request, Put | CompleteUpload):
        if status == 412:
            return PutResult(PutStatus.LOST)
        if status == 409:
            return PutResult(PutStatus.CONFLICT, cause=what)
    if isinstance(request, Get) and (status == 416 or code == "InvalidRange"):
        return Head(request.key)  # the error for a range past the end has no ETag
    if isinstance(request, Head) and code == "400":
        return _asked_again(request)
    return _refused(target, request, status, code, what)


def _strangeness(request: StoreRequest, status: int, code: str) -> str:
    """Return why an error cannot come from S3, ``""`` if it can. S3 sends an XML body with a code, except to a HEAD."""
    if code == NO_XML:
        return "the answer is no XML"
    if status in (404, 501) and code == str(status) and not isinstance(request, Head):
        return f"{status} without an S3 error code"
    return ""


def _asked_again(request: Head) -> Get:
    """Return the follow-up of a HEAD. Its error has no body: an absent key looks like an absent bucket."""
    return Get(request.key, 0, 1)


def _absent(request: StoreRequest, what: str) -> Settled:
    match request:
        case Get():
            return Missing()
        case Head():
            return _asked_again(request)
        case AbortUpload():
            return None
        case Put(condition=Match()):
            return PutResult(PutStatus.ABSENT)
        case CompleteUpload():
            return PutResult(PutStatus.UNKNOWN, cause=what)
        case UploadPart():
            return NotFoundError(what, hint="the multipart upload was aborted or has expired: start it again")
        case Put():
            return PutResult(PutStatus.UNKNOWN, cause=what)
    return NotFoundError(what, hint="check the endpoint: it may not be an S3 endpoint")


def _refused(target: S3Target, request: StoreRequest, status: int, code: str, what: str) -> Settled:
    write = isinstance(request, Put | CompleteUpload)
    later = code == CUT_SHORT or code in TRANSIENT_CODES
    if later or status in TRANSIENT_STATUSES or (status >= 500 and status != 501):
        slow_down = code in TOO_MANY_CODES or status in TOO_MANY_STATUSES
        if write:
            return PutResult(PutStatus.UNKNOWN, cause=what, slow_down=slow_down)
        return RemoteUnavailableError(
            what, hint="the store is busy or failing; the request is sent again, try again later", slow_down=slow_down
        )
    if code in _CHECKSUM_CODES:
        return CorruptionError(
            what,
            path_or_key=target.resource(request),
            hint="the bytes changed on the way to the store, or since their checksum was taken; nothing was stored",
        )
    if code == "InvalidObjectState":
        return _archived(target, request, what)
    if status in (401, 403) or code in _CREDENTIAL_CODES:
        hint = _CREDENTIAL_HINT if code in _CREDENTIAL_CODES else _permission_hint(target, request)
        return RemotePermissionError(what, operation=_name(request), resource=target.resource(request), hint=hint)
    if status == 501 and write:
        return ConditionalWritesUnsupportedError(
            what, hint="this store refuses If-Match or If-None-Match; use one that supports conditional writes"
        )
    return ConfigError(what, hint="the store refuses this request: check the endpoint, the bucket and the key")


def _archived(target: S3Target, request: StoreRequest, what: str) -> RemotePermissionError:
    """Return the error for an object that a lifecycle rule or a person has moved to an archive."""
    resource = target.resource(request)
    key = resource.removeprefix(f"s3://{target.bucket}/")
    return RemotePermissionError(
        f"{resource} is archived (GLACIER or DEEP_ARCHIVE) and cannot be read: {what}",
        operation=_name(request),
        resource=resource,
        is_archived=True,
        hint=f"restore it: aws s3api restore-object --bucket {target.bucket} --key {key} --restore-request Days=7; "
        "then take this prefix out of the lifecycle rule",
    )


def _permission_hint(target: S3Target, request: StoreRequest) -> str:
    owner = target.expected_bucket_owner
    other = f"; or the bucket is not of the account {owner}: is it another's?" if owner else ""
    if isinstance(request, List):
        prefix = target.full_key(request.prefix)  # a role may list some prefixes only
        also = f", also for the prefix {prefix!r}" if prefix else ""
        return f"grant s3:ListBucket to this role or key{also}{other}"
    key = " and kms:Decrypt of the bucket's KMS key"
    if isinstance(request, Get) and request.version:
        return f"grant s3:GetObjectVersion{key if target.sse == KMS else ''} to this role or key{other}"
    if isinstance(request, Get | Head):
        absent = "without it S3 answers 403 also for a key that does not exist"
        return f"grant s3:GetObject{key if target.sse == KMS else ''}, and s3:ListBucket: {absent}{other}"
    actions = {
        "Delete": "s3:DeleteObject",
        "AbortUpload": "s3:AbortMultipartUpload",
        "ListUploads": "s3:ListBucketMultipartUploads",
        "ListVersions": "s3:ListBucketVersions",
    }
    action = actions.get(type(request).__name__)
    if action is None:
        action = "s3:PutObject (and s3:PutObjectTagging)"
        action += f", kms:GenerateDataKey{key}" if target.sse == KMS else ""
    return f"grant {action} to this role or key{other}"


def _from_sdk(target: S3Target, request: StoreRequest, error: Exception) -> TieredError:
    names = {base.__name__ for base in type(error).__mro__}
    what = f"{_name(request)} {target.resource(request)}: "
    text = str(error)
    if names & _CREDENTIAL_ERRORS:
        return RemotePermissionError(
            what + "no usable credentials were found",
            operation=_name(request),
            resource=target.resource(request),
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or run with a role",
        )
    if "SSLError" in names or "SSLCertVerificationError" in names:
        if any(words in text for words in _CERTIFICATES):
            return ConfigError(
                what + f"no trusted TLS connection ({_one_line(text)})",
                hint="set AWS_CA_BUNDLE to a PEM file with the authority of that server, or correct the endpoint",
            )
        return RemoteUnavailableError(
            what + f"the TLS connection failed ({type(error).__name__})", hint="check that the endpoint speaks https"
        )
    if names & _CONFIG_ERRORS:
        return ConfigError(what + _one_line(text), hint="correct the bucket, region, profile or endpoint")
    return RemoteUnavailableError(
        what + f"{type(error).__name__}, {_one_line(text)}",
        hint="the store did not answer: check the endpoint, DNS, proxies, the network, and that the server runs",
    )


def _writes(request: StoreRequest) -> bool:
    """Return True for a conditional write: without a response its outcome is UNKNOWN, which the sender resolves."""
    return isinstance(request, Put | CompleteUpload)


def _name(request: StoreRequest) -> str:
    return type(request).__name__


def _one_line(text: str, limit: int = 300) -> str:
    return " ".join(text.split())[:limit]
