"""Roots and registry entries that are lost or went back, and partitions that nobody reads: said by everybody."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

import tiered
from tests.support.admin import check, plan_rejoin, rejoin, restore
from tiered import aio
from tiered.check.findings import Severity
from tiered.clock import SystemClock, SystemIds
from tiered.config import LogConfig, TopicConfig
from tiered.engine.drain import DrainMode
from tiered.errors import ConfigError, CorruptionError, LogDestroyedError, NotFoundError, TieredError
from tiered.format.keys import root_key, topic_key
from tiered.local.directory.log_directory import LocalLog
from tiered.model import TopicPartition
from tiered.remote.roots import TopicIds, make_roots
from tiered.remote.topics import decode_topic, encode_topic
from tiered.restore.plan import RestoreOptions
from tiered.store.base import ABSENT, Delete, Get, List, ListEntry, ListPage, Object, Put
from tiered.store.driver import drive
from tiered.store.location import StoreLocation, open_store
from tiered.store.memory import MemoryStore
from uploader.config import Settings
from uploader.service import Service, ServicePlace, serve

TP = TopicPartition("t", 0)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A log of two partitions with 30 records each, all uploaded, and its store."""

    directory: Path
    url: str
    store: MemoryStore
    key: str

    def read(self, key: str) -> bytes:
        got = self.store.execute(Get(key))
        assert isinstance(got, Object)
        return got.data

    def objects(self) -> tuple[ListEntry, ...]:
        page = self.store.execute(List(""))
        assert isinstance(page, ListPage)
        return page.entries

    def lose(self, key: str) -> None:
        self.store.execute(Delete((key,)))

    def put(self, key: str, data: bytes) -> None:
        self.lose(key)
        self.store.execute(Put(key, data, ABSENT))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    name = f"lost-{tmp_path.name}"
    url = f"memory://{name}"
    with tiered.open(tmp_path / "log", remote=url) as log:
        topic = log.topic("t", create=True, partitions=2)
        for number in range(60):
            topic.append(b"%d" % number, partition=number % 2)
        log.sync(timeout=60)
        topic_id = log.topics()["t"].topic_id
    store = open_store(url)
    yield Bucket(tmp_path / "log", url, store, root_key(topic_id, 0))  # type: ignore[arg-type]
    MemoryStore.forget(name)


def daemon(directory: Path, url: str) -> int:
    service = Service(ServicePlace(directory, StoreLocation.parse(url)), Settings(http=None, scan=20))
    try:
        return asyncio.run(serve(service, oneshot=DrainMode.ALL, timeout_ms=60_000)).code
    except TieredError as error:
        return error.exit_code


def append_alone(directory: Path) -> None:
    """A record that waits for an uploader."""
    with tiered.open(directory) as log:
        log.topic("t").append(b"more", partition=0)


def read_bucket(bucket: Bucket) -> list[bytes | None]:
    with tiered.open_reader(bucket.url) as reader:
        return [record.value for record in reader.topic("t").read()]


def read_both(bucket: Bucket) -> list[bytes | None]:
    with tiered.open_reader(bucket.url, log_dir=bucket.directory) as reader:
        return [record.value for record in reader.topic("t").read()]


def read_by_time(bucket: Bucket) -> list[bytes | None]:
    with tiered.open_reader(bucket.url) as reader:
        return [record.value for record in reader.topic("t").read(since=0)]


def read_aio(bucket: Bucket) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        async with aio.open_reader(bucket.url) as reader:
            return [record.value async for record in (await reader.topic("t")).read()]

    return asyncio.run(read())


def fresh_writer(bucket: Bucket) -> None:
    with tiered.open(bucket.directory.with_name("fresh"), remote=bucket.url) as log:
        log.topic("t").append(b"again", partition=0)
        log.sync(timeout=60)


def own_writer(bucket: Bucket) -> None:
    with tiered.open(bucket.directory, remote=bucket.url) as log:
        log.topic("t").append(b"on", partition=0)
        log.sync(timeout=60)


def restored(bucket: Bucket) -> None:
    restore(bucket.store, bucket.directory.with_name("restored"))


