"""The hot loops: records to bytes and back, one varint at a time, in pure Python.

The compiled twin, ``_kernels``, has some of these functions, with the same arguments, results and exceptions
(``kernels`` selects the twin). This twin is the oracle of differential tests, the fallback without a compiler, and
the slow path of the compiled twin. *Odd* input is input that the compiled fast path does not take: damaged, of an
old format, or of rare types.

One record inside a v2 batch (section "Record" of Kafka's message format; every integer a zigzag varint)::

    length | attributes i8 = 0 | timestamp delta | offset delta | key length, key | value length, value
           | header count | count x (name length, UTF-8 name | value length, value)

Length -1 stands for null. A varint has at most 5 bytes, the timestamp delta (a varlong) at most 10.

Input that Kafka's consumer accepts is accepted, even if no current writer produces it: any negative length of a key
or value is null, and a name that is not UTF-8 is decoded like in Java.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import chain
from typing import TypeVar

from tiered.errors import CorruptionError, InvalidTimestampError
from tiered.format.kernel_values import (  # noqa: F401  the compiled twin takes some of these from here
    ArrowBinary,
    ArrowBuffers,
    BatchFilterResult,
    BatchForm,
    BatchKeysResult,
    Block,
    Buffer,
    RunFilterResult,
    RunKeysResult,
    Shown,
    Survey,
)
from tiered.format.partitioner import murmur2  # noqa: F401  one kernel of both twins
from tiered.format.records import ConsumerRecord, Record, header_name
from tiered.model import HeaderName, Headers, NewRecord

MIN_RECORD_BYTES = 7  # length, attributes, two deltas, two lengths and a header count of one byte each
_BATCH = struct.Struct(">qi4xbI2xi8xq14xi")  # base, length, magic, CRC, last delta, max timestamp, records count
_FIELDS = struct.Struct(">qiibIhiqqqhii")  # the whole header of a batch
_FULL_BATCH = struct.Struct(">qiibIhi8xqq6xi")
"""Base, length, leader epoch, magic, CRC, attributes, last offset delta, largest timestamp, producer id, count."""
_LOG_OVERHEAD_BYTES = 12
_HEADER_BYTES = 61
_TRANSACTIONAL_BIT = 0x10
_MAX_RELATIVE = 2**31 - 1
_CRC_START = 21
_MAX_OFFSET = 2**63 - 1
_SPAN = 8192  # values -_SPAN .. _SPAN-1 take at most two bytes and come out of a table
_WIDE_SPAN = 2**27  # values 0 .. _WIDE_SPAN-1 take two look-ups
_MASK64 = 2**64 - 1
_PLAIN = 2**62
_BYTE_FORMATS = ("B", "b", "c")
_MAX_VARINT_SHIFT = 35
_MAX_VARLONG_SHIFT = 70

T = TypeVar("T")

# Tables, empty until the first varint: the compiled twin does not need them.
_UNZIGZAG: list[int] = []
# The last one or two bytes of a varint, and two bytes that are followed by more, by their 14 bits.
_LAST: list[bytes] = []
_MORE: list[bytes] = []
# By the number itself, from 0 up: lengths and offset deltas. And with the attributes byte before it.
_SMALL: list[bytes] = []
_HEAD: list[bytes] = []


def _filled(table: list[T]) -> list[T]:
    """Fill all tables of varints if ``table`` is empty, and return ``table``. No thread sees a partly filled table."""
    if not table:
        last = [bytes((z,)) if z < 0x80 else bytes((z & 0x7F | 0x80, z >> 7)) for z in range(2 * _SPAN)]
        _MORE[:] = [bytes((z & 0x7F | 0x80, z >> 7 | 0x80)) for z in range(2 * _SPAN)]
        _UNZIGZAG[:] = [(z >> 1) ^ -(z & 1) for z in range(2 * _SPAN)]
        _SMALL[:] = last[0::2]
        _HEAD[:] = [b"\0" + v for v in last[0::2]]
        _LAST[:] = last
    return table


@cache
def _wheel() -> Callable[[Buffer, int], int]:
    from crc32c import crc32c as sum_of  # noqa: PLC0415  it reads what is installed: 20 ms, for nothing where the twin sums

    return sum_of


def crc32c(data: Buffer, value: int = 0, /) -> int:
    """Return the CRC-32C of ``data``, continued from ``value``, the CRC of the bytes before it."""
    return _wheel()(data, value)


def _wrap64(n: int) -> int:
    return (n + 2**63 & _MASK64) - 2**63


def encode_varint(n: int) -> bytes:
    """Return the zigzag varint of a signed 32- or 64-bit integer; wider ones wrap to 64 bits like Java's ``long``."""
    if 0 <= n < _WIDE_SPAN:
        z = n << 1
    else:
        n = _wrap64(n)
        z = (n << 1) ^ (n >> 63)
    last = _LAST or _filled(_LAST)
    if z < 2 * _SPAN:
        return last[z]
    out = b""
    while z >= 2 * _SPAN:
        out += _MORE[z & 0x3FFF]
        z >>= 14
    return out + last[z]


