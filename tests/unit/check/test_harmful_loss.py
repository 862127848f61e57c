"""A segment that is given up takes its own records only: what is shown of all others stays, or nothing is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tiered.care.check import CheckOptions
from tiered.care.restore_plan import RestoreOptions
from tiered.care.run import check, mend, plan_mend, plan_rebuild, rebuild, restore
from tiered.errors import CorruptionError
from tiered.format.batch import encode_batch
from tiered.format.bundle import decode_bundle, encode_bundle
from tiered.format.keys import Role
from tiered.model import NewRecord, TopicPartition
from tiered.remote.catalog import Catalog
from tiered.remote.hist import keep_version
from tiered.remote.topics import load_topic
from tiered.store.base import ABSENT, Delete, Get, List, Object, Page, Put
from tiered.store.driver import drive
from tiered.store.memory import MemoryStore
from tiered.topic import Topic

TP = TopicPartition("t", 0)
LOST = 2
"""First offset of the segment that is lost."""
REFUSED = "would change what is shown of others: "
Script = Callable[[tiered.Log, Topic], None]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    name = f"harmful-{tmp_path.name}"
    yield MemoryStore(name)
    MemoryStore.forget(name)


def aborted(log: tiered.Log, topic: Topic) -> None:
    """0 and 1; 2 to 5, of which 4 is the marker; 6."""
    topic.append(b"0")
    txn = begin(topic)
    txn.append(b"1: aborted")
    log.sync(timeout=60)
    txn.append(b"2: aborted")
    topic.append(b"3")
    txn.abort()
    topic.append(b"5")
    log.sync(timeout=60)
    topic.append(b"6")
    log.sync(timeout=60)


def committed(log: tiered.Log, topic: Topic) -> None:
    """As :func:`aborted`, but it was not."""
    topic.append(b"0")
    txn = begin(topic)
    txn.append(b"1")
    log.sync(timeout=60)
    txn.append(b"2")
    topic.append(b"3")
    txn.commit()
    topic.append(b"5")
    log.sync(timeout=60)
    topic.append(b"6")
    log.sync(timeout=60)


def committed_last(log: tiered.Log, topic: Topic) -> None:
    """The marker is in the last segment."""
    topic.append(b"0")
    txn = begin(topic)
    txn.append(b"1")
    log.sync(timeout=60)
    txn.commit()
    topic.append(b"3")
    log.sync(timeout=60)


def aborted_behind(log: tiered.Log, topic: Topic) -> None:
    """The marker's segment, at 2, holds none of its data."""
    topic.append(b"0")
    txn = begin(topic)
    txn.append(b"1: aborted")
    log.sync(timeout=60)
    txn.abort()
    topic.append(b"3")
    log.sync(timeout=60)


def undecided(log: tiered.Log, topic: Topic) -> None:
    """Open over three segments."""
    topic.append(b"0")
    begin(topic).append(b"1: undecided")
    log.sync(timeout=60)
    topic.append(b"2")
    log.sync(timeout=60)


def undecided_longer(log: tiered.Log, topic: Topic) -> None:
    """Three segments."""
    undecided(log, topic)
    topic.append(b"3")
    log.sync(timeout=60)


def of_a_producer(log: tiered.Log, topic: Topic) -> None:
    """A retry of offset 1 is known by the last segment's snapshot."""
    topic.append(b"0")
    topic.append_batches(encode_batch([NewRecord(b"1", b"k", 5)], producer_id=7, producer_epoch=0, base_sequence=0))
    log.sync(timeout=60)
    topic.append(b"2")
    log.sync(timeout=60)


def begin(topic: Topic) -> tiered.Transaction:
    return topic.transaction("w").__enter__()


def write(store: MemoryStore, tmp_path: Path, script: Script) -> dict[int, bytes | None]:
    with tiered.open(tmp_path / "log", store.url) as log:
        script(log, log.topic("t", create=True))
    return shown(store)


def shown(store: MemoryStore) -> dict[int, bytes | None]:
    with tiered.open_reader(store.url) as reader:
        return {seen.offset: seen.value for seen in reader.topic("t").read(isolation="read_committed")}


def objects(store: MemoryStore) -> dict[str, bytes]:
    page = store.execute(List(""))
    assert isinstance(page, Page)
    return {entry.key: body(store, entry.key) for entry in page.entries}


def body(store: MemoryStore, key: str) -> bytes:
    got = store.execute(Get(key))
    assert isinstance(got, Object)
    return bytes(got.data)


def lose(store: MemoryStore, suffix: str, base: int = LOST) -> None:
    (key,) = [key for key in objects(store) if f"/{base:020d}-" in key and key.endswith(suffix)]
    store.execute(Delete((key,)))


def damage(store: MemoryStore, offset: int) -> None:
    """A bit of the batch at ``offset`` of the segment."""
    (key,) = [key for key in objects(store) if f"/{LOST:020d}-" in key and key.endswith(".log")]
    data, at = bytearray(body(store, key)), 0
    while int.from_bytes(data[at : at + 8], "big") != offset:
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    data[at + 62] ^= 1
    store.execute(Delete((key,)))
    store.execute(Put(key, bytes(data), ABSENT))


