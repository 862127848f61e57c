"""A store that asks a policy document before each request, as IAM does before S3 answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.iam import applying, decision, matches
from tiered.errors import RemotePermissionError
from tiered.format.keys import wildcards
from tiered.store.base import (
    AbortUpload,
    CompleteUpload,
    Delete,
    Deleted,
    Get,
    Head,
    List,
    ListUploads,
    ListVersions,
    Missing,
    Outcome,
    Put,
    StartUpload,
    Store,
    StoreRequest,
    UploadPart,
)

BUCKET_ARN = "arn:aws:s3:::bucket"
PREFIX = "logs/prod/"
KMS_ARN = "arn:aws:kms:eu-central-1:123456789012:key/1111"
KEY = "the key"

Need = tuple[str, str]
"""An action, and a key; of an action on the bucket the prefix that is listed."""


def kind_of(key: str) -> str:
    """What kind of key it is; its whole text if it is none of the product's."""
    return next((kind for kind, pattern in wildcards().items() if matches(pattern, key)), key)


def needs(request: StoreRequest) -> Iterator[Need]:
    """What S3 asks IAM for this request in a bucket that is encrypted with a KMS key."""
    match request:
        case Get(key=key, version=version) if version:
            yield from (("s3:GetObjectVersion", key), ("kms:Decrypt", KEY))
        case Get(key=key) | Head(key=key):
            yield from (("s3:GetObject", key), ("kms:Decrypt", KEY))
        case Put(key=key, tags=tags) | StartUpload(key=key, tags=tags):
            yield from (("s3:PutObject", key), ("kms:GenerateDataKey", KEY))
            if tags:
                yield "s3:PutObjectTagging", key
        case UploadPart(key=key) | CompleteUpload(key=key):
            yield from (("s3:PutObject", key), ("kms:Decrypt", KEY), ("kms:GenerateDataKey", KEY))
        case AbortUpload(key=key):
            yield "s3:AbortMultipartUpload", key
        case List(prefix=prefix):
            yield "s3:ListBucket", prefix
        case ListVersions(key=key):
            yield "s3:ListBucketVersions", key
        case ListUploads(prefix=prefix):
            yield "s3:ListBucketMultipartUploads", prefix
        case Delete():
            raise AssertionError("answered key by key")


class Guard:
    """What one role asked for: ``used`` (allowed, by action and kind of key), ``refused``."""

    def __init__(self, policy: Mapping[str, Any]) -> None:
        self.policy = policy
        self.used: set[Need] = set()
        self.refused: set[Need] = set()

    def allows(self, action: str, key: str) -> bool:
        """Whether the document allows it; either is noted."""
        context, resource, kind = {}, f"{BUCKET_ARN}/{PREFIX}{key}", kind_of(key)
        if key == KEY:
            resource = KMS_ARN
        elif action in ("s3:ListBucket", "s3:ListBucketVersions"):
            context, resource = {"s3:prefix": PREFIX + key}, BUCKET_ARN
            kind = {"topics": "topic", "txn": "decision", "jobs": "audit", "groups": "group", "": "log"}.get(
                key.partition("/")[0], "partition"
            )
        elif action == "s3:ListBucketMultipartUploads":
            resource, kind = BUCKET_ARN, "partition"
        allowed = decision(self.policy, action, resource, context) == "Allow"
        (self.used if allowed else self.refused).add((action, kind))
        return allowed

    def tells_absent(self) -> bool:
        """Whether S3 says 404, not 403, of an absent key."""
        return bool(applying(self.policy, "s3:ListBucket", BUCKET_ARN, {}))


class PolicedStore:
    """``inner`` behind a :class:`Guard`."""

    def __init__(self, inner: Store, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard

    @property
    def url(self) -> str:
        return self._inner.url

    def close(self) -> None:
        self._inner.close()

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, Delete):
            return self._delete(request)
        for action, key in needs(request):
            if not self._guard.allows(action, key):
                raise RemotePermissionError(f"{action} {key}: AccessDenied", operation=action, resource=key)
        outcome = self._inner.execute(request)
        if isinstance(outcome, Missing) and not self._guard.tells_absent():
            raise RemotePermissionError("AccessDenied", operation="s3:GetObject", resource=str(request))
        return outcome

    def _delete(self, request: Delete) -> Outcome:
        allowed = tuple(key for key in request.keys if self._guard.allows("s3:DeleteObject", key))
        outcome = self._inner.execute(Delete(allowed))
        assert isinstance(outcome, Deleted)
        refused = tuple((key, "AccessDenied") for key in request.keys if key not in allowed)
        if refused and len(request.keys) == 1:
            raise RemotePermissionError("AccessDenied", operation="s3:DeleteObject", resource=request.keys[0])
        return Deleted(outcome.failed + refused)