def as_bytes(field: object) -> bytes:
    """Return the bytes of any buffer of bytes: ``bytes``, ``bytearray``, a ``memoryview`` or array of unsigned bytes.

    Raises ``TypeError`` for other objects, and for a buffer whose items are not contiguous single bytes (integers,
    floats, an image): only the caller knows which bytes in which byte order were meant.
    """
    if type(field) is bytes:
        return field
    view = memoryview(field)  # type: ignore[arg-type]  # TypeError: no buffer
    if view.ndim != 1 or view.format not in _BYTE_FORMATS:
        raise TypeError(f"a buffer of {view.ndim} dimensions of {view.format!r}, not bytes")
    return bytes(view)


def _encode_field(field: bytes | None) -> tuple[bytes, bytes]:
    if field is None:
        return b"\1", b""
    field = as_bytes(field)
    return encode_varint(len(field)), field


def _encode_headers(headers: Headers) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        raw = name.raw if type(name) is HeaderName else name.encode("utf-8")
        parts += (encode_varint(len(raw)), raw)
        parts += _encode_field(value)
    return b"".join(parts)


def encode_records(records: Sequence[NewRecord], base_timestamp: int) -> tuple[bytes, int]:
    """Encode ``records`` with offset deltas 0, 1, 2, ...; return (bytes, largest timestamp).

    Each item is ``(value, key, timestamp, headers)``, the fields of :class:`~tiered.model.NewRecord`. Timestamps
    are stored as given. Raises ``InvalidTimestampError`` below -1. A value of the wrong type raises ``TypeError`` or
    ``ValueError``, which the caller turns into an error with the record's index.
    """
    last, span, wide_span = _filled(_LAST), _SPAN, _WIDE_SPAN  # the last table to be made
    small, head, more = _SMALL, _HEAD, _MORE
    parts: list[bytes] = []
    add = parts.append
    join = b"".join
    largest = 0
    count = len(records)
    offsets = small if count <= span else chain(small, map(encode_varint, range(span, count)))
    for offset, (value, key, timestamp, headers) in zip(offsets, records):  # noqa: B905 - strict= costs 250 ns
        delta = timestamp - base_timestamp
        if 0 <= delta < span:
            start = head[delta]
        elif 0 < delta < wide_span:
            z = delta << 1
            start = b"\0" + more[z & 0x3FFF] + last[z >> 14]
        else:
            if timestamp < -1:
                raise InvalidTimestampError(f"timestamp {timestamp} is negative")
            start = b"\0" + encode_varint(delta)
        if delta > largest:  # noqa: PLR1730 - max() costs 40 ns a record
            largest = delta
        tail = _encode_headers(headers) if headers else b"\0"
        try:
            if type(key) is bytes is type(value):  # other buffers may have another len() than bytes
                body = join((start, offset, small[len(key)], key, small[len(value)], value, tail))
            elif key is None and type(value) is bytes:
                body = join((start, offset, b"\1", small[len(value)], value, tail))
            elif value is None and type(key) is bytes:
                body = join((start, offset, small[len(key)], key, b"\1", tail))
            else:
                raise TypeError
        except (IndexError, TypeError):  # 8 KiB or more, neither key nor value, or some other buffer
            body = join((start, offset, *_encode_field(key), *_encode_field(value), tail))
        n = len(body)
        add(small[n] if n < span else encode_varint(n))
        add(body)
    return join(parts), base_timestamp + largest


