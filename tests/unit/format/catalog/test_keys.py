"""Object keys, local names, topic names: exact forms and hostile ones."""

from __future__ import annotations

import hashlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ConfigError
from tiered.format import keys, local_names
from tiered.format.keys import PageKey, PageName, Role, SegmentKey, SegmentName
from tiered.format.local_names import LocalFile, PartitionDir
from tiered.model import Row, TopicPartition

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
UID = "00ff" * 8
H2 = hashlib.blake2b(TOPIC_ID.bytes + b"\x00\x00\x00\x05", digest_size=16).hexdigest()[:2]
HOME = f"{H2}/00112233445566778899aabbccddeeff-5/"


def test_the_keys_are_those_of_the_design() -> None:
    name = SegmentName(Role.WRITER, 255, 42, UID)
    assert keys.root_key(TOPIC_ID, 5) == HOME + "root"
    assert keys.segment_key(TOPIC_ID, 5, name) == HOME + f"s/w000000ff/00000000000000000042-{UID}.log"
    assert keys.index_key(TOPIC_ID, 5, name) == HOME + f"s/w000000ff/00000000000000000042-{UID}.idx"
    assert keys.page_key(TOPIC_ID, 5, PageName(Role.MAINTAINER, 1, UID)) == HOME + f"p/m00000001/{UID}.page"
    assert keys.pin_key(TOPIC_ID, 5, UID) == HOME + f"pin/{UID}"
    assert keys.snap_key(TOPIC_ID, 5, "release-1") == HOME + "snap/release-1"
    assert keys.parse_snap_key(HOME + "snap/release-1") == "release-1"
    assert [keys.parse_snap_key(HOME + f"snap/{name}") for name in ("", "1", "now", "now-1h", "a/b", "a" * 101)] == (
        [None] * 6
    )
    audit = keys.gc_audit_key(TOPIC_ID, 5, 16, UID)
    assert audit == f"jobs/gc/{TOPIC_ID.hex}-5/0000000000000010-{UID}"
    assert (keys.parse_gc_audit_key(audit), keys.parse_gc_audit_key(audit + "0")) == (16, None)
    assert keys.hist_key(TOPIC_ID, 5, 16) == HOME + "hist/0000000000000010"
    assert keys.topic_key("a.b_c-1") == "topics/a.b_c-1"
    assert keys.probe_key(UID) == f"probe/{UID}"
    row = Row(42, 50, 0, 0, 1, 0, *keys.split_uid(UID), 1, 255, 8, 0, 0)
    assert keys.segment_key(TOPIC_ID, 5, row) == keys.segment_key(TOPIC_ID, 5, name)
    assert "/s/m000000ff/" in keys.segment_key(TOPIC_ID, 5, row._replace(flags=keys.FLAG_MAINTAINER))


@given(
    st.uuids(), st.integers(0, 2**31 - 1), st.sampled_from(Role), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1),
    st.integers(0, 2**128 - 1),
)  # fmt: skip
def test_segment_keys_parse_back(topic_id: UUID, partition: int, role: Role, epoch: int, base: int, uid: int) -> None:
    name = SegmentName(role, epoch, base, f"{uid:032x}")
    assert keys.parse_segment_key(keys.segment_key(topic_id, partition, name)) == SegmentKey(
        topic_id, partition, name, "log"
    )
    assert keys.parse_segment_key(keys.index_key(topic_id, partition, name)) == SegmentKey(
        topic_id, partition, name, "idx"
    )
    page = PageName(role, epoch, name.uid)
    assert keys.parse_page_key(keys.page_key(topic_id, partition, page)) == PageKey(topic_id, partition, page)
    assert keys.parse_root_key(keys.root_key(topic_id, partition)) == (topic_id, partition)
    assert keys.join_uid(*keys.split_uid(name.uid)) == name.uid


@pytest.mark.parametrize(
    "key",
    [
        "",
        HOME + "root/",
        HOME + "rooT",
        "ff" + HOME[2:] + "root" if H2 != "ff" else "00" + HOME[2:] + "root",
        HOME.replace("-5/", "-05/") + "root",
        HOME.replace("-5/", "-+5/") + "root",
        HOME.replace("-5/", "-٥/") + "root",
        HOME.upper() + "root",
        "x/" + HOME + "root",
        HOME + "root\n",
    ],
)
def test_what_is_not_exactly_a_root_key_is_none(key: str) -> None:
    assert keys.parse_root_key(key) is None


