"""The hot loops: records to bytes and back, one varint at a time, in pure Python.

A compiled twin of this module may replace it: the same functions, the same arguments, the same exceptions.
This one stays as the oracle of differential tests and as the fallback without a compiler. Nothing here
knows of batches, headers or files.

One record inside a v2 batch (section "Record" of Kafka's message format; every integer a zigzag varint)::

    length | attributes i8 = 0 | timestamp delta | offset delta | key length, key | value length, value
           | header count | count x (name length, UTF-8 name | value length, value)

Length -1 stands for null. A varint has at most 5 bytes, the timestamp delta (a varlong) at most 10.

What Kafka's consumer reads is read, also where no writer of today makes it: any negative length of a key or value is
null, and a name that is not UTF-8 is shown as Java shows it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from itertools import chain

from tiered.errors import CorruptionError, InvalidTimestampError
from tiered.model import HeaderName, Headers, NewRecord, Record

MIN_RECORD_BYTES = 7  # length, attributes, two deltas, two lengths and a header count of one byte each
_SPAN = 8192  # values -_SPAN .. _SPAN-1 take at most two bytes and come out of a table
_WIDE_SPAN = 2**27  # values 0 .. _WIDE_SPAN-1 take two look-ups
_MASK64 = 2**64 - 1
_PLAIN = 2**62
_BYTE_FORMATS = ("B", "b", "c")
_MAX_VARINT_SHIFT = 35
_MAX_VARLONG_SHIFT = 70

_UNZIGZAG: list[int] = [(z >> 1) ^ -(z & 1) for z in range(2 * _SPAN)]
# The last one or two bytes of a varint, and two bytes that are followed by more, by their 14 bits.
_LAST: list[bytes] = [bytes((z,)) if z < 0x80 else bytes((z & 0x7F | 0x80, z >> 7)) for z in range(2 * _SPAN)]
_MORE: list[bytes] = [bytes((z & 0x7F | 0x80, z >> 7 | 0x80)) for z in range(2 * _SPAN)]
# By the number itself, from 0 up: lengths and offset deltas. And with the attributes byte before it.
_SMALL: list[bytes] = _LAST[0::2]
_HEAD: list[bytes] = [b"\0" + v for v in _SMALL]


def _wrap64(n: int) -> int:
    return (n + 2**63 & _MASK64) - 2**63


def encode_varint(n: int) -> bytes:
    """Zigzag varint of a signed 32- or 64-bit integer; wider ones wrap to 64 bits as Java's ``long`` does."""
    if 0 <= n < _WIDE_SPAN:
        z = n << 1
    else:
        n = _wrap64(n)
        z = (n << 1) ^ (n >> 63)
    if z < 2 * _SPAN:
        return _LAST[z]
    out = b""
    while z >= 2 * _SPAN:
        out += _MORE[z & 0x3FFF]
        z >>= 14
    return out + _LAST[z]


def as_bytes(field: object) -> bytes:
    """The bytes of any buffer of bytes: ``bytes``, ``bytearray``, a ``memoryview`` or array of unsigned bytes.

    Raises ``TypeError`` for what is no buffer, and for one whose items are not single bytes in a row (integers,
    floats, an image): which bytes were meant, in which byte order, only the caller knows.
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
    """Encodes ``records`` with offset deltas 0, 1, 2, ...; returns (bytes, largest timestamp).

    Each item is ``(value, key, timestamp, headers)``, the fields of :class:`~tiered.model.NewRecord`. Timestamps
    are taken as given. Raises ``InvalidTimestampError`` below -1; a value of the wrong type surfaces as
    ``TypeError`` or ``ValueError``, which the caller turns into an error with the record's index.
    """
    small, head, span, more, last, wide_span = _SMALL, _HEAD, _SPAN, _MORE, _LAST, _WIDE_SPAN
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
            if type(value) is bytes:  # other buffers may have another len() than bytes
                if key is None:
                    body = join((start, offset, b"\1", small[len(value)], value, tail))
                elif type(key) is bytes:
                    body = join((start, offset, small[len(key)], key, small[len(value)], value, tail))
                else:
                    raise TypeError
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


def encode_record_at(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Headers | None
) -> bytes:
    """One record with explicit deltas: what compaction writes when it leaves gaps."""
    delta = encode_varint(timestamp_delta)
    tail = _encode_headers(headers or [])
    body = b"".join((b"\0", delta, encode_varint(offset_delta), *_encode_field(key), *_encode_field(value), tail))
    return encode_varint(len(body)) + body


def _read_varint(data: bytes, position: int, shift_limit: int) -> tuple[int, int]:
    """(value, position after it). Any length, checked."""
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


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """(signed 32-bit integer, position after it); raises ``CorruptionError`` past 5 bytes or past the end."""
    return _read_varint(data, position, _MAX_VARINT_SHIFT)


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """(signed 64-bit integer, position after it); raises ``CorruptionError`` past 10 bytes or past the end."""
    return _read_varint(data, position, _MAX_VARLONG_SHIFT)


def _read_long_delta(data: bytes, position: int) -> tuple[int, int]:
    """A varlong of three bytes or more, in a hurry; ``IndexError`` if it is too long or the data ends."""
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


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for what Java's ``new String(bytes, UTF_8)`` replaces by one.

    The only difference from Python's "replace" is a surrogate (ED A0..BF ..): Java takes its bytes together.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, at = error.object, error.start
    if data[at] == 0xED and data[at + 1 : at + 2] >= b"\xa0" and _continues(data, at + 1):
        return "\ufffd", at + 2 + _continues(data, at + 2)
    return "\ufffd", error.end


def _continues(data: bytes, at: int) -> bool:
    return at < len(data) and data[at] & 0xC0 == 0x80


_AS_JAVA = "tiered-as-java"
codecs.register_error(_AS_JAVA, _replace_as_java)


def header_name(raw: bytes) -> str:
    """The name of a header; a :class:`~tiered.model.HeaderName`, which keeps the bytes, if they are not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return HeaderName.of(raw.decode("utf-8", _AS_JAVA), raw)