class KeyTable:
    """Table with the newest offset of each key. Keys are stored as 128-bit digests, keyed with ``secret`` (16 bytes).

    Only with the secret could keys with equal digests be made. :meth:`put_batch` stops at ``capacity`` keys. Memory is
    allocated as keys arrive.
    """

    def __init__(self, capacity: int, secret: bytes) -> None:
        self._secret = secret
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def digest(self, key: bytes) -> bytes:
        """Return the digest of a key. The compiled twin's digest of the same key differs."""
        return blake2b(key, digest_size=16, key=self._secret).digest()

    def put(self, key: bytes, offset: int) -> None:
        """Set the newest offset of ``key``, regardless of the capacity."""
        self._offsets[self.digest(key)] = offset

    def get(self, key: bytes) -> int:
        """Return the newest offset of ``key``, -1 if it was never put."""
        return self._offsets.get(self.digest(key), -1)

    def put_batch(self, batch: Buffer, start: int) -> BatchKeysResult | None:
        """Set the newest offset of the key of each record at offsets from ``start`` on in a verified batch.

        The batch may be compressed. None: the fast path does not take the batch, such as one of an old format. Nothing
        was added, and the caller must add its records one by one. This twin always returns None. Raises
        ``CorruptionError`` if decompression fails.
        """
        return None

    def count_superseded_from(self, start: int) -> None:
        """Prepare the table to note, from offset ``start`` on, records that a newer record of their key supersedes.

        :meth:`filter_run` then needs no look-up of these records. The caller promises that each later batch adds all
        its keyed records from ``start`` on, or none. Only the compiled table notes them, within its memory limit.
        """

    def put_run(self, batches: Buffer, start: int) -> RunKeysResult | None:
        """Set the newest offset of each key in consecutive verified v2 batches, until the table is full.

        Records at offsets below ``start`` are left out. Stops before a batch that is compressed, transactional, a
        control batch, or of another kind that the fast path does not take. The caller adds that batch by
        :meth:`put_batch`. ``used`` is 0 if that is the first batch. This twin always returns None: add each batch by
        :meth:`put_batch`.
        """
        return None

    def filter_run(
        self, batches: Buffer, latest: int, now_ms: int, horizon_ms: int, boundary: int
    ) -> RunFilterResult | None:
        """Remove superseded records from consecutive verified v2 batches, and return the batches that stay.

        Records above offset ``latest``, the last that the table covers, stay. Tombstones stay until the delete horizon
        of their batch has passed at ``now_ms``. A batch without a horizon that keeps a tombstone gets ``horizon_ms``.
        Stops before a batch that the fast path does not take, and before one that loses all records but may have to
        stay: its exclusive end is ``boundary``, or it has a producer. ``used`` is 0 if that is the first batch. This
        twin always returns None: filter each batch by :meth:`filter_batch`.
        """
        return None

    def filter_batch(
        self, batch: Buffer, latest: int, keeps_tombstones: bool, horizon_ms: int
    ) -> BatchFilterResult | None:
        """Return the records of a verified data batch that compaction keeps: the newest of each key in the table.

        Records above offset ``latest``, the last that the table covers, stay, too. ``keeps_tombstones`` False removes
        the newest record of a key if it is a tombstone. ``horizon_ms``: new delete horizon of a batch that keeps a
        tombstone and has none. None: the fast path does not take the batch, as always in this twin. Raises
        ``CorruptionError`` if decompression fails.
        """
        return None