def codes(bucket: Bucket, *, disk: bool) -> set[str]:
    report = check(bucket.directory if disk else None, bucket.store)
    assert (report.exit_code == 13) == any(finding.severity is Severity.ERROR for finding in report.findings)
    return {finding.code for finding in report.findings if finding.severity is Severity.ERROR}


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (read_bucket, CorruptionError),
        (read_by_time, CorruptionError),
        (read_aio, CorruptionError),
        (fresh_writer, CorruptionError),
        (restored, CorruptionError),
        (read_both, LogDestroyedError),
        (own_writer, LogDestroyedError),
    ],
)
def test_a_lost_root_is_an_error_for_everybody(
    bucket: Bucket, act: Callable[[Bucket], object], error: type[TieredError]
) -> None:
    act_on_whole = {read_bucket: 60, read_by_time: 60, read_aio: 60, read_both: 60}.get(act)
    if act_on_whole is not None:
        assert len(act(bucket)) == act_on_whole  # type: ignore[arg-type]
    bucket.lose(bucket.key)
    with pytest.raises(error, match="t-0") as raised:
        act(bucket)
    assert "tiered repair" in str(raised.value)
    assert isinstance(bucket.store.execute(Get(bucket.key)), type(bucket.store.execute(Get("absent"))))


def test_the_daemon_claims_nothing_over_a_lost_root(bucket: Bucket) -> None:
    bucket.lose(bucket.key)
    append_alone(bucket.directory)
    assert daemon(bucket.directory, bucket.url) != 0
    with tiered.open(bucket.directory.with_name("new")) as log:  # a disk that has seen nothing
        log._local.create_topic("t", 2, TopicConfig(), topic_id=_topic_id(bucket))
        log.topic("t").append(b"again", partition=0)
    assert daemon(bucket.directory.with_name("new"), bucket.url) != 0
    assert "root_missing" in codes(bucket, disk=False)


def test_an_older_root_is_named_by_whoever_knows_better(bucket: Bucket) -> None:
    older = bucket.read(bucket.key)
    with tiered.open_reader(bucket.url) as lasting:
        stream = lasting.topic("t").stream(0)
        own_writer(bucket)
        stream.refresh()
        assert stream.latest() == 31
        bucket.put(bucket.key, older)
        with pytest.raises(CorruptionError, match="31 became 30"):
            stream.refresh()
    assert codes(bucket, disk=True) == {"went_back"}
    for act in (read_both, own_writer):
        with pytest.raises(CorruptionError, match="saw offset 31 committed, the root ends at 30"):
            act(bucket)
    assert daemon(bucket.directory, bucket.url) != 0
    assert bucket.read(bucket.key) == older


def test_an_open_log_knows_what_a_daemon_of_its_disk_has_committed_since(bucket: Bucket) -> None:
    """The root went back to the one that this process has seen last: only its disk has seen a newer one."""
    with tiered.open(bucket.directory, remote=bucket.url) as log:
        topic = log.topic("t")
        topic.append(b"ours", partition=0)
        log.sync(timeout=60)
        older = bucket.read(bucket.key)
        topic.append(b"theirs", partition=0)
        log._local.partition(TP).roll()
        assert daemon(bucket.directory, bucket.url) == 0
        newest = bucket.read(bucket.key)
        bucket.put(bucket.key, older)
        topic.append(b"more", partition=0)
        with pytest.raises(CorruptionError, match="this disk saw offset 32 committed, the root ends at 31"):
            log.sync(timeout=60)
        assert bucket.read(bucket.key) == older
        bucket.put(bucket.key, newest)
        log.sync(timeout=60)
    with tiered.open_reader(bucket.url) as reader:
        assert [record.value for record in reader.topic("t").read(0)][-3:] == [b"ours", b"theirs", b"more"]


def _topic_id(bucket: Bucket) -> UUID:
    return decode_topic(bucket.read(topic_key("t")), key=topic_key("t")).topic_id


# -- the registry ------------------------------------------------------------------------------------------------------


def entry_gone(bucket: Bucket) -> None:
    bucket.lose(topic_key("t"))


def another_id(bucket: Bucket) -> None:
    entry = decode_topic(bucket.read(topic_key("t")), key=topic_key("t"))
    other = entry.topic_id.__class__(int=entry.topic_id.int ^ 1)
    bucket.put(topic_key("t"), encode_topic(dataclasses.replace(entry, topic_id=other)))


def one_partition(bucket: Bucket) -> None:
    entry = decode_topic(bucket.read(topic_key("t")), key=topic_key("t"))
    bucket.put(topic_key("t"), encode_topic(dataclasses.replace(entry, partitions=1)))


