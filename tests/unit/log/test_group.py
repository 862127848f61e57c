"""Records of one call by partition: by the compiled kernels, and one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tiered
from tests.unit.format.odd_records import Bytes, Late, Own, lists
from tests.unit.format.twins import both, compiled, needs_both
from tiered.arguments import place_in_call
from tiered.format.partitioner import Partitioner
from tiered.local.partition.validation import as_record
from tiered.model import NewRecord
from tiered.topic import Topic

PAIRS = st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40))


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Topic]:
    """Of a log that is closed: nothing is appended."""
    with tiered.open(tmp_path_factory.mktemp("group") / "log") as log:
        return {name: log.topic(name, partitions=n, create=True) for name, n in (("one", 1), ("seven", 7))}


@needs_both
@given(
    records=lists | st.lists(PAIRS | st.binary(max_size=30)),
    container=st.sampled_from([list, tuple, iter, Own]),
    topic=st.sampled_from(["one", "seven"]),
    partition=st.sampled_from([None, None, 0, 6]),
)
@example(records=[(Bytes(b"v"), b"k")], container=list, topic="seven", partition=None)
@example(records=[(b"v", Bytes(b"k"))], container=list, topic="seven", partition=None)
@example(records=[(b"v", 7)], container=list, topic="one", partition=None)
@example(records=[(3, None)], container=list, topic="one", partition=None)
@example(records=[Late(b"v", b"k")], container=list, topic="seven", partition=None)
@example(records=[NewRecord(b"v", b"k", True)], container=list, topic="seven", partition=None)
@example(records=[NewRecord(b"v", b"k", 1, [("a", 3)])], container=list, topic="seven", partition=None)  # type: ignore[list-item]
def test_both_twins_put_each_record_into_one_partition(
    topics: dict[str, Topic],
    records: list[Any],
    container: Callable[[list[Any]], Any],
    topic: str,
    partition: int | None,
) -> None:
    target = topics[topic]

    def call() -> object:
        target._partitioner = Partitioner(target.partitions)  # whose turn it is does not depend on the other twin
        given, groups = target._group(container(list(records)), partition)
        return [
            (chosen, list(map(as_record, group)), [place_in_call(given, group, i) for i in range(len(group))])
            for chosen, group in groups
        ]

    ours, pure = both(call)
    assert ours == pure


@needs_both
@given(keys=st.lists(st.binary(max_size=70)), partitions=st.integers(2, 3000))
def test_the_partition_is_kafkas(keys: list[bytes], partitions: int) -> None:
    given, groups = compiled.group([(None, key) for key in keys], partitions, -1, 0)
    assert given == tuple((None, key) for key in keys)
    chosen = {place_in_call(given, group, i): partition for partition, group in groups for i in range(len(group))}
    assert [chosen[i] for i in range(len(keys))] == [Partitioner(partitions).partition_for(key) for key in keys]
    assert compiled.group([tuple.__new__(NewRecord, (b"v",))], partitions, -1, 0) is None
