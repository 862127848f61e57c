"""The text files of a log directory: exact bytes, tolerant where Kafka is, and refused where it refuses."""

from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import ConfigError, CorruptionError
from tiered.format.checkpoint import (
    MetaProperties,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    decode_uuid,
    encode_clean_shutdown,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
    encode_uuid,
)
from tiered.model import EpochEntry, TopicPartition

ID = UUID("7d376f8a-e28c-1839-72cf-77bc6ab3002b")
A = TopicPartition("topic-a", 0)
B = TopicPartition("b", 12)


@given(
    offsets=st.dictionaries(
        st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,30}", fullmatch=True), st.integers(0, 2**31 - 1)),
        st.integers(-(2**63), 2**63 - 1),
    ),
    epochs=st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
)
def test_checkpoints_round_trip(offsets: dict[TopicPartition, int], epochs: dict[int, int]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets
    entries = tuple(EpochEntry(e, o) for e, o in sorted(epochs.items()))
    assert decode_epochs(encode_epochs(entries)) == entries


def test_reading_is_as_tolerant_as_kafkas() -> None:
    assert decode_offsets("") == {}
    assert decode_offsets("0\n") == decode_offsets("0") == {}
    assert decode_offsets("0\n0\n") == {}
    assert decode_offsets("0\n2\ntopic-a\t 0   42\n b 12 7 \n") == {A: 42, B: 7}
    assert decode_offsets("0\n1\nb 12 7") == {B: 7}
    assert decode_offsets("0\n2\nb 12 7\nb 12 9\n") == {B: 9}
    assert decode_epochs("0\n3\n5 50\n1 10\n5 55\n") == (EpochEntry(1, 10), EpochEntry(5, 55))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0\n", "version 1, not 0"),
        ("x\n0\n", "version is not an integer: 'x'"),
        ("\n0\n", "version is not an integer"),
        ("0\nx\n", "entry count is not an integer"),
        ("0\n-1\n", "announces -1 entries and has 0"),
        ("0\n2\nb 12 7\n", "announces 2 entries and has 1"),
        ("0\n1\nb 12 7\nb 12 8\n", "announces 1 entries and has 2"),
        ("0\n1\nb 12\n", "malformed checkpoint line 3: 'b 12'"),
        ("0\n1\nb 12 7 8\n", "malformed checkpoint line 3"),
        ("0\n2\nb 12 7\n\n", "malformed checkpoint line 4: ''"),
        ("0\n1\nb x 7\n", "partition is not an integer: 'x'"),
        ("0\n1\nb 12 7.5\n", "offset is not an integer: '7.5'"),
        ("0\n1\nb 12 1_000\n", "offset is not an integer"),
        ("0\n1\nb 12 ٣\n", "offset is not an integer"),
        ("0\n1\nb 12 9223372036854775808\n", "does not fit 64 bits"),
        ("0\n1\nb 12 99999999999999999999999\n", "offset is not an integer"),
        ("\0\0\0\0", "version is not an integer"),
    ],
)
def test_malformed_checkpoints_are_refused(text: str, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        decode_offsets(text)


@given(st.text(max_size=100))
def test_any_text_is_read_or_refused(text: str) -> None:
    for decode in (decode_offsets, decode_epochs, decode_partition_metadata, decode_meta_properties, decode_uuid):
        with contextlib.suppress(CorruptionError):
            decode(text)
    decode_clean_shutdown(text)


# --- ids ------------------------------------------------------------------------------------------------------


def test_ids_are_22_characters() -> None:
    assert encode_uuid(ID) == "fTdviuKMGDlyz3e8arMAKw"
    assert decode_uuid("fTdviuKMGDlyz3e8arMAKw") == ID
    assert encode_uuid(UUID(int=2**128 - 1)) == "_____________________w"
    assert decode_uuid("-_-_-_-_-_-_-_-_-_-_-Q").bytes == bytes.fromhex("fbff" + "bffbff" * 4 + "bff9")[:16]
    for text in (
        "",
        "fTdviuKMGDlyz3e8arMAK",
        "fTdviuKMGDlyz3e8arMAKww",
        "fTdviuKMGDlyz3e8arMA+w",
        "fTdviuKMGDlyz3e8arMA\nw",
    ):
        with pytest.raises(CorruptionError, match="not an id"):
            decode_uuid(text)


@given(st.uuids())
def test_ids_round_trip(uuid: UUID) -> None:
    assert decode_uuid(encode_uuid(uuid)) == uuid


def test_partition_metadata_has_two_lines_and_no_newline_at_the_end() -> None:
    text = "version: 0\ntopic_id: fTdviuKMGDlyz3e8arMAKw"
    assert encode_partition_metadata(ID) == text
    assert decode_partition_metadata(text) == ID
    assert decode_partition_metadata(text + "\n") == ID
    with pytest.raises(ConfigError, match="zero"):
        encode_partition_metadata(UUID(int=0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks version or topic_id"),
        ("version: 0", "lacks version or topic_id"),
        ("version: 1\ntopic_id: fTdviuKMGDlyz3e8arMAKw", "version 1, not 0"),
        ("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "zero topic id"),
        ("version: 0\ntopic_id: short", "not an id"),
        ("version:0\ntopic_id: fTdviuKMGDlyz3e8arMAKw", "malformed line"),
        ("nonsense", "malformed line"),
    ],
)
def test_malformed_partition_metadata_is_refused(text: str, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        decode_partition_metadata(text)


# --- meta.properties ------------------------------------------------------------------------------------------


def test_meta_properties_are_a_java_properties_file() -> None:
    meta = MetaProperties("cluster", 1, ID, comments=("", "Sat Nov 14 12:00:00 UTC 2026"))
    text = (
        "#\n#Sat Nov 14 12:00:00 UTC 2026\nnode.id=1\n"
        "directory.id=fTdviuKMGDlyz3e8arMAKw\nversion=1\ncluster.id=cluster\n"
    )
    assert encode_meta_properties(meta) == text
    assert decode_meta_properties(text) == meta


def test_meta_properties_of_version_0() -> None:
    assert decode_meta_properties("broker.id=3\n") == MetaProperties("", 3, None, version=0, comments=())
    text = "# c\n\nversion=1\ncluster.id=a\nnode.id=7\nunknown=x\n"
    assert decode_meta_properties(text) == MetaProperties("a", 7, None, comments=(" c",))


@given(st.from_regex(r"[A-Za-z0-9._-]{0,30}", fullmatch=True), st.integers(0, 2**31 - 1))
def test_meta_properties_round_trip(cluster: str, node: int) -> None:
    meta = MetaProperties(cluster, node, ID)
    assert decode_meta_properties(encode_meta_properties(meta)) == meta
    with pytest.raises(ConfigError, match="cluster id"):
        encode_meta_properties(MetaProperties(cluster + " =", node, ID))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no broker.id"),
        ("version=1\ncluster.id=x", "no node.id"),
        ("version=1\nnode.id=1", "no cluster.id"),
        ("version=2\nnode.id=1\ncluster.id=x", "version 2, not 0 or 1"),
        ("version=1\nnode.id=one\ncluster.id=x", "node.id is not an integer: 'one'"),
        ("version=1\nnode.id=1\ncluster.id=x\ndirectory.id=y", "not an id"),
        ("=value", "malformed property line"),
    ],
)
def test_malformed_meta_properties_are_refused(text: str, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        decode_meta_properties(text)


def test_the_clean_shutdown_marker() -> None:
    assert encode_clean_shutdown(387) == '{"version":0,"brokerEpoch":387}'
    assert decode_clean_shutdown('{"version":0,"brokerEpoch":387}') == 387
    for text in ("", "x", "[]", "[" * 100_000, '{"version":9,"brokerEpoch":1}', '{"version":0}'):
        assert decode_clean_shutdown(text) == -1