HARMFUL = {
    "aborted": (aborted, "its index holds aborted transactions"),
    "committed": (committed, "that begins at offset 1 may have its marker there"),
    "committed, last": (committed_last, "it is the last segment, and the producers at its end (1)"),
    "undecided": (undecided, "it is the last segment, and the producers at its end (1)"),
    "of a producer": (of_a_producer, "it is the last segment, and the producers at its end (1)"),
}


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.parametrize("bundle", ["whole", "gone"])
def test_a_segment_whose_loss_changes_others_is_not_dropped(
    store: MemoryStore, tmp_path: Path, name: str, bundle: str
) -> None:
    script, why = HARMFUL[name]
    write(store, tmp_path, script)
    lose(store, ".log")
    if bundle == "gone":
        lose(store, ".idx")
        why = why.replace("the producers at its end (1)", "nothing tells the producers")
    kept = objects(store)
    with pytest.raises(CorruptionError) as refused:
        mend(store, plan_mend(store, TP, drop=True), "test")
    assert REFUSED in refused.value.message
    assert why in refused.value.message
    assert "t-0: to give up offsets 2 to " in refused.value.message
    assert "--until-offset 2 --name NEW" in refused.value.hint
    assert objects(store) == kept


@pytest.mark.parametrize("name", HARMFUL)
def test_nor_does_a_catalog_that_is_made_anew_leave_a_hole_there(store: MemoryStore, tmp_path: Path, name: str) -> None:
    script, why = HARMFUL[name]
    write(store, tmp_path, script)
    lose_root(store)
    lose(store, ".log")
    kept = objects(store)
    with pytest.raises(CorruptionError) as refused:
        rebuild(store, plan_rebuild(store, TP, "test", accept_loss=True))
    assert REFUSED in refused.value.message
    assert why in refused.value.message
    assert objects(store) == kept


def lose_root(store: MemoryStore) -> None:
    """A copy of it is in ``hist/``."""
    entry = drive(store, load_topic("t"))
    assert entry is not None
    root = drive(store, Catalog(entry.topic_id, 0, "t", known=entry.known).load())
    assert root is not None
    drive(store, keep_version(root))
    store.execute(Delete((root.key,)))


@pytest.mark.parametrize("script", [aborted, committed])
@pytest.mark.parametrize("offset", [2, 3, 5])
def test_what_is_left_of_a_segment_with_a_marker(
    store: MemoryStore, tmp_path: Path, script: Script, offset: int
) -> None:
    before = write(store, tmp_path, script)
    (key,) = [key for key in objects(store) if f"/{LOST:020d}-" in key and key.endswith(".idx")]
    old = decode_bundle(body(store, key), key=key).indexes
    damage(store, offset)
    plan = plan_mend(store, TP, [LOST], drop=True)
    assert [(loss.start, loss.end) for loss in plan.lost] == [(offset, offset + 1)]
    mend(store, plan, "test")
    left = {at: value for at, value in before.items() if at != offset}
    assert shown(store) == left
    assert check(None, store, CheckOptions(read_data=True)).findings == ()
    restore(store, tmp_path / "restored", RestoreOptions())
    log = tmp_path / "restored" / "t-0"
    index = log / f"{LOST:020d}.txnindex"
    assert (index.read_bytes() if index.exists() else b"") == old.txn_index
    assert (log / f"{6:020d}.snapshot").read_bytes() == old.producer_snapshot


@pytest.mark.parametrize("script", [aborted, committed])
def test_a_marker_is_not_given_up(store: MemoryStore, tmp_path: Path, script: Script) -> None:
    write(store, tmp_path, script)
    damage(store, 4)
    kept = objects(store)
    with pytest.raises(CorruptionError, match=REFUSED):
        mend(store, plan_mend(store, TP, [LOST], drop=True), "test")
    assert objects(store) == kept


def test_a_part_without_its_bundle_is_not_given_up(store: MemoryStore, tmp_path: Path) -> None:
    write(store, tmp_path, committed)
    damage(store, 3)
    lose(store, ".idx")
    with pytest.raises(CorruptionError, match="its index bundle is gone or wrong"):
        plan_mend(store, TP, [LOST], drop=True)


def test_a_hole_within_an_open_transaction_and_no_bundle_is_invented_behind_it(
    store: MemoryStore, tmp_path: Path
) -> None:
    before = write(store, tmp_path, undecided_longer)
    assert before == {0: b"0"}
    lose(store, ".log")
    mend(store, plan_mend(store, TP, drop=True), "test")
    assert shown(store) == before
    lose(store, ".idx", 3)
    with pytest.raises(CorruptionError) as refused:
        mend(store, plan_mend(store, TP), "test")
    assert "does not tell the producers and open transactions at offset 4" in refused.value.message


def test_an_index_without_its_aborted_transaction_is_not_made_behind_a_trim(store: MemoryStore, tmp_path: Path) -> None:
    write(store, tmp_path, aborted_behind)
    entry = drive(store, load_topic("t"))
    assert entry is not None
    catalog = Catalog(entry.topic_id, 0, "t", known=entry.known)
    drive(store, catalog.claim(Role.MAINTAINER, "test"))
    drive(store, catalog.trim(LOST))
    (key,) = [key for key in objects(store) if f"/{LOST:020d}-" in key and key.endswith(".idx")]
    bundle = decode_bundle(body(store, key), key=key)
    store.execute(Delete((key,)))
    without = encode_bundle(bundle.descriptor, replace(bundle.indexes, txn_index=b""), bundle.claim_epoch)
    store.execute(Put(key, without, ABSENT))
    with pytest.raises(
        CorruptionError, match="holds ABORT markers of transactions whose beginning is not in the bucket"
    ):
        mend(store, plan_mend(store, TP), "test")
