"""moto's S3 server in this process, made atomic: it checks a condition and stores the object without a lock.

Unpatched, two writers win one in a thousand races; with the lock a test may count winners.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import boto3.session
from botocore.config import Config
from moto.iam.access_control import IAMPolicyStatement
from moto.s3.exceptions import MissingKey, PreconditionFailed
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment of a client of the test server, which takes any credentials."""

_LOCK = threading.RLock()
_PATCH_LOCK = threading.Lock()
_LOCKED_METHODS = ("put_object", "copy_object", "delete_object", "_key_response_post")


@contextlib.contextmanager
def locked_moto() -> Iterator[str]:
    """Yield the URL of an S3 server on a free port of 127.0.0.1, stopped at the end of the ``with``.

    Servers of one process share their buckets: give each test a bucket of its own (:func:`make_bucket`).
    """
    _patch()
    log = logging.getLogger("werkzeug")
    level = log.level
    log.setLevel(logging.CRITICAL)  # the server logs every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        listener: Any = server._server
        listener.server_close()  # stop() leaves the listening socket to the garbage collector
        log.setLevel(level)


def make_bucket(
    endpoint_url: str, bucket: str, *, versioned: bool = False, credentials: dict[str, str] = CREDENTIALS
) -> None:
    """Make a bucket on a test server, with versioning where ``versioned``."""
    session = boto3.session.Session(
        aws_access_key_id=credentials["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=credentials["AWS_SECRET_ACCESS_KEY"],
        region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
    )
    client = session.client("s3", endpoint_url=endpoint_url, config=Config(s3={"addressing_style": "path"}))
    try:
        client.create_bucket(Bucket=bucket)
        if versioned:
            client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    finally:
        client.close()


def _patch() -> None:
    with _PATCH_LOCK:
        setattr(IAMPolicyStatement, "_match", staticmethod(_matches))  # noqa: B010 - mypy: it is a method
        for name in _LOCKED_METHODS:
            method = getattr(S3Response, name)
            if not hasattr(method, "tiered_lock"):
                setattr(S3Response, name, _locked(method))


def _matches(pattern: str, text: str) -> re.Match[str] | None:
    """Match IAM's wildcards. moto takes ``?`` for that of a regular expression, and fails at two of them."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), text, re.DOTALL)


def _locked(method: Any) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _LOCK:
            if method.__name__ == "_key_response_post":
                _check_completion(self, *args)
            return method(self, *args, **kwargs)

    call.tiered_lock = True  # type: ignore[attr-defined]  # a mark on the function, so that it is wrapped once
    return call


def _check_completion(response: Any, request: Any, _body: bytes, bucket: str, query: Any, key: str) -> None:
    """Check ``If-Match`` on CompleteMultipartUpload, which moto ignores: 412 if stale, 404 if the key is absent."""
    expected = request.headers.get("If-Match")
    if not expected or not query.get("uploadId"):
        return
    current = response.backend.get_object(bucket, key)
    if current is None:
        raise MissingKey(key=key)
    if current.etag.strip('"') != expected.strip('"'):
        raise PreconditionFailed("If-Match")
