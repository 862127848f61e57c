"""Hypothesis strategies for records and batches."""

from __future__ import annotations

from hypothesis import strategies as st

from tiered.format.codecs import Codec
from tiered.model import NewRecord

INT64_MAX = 2**63 - 1

fields = st.none() | st.binary(max_size=200) | st.integers(8185, 8200).map(bytes)
timestamps = (
    st.integers(1_700_000_000_000, 1_700_000_000_000 + 2**29)
    | st.integers(-1, 2**14 + 2)
    | st.sampled_from([-1, 0, INT64_MAX, INT64_MAX - 1, 2**62, 2**62 - 1])
)
headers = st.none() | st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=70)), max_size=5)
records = st.builds(NewRecord, value=fields, key=fields, timestamp=timestamps, headers=headers)
record_lists = st.lists(records, min_size=1, max_size=30)
codecs = st.sampled_from(list(Codec))
