"""Each fault that the product repairs or refuses: a real bucket is damaged, ``check`` names it, ``repair`` mends it.

``LINES`` names each line of the two tables of the fault model; a line without a test fails the last test. The store is
in memory with versions of objects, a directory (it has none: another source heals), or MinIO with bucket versioning.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import boto3
import pytest

import tiered
from tests.integration.servers.commands import S3Server
from tests.integration.servers.conftest import use
from tests.support.admin import apply_repair, check, plan_rejoin, plan_repair, rejoin
from tests.support.buckets import SETTINGS, TP, Bucket, bucket, write
from tests.support.paged import Paged
from tests.unit.remote.paged.sinks import decide, log_of_sinks
from tests.unit.store.emulator import Emulator
from tiered.check.check import CheckOptions
from tiered.check.findings import Severity
from tiered.cli.main import run
from tiered.clock import SystemClock, SystemIds
from tiered.errors import ConditionalWritesUnsupportedError, CorruptionError, TieredError
from tiered.format.bundle import decode_bundle, encode_bundle
from tiered.format.kernels import crc32c
from tiered.format.keys import (
    FLAG_HOLE,
    Role,
    SegmentName,
    hist_key,
    index_key,
    parse_hist_key,
    partition_prefix,
    segment_key,
    topic_key,
)
from tiered.format.root import decode_root
from tiered.local.directory.multi_directory_log import LocalTier
from tiered.log import Log
from tiered.model import Row
from tiered.remote.gc import orphans
from tiered.remote.root_view import RootView
from tiered.remote.snapshots import create_snapshot
from tiered.repair.plan import EXIT_LEFT, RepairOptions, RepairPlan
from tiered.store.base import ABSENT, Delete, List, ListPage, Put
from tiered.store.driver import drive
from tiered.store.location import open_store

LINES = (
    # repaired
    "a .log or .idx object is missing, cut, or has other bytes",
    "an index object is missing or wrong, its .log is whole",
    "a page is missing or damaged",
    "the root is missing, damaged, or older than what is proven",
    "a trim, merge, compaction or erasure by mistake",
    "a copy of the bucket that was made while it was written",
    "a registry entry is missing or damaged",
    "this disk was fenced, or is behind the bucket",
    "a partition's directory is gone, or a local segment is damaged",
    "small files of a log directory are missing or damaged",
    "__transaction_state is damaged",
    "a snapshot, a pin, a copy below hist/ or a decision is damaged",
    # refused
    "offsets that no copy holds any more",
    "two candidates for the same offsets under the same claim",
    "objects that were moved, renamed or swapped by hand",
    "a root that went back and was committed to since",
    "a loss that may swallow the end of a transaction",
    "a whole bucket that was restored to an earlier time",
    "a store that ignores conditional writes",
)
COVERED: set[str] = set()
VERSIONED_BUCKET = "versions"

_numbers = itertools.count()
Damage = Callable[[Bucket, str], None]


def line(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Note that a test is about a line of the tables."""
    assert text in LINES
    COVERED.add(text)
    return lambda test: test


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """MinIO, with a bucket that keeps versions."""
    server = S3Server.start("minio", tmp_path_factory.mktemp("minio"))
    names = {"AWS_ACCESS_KEY_ID": "aws_access_key_id", "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key"}
    known = {names[name]: value for name, value in server.credentials.items() if name in names}
    s3 = boto3.client("s3", endpoint_url=server.url, region_name="us-east-1", **known)
    s3.create_bucket(Bucket=VERSIONED_BUCKET)
    s3.put_bucket_versioning(Bucket=VERSIONED_BUCKET, VersioningConfiguration={"Status": "Enabled"})
    yield server
    server.stop()


