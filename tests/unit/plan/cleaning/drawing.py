"""Batches as a cleaning may meet them, drawn by Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from tiered.format.batch import decode_records, encode_batch, read_header, rebuild_batch
from tiered.format.codecs import Codec
from tiered.model import NewRecord, TimestampType

NOW_MS = 1_000_000
SECRET = bytes(range(16))
KEYS = st.sampled_from([b"", b"a", b"b", b"1234567", b"12345678", b"123456789abcdef0", b"k" * 300, None])
VALUES = st.sampled_from([b"", b"x", b"y" * 200, None])
TIMES = st.sampled_from([-1, 0, 5, 8_192, NOW_MS, 2**40, 2**63 - 1])
HEADERS = st.sampled_from([None, [("h", b"v")], [("\u00e4" * 70, None), ("", b"")]])
RECORDS = st.lists(st.builds(NewRecord, VALUES, KEYS, TIMES, HEADERS), min_size=1, max_size=80)
HORIZONS = st.sampled_from([None, 0, NOW_MS - 1, NOW_MS, NOW_MS + 1, 2**62])
CODECS = st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP])


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Some that follow each other, of which many have gaps, a horizon or a codec; or are empty."""
    made: list[bytes] = []
    at = draw(st.sampled_from([0, 7]))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(TimestampType))
        batch = encode_batch(
            draw(RECORDS), base_offset=at, codec=draw(CODECS), timestamp_type=kind, append_time_ms=NOW_MS - 5
        )
        header = read_header(batch)
        if draw(st.booleans()):
            left = [record for record in decode_records(batch) if draw(st.integers(0, 3))]
            batch = rebuild_batch(header, left, delete_horizon_ms=draw(HORIZONS))
        made.append(batch)
        at = header.next_offset + draw(st.sampled_from([0, 0, 3]))
    return made
