"""Values that cross between the hot loops and their callers: buffers, settings, results, and columns of Arrow."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

from tiered.model import TopicPartition

Buffer = bytes | bytearray | memoryview


class Block(bytearray):
    """Reusable buffer. It is refilled only when no view of it exists, so readers need not copy."""

    __slots__ = ()


class Shown(NamedTuple):
    """Parameters for decoding one batch for a reader: fields of each ConsumerRecord, and bounds of the wanted records.

    ``kind``: the batch's timestamp type. ``start``, ``end``: offsets. ``end`` and ``until_ms`` are exclusive. None: no
    bound.
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


class BatchForm(NamedTuple):
    """Settings of the batches that ``kernels.encode_batch`` makes for one topic and partition.

    ``keyed``: each record needs a key. ``most_bytes``: largest size of the batch. ``attributes``: those of the batch
    header. ``mutable``: return a ``bytearray``. ``given``: accept a (value, key) pair or a value as a record, as in
    ``append_many``. Timestamps are at most ``before_ms`` older and ``after_ms`` newer than the clock, except with
    LogAppendTime. ``place``: partition for the returned metadata; None: return no metadata.
    """

    keyed: bool
    most_bytes: int
    attributes: int
    mutable: bool
    given: bool
    before_ms: int
    after_ms: int
    place: TopicPartition | None = None


NO_PRODUCER = (-1, -1, -1)
"""Id, epoch and base sequence of a batch without a producer."""


class BatchKeysResult(NamedTuple):
    """Result of adding the keys of one batch to a KeyTable. ``records``: number of records examined.

    ``newest``: offset of the last record added, or -1. ``full``: the table has no room for the key of the next record.
    ``odd``: the kernels stopped early. The caller must decode the next record, or the bytes after the last one, itself.
    """

    records: int
    newest: int
    full: bool
    odd: bool


class BatchFilterResult(NamedTuple):
    """Result of filtering one batch: the number of ``records`` that stay, and of those removed for each reason.

    ``superseded``: a newer record has the key. ``expired``: tombstones. ``no_key``: records without a key.
    ``sets_horizon``: a tombstone stays, and the batch has no delete horizon yet. ``data``: the records that stay,
    encoded against ``base_timestamp``; ``max_timestamp`` is their greatest. ``data`` None: the batch stays unchanged,
    or none of its records stay.
    """

    records: int
    superseded: int
    expired: int
    no_key: int
    sets_horizon: bool
    data: bytes | None
    base_timestamp: int
    max_timestamp: int


class RunKeysResult(NamedTuple):
    """Result of adding the keys of consecutive batches to a KeyTable.

    ``used``, ``batches``, ``records``: numbers of bytes, batches and records examined. ``newest``: the last offset
    covered, -1: none. ``full``: the table had no room for the next key; of the last batch only offsets up to ``newest``
    were added. ``alone``: all records were added, each is within the offsets of its batch, and none has a producer. A
    caller may then treat the batches as one range of offsets.
    """

    used: int
    batches: int
    records: int
    newest: int
    full: bool
    alone: bool


class RunFilterResult(NamedTuple):
    """Result of filtering the first ``used`` bytes of consecutive batches, up to offset ``next`` (exclusive).

    ``data``: the bytes of the ``batches`` that stay; None: all stay unchanged. ``rebuilt``: number of batches that have
    fewer records or a new delete horizon. ``horizons``: number of new delete horizons. ``read``: number of records
    examined. ``records`` of them stay. The others are ``superseded`` by a newer record of their key, ``expired``
    tombstones, or have ``no_key``.
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


class Survey(NamedTuple):
    """Result of :func:`survey` for a run of batches. Positions are relative to the buffer, ranges half-open.

    The first ``used`` bytes have the offsets ``first`` to ``next``. ``first_timestamp``: largest timestamp of the first
    batch. The last batch begins at ``last_at``; ``before`` is the lowest offset that was allowed there. ``producers``,
    ``transactional``: one of the batches has a producer, or is transactional. ``since``: bytes after the last index
    entry. ``largest``: largest timestamp so far and the last offset of its batch. ``offset_entries``: native int32
    pairs (relative offset, position in the file). ``time_entries``: native int64 pairs (timestamp, relative offset).
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