def assign_offsets(buf: bytearray | memoryview, base_offset: int, leader_epoch: int, crc: int = 0) -> int:
    """Write base offset and leader epoch into the v2 batch at the start of ``buf``. The batch's own CRC stays valid.

    Returns the file's CRC-32C after this batch. ``crc``: that of the bytes before it.
    """
    struct.pack_into(">q", buf, 0, base_offset)
    struct.pack_into(">i", buf, 12, leader_epoch)
    size = _LOG_OVERHEAD_BYTES + struct.unpack_from(">i", buf, 8)[0]
    return crc32c(memoryview(buf)[: size if size >= _HEADER_BYTES else None], crc)


def encode_record_at(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Headers | None
) -> bytes:
    """Return one encoded record with any offset delta, as compaction needs it: offsets may have gaps.

    The deltas count from the base offset and the base timestamp of the batch.
    """
    delta = encode_varint(timestamp_delta)
    tail = _encode_headers(headers or [])
    body = b"".join((b"\0", delta, encode_varint(offset_delta), *_encode_field(key), *_encode_field(value), tail))
    return encode_varint(len(body)) + body


def read_varint(data: bytes, position: int, shift_limit: int = _MAX_VARINT_SHIFT) -> tuple[int, int]:
    """Return (value, position after it) of the varint at ``position``.

    ``shift_limit``: 7 times the largest allowed number of bytes. Raises CorruptionError for more bytes, or too few.
    """
    z = shift = 0
    end = position
    try:
        while True:
            byte = data[end]
            end += 1
            z |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= shift_limit:
                raise CorruptionError(f"varint is longer than {shift_limit // 7} bytes", position=position)
    except IndexError:
        raise CorruptionError("record data ends inside a varint", position=position) from None
    if shift >= shift_limit - 7:  # the last byte may bring more bits than there are
        z &= 0xFFFF_FFFF if shift_limit == _MAX_VARINT_SHIFT else _MASK64
    return (z >> 1) ^ -(z & 1), end


def _read_long_delta(data: bytes, position: int) -> tuple[int, int]:
    """Return (signed integer, position after it) of a varlong of three bytes or more, for the fast path.

    Raises ``IndexError`` if the varlong is too long or truncated.
    """
    z = data[position] & 0x7F | (data[position + 1] & 0x7F) << 7
    position += 2
    shift = 14
    while (byte := data[position]) > 0x7F:
        z |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if shift >= _MAX_VARLONG_SHIFT:
            raise IndexError
    z = (z | byte << shift) & _MASK64
    return (z >> 1) ^ -(z & 1), position + 1


def _decode_field(data: bytes, position: int, end: int, what: str) -> tuple[bytes | None, int]:
    n, position = read_varint(data, position)
    if n < 0:
        return None, position
    if n > end - position:
        raise CorruptionError(f"{what} length {n} exceeds the record", position=position)
    return data[position : position + n], position + n