@pytest.fixture(params=["versions", "directory", pytest.param("minio", marks=pytest.mark.servers)])
def empty(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket without a topic."""
    if request.param != "minio":
        with bucket(request.param, tmp_path) as made:
            yield made
        return
    server = request.getfixturevalue("minio")
    use(server, monkeypatch)
    monkeypatch.setenv("TIERED_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    store = open_store(f"s3://{VERSIONED_BUCKET}/damage-{next(_numbers)}")
    yield Bucket(store, tmp_path / "log", "minio", versioned=True)
    store.close()


@pytest.fixture
def place(empty: Bucket) -> Bucket:
    """A log with transactions."""
    write(empty, steps=36)
    return empty


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Bucket]:
    """A log with transactions in a bucket without versions."""
    with bucket("directory", tmp_path) as made:
        write(made, steps=36)
        yield made


def lose(place: Bucket, key: str) -> None:
    place.delete(key)


def cut(place: Bucket, key: str) -> None:
    place.replace(key, place.data(key)[:-7])


def flip(place: Bucket, key: str) -> None:
    data = bytearray(place.data(key))
    data[len(data) // 2] ^= 1
    place.replace(key, bytes(data))


every_damage = pytest.mark.parametrize("damage", [lose, cut, flip])


def is_named(place: Bucket, key: str) -> bool:
    """Return whether ``check`` names an object, by its whole key or the end of it."""
    return any(key in one.where or key in one.message or one.where in key for one in place.findings()
               if one.severity is not Severity.INFO)  # fmt: skip


def mended(place: Bucket, before: object, plan: RepairPlan) -> None:
    """Nothing is left, and every record is there."""
    assert (plan.exit_code, plan.left) == (0, ())
    assert place.committed() == before
    assert place.named() == []


def goes_on(place: Bucket) -> None:
    """The disk that wrote rejoins, and appends more."""
    rejoin(plan_rejoin(place.directory, [TP]))
    place.continues()


# -- repaired --------------------------------------------------------------------------------------------------------


@line("a .log or .idx object is missing, cut, or has other bytes")
@every_damage
def test_objects_of_a_segment(place: Bucket, damage: Damage) -> None:
    before, rows = place.committed(), place.rows()
    log, index = place.log_key(rows[1]), place.index_key(rows[3])
    damage(place, log)
    damage(place, index)
    assert is_named(place, log)
    assert is_named(place, index)
    mended(place, before, place.repair(from_dir=None if place.versioned else place.directory))
    assert [row.next for row in place.rows()] == [row.next for row in rows]
    assert (place.rows() == rows) is place.versioned
    place.continues()


@line("a .log or .idx object is missing, cut, or has other bytes")
@every_damage
@pytest.mark.parametrize("rewrite", [Bucket.merge, Bucket.compact])
def test_a_rewritten_segment_comes_back_from_the_disk(
    plain: Bucket, damage: Damage, rewrite: Callable[[Bucket, int, int], Row]
) -> None:
    """The local segments hold the bytes of a merged one. They replace a compacted one."""
    before, row = plain.committed(), rewrite(plain, 1, 4)
    damage(plain, plain.log_key(row))
    assert is_named(plain, plain.log_key(row))
    mended(plain, before, plain.repair(from_dir=plain.directory))
    assert (row in plain.rows()) is (rewrite is Bucket.merge)
    plain.continues()


@line("an index object is missing or wrong, its .log is whole")
@every_damage
@pytest.mark.parametrize("number", [0, 2, -1])
def test_an_index(place: Bucket, damage: Damage, number: int) -> None:
    before, row = place.committed(), place.rows()[number]
    damage(place, place.index_key(row))
    assert is_named(place, place.index_key(row))
    mended(place, before, place.repair())
    assert (row in place.rows()) is place.versioned
    place.continues()


@line("an index object is missing or wrong, its .log is whole")
@pytest.mark.parametrize("which", ["offset_index", "time_index"])
@pytest.mark.parametrize("number", [0, 2])
def test_an_index_with_wrong_entries(place: Bucket, which: str, number: int) -> None:
    before, row = place.committed(), place.rows()[number]
    key = place.index_key(row)
    bundle = decode_bundle(place.data(key), key=key)
    wrong = bytearray(getattr(bundle.indexes, which))
    wrong[7] ^= 1  # the first entry points into a batch, or has the time of no record
    indexes = dataclasses.replace(bundle.indexes, **{which: bytes(wrong)})
    place.replace(key, encode_bundle(bundle.descriptor, indexes, row.claim_epoch))
    assert is_named(place, key)
    mended(place, before, place.repair())
    place.continues()


@line("an index object is missing or wrong, its .log is whole")
def test_an_index_whose_producers_nothing_names(plain: Bucket) -> None:
    plain.trim(plain.rows()[2].base)
    before, row = plain.committed(), plain.rows()[0]
    lose(plain, plain.index_key(row))
    assert plain.repair().exit_code == EXIT_LEFT
    plan = plain.repair(accept_loss=True)
    assert (plan.exit_code, plain.committed()) == (0, before)


@line("a page is missing or damaged")
@pytest.mark.parametrize("versioned", [True, False])
def test_pages(*, versioned: bool) -> None:
    place = Paged()
    place.store.inner._bucket.versioned = versioned  # type: ignore[attr-defined]
    place.append(30)
    before, keys = place.rows(), place.pages()
    place.lose_pages(*(keys if versioned else (keys[0], keys[-1])))
    with pytest.raises(TieredError):
        place.seen()
    assert all(action.act is not None for action in place.repair())
    assert place.seen() == before


@line("the root is missing, damaged, or older than what is proven")
@every_damage
def test_a_root(place: Bucket, damage: Damage) -> None:
    before, rows = place.committed(), place.rows()
    damage(place, place.root_key)
    assert is_named(place, place.root_key)
    mended(place, before, place.repair())
    assert place.rows() == rows
    goes_on(place)


@line("the root is missing, damaged, or older than what is proven")
def test_an_older_root(place: Bucket) -> None:
    old, rows = place.data(place.root_key), place.rows()
    place.trim(rows[1].base)
    place.trim(rows[2].base)  # a copy is kept of the first trim
    before = place.committed()
    place.replace(place.root_key, old)
    assert is_named(place, place.root_key)
    plan = place.repair()
    assert "an older root was put back" in plan.actions[0].problem
    assert [seen for seen in place.committed() if seen[0] >= rows[2].base] == before
    assert place.named() == []
    goes_on(place)


def trim(place: Bucket) -> None:
    place.trim(place.rows()[3].base)


def merge(place: Bucket) -> None:
    place.merge(1, 4)


def compact(place: Bucket) -> None:
    place.compact(1, 4)


@line("a trim, merge, compaction or erasure by mistake")
@pytest.mark.parametrize("mistake", [trim, merge, compact])
def test_a_mistake(place: Bucket, mistake: Callable[[Bucket], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "ORPHAN_MS", 0)  # all objects are old
    before, rows = place.committed(), place.rows()
    mistake(place)
    version = max(parse_hist_key(key) or 0 for key in place.listed("/hist/"))
    with tiered.open(place.directory, place.store.url) as log:
        log.topic("t").append(b"later" * 120)
        log.topic("t").append(b"and later" * 60)
        log.sync(timeout=60)
    later = [seen for seen in place.committed() if seen[0] >= rows[-1].next]
    assert later
    objects = {*place.listed("/s/")}
    plan = place.repair_once(to_version=version)
    assert (plan.exit_code, place.rows()[: len(rows)]) == (0, rows)
    assert place.committed() == [*before, *later]
    assert place.named() == []
    assert collect(place) == 0
    assert {*place.listed("/s/")} == objects  # going back may be the mistake
    assert run(["topic", "set", "t", "gc.grace.ms=0", "--remote", place.store.url]) == 0
    assert collect(place) == 0
    assert {*place.listed("/s/")} == {key for row in place.rows() for key in (place.log_key(row), place.index_key(row))}
    assert place.committed() == [*before, *later]
    goes_on(place)


def collect(place: Bucket) -> int:
    return run(["maintain", "--only", "collect", "--orphans", "--yes", "--remote", place.store.url])


@line("a trim, merge, compaction or erasure by mistake")
def test_an_erasure_that_is_undone_is_named(place: Bucket) -> None:
    with tiered.open(place.directory, place.store.url) as log:
        log.topic("t").append(b"of one" * 60, key=b"who")
        log.topic("t").append(b"of another" * 40, key=b"other")
        log.sync(timeout=60)
    before = place.committed()
    assert run(["erase", "t", "--key", "who", "--yes", "--remote", place.store.url]) in (0, 3)
    erased = [seen for seen in place.committed() if seen not in before]
    assert (erased, len(place.committed())) == ([], len(before) - 1)
    versions = [parse_hist_key(key) or 0 for key in place.listed("/hist/")]
    plan = place.repair_once(to_version=max(versions))
    assert plan.exit_code == EXIT_LEFT
    assert "`tiered erase t:0` again" in plan.actions[0].undone[0] or "tiered erase t:0" in plan.actions[0].undone[0]
    assert place.committed() == before


@line("a copy of the bucket that was made while it was written")
def test_a_copy_that_was_made_while_it_was_written(plain: Bucket) -> None:
    """The root came first, and of the objects that it names the last ones not at all."""
    rows = plain.rows()
    plain.trim(rows[1].base)  # keeps a copy
    before = plain.committed()
    with tiered.open(plain.directory, plain.store.url) as log:
        for _ in range(4):
            log.topic("t").append(b"later" * 100)
        log.sync(timeout=60)
    late = [row for row in plain.rows() if row not in rows]
    plain.delete(*[key for row in late for key in (plain.log_key(row), plain.index_key(row))])
    assert is_named(plain, plain.log_key(late[0]))
    left = plain.repair()  # it looks like a loss: no record is given up without leave
    assert (left.exit_code, left.left[0].lost) == (EXIT_LEFT, ((rows[-1].next, late[-1].next),))
    assert "`tiered repair t:0 --accept-loss`" in left.left[0].remedy
    assert plain.root.next_offset == late[-1].next
    assert plain.repair_once(accept_loss=True).exit_code == 0
    assert plain.root.next_offset == rows[-1].next
    assert plain.committed() == before
    assert plain.named() == []


def flip_first(place: Bucket, key: str) -> None:
    """A registry entry has no checksum: a bit of a setting may be an alteration."""
    data = place.data(key)
    place.replace(key, bytes([data[0] ^ 1]) + data[1:])


@line("a registry entry is missing or damaged")
@pytest.mark.parametrize("damage", [lose, cut, flip_first])
def test_a_registry_entry(place: Bucket, damage: Damage) -> None:
    before, entry, key = place.committed(), place.entry, topic_key("t")
    damage(place, key)
    assert is_named(place, key)
    plan = plan_repair(place.store)
    apply_repair(place.store, plan)
    mended(place, before, plan)
    assert (place.entry.topic_id, place.entry.partitions) == (entry.topic_id, entry.partitions)
    assert (dict(place.entry.config) == dict(entry.config)) is place.versioned
    place.continues()


@line("this disk was fenced, or is behind the bucket")
@pytest.mark.parametrize("how", ["fenced", "behind"])
def test_a_disk_that_may_not_go_on(place: Bucket, tmp_path: Path, how: str) -> None:
    other, url = tmp_path / "other", place.store.url
    if how == "fenced":
        assert run(["restore", "--log-dir", str(other), "--remote", url]) == 0
    else:
        shutil.copytree(place.directory, other)
    with tiered.open(other if how == "fenced" else place.directory, url) as log:
        log.topic("t").append(b"of the other" * 40)
        log.sync(timeout=60)
    behind = place.directory if how == "fenced" else other
    with pytest.raises(TieredError):
        append(behind, url, b"too late")
    before = place.committed()
    rejoin(plan_rejoin(behind, [TP]))
    offset = append(behind, url, b"in time")
    assert place.committed() == [*before, (offset, b"in time")]
    assert check(behind, place.store, CheckOptions(read_data=True)).exit_code == 0


def append(directory: Path, url: str, body: bytes) -> int:
    """Append and upload a record."""
    with tiered.open(directory, url) as log:
        offset = log.topic("t").append(body).offset
        log.sync(timeout=60)
    return offset


def on_disk(place: Bucket, **options: object) -> RepairPlan:
    plan = plan_repair(place.store, [], RepairOptions(log_dir=place.directory, **options))  # type: ignore[arg-type]
    apply_repair(place.store, plan)
    return plan


def disk_is_right(place: Bucket) -> bool:
    return check(place.directory, place.store).exit_code == 0


@line("a partition's directory is gone, or a local segment is damaged")
@pytest.mark.parametrize("what", ["directory", "segment", "missing segment"])
def test_a_partition_of_the_disk(place: Bucket, what: str) -> None:
    before, folder = place.committed(), place.directory / "t-0"
    segment = sorted(folder.glob("*.log"))[2]
    if what == "directory":
        shutil.rmtree(folder)
    elif what == "segment":
        segment.write_bytes(segment.read_bytes()[:-9] + b"other one")
    else:
        segment.unlink()
    assert not disk_is_right(place)
    mended(place, before, on_disk(place))
    assert disk_is_right(place)
    place.continues()


@line("a partition's directory is gone, or a local segment is damaged")
@pytest.mark.parametrize("what", ["directory", "segment"])
def test_a_partition_of_a_disk_without_a_bucket(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "log"
    with tiered.open(directory) as log:
        topic = log.topic("t", create=True, config=SETTINGS)
        for number in range(40):
            topic.append(b"%d" % number + b"x" * 60)
    segment = sorted((directory / "t-0").glob("*.log"))[2]
    if what == "directory":
        shutil.rmtree(directory / "t-0")
    else:
        segment.write_bytes(segment.read_bytes()[:-9] + b"other one")
    assert check(directory, None).exit_code == CorruptionError.exit_code
    assert plan_repair(None, [], RepairOptions(log_dir=directory)).exit_code == EXIT_LEFT
    plan = plan_repair(None, [], RepairOptions(log_dir=directory, accept_loss=True))
    apply_repair(None, plan)
    ((start, end),) = plan.actions[0].lost
    assert (end - start == 40) is (what == "directory")
    assert check(directory, None).exit_code == 0
    with tiered.open(directory) as log:
        assert log.topic("t").append(b"more").offset == 40
        assert [seen.offset for seen in log.topic("t").read()] == [n for n in range(41) if not start <= n < end]


@line("small files of a log directory are missing or damaged")
@pytest.mark.parametrize("how", ["damaged", "missing"])
@pytest.mark.parametrize(
    ("name", "rejoins"),
    [
        ("recovery-point-offset-checkpoint", False),
        ("log-start-offset-checkpoint", False),
        ("meta.properties", True),
        ("tiered-topics.json", False),
        ("tiered-offset-checkpoint", False),
        ("tiered-producer-ids.json", False),
        ("replication-offset-checkpoint", False),
        ("cleaner-offset-checkpoint", False),
        ("tiered-claims.json", True),
        ("tiered-uploader.journal", False),
        ("t-0/partition.metadata", False),
        ("t-0/leader-epoch-checkpoint", False),
    ],
)
def test_small_files(plain: Bucket, name: str, how: str, *, rejoins: bool) -> None:
    before, path = plain.committed(), plain.directory / name
    if how == "missing":
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(b"{" * 300 + b"\n\n{}\n")
    plan = on_disk(plain)
    if how == "damaged" and name != "tiered-uploader.journal":  # lines that cannot be read are skipped
        assert [Path(action.where).name for action in plan.actions] == [path.name]
        assert ("rejoin" in plan.actions[0].remedy) is rejoins
    assert (plan.left, plan_repair(plain.store, [], RepairOptions(log_dir=plain.directory)).actions) == ((), ())
    if rejoins:
        rejoin(plan_rejoin(plain.directory, [TP]))
    assert plain.committed() == before
    plain.continues()


@line("__transaction_state is damaged")
def test_the_log_of_transactions(empty: Bucket, tmp_path: Path) -> None:
    place, copy = empty, tmp_path / "copy"
    log = tiered.open(place.directory, place.store.url)
    topic = log.topic("t", create=True, config=SETTINGS)
    with topic.transaction("a") as txn:
        txn.append(b"committed")
    open_one = topic.transaction("b")
    open_one.append(b"open")
    log.flush()
    shutil.copytree(place.directory, copy)  # as a crash leaves it
    open_one.abort()
    log.close()
    state = next(iter((copy / "__transaction_state-0").glob("*.log")))
    state.write_bytes(b"\xff" * state.stat().st_size)
    crashed = Bucket(place.store, copy, place.kind, place.versioned)
    assert not disk_is_right(crashed)
    plan = on_disk(crashed)
    assert "aborts the transactions" in plan.actions[0].remedy
    with tiered.open(copy, place.store.url) as log:
        assert [seen.value for seen in log.topic("t").read(isolation="read_committed")] == [b"committed"]
        log.sync(timeout=60)
    assert [value for _, value in place.committed()] == [b"committed"]


@line("a snapshot, a pin, a copy below hist/ or a decision is damaged")
@pytest.mark.parametrize("part", ["/hist/", "/snap/", "/pin/"])
def test_what_is_kept_beside_the_root(place: Bucket, part: str) -> None:
    before = place.committed()
    drive(place.store, create_snapshot(RootView(place.entry.topic_id, 0, "t"), "before"))
    if part == "/pin/":
        place.store.execute(Put(f"{partition_prefix(place.entry.topic_id, 0)}pin/{uuid4().hex}", b"no pin", ABSENT))
    key = place.listed(part)[0]
    right = place.data(key)
    if part != "/pin/":
        cut(place, key)
    assert is_named(place, key)
    mended(place, before, place.repair())
    assert len(place.listed("/aside/")) == 1
    assert (key in place.listed()) is (place.versioned and part != "/pin/")
    assert part == "/pin/" or not place.versioned or place.data(key) == right


@line("a snapshot, a pin, a copy below hist/ or a decision is damaged")
def test_a_decision_is_named_with_its_batch() -> None:
    log = log_of_sinks()
    decision = decide(log, [10], 1, "query")
    log.store.execute(Delete((decision.key,)))
    log.store.execute(Put(decision.key, b"damage", ABSENT))
    assert any(decision.key in (one.where + one.message) for one in check(None, log.store).findings)
    plan = plan_repair(log.store)
    assert plan.exit_code == EXIT_LEFT
    assert [action.problem for action in plan.left] == ["the decision of batch 1 of query is damaged"]


# -- refused ---------------------------------------------------------------------------------------------------------


@line("offsets that no copy holds any more")
def test_a_hole_is_made_of_what_no_copy_holds(plain: Bucket) -> None:
    before, row = plain.committed(), plain.rows()[2]
    lose(plain, plain.log_key(row))
    left = plain.repair()
    assert (left.exit_code, left.left[0].lost) == (EXIT_LEFT, ((row.base, row.next),))
    assert "`tiered repair t:0 --accept-loss`" in left.left[0].remedy
    assert row in plain.rows()
    plan = plain.repair(accept_loss=True)
    assert (plan.exit_code, plan.actions[0].lost) == (0, ((row.base, row.next),))
    kept = [seen for seen in before if not row.base <= seen[0] < row.next]
    assert set(plain.committed()) <= set(kept)
    assert plain.named() == []


@line("two candidates for the same offsets under the same claim")
def test_two_candidates(plain: Bucket) -> None:
    row = plain.rows()[-1]
    name = SegmentName(Role.WRITER, row.claim_epoch, row.base, uuid4().hex)
    log, key = bytearray(plain.data(plain.log_key(row))), plain.index_key(row)
    log[-1] ^= 1
    bundle = decode_bundle(plain.data(key), key=key)
    told = dataclasses.replace(bundle.descriptor, crc32c=crc32c(bytes(log)))
    twin = encode_bundle(told, bundle.indexes, row.claim_epoch)
    topic_id = plain.entry.topic_id
    plain.store.execute(Put(key_of(plain, name, "log"), bytes(log), ABSENT))
    plain.store.execute(Put(key_of(plain, name, "idx"), twin, ABSENT))
    plain.delete(plain.root_key, *[each for each in plain.listed("/hist/") if names_row(plain, each, row)])
    assert is_named(plain, plain.root_key)
    with pytest.raises(CorruptionError) as refused:
        plain.plan()
    assert plain.log_key(row) in refused.value.message + str(refused.value.path_or_key)
    plain.delete(key_of(plain, name, "log"), key_of(plain, name, "idx"))
    plain.repair()
    assert plain.rows()[-1] == row
    assert plain.entry.topic_id == topic_id


def key_of(place: Bucket, name: SegmentName, suffix: str) -> str:
    made = segment_key if suffix == "log" else index_key
    return made(place.entry.topic_id, 0, name)


def names_row(place: Bucket, key: str, row: Row) -> bool:
    return decode_root(place.data(key), key=key).next_offset >= row.next


@line("objects that were moved, renamed or swapped by hand")
def test_swapped_objects(place: Bucket) -> None:
    before, rows = place.committed(), place.rows()
    one, two = place.log_key(rows[1]), place.log_key(rows[3])
    place.swap(one, two)
    assert is_named(place, one)
    assert is_named(place, two)
    plan = place.plan()
    assert {action.where for action in plan.actions} == {one, two}
    assert {bool(action.lost) for action in plan.actions} == {not place.versioned}
    place.swap(one, two)  # the move is undone
    mended(place, before, place.repair())


@line("a root that went back and was committed to since")
def test_two_commits_of_one_version(plain: Bucket) -> None:
    old, rows, key = plain.data(plain.root_key), plain.rows(), plain.root_key
    plain.trim(rows[1].base)
    plain.trim(rows[2].base)
    plain.replace(key, old)
    first = hist_key(plain.entry.topic_id, 0, decode_root(old, key=key).version + 1)
    assert first in plain.listed("/hist/")
    plain.delete(*[each for each in plain.listed("/hist/") if each > first])

    def again() -> None:
        with pytest.raises(CorruptionError):
            plain.trim(rows[3].base)  # a maintainer's claim LISTs the copies: it refuses, but has written

    again()
    with pytest.raises(CorruptionError, match="was set back to an older version, then changed") as refused:
        plain.plan()
    assert "`tiered repair t:0 --from-version V`" in refused.value.hint
    assert plain.repair_once(from_version=plain.root.version).exit_code == 0
    assert plain.plan().actions == ()


@line("a loss that may swallow the end of a transaction")
def test_a_transaction_whose_end_may_be_lost(plain: Bucket) -> None:
    for row in plain.rows()[1:-1]:
        log, index = plain.data(plain.log_key(row)), plain.data(plain.index_key(row))
        plain.delete(plain.log_key(row), plain.index_key(row))
        assert plain.plan().left[0].lost == ((row.base, row.next),)
        plan = plain.plan(accept_loss=True)
        if plan.actions[0].notes:
            break
        plain.store.execute(Put(plain.log_key(row), log, ABSENT))
        plain.store.execute(Put(plain.index_key(row), index, ABSENT))
    assert "counts as aborted" in plan.actions[0].notes[0]
    apply_repair(plain.store, plan)
    assert plain.plan().actions == ()
    assert plain.named() == []
    aborted = {int(note.split("from offset ")[1].split()[0]) for note in plan.actions[0].notes if "from offset" in note}
    assert not aborted & {offset for offset, _ in plain.committed()}
    assert not any(row.flags & FLAG_HOLE and row.size for row in plain.rows())


@line("a whole bucket that was restored to an earlier time")
def test_a_bucket_that_went_back_as_a_whole(plain: Bucket, tmp_path: Path) -> None:
    folder, kept = tmp_path / "store", tmp_path / "kept"
    shutil.copytree(folder, kept)
    with tiered.open(plain.directory, plain.store.url) as log:
        log.topic("t").append(b"later" * 120)
        log.sync(timeout=60)
    shutil.rmtree(folder)
    kept.rename(folder)
    assert check(plain.directory, plain.store).exit_code == CorruptionError.exit_code
    with pytest.raises(TieredError, match=r"this disk saw offset \d+ committed, the root ends at \d+"):
        append(plain.directory, plain.store.url, b"more")
    assert plain.findings() == ()  # the bucket alone cannot know


@line("a store that ignores conditional writes")
def test_a_store_without_conditional_writes(tmp_path: Path) -> None:
    store = Emulator(ignores="all")
    log = Log(LocalTier.open([tmp_path / "log"]), store, clock=SystemClock(), ids=SystemIds())
    with pytest.raises(ConditionalWritesUnsupportedError):
        log.topic("t", create=True)
    page = store.execute(List(""))
    assert isinstance(page, ListPage)
    assert not [entry.key for entry in page.entries if entry.key.endswith((".log", "/root"))]
    log.close()


def test_no_line_is_left_out() -> None:
    assert set(LINES) == COVERED
