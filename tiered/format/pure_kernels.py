"""The hot loops: records to bytes and back, one varint at a time, in pure Python.

The compiled twin, ``_kernels``, has some of these functions: the same arguments, the same answers, the same exceptions
(``kernels`` says which twin is at work). This one is the oracle of differential tests, the fallback without a compiler,
and what the compiled twin hands everything to that is odd.

One record inside a v2 batch (section "Record" of Kafka's message format; every integer a zigzag varint)::

    length | attributes i8 = 0 | timestamp delta | offset delta | key length, key | value length, value
           | header count | count x (name length, UTF-8 name | value length, value)

Length -1 stands for null. A varint has at most 5 bytes, the timestamp delta (a varlong) at most 10.

What Kafka's consumer reads is read, also where no writer of today makes it: any negative length of a key or value is
null, and a name that is not UTF-8 is shown as Java shows it.
"""

from __future__ import annotations

import codecs
import struct
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import chain
from typing import Literal, NamedTuple, Protocol, TypeVar, overload

from tiered import partitioner
from tiered.errors import CorruptionError, InvalidTimestampError
from tiered.format.records import ConsumerRecord, Record
from tiered.model import HeaderName, Headers, NewRecord, RecordMetadata

MIN_RECORD_BYTES = 7  # length, attributes, two deltas, two lengths and a header count of one byte each
_BATCH = struct.Struct(">qi4xbI2xi8xq14xi")  # base, length, magic, CRC, last delta, max timestamp, records count
_FIELDS = struct.Struct(">qiibIhiqqqhii")  # the whole header of a batch
_FULL_BATCH = struct.Struct(">qiibIhi8xqq6xi")
"""Base, length, leader epoch, magic, CRC, attributes, last offset delta, largest timestamp, producer id, count."""
_LOG_OVERHEAD_BYTES = 12
_TRANSACTIONAL_BIT = 0x10
_MAX_RELATIVE = 2**31 - 1
_CRC_START = 21
_MAX_OFFSET = 2**63 - 1
_SPAN = 8192  # values -_SPAN .. _SPAN-1 take at most two bytes and come out of a table
_WIDE_SPAN = 2**27  # values 0 .. _WIDE_SPAN-1 take two look-ups
_MASK64 = 2**64 - 1
_PLAIN = 2**62
Buffer = bytes | bytearray | memoryview
_BYTE_FORMATS = ("B", "b", "c")
_MAX_VARINT_SHIFT = 35
_MAX_VARLONG_SHIFT = 70

T = TypeVar("T")

# Tables, empty until the first varint: where the compiled twin is at work nobody asks for them.
_UNZIGZAG: list[int] = []
# The last one or two bytes of a varint, and two bytes that are followed by more, by their 14 bits.
_LAST: list[bytes] = []
_MORE: list[bytes] = []
# By the number itself, from 0 up: lengths and offset deltas. And with the attributes byte before it.
_SMALL: list[bytes] = []
_HEAD: list[bytes] = []


def _filled(table: list[T]) -> list[T]:
    """``table``, once all are made. Each changes at one stroke: another thread sees none of it, or all."""
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
    """The CRC-32C of ``data``, behind bytes whose CRC is ``value``: what the wheel says."""
    return _wheel()(data, value)


class Block(bytearray):
    """A buffer whose holder fills it again only while nobody else refers to it: what looks into it needs no copy."""

    __slots__ = ()


class Put(NamedTuple):
    """What became of the records of a batch: ``records`` were looked at, ``newest`` is the last offset put, or -1.

    ``full``: the next one with a key found no room. ``odd``: the next one, or what is behind the last, is for the
    caller to look at.
    """

    records: int
    newest: int
    full: bool
    odd: bool


class Kept(NamedTuple):
    """What a batch keeps: how many records, and how many went for which reason.

    ``sets_horizon``: a tombstone is among those that stay, and the batch has no delete horizon yet. ``data`` are the
    records that stay, encoded against ``base_timestamp``, ``max_timestamp`` is their greatest; ``data`` None: the batch
    stays as it is, or nothing of it.
    """

    records: int
    superseded: int
    expired: int
    no_key: int
    sets_horizon: bool
    data: bytes | None
    base_timestamp: int
    max_timestamp: int


