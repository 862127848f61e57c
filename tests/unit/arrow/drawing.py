"""Records that Hypothesis draws for Arrow's tests."""

from __future__ import annotations

from hypothesis import strategies as st

from tiered.model import NewRecord, TopicPartition

TP = TopicPartition("flights", 3)

maybe_bytes = st.none() | st.binary(max_size=40) | st.integers(120, 9000).map(lambda size: b"x" * size)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
new_records = st.lists(
    st.builds(
        NewRecord,
        value=maybe_bytes,
        key=maybe_bytes,
        timestamp=st.integers(-1, 2**40) | st.integers(0, 2**62),
        headers=st.none() | headers,
    ),
    min_size=1,
    max_size=8,
)
