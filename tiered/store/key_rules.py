"""Rules for keys, the same for every backend, so that a log can move between them.

They are the narrowest of the stores that were tried: S3 takes 1,024 bytes a key, MinIO and SeaweedFS 255 bytes
a path part and neither ``//`` nor ``.`` or ``..`` as a part; control characters cannot be listed in XML 1.0.
"""

from __future__ import annotations

import re

from tiered.errors import ConfigError
from tiered.store.base import MAX_DELETE_KEYS, Delete, Get, List, ListUploads, StoreRequest, UploadPart

MAX_KEY_BYTES = 1024
MAX_KEY_PART_BYTES = 255
MAX_PART_NUMBER = 10_000
"""Limit of parts in one multipart upload, S3's limit."""

MAX_LIST_KEYS = 1000
"""Keys of one page of a listing, S3's limit."""

_PLAIN = re.compile(r"(?:[0-9A-Za-z_-][0-9A-Za-z._-]{0,62}/){0,7}[0-9A-Za-z_-][0-9A-Za-z._-]{0,62}")
"""Keys of short parts of plain characters, which break no rule: nearly all keys."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def check_key(key: str, *, what: str = "key") -> str:
    """Return ``key``. Raises ``ConfigError`` for a key that some store would refuse or confuse with another key.

    ``what`` names the key in the error.
    """
    if not key:
        raise ConfigError(f"the {what} is empty")
    _check_text(key, what)
    for part in key.split("/"):
        if part in ("", ".", ".."):
            raise ConfigError(
                f"the {what} {key!r} has the part {part!r}",
                hint="remove a leading, trailing or double '/', and parts '.' and '..'",
            )
        if len(part) > MAX_KEY_PART_BYTES // 4 and len(part.encode()) > MAX_KEY_PART_BYTES:
            raise ConfigError(
                f"a part of the {what} {key[:80]!r}... has {len(part.encode())} bytes",
                hint=f"use at most {MAX_KEY_PART_BYTES} bytes between two '/'",
            )
    return key


def check_list(request: List) -> None:
    """Raise ConfigError for a prefix or limit that stores interpret differently."""
    _check_prefix(request.prefix)
    _check_text(request.start_after, "start_after")
    if not 1 <= request.limit <= MAX_LIST_KEYS:
        raise ConfigError(f"a page of {request.limit} keys is not possible", hint=f"request 1 to {MAX_LIST_KEYS} keys")


def check_request(request: StoreRequest) -> None:
    """Raise ``ConfigError`` for a request that no store could carry out. Called before it is sent."""
    if isinstance(request, List):
        check_list(request)
        return
    if isinstance(request, ListUploads):
        _check_prefix(request.prefix)
        return
    if isinstance(request, Delete):
        if len(request.keys) > MAX_DELETE_KEYS:
            raise ConfigError(
                f"a delete of {len(request.keys)} keys is not possible", hint=f"use at most {MAX_DELETE_KEYS}"
            )
        for key in request.keys:
            check_key(key)
        return
    if not _PLAIN.fullmatch(request.key):
        check_key(request.key)
    if isinstance(request, Get):
        if request.start < 0 or (request.end is not None and request.end < request.start):
            raise ConfigError(f"bytes {request.start} to {request.end} of {request.key!r} are not a range")
    elif isinstance(request, UploadPart):
        if not 1 <= request.number <= MAX_PART_NUMBER:
            raise ConfigError(
                f"part number {request.number} of {request.key!r} is not possible",
                hint=f"number parts from 1 to {MAX_PART_NUMBER}",
            )
        if not 0 <= request.start <= request.end <= request.body.size:
            raise ConfigError(
                f"part {request.number} of {request.key!r} has bytes {request.start} to {request.end}, but "
                f"the body has only {request.body.size}"
            )


def _check_prefix(prefix: str) -> None:
    _check_text(prefix, "prefix")
    if prefix.startswith("/") or "//" in prefix:
        raise ConfigError(f"the prefix {prefix!r} begins with '/' or contains '//'", hint="correct the prefix")


def _check_text(text: str, what: str) -> None:
    found = _CONTROL.search(text)
    if found is not None:
        raise ConfigError(f"the {what} {text[:80]!r} contains the forbidden character {found.group()!r}")
    if len(text) > MAX_KEY_BYTES // 4 and len(text.encode()) > MAX_KEY_BYTES:
        raise ConfigError(
            f"the {what} {text[:80]!r}... has {len(text.encode())} bytes", hint=f"use at most {MAX_KEY_BYTES}"
        )
