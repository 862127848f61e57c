"""A segment that is given up takes its own records only: what is shown of all others stays, or nothing is done."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tiered.care.check import CheckOptions
from tiered.care.restore_plan import RestoreOptions
from tiered.care.run import check, mend, plan_mend, plan_rebuild, rebuild, restore
from tiered.clock import SystemClock
from tiered.errors import CorruptionError
from tiered.format.batch import encode_batch
from tiered.format.bundle import decode_bundle, encode_bundle
from tiered.format.keys import Role
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from tiered.format.root import decode_root, encode_root
from tiered.format.rows import Rows
from tiered.format.txn_index import decode_txns, encode_txns
from tiered.model import AbortedTxn, NewRecord, SealedIndexes, TopicPartition
from tiered.remote.catalog import Catalog
from tiered.remote.hist import copy_root
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


def decided(log: tiered.Log, topic: Topic, *, commits: bool) -> None:
    """0 and 1; 2 to 5, of which 4 is the marker; 6. The transaction wrote 1 and 2."""
    fate = b"committed" if commits else b"aborted"
    topic.append(b"0")
    txn = begin(topic)
    txn.append(b"1: " + fate)
    log.sync(timeout=60)
    txn.append(b"2: " + fate)
    topic.append(b"3")
    if commits:
        txn.commit()
    else:
        txn.abort()
    topic.append(b"5")
    log.sync(timeout=60)
    topic.append(b"6")
    log.sync(timeout=60)


def aborted(log: tiered.Log, topic: Topic) -> None:
    """Neither 1 nor 2 is shown."""
    decided(log, topic, commits=False)


def committed(log: tiered.Log, topic: Topic) -> None:
    """Both are."""
    decided(log, topic, commits=True)


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
    "committed, last": (committed_last, "that begins at offset 1 may have its marker there"),
}
AT_THE_END = {"undecided": undecided, "of a producer": of_a_producer}
"""The last segment alone tells the producers at the end."""
FORGOTTEN = "it is the last segment, and {} at its end"
UNTOLD = FORGOTTEN.format("nothing tells the producers and the open transactions")


@pytest.mark.parametrize(
    ("name", "bundle"), [*itertools.product(HARMFUL, ["whole", "gone"]), *((name, "gone") for name in AT_THE_END)]
)
def test_a_segment_whose_loss_changes_others_is_not_dropped(
    store: MemoryStore, tmp_path: Path, name: str, bundle: str
) -> None:
    script, why = HARMFUL[name] if name in HARMFUL else (AT_THE_END[name], UNTOLD)
    write(store, tmp_path, script)
    lose(store, ".log")
    if bundle == "gone":
        lose(store, ".idx")
        why = UNTOLD if name == "committed, last" else why
    kept = objects(store)
    with pytest.raises(CorruptionError) as refused:
        mend(store, plan_mend(store, TP, drop=True), "test")
    assert REFUSED in refused.value.message
    assert why in refused.value.message
    assert "t-0: to give up offsets 2 to " in refused.value.message
    assert "--until-offset 2 --name NEW" in refused.value.hint
    assert objects(store) == kept


def aborted_within(log: tiered.Log, topic: Topic) -> None:
    """0 and 1; 2 to 5, of which 2 and 3 are aborted by the marker 4; 6."""
    topic.append(b"0")
    topic.append(b"1")
    log.sync(timeout=60)
    txn = begin(topic)
    txn.append(b"2: aborted")
    txn.append(b"3: aborted")
    txn.abort()
    topic.append(b"5")
    log.sync(timeout=60)
    topic.append(b"6")
    log.sync(timeout=60)


def test_a_segment_whose_aborted_transactions_go_with_it_is_dropped(store: MemoryStore, tmp_path: Path) -> None:
    """Its index speaks of its own records only."""
    before = write(store, tmp_path, aborted_within)
    assert before == {0: b"0", 1: b"1", 5: b"5", 6: b"6"}
    lose(store, ".log")
    mend(store, plan_mend(store, TP, drop=True), "test")
    assert shown(store) == {0: b"0", 1: b"1", 6: b"6"}
    assert check(None, store, CheckOptions(read_data=True)).findings == ()
    restore(store, tmp_path / "restored", RestoreOptions())
    with tiered.open(tmp_path / "restored") as log:
        read = log.topic("t").read(isolation="read_committed")
        assert [record.offset for record in read] == [0, 1, 6]


def behind_a_hole(log: tiered.Log, topic: Topic) -> None:
    """0 and 1; 2, which goes; 3 to 10: of another writer 4 and 5, aborted by 6, 7, the marker 8 of what began with 1,
    and what begins with 9 and stays open."""
    topic.append(b"0")
    first = begin(topic)
    first.append(b"1")
    log.sync(timeout=60)
    topic.append(b"2")
    log.sync(timeout=60)
    topic.append(b"3")
    second = topic.transaction("second").__enter__()
    second.append(b"4")
    second.append(b"5")
    second.abort()
    topic.append(b"7")
    first.abort()
    third = topic.transaction("third").__enter__()
    third.append(b"9")
    third.append(b"10")
    log.sync(timeout=60)


def moved(entries: list[AbortedTxn], marker: int, first: int) -> list[AbortedTxn]:
    return [entry._replace(first_offset=first) if entry.last_offset == marker else entry for entry in entries]


def opened(entries: list[ProducerEntry], first: int) -> list[ProducerEntry]:
    return [entry._replace(txn_first_offset=first) if entry.txn_first_offset == 9 else entry for entry in entries]


TXNS: dict[str, tuple[Callable[[list[AbortedTxn]], list[AbortedTxn]], str, str]] = {
    "one of the segment": (lambda found: found[1:], "error", "1 of {} aborted transactions have no entry"),
    "later": (lambda found: moved(found, 6, 5), "error", "aborted at offset 6 begins at 4, its entry says 5"),
    "foreign": (lambda found: [*found, found[-1]._replace(last_offset=9)], "error", "no ABORT marker of producer"),
    "one of before": (lambda found: found[:1], "warning", "aborted at offset 8 has no entry, and its beginning"),
}
PRODUCERS: dict[str, tuple[Callable[[list[ProducerEntry]], list[ProducerEntry]], str]] = {
    "open": (lambda found: opened(found, -1), "that begins at offset 9 is open, and not in it"),
    "open later": (lambda found: opened(found, 10), "begins at 9, not at 10"),
    "all": (lambda _: [], "that begins at offset 9 is open, and not in it"),
}


def spoil(store: MemoryStore, base: int, change: Callable[[SealedIndexes], SealedIndexes]) -> None:
    """The bundle of a segment, and the row that tells its size."""
    (key,) = [key for key in objects(store) if f"/{base:020d}-" in key and key.endswith(".idx")]
    bundle = decode_bundle(body(store, key), key=key)
    data = encode_bundle(bundle.descriptor, change(bundle.indexes), bundle.claim_epoch)
    (root,) = [key for key in objects(store) if key.endswith("/root")]
    catalog = decode_root(body(store, root), key=root)
    rows = Rows.from_rows([row._replace(idx_len=len(data)) if row.base == base else row for row in catalog.rows])
    for name, other in ((key, data), (root, encode_root(replace(catalog, rows=rows)))):
        store.execute(Delete((name,)))
        store.execute(Put(name, other, ABSENT))


@pytest.mark.parametrize("hole", [False, True])
@pytest.mark.parametrize("name", [*TXNS, *PRODUCERS])
def test_what_proves_an_index_wrong_behind_a_hole_is_an_error(
    store: MemoryStore, tmp_path: Path, name: str, hole: bool
) -> None:
    """Nobody knows what the hole held. A bundle that contradicts what stands behind it is wrong all the same."""
    write(store, tmp_path, behind_a_hole)
    if hole:
        lose(store, ".log")
        mend(store, plan_mend(store, TP, drop=True), "test")
    if name in TXNS:
        change, severity, told = TXNS[name]
        code, severity = "txn_index_lost", severity if hole else "error"
        if name == "one of before" and not hole:
            told = "1 of 2 aborted transactions have no entry, the first at 8"
        spoil(store, 3, lambda old: replace(old, txn_index=encode_txns(change(list(decode_txns(old.txn_index, 3))))))
    else:
        edit, told = PRODUCERS[name]
        code, severity = "producer_snapshot_lost", "error"
        spoil(
            store,
            3,
            lambda old: replace(
                old, producer_snapshot=encode_snapshot(edit(list(decode_snapshot(old.producer_snapshot))))
            ),
        )
    report = check(None, store, CheckOptions(read_data=True))
    (found,) = [one for one in report.findings if one.code != "invariant"]  # its totals
    assert (found.severity.value, found.code, found.offset) == (severity, code, 3)
    assert told.format(1 if hole else 2) in found.message


def test_a_catalog_that_is_made_anew_leaves_a_hole_there(store: MemoryStore, tmp_path: Path) -> None:
    write(store, tmp_path, aborted_within)
    lose_root(store)
    lose(store, ".log")
    rebuild(store, plan_rebuild(store, TP, "test", accept_loss=True))
    assert shown(store) == {0: b"0", 1: b"1", 6: b"6"}


def test_nor_is_one_dropped_whose_index_of_them_is_gone(store: MemoryStore, tmp_path: Path) -> None:
    write(store, tmp_path, aborted_within)
    lose(store, ".log")
    lose(store, ".idx")
    with pytest.raises(CorruptionError, match="its index holds aborted transactions"):
        plan_mend(store, TP, drop=True)


@pytest.mark.parametrize("fresh", [False, True], ids=["restored", "a fresh disk"])
@pytest.mark.parametrize("whole", [False, True], ids=["gone", "damaged"])
def test_the_last_segment_goes_and_what_it_tells_of_producers_stays(
    store: MemoryStore, tmp_path: Path, whole: bool, fresh: bool
) -> None:
    """A retry of what was given up is known; the transaction is open as before, and whoever takes over ends it."""

    def script(log: tiered.Log, topic: Topic) -> None:
        topic.append(b"0")
        txn = begin(topic)
        txn.append(b"1: undecided")
        log.sync(timeout=60)
        topic.append_batches(numbered())
        log.sync(timeout=60)

    write(store, tmp_path, script)
    if whole:
        damage(store, LOST)
    else:
        lose(store, ".log")
    plan = plan_mend(store, TP, drop=True)
    assert [(loss.start, loss.end) for loss in plan.lost] == [(2, 3)]
    mend(store, plan, "test")
    assert check(None, store, CheckOptions(read_data=True)).findings == ()
    assert shown(store) == {0: b"0"}  # it is undecided: its marker was not given up
    directory = tmp_path / "next"
    if not fresh:
        restore(store, directory, RestoreOptions())
    with tiered.open(directory, store.url) as log:
        topic = log.topic("t")
        topic.append(b"behind")
        assert topic.append_batches(numbered()).offset == LOST
        log.sync(timeout=60)
    assert shown(store) == {0: b"0", 4: b"behind"}
    assert check(None, store, CheckOptions(read_data=True)).findings == ()


def test_the_index_of_a_last_segment_that_goes_tells_of_no_marker(store: MemoryStore, tmp_path: Path) -> None:
    def script(log: tiered.Log, topic: Topic) -> None:
        topic.append(b"0")
        topic.append(b"1")
        log.sync(timeout=60)
        txn = begin(topic)
        txn.append(b"2: aborted")
        txn.abort()
        log.sync(timeout=60)

    write(store, tmp_path, script)
    lose(store, ".log")
    mend(store, plan_mend(store, TP, drop=True), "test")
    assert check(None, store, CheckOptions(read_data=True)).findings == ()
    assert shown(store) == {0: b"0", 1: b"1"}


def numbered() -> bytes:
    """Of an idempotent producer, as of now: one that was silent for a day is forgotten."""
    record = NewRecord(b"numbered", b"k", SystemClock().now_ms())
    return encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=0)


@pytest.mark.parametrize("name", [*HARMFUL, *AT_THE_END])
def test_nor_does_a_catalog_that_is_made_anew_leave_a_hole_there(store: MemoryStore, tmp_path: Path, name: str) -> None:
    script, why = HARMFUL[name] if name in HARMFUL else (AT_THE_END[name], "")
    if name not in ("aborted", "committed"):
        why = FORGOTTEN.format("the producers").replace(" at its end", " at its end (1)")
    write(store, tmp_path, script)
    lose_root(store)
    lose(store, ".log")
    kept = objects(store)
    with pytest.raises(CorruptionError) as refused:
        rebuild(store, plan_rebuild(store, TP, "test", accept_loss=True))
    assert REFUSED in refused.value.message
    assert why in refused.value.message
    assert objects(store) == kept
    hint = refused.value.hint
    copy, root = hint.partition("or copy ")[2].partition(": then ")[0].split(" to ")
    command = "`tiered restore t:0 --to DIR --as-of now --until-offset 2 --name NEW`"
    assert hint.endswith(f": then {command} keeps what lies before offset 2")
    options = RestoreOptions(selected=(("t", 0),), as_of="now", until_offset=2, name="NEW")
    with pytest.raises(CorruptionError):
        restore(store, tmp_path / "kept", options)
    store.execute(Put(root, body(store, copy), ABSENT))
    restore(store, tmp_path / "kept", options)
    assert begins(tmp_path / "kept") == begins(tmp_path / "log", "t")


def begins(directory: Path, topic: str = "NEW") -> list[bytes | None]:
    """The values of what lies before the segment that is lost."""
    with tiered.open_reader(log_dir=directory) as reader:
        return [seen.value for seen in reader.topic(topic).read() if seen.offset < LOST]


def lose_root(store: MemoryStore) -> None:
    """A copy of it is in ``hist/``."""
    entry = drive(store, load_topic("t"))
    assert entry is not None
    root = drive(store, Catalog(entry.topic_id, 0, "t", known=entry.known).load())
    assert root is not None
    drive(store, copy_root(root))
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
    with pytest.raises(CorruptionError, match=f"offsets 4 to 5 .*{REFUSED}") as refused:
        mend(store, plan_mend(store, TP, [LOST], drop=True), "test")
    assert objects(store) == kept
    command = f"`tiered restore t:0 --to DIR --until-offset {LOST} --name NEW`"  # 2 and 3 can be read, here alone
    assert f"{command} keeps what lies before offset {LOST}" in refused.value.hint
    for until, fails in ((4, True), (LOST, False)):
        options = RestoreOptions(selected=(("t", 0),), until_offset=until, name="NEW")
        if fails:
            with pytest.raises(CorruptionError):
                restore(store, tmp_path / "kept", options)
        else:
            restore(store, tmp_path / "kept", options)
    assert begins(tmp_path / "kept") == begins(tmp_path / "log", "t")


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


def in_fours(log: tiered.Log, topic: Topic) -> None:
    """Two records a segment."""
    for offset in range(0, 8, 2):
        topic.append(b"%d" % offset)
        topic.append(b"%d" % (offset + 1))
        log.sync(timeout=60)


def begun_before(log: tiered.Log, topic: Topic) -> None:
    """The marker of what begins at 1 stands in the third of four segments."""
    topic.append(b"0")
    txn = begin(topic)
    txn.append(b"1: committed")
    log.sync(timeout=60)
    topic.append(b"2")
    topic.append(b"3")
    log.sync(timeout=60)
    txn.commit()
    topic.append(b"5")
    log.sync(timeout=60)
    topic.append(b"6")
    log.sync(timeout=60)


def lose_both(store: MemoryStore, *bases: int) -> None:
    for base in bases:
        lose(store, ".log", base)
        lose(store, ".idx", base)


def test_neighbours_that_are_lost_with_their_bundles_go_together(store: MemoryStore, tmp_path: Path) -> None:
    """What stands before the first of them tells who wrote before them all."""
    before = write(store, tmp_path, in_fours)
    lose_both(store, 2, 4)
    plan = plan_mend(store, TP, drop=True)
    assert [(loss.start, loss.end) for loss in plan.lost] == [(2, 4), (4, 6)]
    mend(store, plan, "test")
    assert shown(store) == {offset: before[offset] for offset in (0, 1, 6, 7)}
    assert check(None, store, CheckOptions(read_data=True)).findings == ()


def test_nor_with_a_marker_of_what_began_before_them(store: MemoryStore, tmp_path: Path) -> None:
    """What lies before them all is kept as is said."""
    before = write(store, tmp_path, begun_before)
    lose_both(store, 2, 4)
    with pytest.raises(CorruptionError, match="that begins at offset 1 may have its marker there") as refused:
        plan_mend(store, TP, drop=True)
    assert "`tiered restore t:0 --to DIR --until-offset 2 --name NEW`" in refused.value.hint
    kept = RestoreOptions(selected=(("t", 0),), until_offset=2, name="NEW")
    restore(store, tmp_path / "kept", kept)
    with tiered.open(tmp_path / "kept") as log:
        assert [record.value for record in log.topic("NEW").read() if record.offset < 2] == [before[0], b"1: committed"]


def test_what_lies_before_the_last_two_is_kept_as_is_said(store: MemoryStore, tmp_path: Path) -> None:
    write(store, tmp_path, in_fours)
    lose_both(store, 4, 6)
    with pytest.raises(CorruptionError, match="to give up offsets 6 to 8 ") as refused:
        plan_mend(store, TP, drop=True)
    assert "--until-offset 4 --name NEW" in refused.value.hint
    restore(store, tmp_path / "kept", RestoreOptions(selected=(("t", 0),), until_offset=4, name="NEW"))
    with tiered.open(tmp_path / "kept") as log:
        assert [record.value for record in log.topic("NEW").read()] == [b"0", b"1", b"2", b"3"]
