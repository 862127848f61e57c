"""The batches and records of a ``.log`` or of a KRaft snapshot, from an offset on, up to a number of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiered.care.inspection import WINDOW_BYTES, batches
from tiered.dump.content import Content
from tiered.dump.items import BatchItem, Item, RecordItem, Tail
from tiered.errors import CorruptionError
from tiered.format.batch import BatchHeader, decode_records, read_header, verify_batch
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES, Codec, codec_of, decompress
from tiered.format.legacy import Message, inner_messages, read_message, verify_message
from tiered.model import ByteSource


@dataclass(frozen=True, slots=True)
class Window:
    """Which batches: from the one that holds ``offset`` on, at most so many, at most so many bytes. None: no limit."""

    offset: int = 0
    max_batches: int | None = None
    max_bytes: int | None = None


def log_items(name: str, source: ByteSource, window: Window, content: Content, *, lenient: bool) -> Iterator[Item]:
    """Batches, records and what follows them. ``lenient``: records of a batch with a wrong CRC are shown, too.

    Raises ``CorruptionError`` with the position where no batch can begin, or in a record.
    """
    end, taken, size_bytes = 0, 0, 0
    try:
        for position, data in batches(source):
            header, valid = _checked(data, position)
            end = position + len(data)
            if header.last_offset < window.offset:
                continue
            taken, size_bytes = taken + 1, size_bytes + len(data)
            if _beyond(window.max_batches, taken) or _beyond(window.max_bytes, size_bytes):
                return
            yield BatchItem(header, position, valid)
            if content.deep and (valid or lenient):
                yield from _records(data, header, position, content)
    except CorruptionError as damage:
        if end == source.size or damage.position != end or not _only_zeros(source, end):
            raise
    if end < source.size:
        yield Tail(end, source.size - end, _only_zeros(source, end), name)


def _beyond(limit: int | None, count: int) -> bool:
    return limit is not None and count > limit


def _checked(data: memoryview, position: int) -> tuple[BatchHeader, bool]:
    try:
        return verify_batch(data), True
    except CorruptionError:
        pass
    try:
        return read_header(data), False
    except CorruptionError as damage:
        raise CorruptionError(damage.message, position=position, offset=damage.offset) from None


def _records(data: memoryview, header: BatchHeader, position: int, content: Content) -> Iterator[Item]:
    try:
        messages = _messages(data) if header.magic < 2 else None
        for number, record in enumerate(decode_records(data)):
            yield RecordItem(record, header, position, content, messages[number] if messages else None)
    except CorruptionError as damage:
        raise CorruptionError(
            f"the records of the batch cannot be read: {damage.message}", position=position, offset=header.base_offset
        ) from None


def _messages(data: memoryview) -> list[tuple[Message, bool]]:
    """The v0 or v1 messages that a message is or holds, and whether their CRCs hold."""
    wrapper = read_message(data, 0)
    codec = codec_of(wrapper.attributes)
    if codec is Codec.NONE:
        return [(wrapper, _holds(data, wrapper))]
    key_bytes = int.from_bytes(data[wrapper.body : wrapper.body + 4], "big", signed=True)
    start = wrapper.body + 4 + max(key_bytes, 0) + 4
    inner = decompress(codec, data[start:], max_bytes=MAX_DECOMPRESSED_BYTES, legacy_lz4=wrapper.magic == 0)
    return [(message, _holds(message_bytes, message)) for message, message_bytes in inner_messages(inner)]


def _holds(data: memoryview, message: Message) -> bool:
    try:
        verify_message(data, message)
    except CorruptionError:
        return False
    return True


def _only_zeros(source: ByteSource, position: int) -> bool:
    while position < source.size:
        length = min(WINDOW_BYTES, source.size - position)
        if any(source.read_at(position, length)):
            return False
        position += length
    return True
