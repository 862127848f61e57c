from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeVar, overload

from tiered.format.accumulator import AccumulatedBatch as AccumulatedBatch
from tiered.format.accumulator import AccumulatedRecord as AccumulatedRecord
from tiered.format.accumulator import Accumulator as Accumulator
from tiered.format.pure_kernels import (
    ArrowColumns,
    BatchFiller,
    Buffer,
    Elements,
    EncoderRows,
    Kept,
    KeptRun,
    Put,
    PutRun,
    Shown,
    Survey,
)
from tiered.format.pure_kernels import PlainAppend as _PurePlainAppend
from tiered.format.pure_kernels import PlainAppends as PlainAppends
from tiered.format.records import ConsumerRecord as ConsumerRecord
from tiered.format.records import Record as Record
from tiered.model import NewRecord, TopicPartition

T = TypeVar("T")

COMPILED: str
CRC_WAYS: tuple[int, ...]

def crc32c(data: Buffer, value: int = 0, /, *, way: int | None = None) -> int: ...
def encode_records(records: Sequence[NewRecord], base_timestamp: int) -> tuple[bytes, int]: ...
def encode_batch(
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
) -> tuple[bytes | bytearray, int, int, int] | None: ...
def decode_records(
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[Record]: ...
def consumer_records(
    data: Buffer,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
    shown: Shown,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[ConsumerRecord]: ...
def scan(
    data: Buffer,
    expected: int,
    limit: int,
    exact: int,
    dense: bool,
    most_bytes: int,
    stop: int,
    latest: int,
    total: int,
) -> tuple[int, int, int, int]: ...
def survey(
    data: Buffer,
    order: tuple[int, int, int],
    dense: bool,
    epoch: int,
    pace: tuple[int, int, int, int, int, int, int],
) -> Survey | None: ...
def batch_records(batch: Buffer, shown: Shown | None) -> Iterator[Record] | Iterator[ConsumerRecord] | None: ...
def intact_header(batch: Buffer, header: type[T]) -> T | None: ...
def records_extent(
    data: Buffer, count: int, base_offset: int, base_timestamp: int, begin: int
) -> tuple[int, int, int] | None: ...
def run_batches(batches: memoryview, kind: type[T], header: type, first: object, start: int) -> Iterator[T] | None: ...
def run_records(batches: Buffer, shown: Shown) -> Iterator[ConsumerRecord] | None: ...
def group(
    records: Iterable[object], partitions: int, fixed: int, keyless: int
) -> tuple[dict[int, list[NewRecord]], dict[int, list[int]]] | None: ...
def assign_offsets(buf: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None: ...
def murmur2(data: bytes) -> int: ...
def arrow_columns(
    names: Collection[str], start: int, end: int | None, since: int | None, until: int | None, micros: bool
) -> ArrowColumns | None: ...
def arrow_rows(
    count: int, values: Elements, keys: Elements, timestamps: Buffer, headers: tuple[Buffer, Elements, Elements] | None
) -> EncoderRows | None: ...
@overload
def batch_filler(room: int, lend: Literal[False] = False) -> BatchFiller[bytes] | None: ...
@overload
def batch_filler(room: int, lend: Literal[True]) -> BatchFiller[bytes | memoryview] | None: ...
def key_hashes(count: int, keys: Elements) -> bytes | None: ...

class KeyTable:
    def __init__(self, capacity: int, secret: bytes) -> None: ...
    def __len__(self) -> int: ...
    def digest(self, key: bytes) -> bytes: ...
    def put(self, key: bytes, offset: int) -> None: ...
    def get(self, key: bytes) -> int: ...
    def put_batch(self, batch: Buffer, start: int) -> Put | None: ...
    def note_from(self, start: int) -> None: ...
    def superseded(self, start: int, end: int) -> int: ...
    def put_run(self, batches: Buffer, start: int) -> PutRun | None: ...
    def filter_run(
        self, batches: Buffer, latest: int, now_ms: int, horizon_ms: int, boundary: int
    ) -> KeptRun | None: ...
    def filter_batch(self, batch: Buffer, latest: int, keeps_tombstones: bool, horizon_ms: int) -> Kept | None: ...

class PlainLock:
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def hold(self, seconds: float) -> bool: ...
    def check_caller(self) -> None: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

class TurnLock:
    @property
    def waiting(self) -> int: ...
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def hold(self, seconds: float) -> bool: ...
    def check_caller(self) -> None: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

class PlainPlaces:
    def __init__(self, *classes: type) -> None: ...

class PlainAppend(_PurePlainAppend):
    def __init__(
        self,
        places: PlainPlaces,
        shared: object,
        *,
        flusher: object,
        producers: object,
        beginning: object,
        tp: TopicPartition,
        now_ms: Callable[[], int] | None,
        leases: object,
        uses: Iterator[int] | None,
        write: Callable[..., None],
        add_entries: Callable[..., object],
        write_entries: Callable[..., None],
        break_off: Callable[[BaseException], None],
        append_words: str,
        keeps_reserve: bool,
    ) -> None: ...