@pytest.mark.parametrize("damage", [entry_gone, another_id, one_partition])
def test_a_registry_that_says_less_than_the_bucket(bucket: Bucket, damage: Callable[[Bucket], None]) -> None:
    with tiered.open_reader(bucket.url) as lasting:
        assert lasting.topic("t").partitions == 2
        damage(bucket)
        with pytest.raises((LogDestroyedError, CorruptionError), match=r"had topic id|older entry|older one"):
            lasting.topic("t")
    assert "unregistered" in codes(bucket, disk=False)
    assert "unregistered" in codes(bucket, disk=True)
    for selected in ((), (("t", None),)):
        with pytest.raises((CorruptionError, NotFoundError)) as refused:
            restore(bucket.store, bucket.directory.with_name("restored"), RestoreOptions(selected=selected))
        assert "t" in refused.value.message
    assert not bucket.directory.with_name("restored").exists()


def test_partitions_that_are_being_added_are_no_damage(bucket: Bucket) -> None:
    entry = decode_topic(bucket.read(topic_key("t")), key=topic_key("t"))
    drive(
        bucket.store,
        make_roots(TopicIds("t", entry.topic_id), range(2, 4), "t"),
        clock=SystemClock(),
        ids=SystemIds(),
    )
    with tiered.open_reader(bucket.url) as reader:
        assert reader.topic("t").partitions == 2


@pytest.mark.parametrize("damage", [entry_gone, another_id, one_partition])
def test_its_writer_and_a_reader_of_both_tiers_say_so(bucket: Bucket, damage: Callable[[Bucket], None]) -> None:
    damage(bucket)
    for act in (read_both, own_writer):
        with pytest.raises((LogDestroyedError, CorruptionError, ConfigError), match="topic t"):
            act(bucket)
    append_alone(bucket.directory)
    assert daemon(bucket.directory, bucket.url) != 0


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("act", [own_writer, lambda bucket: daemon(bucket.directory, bucket.url)])
def test_a_topic_that_the_bucket_does_not_know_any_more_is_not_registered_again(
    bucket: Bucket, emptied: bool, act: Callable[[Bucket], object], caplog: pytest.LogCaptureFixture
) -> None:
    entry = topic_key("t")
    for key in [stored.key for stored in bucket.objects() if emptied or stored.key == entry]:
        bucket.lose(key)
    before = bucket.objects()
    if act is own_writer:
        with pytest.raises(LogDestroyedError, match="does not know it"):
            act(bucket)
    else:
        append_alone(bucket.directory)
        assert act(bucket) == LogDestroyedError.exit_code
    assert bucket.objects() == before


def test_a_selected_topic_is_restored_beside_one_whose_entry_is_lost(bucket: Bucket) -> None:
    with tiered.open(bucket.directory.with_name("two"), remote=bucket.url) as log:
        log.topic("u", create=True).append(b"x")
        log.sync(timeout=60)
    bucket.lose(topic_key("u"))
    with pytest.raises(CorruptionError, match="topic u"):
        restored(bucket)
    report = restore(bucket.store, bucket.directory.with_name("restored"), RestoreOptions(selected=(("t", None),)))
    assert report.segments == 2


def test_roots_that_wait_for_their_entry_are_no_damage(bucket: Bucket) -> None:
    """A registration that died before its entry; nobody claims before there is one."""
    drive(bucket.store, make_roots(TopicIds("u", UUID(int=5)), range(3), "t"), clock=SystemClock(), ids=SystemIds())
    assert codes(bucket, disk=False) == set()
    restored(bucket)


def test_a_root_that_was_claimed_had_an_entry(bucket: Bucket) -> None:
    with tiered.open(bucket.directory.with_name("two"), remote=bucket.url) as log:
        log.topic("u", create=True)
    bucket.lose(topic_key("u"))
    assert codes(bucket, disk=False) == {"unregistered"}


def test_another_prefix_beside_a_trimmed_disk(bucket: Bucket, tmp_path: Path) -> None:
    other = f"file://{tmp_path / 'other'}"
    (tmp_path / "other").mkdir()
    with (
        tiered.open_reader(other, log_dir=bucket.directory) as reader,
        pytest.raises(LogDestroyedError, match="does not know it"),
    ):
        reader.topic("t")
    with pytest.raises(LogDestroyedError, match="does not know it"):
        check(bucket.directory, open_store(other))


