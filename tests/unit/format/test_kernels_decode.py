"""Decoding by the compiled kernels and by their pure twin: the same records, then the same error."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.format import strategies
from tests.unit.format.twins import at_work, both, compiled, needs_both, outcome
from tiered.format import pure_kernels, records
from tiered.format.batch import (
    BatchHeader,
    BatchProducer,
    encode_batch,
    least_timestamp,
    read_header,
    rebuild_batch,
    records_extent,
    verify_batch,
)
from tiered.format.batch_scanner import walk_headers
from tiered.format.codecs import Codec, decompress
from tiered.format.kernel_values import Block, Shown
from tiered.format.kernels import ConsumerRecord, Record, crc32c
from tiered.format.pure_kernels import encode_record_at, encode_varint
from tiered.model import HeaderName, NewRecord, TimestampType
from tiered.plan.read import Tier
from tiered.read.stream import TierBatch

pytestmark = needs_both

MUTATIONS = int(os.environ.get("TIERED_MUTATIONS", "3000"))
"""How many damaged batches go through both twins."""
SEED = os.environ.get("TIERED_MUTATIONS_SEED", "11")

INT64 = (-(2**63), 2**63 - 1)
Answer = tuple[list[Any], object, bool]


def drained(make: Callable[[], Iterator[Any]]) -> Answer:
    """All that comes, how it ends, and whether it is over then."""
    found: list[Any] = []
    iterator: Iterator[Any] = iter(())

    def drain() -> None:
        nonlocal iterator
        iterator = make()
        found.extend(iterator)

    ended = outcome(drain)
    return found, ended, next(iterator, None) is None


def same(name: str, arguments: Sequence[Any]) -> Answer:
    """The answer of both twins, which has to be one, to the type of each field."""
    ours = drained(lambda: getattr(compiled, name)(*arguments))
    pure = drained(lambda: getattr(pure_kernels, name)(*arguments))
    assert ours == pure, (name, arguments)
    for one, other in zip(ours[0], pure[0], strict=True):
        assert (type(one).__module__, type(other).__module__) == (compiled.__name__, records.__name__)
        assert type(one).__name__ == type(other).__name__
        assert [type(field) for field in one] == [type(field) for field in other]
        assert (hash(one), repr(one)) == (hash(other), repr(other))
    return ours


def varint(value: int, width: int) -> bytes:
    """A zigzag varint of ``width`` bytes, however few would do: readers accept it."""
    z = (value << 1) ^ (value >> 63)
    return bytes((z >> 7 * i & 0x7F) | (0x80 if i < width - 1 else 0) for i in range(width))


bases = st.sampled_from([0, 7, 2**31, 2**63 - 1, 2**63 - 50, -1, INT64[0], 2**63])
append_times = st.none() | st.sampled_from([0, 5, 1_700_000_000_000, -1, 2**63])
wide = st.builds(varint, st.integers(-9, 40), st.integers(1, 11))
junk = st.binary(max_size=12)
loose = st.lists(wide | junk | st.sampled_from([b"\x01", b"\0", b"\x80", b"\xff" * 4, b"\xff" * 9]), max_size=12).map(
    b"".join
)
framed = loose.map(lambda body: encode_varint(len(body)) + body)
whole = st.builds(
    encode_record_at,
    st.integers(-5, 2**31 - 1),
    st.integers(*INT64),
    strategies.fields,
    strategies.fields,
    strategies.headers | st.just([(HeaderName.from_bytes("�", b"\xed\xa0\x80"), b"v")]),
)
payloads = st.lists(whole | framed | loose, max_size=6)


@given(
    parts=payloads,
    more=st.integers(-2, 1),
    base=bases,
    at=st.sampled_from([0, 1_700_000_000_000, *INT64, 2**63]),
    append_time=append_times,
)
@example(
    parts=[varint(10, 5) + varint(0, 1) * 3 + varint(-7, 3) + varint(-1, 2) + varint(0, 1)],
    more=0,
    base=0,
    at=0,
    append_time=None,
)
def test_any_records_or_their_error(parts: list[bytes], more: int, base: int, at: int, append_time: int | None) -> None:
    same("decode_records", (b"".join(parts), len(parts) + more, base, at, append_time))


@given(
    parts=payloads,
    more=st.integers(-2, 1),
    base=bases.filter(lambda base: base < 2**63),
    at=st.sampled_from([0, 1_700_000_000_000, *INT64]),
    before=st.binary(max_size=3),
)
@example(parts=[encode_record_at(3, -9, b"k", b"v", ())] * 2, more=0, base=5, at=7, before=b"")
@example(parts=[encode_record_at(0, 0, None, None, ())], more=-1, base=0, at=0, before=b"")
def test_the_extent_of_records_is_that_of_the_decoded_ones(
    parts: list[bytes], more: int, base: int, at: int, before: bytes
) -> None:
    data, count = b"".join(parts), len(parts) + more
    found, ended, _ = drained(lambda: pure_kernels.decode_records(data, count, base, at, None))
    told = compiled.records_extent(memoryview(before + data), count, base, at, len(before))
    if ended is not None or not found:
        assert told is None
        return
    offsets, times = [record.offset for record in found], [record.timestamp for record in found]
    assert told in (None, (min(offsets), max(offsets), min((time for time in times if time >= 0), default=-1)))


def test_plain_records_have_an_extent_compressed_or_not_and_one_time_if_the_log_gave_it() -> None:
    sent = [NewRecord(b"v" * at, b"k", 1000 - at, (("h", b"x"),)) for at in range(200)]
    stamped = encode_batch(sent, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=5)
    for codec, level in ((Codec.NONE, None), (Codec.ZSTD, 3)):
        batch = encode_batch(sent, base_offset=7, codec=codec, level=level)
        header = read_header(batch)
        with at_work(compiled):
            assert records_extent(batch, header) == (7, 206, 801)
            assert records_extent(stamped, read_header(stamped)) == (0, 199, 5)
            assert least_timestamp(header, batch) == 801
        with at_work(pure_kernels):
            assert records_extent(batch, header) is None
            assert least_timestamp(header, batch) == 801
    assert compiled.records_extent(memoryview(batch)[::2], 200, 7, 0, 61) is None
    assert compiled.records_extent(b"", 1, 7, 0, 61) is None


@given(
    parts=payloads,
    base=bases,
    append_time=append_times,
    start=st.sampled_from([0, 3, 9, 2**31, 2**63 - 2, 2**63]),
    end=st.none() | st.sampled_from([0, 5, 2**31, 2**63 - 1, 2**63]),
    since=st.none() | st.integers(*INT64),
    until=st.none() | st.integers(-(2**64), 2**64),
)
def test_what_a_reader_wants_of_them(
    parts: list[bytes],
    base: int,
    append_time: int | None,
    start: int,
    end: int | None,
    since: int | None,
    until: int | None,
) -> None:
    shown = Shown("topic", 3, 1, 8, "remote", start, end, since, until)
    same("consumer_records", (b"".join(parts), len(parts), base, 1_000, append_time, shown))


@given(records=strategies.record_lists)
def test_what_was_encoded_is_decoded(records: list[NewRecord]) -> None:
    base = records[0].timestamp
    data, _ = pure_kernels.encode_records(records, base)
    found, _, _ = same("decode_records", (data, len(records), 5, base, None))
    assert found == [Record(5 + i, r.timestamp, r.key, r.value, r.headers or []) for i, r in enumerate(records)]
    shown = Shown("t", 1, 0, -1, "local", 7, 9)
    seen, _, _ = same("consumer_records", (data, len(records), 5, base, None, shown))
    assert seen == [ConsumerRecord("t", 1, r.offset, r.timestamp, 0, *r[2:], -1, "local") for r in found[2:4]]


def plain(count: int) -> bytes:
    records = [
        NewRecord(b"v%d" % i * 9, b"k%d" % i, 1_000 + 400 * i, [("h", b"x"), ("", None)] if i % 3 else None)
        for i in range(count)
    ]
    return pure_kernels.encode_records(records, 1_000)[0]


def damaged(rng: random.Random, good: bytes) -> bytes:
    """One to four of: a byte, a bit, a varint that lies, a piece that is left out, doubled, or cut off."""
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            data[at : at + 1] = bytes((rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256))),))
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[at : at + 1] = varint(
                rng.choice((-1, -2, 0, 5, 2**31 - 1, -(2**31), rng.randrange(300))), rng.randint(1, 6)
            )
        elif kind == 3:
            del data[at : at + rng.randint(1, 9)]
        elif kind == 4:
            data[at:at] = data[at : at + rng.randint(1, 30)]
        else:
            del data[len(data) - rng.randint(0, 20) :]
    return bytes(data)


def test_damaged_batches_are_the_same_damage_to_both() -> None:
    rng = random.Random(SEED)
    print(f"TIERED_MUTATIONS_SEED={SEED}")
    good = [plain(count) for count in (1, 2, 5, 9)]
    counts = (1, 2, 5, 9)
    errors = survivors = 0
    for _ in range(MUTATIONS):
        number = rng.randrange(4)
        data = damaged(rng, good[number])
        count = counts[number] + rng.choice((0, 0, 0, -1, 1))
        arguments = (data, count, rng.choice((0, 2**63 - 3)), 1_000, rng.choice((None, None, 77)))
        _, ended, over = same("decode_records", arguments)
        assert over
        errors += ended is not None
        survivors += ended is None
        shown = Shown("t", 0, 0, 0, "local", rng.randrange(4), rng.choice((None, 5)), rng.choice((None, 1_300)))
        same("consumer_records", (*arguments, shown))
    assert errors > MUTATIONS // 2
    assert survivors > MUTATIONS // 100


def batches(rng: random.Random) -> list[bytearray]:
    """Whole v2 batches in a row: transactional and control ones, LogAppendTime, compressed, empty, with gaps."""
    at, made = rng.randrange(50), []
    for _ in range(rng.randrange(1, 7)):
        new = [
            NewRecord(b"v%d" % i * 9, b"k%d" % i, 1_000 + rng.randrange(900), None) for i in range(rng.randrange(1, 6))
        ]
        appended = rng.random() < 0.3
        producer = (7, 0, 0) if rng.random() < 0.3 else (-1, -1, -1)
        made.append(
            bytearray(
                encode_batch(
                    new,
                    base_offset=at,
                    leader_epoch=rng.randrange(3),
                    codec=rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
                    timestamp_type=TimestampType(appended),
                    append_time_ms=1_500 if appended else -1,
                    producer=BatchProducer(
                        producer[0],
                        producer[1],
                        producer[2],
                        transactional=producer[0] >= 0,
                        control=producer[0] >= 0 and rng.random() < 0.5,
                    ),
                )
            )
        )
        if rng.random() < 0.2:
            made[-1] = bytearray(rebuild_batch(read_header(made[-1]), []))
        at += len(new) + rng.choice((0, 0, 3))
    return made


def one_by_one(data: Any, shown: Shown) -> Iterator[ConsumerRecord]:
    """What a reader sees of batches in a row by the pure twin, a batch at a time."""
    for position, header in walk_headers(data):
        if header.is_control or (shown.since_ms is not None and header.max_timestamp < shown.since_ms):
            continue
        its = shown._replace(kind=int(header.timestamp_type), leader_epoch=header.leader_epoch)
        records = bytes(memoryview(data)[position + 61 : position + header.size_bytes])
        if header.codec:
            records = decompress(header.codec, records)
        append_time = header.max_timestamp if header.timestamp_type else None
        place = (header.records_count, header.base_offset, header.base_timestamp, append_time)
        yield from pure_kernels.consumer_records(records, *place, its)


def test_runs_are_their_batches_one_after_the_other() -> None:
    rng = random.Random(SEED)
    print(f"TIERED_MUTATIONS_SEED={SEED}")
    for _ in range(MUTATIONS // 4):
        data = b"".join(batches(rng))
        bounds = (
            rng.choice((0, 9, 30)),
            rng.choice((None, 12, 40)),
            rng.choice((None, 1_200)),
            rng.choice((None, 1_400)),
        )
        shown = Shown("t", 3, 0, -1, "local", *bounds)
        wanted = drained(lambda data=data, shown=shown: one_by_one(data, shown))
        for held in (data, bytearray(data), memoryview(data), memoryview(Block(data))):
            assert drained(lambda held=held, shown=shown: compiled.run_records(held, shown)) == wanted
        assert compiled.run_records(data[:-1], shown) is None


def test_a_damaged_run_is_the_same_damage_to_both() -> None:
    """Behind CRCs that are right: what reading meets that is no record, or no batch, in the middle of a run."""
    rng = random.Random(SEED)
    print(f"TIERED_MUTATIONS_SEED={SEED}")
    shown = Shown("t", 3, 0, -1, "local", 0)
    refused = errors = 0
    for _ in range(MUTATIONS // 4):
        made = batches(rng)
        one = rng.choice(made)
        at = rng.choice((rng.randrange(len(one)), rng.randrange(61, len(one) + 1)))
        one[at : at + 1] = damaged(rng, bytes(one[at : at + 1]) or b"\0")[:1] if rng.random() < 0.9 else b""
        data = b"".join(made)
        found = compiled.run_records(data, shown)
        if found is None:
            refused += 1
            continue
        ours = drained(lambda found=found: found)
        wanted = drained(lambda data=data: one_by_one(data, shown))
        assert ours == wanted
        errors += ours[1] is not None
    assert refused > MUTATIONS // 100
    assert errors > MUTATIONS // 100


def test_both_twins_cut_runs_into_the_same_batches() -> None:
    rng = random.Random(SEED)
    print(f"TIERED_MUTATIONS_SEED={SEED}")
    refused = 0
    for _ in range(MUTATIONS // 2):
        made = batches(rng)
        wanted = [(read_header(each), bytes(each)) for each in made]
        data = bytearray(b"".join(made))
        if rng.random() < 0.5:
            data[rng.randrange(min(len(data), 70))] ^= 1 << rng.randrange(8)
        start = rng.choice((0, 0, 9, wanted[-1][0].next_offset))
        for view in (memoryview(data), memoryview(bytes(data))[: len(data) - rng.choice((0, 0, 1, len(made[-1])))]):
            arguments = (view, TierBatch, BatchHeader, Tier.REMOTE, start)
            ours, pure = compiled.run_batches(*arguments), pure_kernels.run_batches(*arguments)
            assert (ours is None) == (pure is None), bytes(view)
            if ours is None or pure is None:
                refused += 1
                continue
            found = list(ours)
            assert found == list(pure)
            assert [type(each) for each in found] == [TierBatch] * len(found)
            whole = [(header, bytes(view[at : at + header.size_bytes])) for at, header in walk_headers(view)]
            assert [(each.header, bytes(each.data)) for each in found] == [
                each for each in whole if each[0].next_offset > start
            ]
            assert all(type(each.header) is BatchHeader and each.tier is Tier.REMOTE for each in found)
    assert MUTATIONS // 100 < refused < MUTATIONS


def test_both_twins_scan_as_far() -> None:
    rng = random.Random(SEED)
    print(f"TIERED_MUTATIONS_SEED={SEED}")
    stops = 0
    for _ in range(MUTATIONS):
        made = batches(rng)
        first, end = read_header(made[0]).base_offset, read_header(made[-1]).next_offset
        newest = max(read_header(each).max_timestamp for each in made)
        if rng.random() < 0.7:
            one = rng.choice(made)
            for _ in range(rng.randrange(1, 3)):
                one[rng.randrange(min(len(one), 70))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.5 and len(one) > 61:  # a header that says something else, and says it well
                struct.pack_into(">I", one, 17, crc32c(memoryview(one)[21:]))
        data = b"".join(made) + bytes(rng.randrange(80))
        state = rng.choice((0, first, first, first + 1)), rng.choice((2**63 - 1, end, end - 1))
        arguments = (
            memoryview(data)[: rng.choice((len(data), len(data) - rng.randrange(90)))],
            *state,
            rng.choice((-1, state[0])),
            rng.random() < 0.5,
            rng.choice((2**31, 200)),
            rng.choice((2**63 - 1, end, end - 2)),
            rng.choice((2**63 - 1, newest, newest - 1)),
            rng.choice((-1, 0, rng.getrandbits(32))),
        )
        ours, pure = outcome(lambda a=arguments: compiled.scan(*a)), outcome(lambda a=arguments: pure_kernels.scan(*a))
        assert ours == pure, arguments
        assert isinstance(ours, tuple)
        used, base, after, total = ours
        before = arguments[-1]
        assert total == (-1 if before < 0 else crc32c(data[:used], before))
        assert (used == 0) == (base == -1)
        walked = [header for _, header in walk_headers(bytes(arguments[0][:used]))]
        assert sum(header.size_bytes for header in walked) == used
        assert not walked or (walked[0].base_offset, walked[-1].next_offset) == (base, after)
        stops += used < len(arguments[0])
        assert scanned_slowly(data[:used]) == len(walked)
    assert stops > MUTATIONS // 4


def test_both_twins_survey_as_far() -> None:
    rng = random.Random(SEED)
    print(f"TIERED_MUTATIONS_SEED={SEED}")
    nothing = stops = entries = 0
    for _ in range(MUTATIONS):
        made = batches(rng)
        first, end = read_header(made[0]).base_offset, read_header(made[-1]).next_offset
        if rng.random() < 0.5:
            one = rng.choice(made)
            one[rng.randrange(min(len(one), 70))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.5 and len(one) > 61:
                struct.pack_into(">I", one, 17, crc32c(memoryview(one)[21:]))
        data = b"".join(made) + bytes(rng.randrange(80))
        order = (
            rng.choice((0, first, first, first + 1)),
            rng.choice((2**63 - 1, end, end - 1)),
            rng.choice((2**63 - 1, end - 2)),
        )
        largest = rng.choice(((-1, 0), (1_200, 0)))
        place = rng.choice((0, 0, 700, 2**31 - 100, 2**31))
        pace = 0, place, rng.choice((0, 90, 4096)), rng.choice((0, 100)), *largest, rng.choice((-1, largest[0]))
        arguments = data, order, rng.random() < 0.4, rng.choice((0, 2, 2**40)), pace
        ours = outcome(lambda a=arguments: compiled.survey(*a))
        pure = outcome(lambda a=arguments: pure_kernels.survey(*a))
        assert ours == pure, arguments
        if ours is None:
            nothing += 1
            continue
        assert isinstance(ours, pure_kernels.Survey)
        walked = list(walk_headers(data[: ours.used]))
        assert (walked[0][1].base_offset, walked[-1][1].next_offset) == (ours.first, ours.next)
        assert walked[-1][0] == ours.last_at
        assert ours.before == (walked[-2][1].next_offset if len(walked) > 1 else order[0])
        assert ours.producers == any(header.producer_id >= 0 for _, header in walked)
        assert ours.transactional == any(header.is_transactional for _, header in walked)
        assert ours.largest[0] == max(largest[0], *(header.max_timestamp for _, header in walked))
        assert scanned_slowly(data[: ours.used]) == len(walked)
        stops += ours.used < len(data)
        entries += len(ours.offset_entries) // 8
    assert min(nothing, stops, entries) > MUTATIONS // 20


def scanned_slowly(data: bytes) -> int:
    """How many intact batches these are."""
    return sum(verify_batch(data[at : at + header.size_bytes]) == header for at, header in walk_headers(data))


@needs_both
@given(st.binary(max_size=8), st.sampled_from([bytes, bytearray, memoryview]), st.data())
def test_both_twins_verify_a_batch_alike(behind: bytes, kind: Callable[[bytes], Any], data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([0, 1, 700, 70_000]))
    good = bytearray(encode_batch([NewRecord(b"v" * size, b"k", 5), NewRecord(b"w", None, 6)], base_offset=7))
    good += data.draw(st.sampled_from([b"", behind]))
    for _ in range(data.draw(st.integers(0, 2))):
        good[data.draw(st.integers(0, 70))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    if data.draw(st.booleans()):
        struct.pack_into(">I", good, 17, crc32c(bytes(good[21:])))
    given_batch = kind(bytes(good))
    ours, pure = both(lambda: verify_batch(given_batch))
    assert ours == pure
    assert type(ours) is type(pure)
    told = compiled.intact_header(given_batch, BatchHeader)
    assert told is None or told == pure
    assert told is not None or not isinstance(pure, BatchHeader) or pure.magic < 2


@needs_both
def test_what_is_no_buffer_of_bytes_in_a_row_has_no_header() -> None:
    batch = memoryview(encode_batch([NewRecord(b"v", b"k", 5)]))
    assert compiled.intact_header(batch, BatchHeader) == read_header(batch)
    assert compiled.intact_header(batch[::2], BatchHeader) is None
    assert compiled.intact_header(b"", BatchHeader) is None
