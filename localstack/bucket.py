"""Creating a bucket with a signed request (Signature Version 4), without an SDK."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http.client
from dataclasses import dataclass

REGION = "us-east-1"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
EXISTS = (200, 409)  # 409: BucketAlreadyOwnedByYou


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client of the server uses; throw-away values, the servers listen on loopback only."""

    access_key: str
    secret_key: str


def _signature(credentials: Credentials, day: str, to_sign: str) -> str:
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, REGION, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()


def signed_headers(method: str, host: str, path: str, credentials: Credentials) -> dict[str, str]:
    """Headers of a request without body and query. ``path`` needs no escaping."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")  # part of the signature
    day = stamp[:8]
    headers = {"host": host, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": stamp}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{EMPTY_SHA256}"
    scope = f"{day}/{REGION}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signature = _signature(credentials, day, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}")
    auth = f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope},SignedHeaders={names},Signature={signature}"
    return {**headers, "authorization": auth}


def request(method: str, host: str, port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of one request; status 0 if nobody answers."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def create(host: str, port: int, bucket: str, credentials: Credentials) -> tuple[int, bytes]:
    """Creates ``bucket``; a status in ``EXISTS`` means that it is there now."""
    path = f"/{bucket}"
    return request("PUT", host, port, path, signed_headers("PUT", f"{host}:{port}", path, credentials))