class PutRun(NamedTuple):
    """What became of batches in a row: the first ``used`` bytes, ``batches``, hold ``records`` that were looked at.

    ``newest``: the last offset that they speak for, -1: none. ``full``: the last one of these batches was put in part,
    up to that offset, as the next key found no room. ``alone``: each record was put, lies within the
    offsets of its batch, and no producer wrote it.
    """

    used: int
    batches: int
    records: int
    newest: int
    full: bool
    alone: bool


class KeptRun(NamedTuple):
    """What the first ``used`` bytes of batches in a row keep, up to offset ``next`` (exclusive).

    ``data``: those of them that stay, the ``rebuilt`` ones among them, which hold fewer records or have one of the
    ``horizons`` now; None: all stay as they are. ``records`` were ``read``, of which some stay or went for a reason.
    """

    used: int
    next: int
    data: bytes | None
    batches: int
    read: int
    records: int
    superseded: int
    expired: int
    no_key: int
    rebuilt: int
    horizons: int


class Shown(NamedTuple):
    """What a reader sees of a batch: where it lies, and which of its records are wanted.

    ``kind`` is the batch's timestamp type, ``end`` and ``until_ms`` are exclusive, None: no bound.
    """

    topic: str
    partition: int
    kind: int
    leader_epoch: int
    tier: str
    start: int
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


def _wrap64(n: int) -> int:
    return (n + 2**63 & _MASK64) - 2**63


def encode_varint(n: int) -> bytes:
    """Zigzag varint of a signed 32- or 64-bit integer; wider ones wrap to 64 bits as Java's ``long`` does."""
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


def encode_batch(  # noqa: PLR0917 - names would cost more than the encoding of a record
    records: Sequence[NewRecord],
    now_ms: int,
    keyed: bool,
    most_bytes: int,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    append_time_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    mutable: bool,
) -> tuple[bytes | bytearray, int, int, int] | None:
    """One whole v2 batch that is not compressed, and the first, least and greatest timestamp of its records.

    ``now_ms`` is stored where a timestamp is -1. ``mutable`` asks for a ``bytearray``. None: something is odd, such as
    a buffer other than ``bytes``, no key where the topic is ``keyed``, more than ``most_bytes``. The caller then takes
    the steps one by one, which say what is wrong. To this twin every batch is odd: those steps are its way.
    """
    return None


def group(
    records: Iterable[object], partitions: int, fixed: int, keyless: int
) -> tuple[dict[int, list[NewRecord]], dict[int, list[int]]] | None:
    """``append_many``'s records by the partition that they fall into, and their places in the call.

    A record is a ``NewRecord``, a (value, key) pair, or a value. ``fixed`` is the partition of all, -1: Kafka's
    partitioner chooses among so many ``partitions``; ``keyless`` is that of records without a key. None: something is
    odd, such as an iterator or a value that is not ``bytes``: the caller looks at each record itself, as it always does
    with this twin.
    """
    return None


