"""Error codes of S3 and compatible servers that mean "later": botocore's table, and codes that it lacks."""

from __future__ import annotations

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