def _decode_headers(data: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    if count < 0 or count * 2 > end - position:  # a header takes at least two bytes
        raise CorruptionError(f"header count {count} does not fit {end - position} bytes", position=position)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        n, position = read_varint(data, position)
        if n < 0 or n > end - position:
            raise CorruptionError(f"header name length {n} exceeds the record", position=position)
        name = header_name(data[position : position + n])
        position += n
        value, position = _decode_field(data, position, end, "header value")
        headers.append((name, value))
    return headers or (), position


def decode_record(
    data: bytes, position: int, base_offset: int, base_timestamp: int
) -> tuple[int, int, bytes | None, bytes | None, Headers, int]:
    """Return (offset, timestamp, key, value, headers, position after it) of the record at ``position``.

    Raises ``CorruptionError`` unless its fields fill its length exactly. This is the slow path: it reads varints of any
    allowed length, and checks each field.
    """
    start = position
    length, position = read_varint(data, position)
    end = position + length
    if length < MIN_RECORD_BYTES - 1 or end > len(data):
        raise CorruptionError(
            f"record length {length} does not fit the {len(data) - position} bytes that are left", position=start
        )
    timestamp_delta, position = read_varint(data, position + 1, _MAX_VARLONG_SHIFT)
    offset_delta, position = read_varint(data, position)
    key, position = _decode_field(data, position, end, "key")
    value, position = _decode_field(data, position, end, "value")
    count, position = read_varint(data, position)
    headers, position = _decode_headers(data, position, end, count)
    if position != end:
        raise CorruptionError(
            f"a record has a length of {length} bytes, but its fields end {position - end:+d} bytes from its end",
            position=start,
        )
    return base_offset + offset_delta, _wrap64(base_timestamp + timestamp_delta), key, value, headers, position


def check_count(data: bytes, count: int) -> None:
    """Raise CorruptionError if ``count`` records cannot fit into ``data``."""
    if count < 0 or count * MIN_RECORD_BYTES > len(data):
        raise CorruptionError(f"{count} records cannot be in {len(data)} bytes", position=0)


def check_used_up(data: bytes, count: int, position: int) -> None:
    """Raise CorruptionError unless ``count`` records, which end at ``position``, used all bytes of ``data``."""
    if position != len(data):
        raise CorruptionError(f"{len(data) - position} bytes are left after {count} records", position=position)


def decode_records(  # noqa: PLR0917 - as the compiled twin
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[Record]:
    """Yield ``count`` uncompressed records, which fill ``data`` from ``begin`` to ``end`` (exclusive; None: its end).

    ``append_time``, if not None, replaces every timestamp. Raises ``CorruptionError`` for a length that does not fit, a
    record with unused bytes, too few records, or bytes left. Its position counts from ``begin``. As in Kafka, the data
    is ignored if ``count`` is 0.
    """
    return _decoded(bytes(memoryview(data)[begin:end]), count, base_offset, base_timestamp, append_time)


def _decoded(  # noqa: PLR0915 - unrolled: a call per varint would double the time
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[Record]:
    if count == 0:
        return
    check_count(data, count)
    unzigzag, new, cls, position = _filled(_UNZIGZAG), Record.__new__, Record, 0
    wraps = not -_PLAIN < base_timestamp < _PLAIN
    for _ in range(count):
        start = position
        try:  # varints of one or two bytes; a third overruns the table: IndexError, as does the end of the data
            n = data[position]
            position += 1
            if n > 0x7F:
                n = n & 0x7F | data[position] << 7
                position += 1
            end = position + unzigzag[n]
            n = data[position + 1]  # after the attributes byte: unused; any value is accepted, as Kafka does
            position += 2
            if n > 0x7F:
                n = n & 0x7F | data[position] << 7
                position += 1
            if n > 0x3FFF:  # more than 8 s after the first record is common
                n, position = _read_long_delta(data, position - 2)
                timestamp = base_timestamp + n if -_PLAIN < n < _PLAIN else _wrap64(base_timestamp + n)
            else:
                timestamp = base_timestamp + unzigzag[n]
            n = data[position]
            position += 1
            if n > 0x7F:
                n = n & 0x7F | data[position] << 7
                position += 1
            if n > 0x3FFF:
                n, position = read_varint(data, position - 2)
                offset = base_offset + n
            else:
                offset = base_offset + unzigzag[n]
            n = data[position]
            position += 1
            if n > 0x7F:
                n = n & 0x7F | data[position] << 7
                position += 1
            key = None if n == 1 else data[position : (position := position + unzigzag[n])]
            m = data[position]
            position += 1
            if m > 0x7F:
                m = m & 0x7F | data[position] << 7
                position += 1
            value = None if m == 1 else data[position : (position := position + unzigzag[m])]
            # A header, a length below -1, or fields that end elsewhere: take the careful path, which may raise.
            if data[position] or position + 1 != end or (n & 1 and n != 1) or (m & 1 and m != 1):
                raise IndexError
            position = end
            headers: Headers = ()
        except (IndexError, CorruptionError):
            offset, timestamp, key, value, headers, position = decode_record(data, start, base_offset, base_timestamp)
        if append_time is not None:
            timestamp = append_time
        elif wraps:
            timestamp = _wrap64(timestamp)
        record = new(cls)
        record._all = (offset, timestamp, key, value, headers)
        yield record
    check_used_up(data, count, position)


def consumer_records(  # noqa: PLR0917 - as decode_records
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
    shown: Shown,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[ConsumerRecord]:
    """Yield those of ``count`` records in ``data`` that are within the bounds of ``shown``, as ConsumerRecords.

    The uncompressed records fill ``data`` from ``begin`` to ``end`` (exclusive; None: to its end). ``append_time``, if
    not None, replaces every timestamp. Raises ``CorruptionError`` for a damaged record.
    """
    return chosen(decode_records(data, count, base_offset, base_timestamp, append_time, begin, end), shown)


def scan(  # noqa: PLR0917 - the state of a walk, in its order
    data: Buffer,
    expected: int,
    limit: int,
    exact: int,
    dense: bool,
    most_bytes: int,
    stop: int,
    latest: int,
    total: int,
) -> tuple[int, int, int, int]:
    """Return (bytes, first offset or -1, next offset, CRC) of the valid whole v2 batches at the start of ``data``.

    Each batch begins at or above ``expected``, which each batch advances, and below ``stop``. Its last offset is
    below ``limit``. It has at most ``most_bytes``, no timestamp above ``latest``, and a valid CRC. ``exact``: the first
    batch may not begin above this offset; -1: no such bound. ``dense``: later batches may leave no gap. Stops where
    ``stop`` is reached, and before a batch that fails a check, which the caller examines. ``total``: CRC-32C of the
    bytes before ``data``, continued in the result; -1: not requested.
    """
    view, at, first = memoryview(data), 0, -1
    while expected < stop and len(view) - at >= _BATCH.size:
        base, length, magic, crc, delta, newest, count = _BATCH.unpack_from(view, at)
        size, last = length + _LOG_OVERHEAD_BYTES, base + delta
        possible = magic == 2 and _BATCH.size <= size <= min(most_bytes, len(view) - at) and base >= 0 <= delta
        if not possible or not expected <= base < stop or last >= min(limit, _MAX_OFFSET) or base > exact >= 0:
            break
        if newest > latest or not 0 <= count <= delta + 1 or crc32c(view[at + _CRC_START : at + size]) != crc:
            break
        first = base if first < 0 else first
        expected = last + 1
        exact = expected if dense else exact
        at += size
    return at, first, expected, total if total < 0 else crc32c(view[:at], total)


def run_batches(batches: memoryview, kind: type[T], header: type, first: object, start: int) -> Iterator[T] | None:
    """Return an iterator over consecutive verified v2 batches, each as ``kind(first, header, view of its bytes)``.

    ``kind``, ``header``: NamedTuple classes of an item and of a v2 header. ``first``: first field of each item. Batches
    wholly below offset ``start`` are left out. None: one of the batches is not a plain v2 batch.
    """
    ends, at = [], 0
    while at < len(batches):
        if len(batches) - at < _FIELDS.size:
            return None
        fields = _FIELDS.unpack_from(batches, at)
        base, size, delta = fields[0], fields[1] + _LOG_OVERHEAD_BYTES, fields[6]
        possible = _FIELDS.size <= size <= len(batches) - at and base >= 0 <= delta and fields[12] >= 0
        if fields[3] != 2 or not possible or base + delta >= _MAX_OFFSET:
            return None
        at += size
        ends.append(at)
    return _run_batches(batches, ends, kind, header, first, start)


def _run_batches(  # noqa: PLR0917 - as run_batches
    batches: memoryview, ends: Iterable[int], kind: type[T], header: type, first: object, start: int
) -> Iterator[T]:
    at, made = 0, tuple.__new__
    for end in ends:
        fields = _FIELDS.unpack_from(batches, at)
        if fields[0] + fields[6] >= start:
            yield made(kind, (first, made(header, fields), batches[at:end]))  # type: ignore[type-var]
        at = end


def survey(
    data: Buffer,
    order: tuple[int, int, int],
    dense: bool,
    epoch: int,
    pace: tuple[int, int, int, int, int, int, int],
) -> Survey | None:
    """Verify consecutive v2 batches, CRCs included, and return their index entries. None: the first batch is refused.

    Stops before a batch that is partial, fails a check, begins at or above the stop offset, or has a leader epoch above
    ``epoch``. ``order``: lowest allowed offset, exclusive end of all offsets, stop offset; a batch that reaches it is
    the last. ``dense``: no offset may be missing. ``pace``: base offset of the segment, position of ``data`` in the
    file, bytes between index entries, bytes since the last entry, largest timestamp, last offset of its batch, and
    timestamp of the last time entry.
    """
    expected, limit, stop = order
    base, position, interval, since, largest, largest_at, timed = pace
    offsets, times = array("i"), array("q")
    view, at, first, last_at, before, first_timestamp = memoryview(data), 0, -1, -1, -1, -1
    producers = transactional = False
    while expected < stop and len(view) - at >= _FULL_BATCH.size and position + at <= _MAX_RELATIVE:
        fields = _FULL_BATCH.unpack_from(view, at)
        opening, length, its_epoch, magic, crc, attributes, delta, stamp, producer, count = fields
        size, last = length + _LOG_OVERHEAD_BYTES, opening + delta
        if magic != 2 or not _FULL_BATCH.size <= size <= len(view) - at or delta < 0 or its_epoch > epoch:
            break
        if not expected <= opening < stop or last >= min(limit, _MAX_OFFSET) or last - base > _MAX_RELATIVE:
            break
        if (dense and opening != expected) or not 0 <= count <= delta + 1:
            break
        if crc32c(view[at + _CRC_START : at + size]) != crc:
            break
        if first < 0:
            first, first_timestamp = opening, stamp
        producers = producers or producer >= 0
        transactional = transactional or attributes & _TRANSACTIONAL_BIT != 0
        if stamp > largest:
            largest, largest_at = stamp, last
        if since > interval:
            since = 0
            offsets.extend((last - base, position + at))
            if largest >= 0 and largest > timed:
                timed = largest
                times.extend((largest, largest_at - base))
        since += size
        last_at, before, expected = at, expected, last + 1
        at += size
    if not at:
        return None
    return Survey(
        at,
        first,
        expected,
        last_at,
        before,
        first_timestamp,
        producers,
        transactional,
        since,
        (largest, largest_at),
        offsets.tobytes(),
        times.tobytes(),
    )


def chosen(records: Iterator[Record], shown: Shown) -> Iterator[ConsumerRecord]:
    """Yield the decoded records within the bounds of ``shown``, as ConsumerRecords. Stops at the bound ``end``."""
    topic, partition, kind, epoch, tier, start, end, since_ms, until_ms = shown
    for offset, timestamp, key, value, headers in records:
        if (
            offset < start
            or (since_ms is not None and timestamp < since_ms)
            or (until_ms is not None and timestamp >= until_ms)
        ):
            continue
        if end is not None and offset >= end:
            return
        yield ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, headers, epoch, tier)
