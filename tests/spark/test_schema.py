"""The user's schema: matched without regard to case, handed on as given, refused in one sentence. No session."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tests.unit.remote.building import TOPIC_ID, RemoteLog, batches, records, seal
from tiered.errors import ConfigError
from tiered.format.batch import encode_batch
from tiered.remote.topics import register_topic
from tiered.spark.source import TieredDataSource
from tiered.store.directory import DirectoryStore
from tiered.store.driver import drive


def schema(*fields: tuple[str, DataType] | tuple[str, DataType, bool]) -> StructType:
    return StructType([StructField(*field) for field in fields])


def headers(value: DataType, nullable: bool = True, names: tuple[str, str] = ("key", "value")) -> ArrayType:
    return ArrayType(StructType([StructField(names[0], StringType()), StructField(names[1], value, nullable)]))


@pytest.fixture
def log(tmp_path: Path) -> RemoteLog:
    store = DirectoryStore(tmp_path)
    drive(store, register_topic("flights", TOPIC_ID, 1, {}))
    return RemoteLog(store)


def read_as(path: Path, wanted: StructType, **options: str) -> list[pa.RecordBatch]:
    reader = TieredDataSource({"path": str(path), "subscribe": "flights", **options}).reader(wanted)
    return [piece for part in reader.partitions() for piece in reader.read(part)]


def test_names_are_matched_without_case_and_handed_on_as_given(log: RemoteLog, tmp_path: Path) -> None:
    log.add(seal(batches(0, 20)))
    wanted = schema(("OFFSET", LongType(), False), ("timestamptype", IntegerType()), ("Value", BinaryType(), False))
    (batch,) = read_as(tmp_path, wanted)
    assert [(field.name, field.nullable) for field in batch.schema] == [
        ("OFFSET", False),
        ("timestamptype", True),
        ("Value", False),
    ]
    assert batch.column(0).to_pylist() == list(range(20))
    assert batch.column(1).to_pylist() == [0] * 20
    assert batch.column(2).to_pylist() == [record.value for record in records(0, 20)]


def test_fields_of_headers_too(log: RemoteLog, tmp_path: Path) -> None:
    first = records(0, 2)
    first[1] = first[1]._replace(headers=[("trace", b"1"), ("trace", b"")])
    log.add(seal([encode_batch(first, leader_epoch=0)]))
    wanted = schema(("Headers", headers(BinaryType(), False, ("KEY", "Value"))))
    (batch,) = read_as(tmp_path, wanted, includeheaders="true")
    assert batch.column(0).to_pylist() == [
        None,
        [{"KEY": "trace", "Value": b"1"}, {"KEY": "trace", "Value": b""}],
    ]


def test_a_null_where_the_schema_allows_none_is_refused(log: RemoteLog, tmp_path: Path) -> None:
    batch = records(0, 3)
    batch[1] = batch[1]._replace(value=None, headers=[("trace", None)])
    log.add(seal([encode_batch(batch, leader_epoch=0)]))
    wanted = schema(("value", BinaryType()), ("key", BinaryType(), False))
    assert [piece.num_rows for piece in read_as(tmp_path, wanted)] == [3]
    with pytest.raises(ConfigError, match=r"flights-0: column VALUE is NOT NULL .* offsets 0 to 2 have nulls"):
        read_as(tmp_path, schema(("VALUE", BinaryType(), False)))
    with pytest.raises(ConfigError, match="column headers is NOT NULL"):
        read_as(tmp_path, schema(("headers", headers(BinaryType(), False))), includeheaders="true")
    with pytest.raises(ConfigError, match="column headers is NOT NULL"):
        read_as(tmp_path, schema(("headers", headers(BinaryType()), False)), includeheaders="true")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            schema(("offset", LongType()), ("value", BinaryType()), ("Offset", LongType())),
            "schema: column Offset is named twice (name offset once",
        ),
        (schema(("Offset", StringType())), "schema: column Offset is bigint, not string"),
        (
            schema(("headers", headers(StringType()))),
            "schema: column headers is array<struct<key:string,value:binary>>, ",
        ),
        (schema(("HEADERS", headers(BinaryType()))), "schema: headers needs the option includeHeaders=true"),
        (schema(("salary", LongType())), "schema: there is no column salary"),
    ],
)
def test_a_wrong_schema_is_one_sentence(tmp_path: Path, wanted: StructType, message: str) -> None:
    source = TieredDataSource({"path": str(tmp_path), "subscribe": "flights"})
    with pytest.raises(ConfigError) as error:
        source.reader(wanted)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