Elements = tuple[Buffer | None, Buffer | None, Buffer | None, int]
"""Arrow ``binary`` or ``string`` array: validity, offsets, data, and the index of its first element."""


class ArrowBinary(NamedTuple):
    """Buffers of an Arrow ``binary`` or ``list`` array (a list's ``data`` is empty); ``validity`` None: no nulls.

    ``ends``: Arrow's int32 offsets, one more than elements. ``nulls``: number of nulls.
    """

    ends: Buffer
    data: Buffer
    validity: Buffer | None
    nulls: int


class ArrowBuffers(NamedTuple):
    """Records as the buffers of Arrow arrays; None: that column was not requested. ``headers``: lists, names, values.

    ``rows``: number of records. ``kinds``: their timestamp types.
    """

    rows: int
    offsets: Buffer
    timestamps: Buffer | None
    kinds: Buffer | None
    keys: ArrowBinary | None
    values: ArrowBinary | None
    headers: tuple[ArrowBinary, ArrowBinary, ArrowBinary] | None


class ArrowColumns(Protocol):
    """Collector of batches for the buffers of Arrow arrays. ``rows``: records so far. ``size_bytes``: their size."""

    rows: int
    size_bytes: int

    def add(self, batch: Buffer) -> bool:
        """Add one verified v2 batch. Return False, without adding it, if the caller must decode it record by record.

        For example, a record is damaged, a header name is not UTF-8, or the batch is too large for the buffers.
        """

    def finish(self) -> ArrowBuffers:
        """Return the buffers of all batches that were added, and empty the collector."""


class EncoderColumns(Protocol):
    """Columns of records that the compiled kernels can encode. :func:`arrow_rows` makes them."""

    def largest(self) -> int:
        """Return an upper bound of the largest record's bytes in a batch before compression; 0 without records."""

    def run_ends(self, room: int) -> list[int]:
        """Split the records into consecutive runs. Return the exclusive end index of each run.

        A run has at most ``room`` bytes before compression, or is one record.
        """

    def by_partition(self, partitions: int, keyless: int, given: Buffer | None) -> list[tuple[int, Buffer | None]]:
        """Return each partition with records, ascending, and the indexes of its records (int64; None: all).

        ``partitions``: their number. ``given``: the partition of each record (int64; -1, and None: unspecified).
        An unspecified record goes where Kafka's producer puts its key; without a key, to partition ``keyless``. Raises
        IndexError for a partition that does not exist. Raises ValueError if ``partitions`` is not positive, or
        ``given`` has another length than the columns.
        """


B_co = TypeVar("B_co", bound=Buffer, covariant=True)


class BatchFiller(Protocol[B_co]):
    """Collector of records for one batch. ``count``: records so far. ``size_bytes``: upper bound of their bytes.

    ``first``, ``least``, ``greatest``: the first, lowest and highest timestamp so far.
    """

    count: int
    size_bytes: int
    first: int
    least: int
    greatest: int

    def add(self, rows: EncoderColumns, order: Buffer | None, at: int) -> int:
        """Add the records with the indexes ``order`` (int64; None: all) while they fit. Begins at position ``at`` of
        ``order``.

        ``rows``: columns of the records. Returns the position of the first record that does not fit, or the number of
        positions if all fit. An empty filler has room for any record. Raises IndexError for an index of no record.
        """

    def finish(self, base_offset: int, leader_epoch: int, attributes: int, append_time_ms: int) -> B_co:
        """Return one uncompressed v2 batch of all added records, and remove them. Raises ValueError without records."""
