"""Reading while the boundary between the tiers moves, and across the end of what another volume committed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import tiered
import tiered.reader
from tiered.errors import ConfigError, OffsetGapError
from tiered.format.keys import topic_key
from tiered.model import TopicPartition
from tiered.store.base import Get, Outcome, StoreRequest
from tiered.store.directory import DirectoryStore

TP = TopicPartition("t", 0)


def store_url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'store'}"


@pytest.mark.parametrize("options", [{}, {"on_trimmed": "jump"}, {"since": 0}, {"since": 0, "on_trimmed": "jump"}])
def test_what_goes_from_the_disk_while_it_is_read_is_read_from_the_bucket(
    tmp_path: Path, options: dict[str, object]
) -> None:
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        topic = log.topic("t", create=True)
        partition = log._local.partition(TP)
        topic.append_many([b"%d" % i for i in range(20)])
        log.sync(timeout=30)
        partition.delete_local_before(20)
        topic.append_many([b"%d" % i for i in range(20, 60)])
        records = topic.read(0, **options)  # type: ignore[arg-type]  # keywords of each case
        first = next(records)
        log.sync(timeout=30)
        partition.delete_local_before(60)
        assert [record.offset for record in (first, *records)] == list(range(60))


def test_offsets_in_neither_tier_are_an_error_for_a_read_by_time_too(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": 500})
        topic.append(b"a")
        log.sync(timeout=30)
        for _ in range(20):
            topic.append(b"x" * 100)
    for path in sorted((tmp_path / "log" / "t-0").glob("*.log"))[:3]:  # one that is uploaded, two that are not
        path.unlink()
    with tiered.open_reader(store_url(tmp_path), log_dir=tmp_path / "log") as reader:
        for options in ({}, {"since": 0}):
            with pytest.raises(OffsetGapError):
                list(reader.topic("t").read(0, **options))


def test_a_batch_across_the_committed_end_gives_no_offset_twice(tmp_path: Path) -> None:
    url = store_url(tmp_path)
    with tiered.open(tmp_path / "a", remote=url) as one:
        ours = one.topic("t", create=True)
        ours.append_many([b"%d" % i for i in range(5)])
        one.sync(timeout=30)
        ours.append_many([b"a%d" % i for i in range(5, 15)])  # only on this disk, one batch
    with tiered.open(tmp_path / "b", remote=url) as other:
        other.topic("t").append_many([b"b%d" % i for i in range(5, 10)])
        other.sync(timeout=30)
    with tiered.open_reader(url, log_dir=tmp_path / "a") as reader:
        got = [(record.offset, record.value) for record in reader.topic("t").read(0)]
        assert got[5:] == [(i, b"b%d" % i) for i in range(5, 10)] + [(i, b"a%d" % i) for i in range(10, 15)]
        assert [offset for offset, _ in got] == list(range(15))
        assert reader.to_arrow("t").column("offset").to_pylist() == list(range(15))


def upload_all(tmp_path: Path) -> None:
    """What a log that was opened without its bucket holds goes there, and from the disk but for the last ten."""
    with tiered.open(tmp_path / "log", remote=store_url(tmp_path)) as log:
        log.sync(timeout=30)
        assert log._local.partition(TP).delete_local_before(10) == [0]


def ten_twice(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "other", remote=store_url(tmp_path)):
        pass  # the bucket is there, and empty
    with tiered.open(tmp_path / "log") as log:
        topic = log.topic("t", create=True)
        topic.append_many([b"%d" % i for i in range(10)])
        log._local.partition(TP).roll()
        topic.append_many([b"%d" % i for i in range(10, 20)])


@pytest.mark.parametrize("options", [{}, {"start": 0}, {"start": 0, "on_trimmed": "jump"}, {"since": 0}])
def test_a_topic_that_comes_to_the_bucket_behind_a_reader_is_read_from_there(
    tmp_path: Path, options: dict[str, object]
) -> None:
    ten_twice(tmp_path)
    with tiered.open_reader(store_url(tmp_path), log_dir=tmp_path / "log") as reader:
        topic = reader.topic("t")
        assert topic.beginning_offsets() == {TP: 0}
        upload_all(tmp_path)
        assert [record.offset for record in topic.read(0, **options)] == list(range(20))  # type: ignore[arg-type]
        assert (topic.beginning_offsets(), topic.positions(0).uploaded_offset) == ({TP: 0}, 20)


def test_another_topic_of_its_name_is_not_read_in_its_place(tmp_path: Path) -> None:
    ten_twice(tmp_path)
    with tiered.open_reader(store_url(tmp_path), log_dir=tmp_path / "log") as reader:
        topic = reader.topic("t")
        with tiered.open(tmp_path / "other", remote=store_url(tmp_path)) as other:
            other.topic("t", create=True).append_many([b"x"] * 30)
            other.sync(timeout=30)
        with pytest.raises(ConfigError, match="in the bucket"):
            list(topic.read(0))


def test_the_streams_of_a_topic_that_is_on_the_disk_alone_ask_the_bucket_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, gets = DirectoryStore.execute, list[str]()

    def counted(store: DirectoryStore, request: StoreRequest) -> Outcome:
        if isinstance(request, Get):
            gets.append(request.key)
        return execute(store, request)

    with tiered.open(tmp_path / "other", remote=store_url(tmp_path)):
        pass
    with tiered.open(tmp_path / "log") as log:
        log.topic("t", create=True, partitions=5).append_many([b"%d" % i for i in range(20)])
    with tiered.open_reader(store_url(tmp_path), log_dir=tmp_path / "log") as reader:
        topic = reader.topic("t")
        monkeypatch.setattr(DirectoryStore, "execute", counted)
        monkeypatch.setattr(tiered.reader, "ASK_AGAIN_SECONDS", math.inf)
        assert sum(topic.end_offsets().values()) == 20
        assert len(list(topic.read())) == 20
    assert gets == [topic_key("t")]
