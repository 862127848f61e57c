"""How much of an answer is read: what it says of its length is believed only where that is too much."""

from __future__ import annotations

import asyncio
import io
from typing import Any, Self

import pytest

from tiered.errors import CorruptionError
from tiered.store import aio_s3, s3
from tiered.store.base import Get
from tiered.store.sources import PIECE_BYTES

LIMIT = PIECE_BYTES + 10


class Body(io.BytesIO):
    """The body of an answer of botocore's."""


class AsyncBody:
    """The body of an answer of aiobotocore's."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self, size: int) -> bytes:
        return self._data.read(size)

    def tell(self) -> int:
        return self._data.tell()


def read(client: str, body: Any, **headers: int) -> bytes:
    request = Get("key", max_bytes=LIMIT)
    if client == "s3":
        return s3._read_body(request, {"Body": body, **headers})
    return asyncio.run(aio_s3._read_body(request, {"Body": body, **headers}))


CLIENTS = pytest.mark.parametrize(("client", "kind"), [("s3", Body), ("aio_s3", AsyncBody)])


@CLIENTS
@pytest.mark.parametrize("headers", [{}, {"ContentLength": LIMIT}])
def test_a_body_of_just_the_limit_is_read(client: str, kind: type, headers: dict[str, int]) -> None:
    assert read(client, kind(bytes(LIMIT)), **headers) == bytes(LIMIT)


@CLIENTS
def test_nothing_is_read_of_an_answer_that_says_it_is_too_large(client: str, kind: type) -> None:
    body = kind(bytes(LIMIT + 1))
    told: list[int] = []
    if kind is Body:
        body.close = lambda: told.append(body.tell())  # before it is closed, for what was read by then
    with pytest.raises(CorruptionError, match=f"has {LIMIT + 1} bytes, more than the limit of {LIMIT}"):
        read(client, body, ContentLength=LIMIT + 1)
    assert (told or [body.tell()]) == [0]


@CLIENTS
@pytest.mark.parametrize("headers", [{}, {"ContentLength": 5}])
def test_reading_ends_where_an_answer_that_did_not_say_so_is_too_large(
    client: str, kind: type, headers: dict[str, int]
) -> None:
    with pytest.raises(CorruptionError, match=f"more than the limit of {LIMIT}"):
        read(client, kind(bytes(10 * LIMIT)), **headers)