class KeyTable:
    """The newest offset of every key, by a digest of 128 bits that ``secret`` (16 bytes) keys.

    Nobody who does not know the secret can make two keys of one digest. ``capacity``: beyond so many keys
    :meth:`put_batch` stops; memory is taken as keys come.
    """

    def __init__(self, capacity: int, secret: bytes) -> None:
        self._secret = secret
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def digest(self, key: bytes) -> bytes:
        """The digest of a key; another one in each twin."""
        return blake2b(key, digest_size=16, key=self._secret).digest()

    def put(self, key: bytes, offset: int) -> None:
        """``offset`` is the newest of ``key``, whatever the capacity says."""
        self._offsets[self.digest(key)] = offset

    def get(self, key: bytes) -> int:
        """The newest offset of ``key``, -1 of one that was never put."""
        return self._offsets.get(self.digest(key), -1)

    def put_batch(self, batch: Buffer, start: int) -> Put | None:
        """Puts the keys of a verified batch at offsets from ``start`` on, compressed or not.

        Raises ``CorruptionError`` if it cannot be decompressed. None: something is odd, such as an old format, and
        nothing was put: the caller takes the records one by one, as it always does with this twin.
        """
        return None

    def note_from(self, start: int) -> None:
        """From here on all records with a key at offsets from ``start`` on are put, or none of their batch.

        The compiled table then notes which records are superseded, within the memory that it may take.
        """

    def superseded(self, start: int, end: int) -> int:
        """How many records at offsets ``start`` to ``end`` (exclusive) are noted as superseded; -1: nobody knows."""
        return -1

    def put_run(self, batches: Buffer, start: int) -> PutRun | None:
        """As :meth:`put_batch`, of verified v2 batches in a row, until the table is full.

        It ends before a batch that is compressed, transactional, a control batch or odd: the caller takes that one by
        itself. None: as for :meth:`put_batch`.
        """
        return None

    def filter_run(self, batches: Buffer, latest: int, now_ms: int, horizon_ms: int, boundary: int) -> KeptRun | None:
        """As :meth:`filter_batch`, of verified v2 batches in a row, and what is left of them, batch by batch.

        Tombstones go from a batch whose delete horizon is ``now_ms`` or before. Ends as :meth:`put_run`, and before a
        batch that loses all its records and may have to stay: it ends at ``boundary``, or a producer wrote it. None: as
        for :meth:`put_batch`.
        """
        return None

    def filter_batch(self, batch: Buffer, latest: int, keeps_tombstones: bool, horizon_ms: int) -> Kept | None:
        """Which records of a verified data batch stay in a log that the table speaks for up to offset ``latest``.

        ``horizon_ms`` becomes the base timestamp if a tombstone stays in a batch that has no delete horizon. Raises
        and answers None as :meth:`put_batch`; ``plan.batch_filter`` has the rules.
        """
        return None


murmur2 = partitioner.murmur2
"""The hash of one key."""