@pytest.mark.parametrize(
    "tail",
    [
        f"s/w000000ff/00000000000000000042-{UID}.LOG",
        f"s/w000000ff/00000000000000000042-{UID}.page",
        f"s/w000000ff/42-{UID}.log",
        f"s/w000000ff/99999999999999999999-{UID}.log",
        f"s/wffffffff/00000000000000000042-{UID}.log",
        f"s/x000000ff/00000000000000000042-{UID}.log",
        f"s/w0000000FF/00000000000000000042-{UID}.log",
        f"s/w000000ff/00000000000000000042-{UID[:-1]}.log",
        f"s/w000000ff/../00000000000000000042-{UID}.log",
        f"s/w000000ff/00000000000000000042-{UID}.log\n",
        f"s/w000000ff/0000000000000000004２-{UID}.log",
    ],
)
def test_what_is_not_exactly_a_segment_key_is_none(tail: str) -> None:
    assert keys.parse_segment_key(HOME + tail) is None


@pytest.mark.parametrize("name", [UID[:-1], UID.upper().replace("0", "A"), UID + "0", "\U0001f600", UID + "\n", ""])
def test_what_is_not_exactly_a_pin_key_is_none(name: str) -> None:
    assert keys.is_pin_key(HOME + f"pin/{UID}")
    assert not keys.is_pin_key(HOME + f"pin/{name}")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 250, "a\x00"])
def test_topic_names_that_kafka_refuses(name: str) -> None:
    with pytest.raises(ConfigError):
        keys.check_topic_name(name)
    assert keys.parse_topic_key("topics/" + name) is None


@pytest.mark.parametrize("name", ["a", "...", "x" * 249, "__consumer_offsets", "A-1.b_2"])
def test_topic_names_that_kafka_accepts(name: str) -> None:
    assert keys.check_topic_name(name) == name
    assert keys.parse_topic_key(keys.topic_key(name)) == name


def test_builders_refuse_what_no_key_can_hold() -> None:
    for uid in ("", "0" * 31, "G" * 32, "A" * 32, "../" + "0" * 29):
        with pytest.raises(ConfigError):
            keys.pin_key(TOPIC_ID, 0, uid)
    for partition in (-1, 2**31):
        with pytest.raises(ConfigError):
            keys.root_key(TOPIC_ID, partition)
    with pytest.raises(ConfigError):
        keys.segment_key(TOPIC_ID, 0, SegmentName(Role.WRITER, 2**31, 0, UID))
    with pytest.raises(ConfigError):
        local_names.log_name(-1)


def test_local_names() -> None:
    assert local_names.log_name(42) == "00000000000000000042.log"
    assert local_names.index_name(42) == "00000000000000000042.index"
    assert local_names.time_index_name(42) == "00000000000000000042.timeindex"
    assert local_names.txn_index_name(42) == "00000000000000000042.txnindex"
    assert local_names.snapshot_name(2**63 - 1) == "09223372036854775807.snapshot"
    assert local_names.parse_local_name("00000000000000000042.log") == LocalFile(42, ".log")
    assert local_names.parse_local_name("00000000000000000042.timeindex.swap") == LocalFile(42, ".timeindex", ".swap")
    for other in (
        "42.log",
        "00000000000000000042.log.torn-5",
        "99999999999999999999.log",
        "leader-epoch-checkpoint",
        "",
    ):
        assert local_names.parse_local_name(other) is None


def test_partition_directories_split_at_the_last_dash() -> None:
    assert local_names.partition_dir(TopicPartition("a-b.c", 12)) == "a-b.c-12"
    assert local_names.parse_partition_dir("a-b.c-12") == PartitionDir(TopicPartition("a-b.c", 12))
    assert local_names.parse_partition_dir("a--1") == PartitionDir(TopicPartition("a-", 1))
    assert local_names.parse_partition_dir("t-delete-3") == PartitionDir(TopicPartition("t-delete", 3))
    for kind in ("delete", "stray", "future"):
        name = local_names.renamed_dir(TopicPartition("a.b-c", 7), UID, kind)
        assert name == f"a.b-c-7.{UID}-{kind}"
        assert local_names.parse_partition_dir(name) == PartitionDir(TopicPartition("a.b-c", 7), kind)


def test_renamed_directories_are_cut_to_255_characters_but_for_future() -> None:
    tp = TopicPartition("x" * 249, 10)
    assert [len(local_names.renamed_dir(tp, UID, kind)) for kind in ("delete", "stray", "future")] == [255, 255, 292]
    assert local_names.parse_partition_dir(local_names.renamed_dir(tp, UID, "delete")).tp.partition == 10
    with pytest.raises(ConfigError):
        local_names.renamed_dir(tp, UID, "gone")


@pytest.mark.parametrize(
    "name",
    [
        *["", "topic", "-0", "t-", "t-x", "t--", "t-01", "t-+1", "t-2147483648", "t-1.x", "t-0-delete", ".-0"],
        *["a b-0", "t-1.-delete", "t-\u0663"],
    ],
)
def test_directories_that_kafka_refuses(name: str) -> None:
    with pytest.raises(ConfigError, match="topic-partition"):
        local_names.parse_partition_dir(name)