# -- partitions that were added ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_daemon", [False, True])
def test_partitions_that_were_added_are_registered_before_they_are_uploaded(bucket: Bucket, by_daemon: bool) -> None:
    with LocalLog.open(bucket.directory, config=LogConfig(remote=True)) as local:
        local.alter_topic("t", {}, partitions=4)
    with tiered.open(bucket.directory, remote=None if by_daemon else bucket.url) as log:
        log.topic("t").append(b"in 3", partition=3)
        if not by_daemon:
            log.sync(timeout=60)
    if by_daemon:
        assert daemon(bucket.directory, bucket.url) == 0
    with tiered.open_reader(bucket.url) as reader:
        topic = reader.topic("t")
        assert topic.partitions == 4
        assert [record.value for record in topic.read(3)] == [b"in 3"]
    assert codes(bucket, disk=True) == codes(bucket, disk=False) == set()
    assert restore(bucket.store, bucket.directory.with_name("restored")).segments == 3


# -- one entry that cannot be read, and the others ---------------------------------------------------------------------


@pytest.mark.parametrize(("data", "code"), [(b"{nothing", 13), (b'{"format": 9}', 2)])
def test_topics_of_a_reader_are_given_beside_one_whose_entry_cannot_be_read(
    bucket: Bucket, data: bytes, code: int
) -> None:
    bucket.put(topic_key("other"), data)
    unreadable: dict[str, TieredError] = {}
    with tiered.open_reader(bucket.url) as reader:
        with pytest.raises(TieredError) as raised:
            reader.topics()
        assert (raised.value.exit_code, topic_key("other") in raised.value.message) == (code, True)
        assert [(name, info.partitions) for name, info in reader.topics(unreadable).items()] == [("t", 2)]
    assert [(name, error.exit_code) for name, error in unreadable.items()] == [("other", code)]
    assert str(unreadable["other"]) == str(raised.value)

    async def topics() -> list[str]:
        async with aio.open_reader(bucket.url, log_dir=bucket.directory) as reader:
            with pytest.raises(type(raised.value)):
                await reader.topics()
            return list(await reader.topics(found))

    found: dict[str, TieredError] = {}
    assert (asyncio.run(topics()), list(found)) == (["t"], ["other"])
    bucket.put(topic_key("t"), data)
    with tiered.open_reader(bucket.url, log_dir=bucket.directory) as reader:
        assert list(reader.topics(found)) == ["t"]  # the disk's
    assert sorted(found) == ["other", "t"]


# -- folders, and what the advice says ---------------------------------------------------------------------------------


def test_a_folder_that_is_no_store_is_not_found(tmp_path: Path) -> None:
    absent, other, empty = tmp_path / "absent", tmp_path / "other", tmp_path / "empty"
    for made in (other / "photos", empty):
        made.mkdir(parents=True)
    for folder in (absent, other):
        with pytest.raises(NotFoundError, match=str(folder)):
            tiered.open_reader(f"file://{folder}")
    assert not absent.exists()
    with tiered.open_reader(f"file://{empty}") as reader:
        assert reader.topics() == {}
    with tiered.open(tmp_path / "log", remote=f"file://{tmp_path / 'store'}") as log:
        log.topic("t", create=True)
    with tiered.open_reader(f"file://{tmp_path / 'store'}") as reader:
        assert list(reader.topics()) == ["t"]
    shutil.rmtree(tmp_path / "store" / ".tiered")  # a copy without hidden files
    with tiered.open_reader(f"file://{tmp_path / 'store'}") as reader:
        assert list(reader.topics()) == ["t"]


def test_what_rejoin_sets_aside_can_be_uploaded_to_a_prefix_of_its_own(bucket: Bucket, tmp_path: Path) -> None:
    """The last step for a root of which no copy is kept."""
    bucket.lose(bucket.key)
    plan = plan_rejoin(bucket.directory, [TP], clock=SystemClock())
    rejoin(plan, clock=SystemClock())
    url = f"file://{tmp_path / 'elsewhere'}"
    with tiered.open(plan.target, remote=url) as log:
        log.topic("t")
        log.sync(timeout=60)
    with tiered.open_reader(url) as reader:
        assert [record.value for record in reader.topic("t").read(0)] == [b"%d" % n for n in range(0, 60, 2)]
    with pytest.raises(CorruptionError, match="t-0"):
        own_writer(bucket)
