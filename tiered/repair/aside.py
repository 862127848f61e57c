"""Copies of replaced objects, below ``aside/`` of their partition. Only the deletion of the topic deletes them."""

from __future__ import annotations

from tiered.check.judge import sum_of
from tiered.errors import CorruptionError
from tiered.plan.maintenance import READ_BYTES
from tiered.store.base import Get, Head, Object, Steps
from tiered.store.unique_upload import ObjectWriter


def keep_copy(key: str, to: str) -> Steps[bool]:
    """Copy an object as it is under another name. Return False if it is missing by now.

    Raises CorruptionError if the copy would not be all of it: the object must not be replaced then.
    """
    head = yield Head(key)
    if not isinstance(head, Object):
        return False
    output = ObjectWriter(to)
    for at in range(0, head.size, READ_BYTES):
        got = yield Get(key, at, min(at + READ_BYTES, head.size))
        if isinstance(got, Object) and got.etag == head.etag:
            yield from output.write(got.data)
    differs = head.crc32c not in (None, output.crc32c)  # or its bytes have rotted below the store's checksum of them
    if output.size != head.size or (differs and (yield from sum_of(key, head.size)) != output.crc32c):
        yield from output.abort()
        raise CorruptionError(
            f"{key} has {head.size} bytes, {output.size} of them could be copied as they are: nothing was replaced",
            path_or_key=key,
            position=output.size,
            hint="try again; if it stays so, another program writes this key",
        )
    yield from output.finish()
    copy = yield Head(to)
    if not isinstance(copy, Object) or copy.size != head.size:
        raise CorruptionError(
            f"{to}, the copy of {key}, is not there with its {head.size} bytes: nothing was replaced",
            path_or_key=to,
            position=0,
            hint="try again",
        )
    return True