def _decode_headers(data: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    if count < 0 or count * 2 > end - position:  # a header takes at least two bytes
        raise CorruptionError(f"header count {count} does not fit {end - position} bytes", position=position)
    headers: Headers = []
    for _ in range(count):
        n, position = read_varint(data, position)
        if n < 0 or n > end - position:
            raise CorruptionError(f"header name length {n} exceeds the record", position=position)
        name = header_name(data[position : position + n])
        position += n
        value, position = _decode_field(data, position, end, "header value")
        headers.append((name, value))
    return headers, position


def _decode_record(
    data: bytes, position: int, base_offset: int, base_timestamp: int
) -> tuple[int, int, bytes | None, bytes | None, Headers, int]:
    """The fields of the record at ``position`` and the position after it: any varint, every step checked."""
    start = position
    length, position = read_varint(data, position)
    end = position + length
    if length < MIN_RECORD_BYTES - 1 or end > len(data):
        raise CorruptionError(
            f"record length {length} does not fit the {len(data) - position} bytes that are left", position=start
        )
    timestamp_delta, position = read_varlong(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key, position = _decode_field(data, position, end, "key")
    value, position = _decode_field(data, position, end, "value")
    count, position = read_varint(data, position)
    headers, position = _decode_headers(data, position, end, count)
    if position != end:
        raise CorruptionError(
            f"record of {length} bytes, but its fields end {position - end:+d} from there", position=start
        )
    return base_offset + offset_delta, _wrap64(base_timestamp + timestamp_delta), key, value, headers, position


def decode_records(  # noqa: PLR0915 - unrolled: a call per varint would double the time
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> Iterator[Record]:
    """Yields ``count`` records out of ``data`` (uncompressed, all of it), one at a time.

    ``append_time`` replaces every timestamp when it is not None. Raises ``CorruptionError`` with the position
    in ``data``: a length that does not fit, a record that is not used up, too few records or bytes left. With a
    ``count`` of 0 the data is not looked at, as Kafka does.
    """
    if count == 0:
        return
    if count < 0 or count * MIN_RECORD_BYTES > len(data):
        raise CorruptionError(f"{count} records cannot be in {len(data)} bytes", position=0)
    unzigzag, new, cls, position = _UNZIGZAG, tuple.__new__, Record, 0
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
            n = data[position + 1]  # behind the attributes: unused; any value is accepted, as Kafka does
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
            # A header, a length below -1, or fields that end elsewhere: the careful way, which may refuse it.
            if data[position] or position + 1 != end or (n & 1 and n != 1) or (m & 1 and m != 1):
                raise IndexError
            position = end
            headers: Headers = []
        except IndexError:
            offset, timestamp, key, value, headers, position = _decode_record(data, start, base_offset, base_timestamp)
        if append_time is not None:
            timestamp = append_time
        elif wraps:
            timestamp = _wrap64(timestamp)
        yield new(cls, (offset, timestamp, key, value, headers))
    if position != len(data):
        raise CorruptionError(f"{len(data) - position} bytes are left after {count} records", position=position)