def assign_offsets(buf: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Writes base offset and leader epoch into the v2 batch at the start of ``buf``; the CRC does not cover them."""
    struct.pack_into(">q", buf, 0, base_offset)
    struct.pack_into(">i", buf, 12, leader_epoch)


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


def check_count(data: bytes, count: int) -> None:
    """Raises CorruptionError for more records than so many bytes can hold."""
    if count < 0 or count * MIN_RECORD_BYTES > len(data):
        raise CorruptionError(f"{count} records cannot be in {len(data)} bytes", position=0)


def check_used_up(data: bytes, count: int, position: int) -> None:
    """Raises CorruptionError if ``count`` records end at ``position`` and the data does not."""
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
    """Yields ``count`` records out of ``data`` (uncompressed, all from ``begin`` to ``end``), one at a time.

    ``append_time`` replaces every timestamp when it is not None. Raises ``CorruptionError`` with the position
    behind ``begin``: a length that does not fit, a record that is not used up, too few records or bytes left. With a
    ``count`` of 0 the data is not looked at, as Kafka does.
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
    """As :func:`decode_records`, for a reader: those records that ``shown`` chooses, with what it adds to each."""
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
    """How far whole v2 batches in a row are as they should be: bytes, first offset (-1: none), next one, their CRC.

    Each begins at or behind ``expected``, which the one before it moves on, and below ``stop``, ends below ``limit``,
    has ``most_bytes`` at most, no timestamp above ``latest`` and a CRC that is right. ``exact``: the first one begins
    no later; -1: it may; ``dense``: nor do those after it. Ends before what is odd in any way, which the caller looks
    at itself, and where ``stop`` is reached. ``total``: CRC-32C of the bytes before these, that of all is given back;
    -1: it is not wanted.
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


def intact_header(batch: Buffer, header: type[T]) -> T | None:
    """The header, a NamedTuple of the fields of a v2 one, of exactly one whole v2 batch whose CRC and count are right.

    None: it is another one, or damaged: the caller takes it apart and says so, as it always does with this twin.
    """
    return None


def records_extent(
    data: Buffer, count: int, base_offset: int, base_timestamp: int, begin: int
) -> tuple[int, int, int] | None:
    """Lowest and highest offset and least timestamp (-1: none is above) of ``count`` records, which fill ``data`` from
    ``begin`` on, as :func:`decode_records` would give them.

    None: there is none, or one of them is odd or damaged: the caller decodes them, as it always does with this twin.
    """
    return None


def run_batches(batches: memoryview, kind: type[T], header: type, first: object, start: int) -> Iterator[T] | None:
    """Each of verified batches in a row as ``kind``, a NamedTuple of ``first``, its ``header`` and a view of it.

    ``header`` is a NamedTuple of the fields of a v2 header. Batches wholly below offset ``start`` are left out. None:
    one of them is no plain v2 batch.
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


class Survey(NamedTuple):
    """What :func:`survey` found in a run of batches. Positions are relative to the buffer, ranges half-open.

    ``used`` bytes hold offsets ``first`` to ``next``; the last batch begins at ``last_at``, where ``before`` was
    expected. ``since`` and ``largest`` are the pace of the indexes behind it. ``offset_entries``: native int32 pairs
    (relative offset, position in the file); ``time_entries``: native int64 pairs (timestamp, relative offset).
    """

    used: int
    first: int
    next: int
    last_at: int
    before: int
    first_timestamp: int
    producers: bool
    transactional: bool
    since: int
    largest: tuple[int, int]
    offset_entries: bytes
    time_entries: bytes


def survey(
    data: Buffer,
    order: tuple[int, int, int],
    dense: bool,
    epoch: int,
    pace: tuple[int, int, int, int, int, int, int],
) -> Survey | None:
    """Verifies whole v2 batches in a row, CRCs too, and makes their index entries; None: the first one is odd.

    ``order``: the first offset that may come, the end of all offsets, and where to stop: a batch that begins at that
    offset or above is left, one that reaches it is the last. ``dense``: no offset may be left out. A batch of a leader
    epoch above ``epoch`` is left, too. ``pace``: base offset of the segment, position of the buffer in the file,
    bytes between entries, bytes since the last one, largest timestamp with its offset, and that of the last time entry.
    Ends before what is odd in any way, which the caller looks at itself.
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


def batch_records(batch: Buffer, shown: Shown | None) -> Iterator[Record] | Iterator[ConsumerRecord] | None:
    """The records of the one whole v2 batch in ``batch``: all, or as a reader sees them.

    None: the caller reads the header itself, as it does for a compressed batch and with this twin. The CRC is not
    checked.
    """
    return None


def run_records(batches: Buffer, shown: Shown) -> Iterator[ConsumerRecord] | None:
    """What a reader sees of whole v2 batches in a row: without control records, and only what ``shown`` chooses.

    Timestamp type and leader epoch are each batch's. None: the caller takes batch after batch, as always with this
    twin. CRCs are not checked.
    """
    return None


def chosen(records: Iterator[Record], shown: Shown) -> Iterator[ConsumerRecord]:
    """Of decoded records those that a reader wants to see; what is behind the last one is not looked at."""
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


class ArrowBinary(NamedTuple):
    """The buffers of an Arrow ``binary`` or ``list`` array, whose ``data`` is empty; ``validity`` None: no nulls."""

    ends: Buffer
    data: Buffer
    validity: Buffer | None
    nulls: int


class ArrowBuffers(NamedTuple):
    """Rows as the buffers of Arrow arrays; None: that column was not asked for. ``headers``: lists, names, values."""

    rows: int
    offsets: Buffer
    timestamps: Buffer | None
    kinds: Buffer | None
    keys: ArrowBinary | None
    values: ArrowBinary | None
    headers: tuple[ArrowBinary, ArrowBinary, ArrowBinary] | None


class ArrowColumns(Protocol):
    """Batches on their way into the buffers of Arrow arrays. ``size_bytes``: of their records, uncompressed."""

    rows: int
    size_bytes: int

    def add(self, batch: Buffer) -> bool:
        """One verified v2 batch. False: it is odd, or has no room beside the others; nothing of it was taken."""

    def take(self) -> ArrowBuffers:
        """Everything that was added; nothing is left."""


def arrow_columns(  # noqa: PLR0917 - the bounds, in their order
    names: Collection[str], start: int, end: int | None, since: int | None, until: int | None, micros: bool
) -> ArrowColumns | None:
    """Decodes batches into Arrow's buffers, those of the columns ``names`` and the offsets.

    Only records of ``start <= offset < end`` and ``since <= timestamp < until`` become rows (None: no bound).
    ``micros``: timestamps are turned into microseconds. None always: ``columns.ColumnReader`` is the pure twin.
    """
    return None


Elements = tuple[Buffer | None, Buffer | None, Buffer | None, int]
"""Of an Arrow ``binary`` or ``string`` array: validity, offsets, data, and the place of its first element."""


class ArrowRows(Protocol):
    """Columns of records as :func:`arrow_rows` holds them."""

    def largest(self) -> int:
        """As ``RecordColumns.largest``."""

    def run_ends(self, room: int) -> list[int]:
        """As ``RecordColumns.run_ends``."""

    def by_partition(self, partitions: int, keyless: int, given: Buffer | None) -> list[tuple[int, Buffer | None]]:
        """Each partition that gets rows, in ascending order, with their places in theirs (int64; None: all rows).

        A row goes where ``given`` says (int64 for each row; -1, and None: nothing is said), else where Kafka's
        producer puts its key, else to ``keyless``. Raises IndexError for a partition that is not there, ValueError.
        """


def arrow_rows(
    count: int,
    values: Elements,
    keys: Elements,
    timestamps: Buffer,
    headers: tuple[Buffer, Elements, Elements] | None,
) -> ArrowRows | None:
    """``count`` records as columns. ``timestamps`` are resolved, int64; ``headers``: where those of each record begin,
    and where the last ones end, int64, in the columns of names and values.

    The memory is kept, nothing is copied. None if an element leaves its data, and always without the compiled kernels.
    """
    return None


B_co = TypeVar("B_co", bound=Buffer, covariant=True)


class BatchFiller(Protocol[B_co]):
    """Rows of columns on their way into a batch: how many, their bytes at most, first, least and greatest timestamp."""

    count: int
    size_bytes: int
    first: int
    least: int
    greatest: int

    def add(self, rows: ArrowRows, order: Buffer | None, at: int) -> int:
        """The rows at the places ``order`` (int64; None: all), from its place ``at`` on, as far as they fit.

        Returns the place of the first that does not fit; one row alone always fits. Raises IndexError.
        """

    def finish(self, base_offset: int, leader_epoch: int, attributes: int, append_time_ms: int) -> B_co:
        """One v2 batch of all rows that were added, not compressed; nothing is left. Raises ValueError for none."""


@overload
def batch_filler(room: int, lend: Literal[False] = False) -> BatchFiller[bytes] | None: ...
@overload
def batch_filler(room: int, lend: Literal[True]) -> BatchFiller[bytes | memoryview] | None: ...
def batch_filler(room: int, lend: bool = False) -> BatchFiller[bytes | memoryview] | None:
    """Makes batches of rows that have ``room`` bytes at most, by ``RecordColumns.sizes``.

    ``lend``: large ones are read-only views of memory that is filled again once nobody looks into them.

    None always: ``column_encoder`` is the pure twin.
    """
    return None


def key_hashes(count: int, keys: Elements) -> bytes | None:
    """Kafka's hash of each of ``count`` keys, uint32; 0 for a null. None as for :func:`arrow_rows`."""
    return None


class PlainAppend:
    """Appends to one partition what is not odd (``local.partition.plain``). Thread-safe: takes the partition's lock.

    Here everything is odd.
    """

    def configure(
        self,
        *,
        plain: bool,
        keyed: bool,
        logs_time: bool,
        most_bytes: int,
        before_ms: int,
        after_ms: int,
        flush_messages: int,
    ) -> None:
        """The topic's settings. ``plain``: they ask for no codec. ``keyed``: a record without a key is odd."""

    def append(self, records: Sequence[NewRecord]) -> RecordMetadata | None:
        """As ``Appender.append``; None, and nothing is appended, where anything is odd."""
        del records
        return None


class PlainAppends:
    """Of all partitions of a topic: ``logs``, None for one that cannot be appended to."""

    def __init__(self, logs: Sequence[PlainAppend | None]) -> None:
        del logs

    def append(self, value: object, key: object, partition: object) -> RecordMetadata | None:
        """One record without time or headers; ``partition`` None: that of its key. None as of ``PlainAppend``."""
        del value, key, partition
        return None

    def append_many(
        self, records: object, fixed: int | None, keyless: int
    ) -> tuple[list[RecordMetadata], list[tuple[int, list[object], list[int]]]] | None:
        """Records as ``Topic.append_many`` takes them: one batch per partition, in partition order.

        ``fixed`` is the partition of all, None: Kafka's partitioner chooses; ``keyless`` is that of records without a
        key. Returns what was written, and what is left from the first partition on that found something odd: partition,
        records as they were given, their places in the call. None, and nothing is written: one of the records is odd.
        """
        del records, fixed, keyless
        return None
