"""Exports: each record once, in each format, whatever is killed where; read back by deltalake and pyiceberg."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs.building import Result, bucket, in_pairs, inline, log, records, run
from tiered.errors import FencedError
from tiered.format.keys import root_key
from tiered.remote.topics import load_topic
from tiered.spark.jobs.export import Export
from tiered.spark.jobs.receipts import JobFolder
from tiered.spark.jobs.tables import DeltaTarget, IcebergTarget, ParquetFolder, open_target
from tiered.store.base import Delete
from tiered.store.driver import drive
from tiered.store.location import open_store

pytest.importorskip("deltalake")
Config = pytest.importorskip("pyiceberg.utils.config").Config

__all__ = ["in_pairs", "inline"]

FORMATS = ("parquet", "delta", "iceberg")
COLUMNS = ["partition", "offset", "key", "value"]
LINE = ("export", "flights", "--task-bytes", "3KiB")
Rows = list[tuple[int, int, bytes | None, bytes | None]]


class Killed(BaseException):
    """Passes every ``except Exception``, as the end of a process does."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two partitions, an aborted and an open transaction; an Iceberg catalog of its own."""
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it is read once, at the first import
    fill(tmp_path, 0, 120)
    return tmp_path


def fill(folder: Path, start: int, end: int) -> None:
    with log(folder, {"flights": {}}, partitions=2) as opened:
        topic = opened.topic("flights")
        for at in range(start, end, 20):
            topic.append_many(records(at, 20), partition=at // 20 % 2)
        with topic.transaction("billing") as txn:
            txn.append(b"never", key=b"x", partition=0)
            txn.abort()


def export(folder: Path, kind: str, *more: str) -> Result:
    common = ("export", "flights", "--remote", bucket(folder), "--format", kind, "--task-bytes", "3KiB", "--json")
    where: tuple[str, ...] = ("--to", target_url(folder, kind))
    if kind == "iceberg":
        where += ("--catalog", "test", "--table", "lake.flights")
    return run(*common, *where, *more)


def target_url(folder: Path, kind: str) -> str:
    return f"file://{folder}/{kind}"


def table(folder: Path, kind: str) -> pa.Table:
    if kind == "parquet":
        return ds.dataset(str(folder / kind), format="parquet").to_table()
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(folder / kind)).to_pyarrow_table()
    from pyiceberg.catalog import load_catalog

    return load_catalog("test").load_table("lake.flights").scan().to_arrow()


def exported(folder: Path, kind: str) -> Rows:
    rows = table(folder, kind).select(COLUMNS).to_pylist()
    return sorted((row["partition"], row["offset"], row["key"], row["value"]) for row in rows)


def held(folder: Path) -> Rows:
    """What a reader of the log sees."""
    import tiered

    with tiered.open_reader(bucket(folder)) as reader:
        topic = reader.topic("flights")
        return sorted(
            (partition, record.offset, record.key, record.value)
            for partition in range(2)
            for record in topic.read(partition=partition, isolation="read_committed")
        )


@pytest.mark.spark
@pytest.mark.parametrize("kind", FORMATS)
def test_each_run_goes_on_where_the_last_one_ended(place: Path, kind: str, spark: SparkSession) -> None:
    del spark
    plan = export(place, kind, "--plan")
    assert (plan.code, plan.summary["tasks"] > 3) == (0, True)
    assert not (place / kind).exists()
    first = export(place, kind)
    assert first.code == 0, first.err
    assert (first.done["rows"], first.done["committed"]) == (120, True)
    assert exported(place, kind) == held(place)
    nothing = export(place, kind)
    assert (nothing.code, nothing.done["rows"], nothing.done["ranges"]) == (0, 0, {})
    fill(place, 120, 200)
    second = export(place, kind)
    assert second.done["rows"] == 80
    assert exported(place, kind) == held(place)
    assert len(exported(place, kind)) == 200
    ends = {key: end for key, (_, end) in second.done["ranges"].items()}
    arguments = {"format": kind, "to": target_url(place, kind), "catalog": "test", "table": "lake.flights", "s3": {}}
    assert open_target(arguments).ends(ends) == ends


@pytest.mark.parametrize("kind", FORMATS)
def test_two_attempts_of_each_task_side_by_side_bring_each_record_once(place: Path, kind: str, in_pairs: None) -> None:
    done = export(place, kind)
    assert (done.code, done.done["rows"]) == (0, 120), done.err
    assert exported(place, kind) == held(place)


def test_the_columns_are_the_sources(place: Path, inline: None) -> None:
    assert export(place, "delta", "--headers").code == 0
    found = table(place, "delta")
    assert found.column_names == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    ]
    assert set(found["topic"].to_pylist()) == {"flights"}


def test_the_commit_tells_its_offsets(place: Path, inline: None) -> None:
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog

    done = export(place, "delta", "--job", "told")
    (commit,) = (each for each in DeltaTable(str(place / "delta")).history() if each["operation"] == "WRITE")
    assert json.loads(commit["tieredlog.ranges"]) == done.done["ranges"]
    done = export(place, "iceberg")
    snapshot = load_catalog("test").load_table("lake.flights").current_snapshot()
    assert snapshot is not None
    assert json.loads(snapshot.summary["tieredlog.ranges"]) == done.done["ranges"]  # type: ignore[index]


TARGETS: dict[str, type[Any]] = {"parquet": ParquetFolder, "delta": DeltaTarget, "iceberg": IcebergTarget}


def after(call: Callable[..., Any]) -> Callable[..., Any]:
    def killed(*args: Any, **kwargs: Any) -> Any:
        call(*args, **kwargs)
        raise Killed

    return killed


def before(call: Callable[..., Any]) -> Callable[..., Any]:
    def killed(*_args: Any, **_kwargs: Any) -> Any:
        raise Killed

    return killed


def third(call: Callable[..., Any]) -> Callable[..., Any]:
    calls: list[int] = []

    def killed(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return call(*args, **kwargs)

    return killed


def steps(kind: str) -> dict[str, tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]]:
    target = TARGETS[kind]
    return {
        "planned": (JobFolder, "keep_plan", after),
        "begun": (target, "begin", after),
        "in the middle of the tasks": (Export, "work", third),
        "a file, no receipt": (JobFolder, "keep_receipt", third),
        "before the commit": (target, "commit", before),
        "committed": (target, "commit", after),
        "no receipt of the job": (JobFolder, "conclude", before),
        "concluded": (JobFolder, "conclude", after),
    }


@pytest.mark.parametrize("same_job", [True, False], ids=["the same job", "a new one"])
@pytest.mark.parametrize("step", list(steps("delta")))
@pytest.mark.parametrize("kind", FORMATS)
def test_a_kill_at_any_step_doubles_and_skips_nothing(
    place: Path, kind: str, step: str, same_job: bool, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, name, how = steps(kind)[step]
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, how(getattr(holder, name)))
        with pytest.raises(Killed):
            export(place, kind, "--job", "first")
    fill(place, 120, 160)  # the log goes on meanwhile
    done = export(place, kind, "--job", "first" if same_job else "second")
    assert done.code == 0, done.err
    after_it = export(place, kind, "--job", "third")
    assert after_it.code == 0, after_it.err
    if kind == "parquet":
        assert export(place, kind, "--job", "fourth").code == 0  # the third one may have completed the first
    assert exported(place, kind) == held(place)
    assert len(exported(place, kind)) == 160


@pytest.mark.parametrize("kind", FORMATS)
def test_of_two_exports_side_by_side_one_commits(
    place: Path, kind: str, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one plans, writes and commits while the first one is about to commit."""
    target = TARGETS[kind]
    name = "begin" if kind == "parquet" else "commit"
    call, seen = getattr(target, name), list[Result]()

    def raced(*args: Any, **kwargs: Any) -> Any:
        if not seen:
            seen.append(Result(0, "", ""))
            seen[0] = export(place, kind, "--job", "other")
        return call(*args, **kwargs)

    monkeypatch.setattr(target, name, raced)
    lost = export(place, kind, "--job", "mine")
    assert seen[0].code == 0
    if kind == "parquet":
        assert (lost.code, "another export" in lost.err) == (11, True)
    else:
        assert (lost.code, lost.done["committed"]) == (0, False)
    assert exported(place, kind) == held(place)
    assert export(place, kind, "--job", "later").code == 0
    assert exported(place, kind) == held(place)


def test_two_delta_commits_of_the_same_offsets_conflict(place: Path, inline: None) -> None:
    """Also where both looked at the table before either committed."""
    from deltalake.exceptions import CommitFailedError

    assert export(place, "delta").code == 0
    one, other = (DeltaTarget(target_url(place, "delta"), {}) for _ in range(2))
    begun = {"job": "x", "to": "", "ranges": {"a-0": [0, 10]}}
    tables_seen = [one._table(), other._table()]
    schema = pa.schema(tables_seen[0].schema().to_arrow())
    tables_seen[0].create_write_transaction([], "append", schema, commit_properties=one._properties(begun))
    with pytest.raises(CommitFailedError):
        tables_seen[1].create_write_transaction([], "append", schema, commit_properties=other._properties(begun))
    assert other.commit(begun, [], schema) is False
    with pytest.raises(FencedError, match="another export has brought a-0 to offset 10"):
        other.commit({**begun, "ranges": {"a-0": [0, 20]}}, [], schema)


@pytest.mark.parametrize("more", [(), ("--skip-lost",)])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_topic_that_was_made_again_is_another_one(
    place: Path, kind: str, more: tuple[str, ...], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that was gone on with took the new topic's records for the old one's; the next one gave them again."""
    with monkeypatch.context() as patch:
        patch.setattr(Export, "work", third(Export.work))
        with pytest.raises(Killed):
            export(place, kind, "--job", "first", *more)
    store = open_store(bucket(place))
    entry = drive(store, load_topic("flights"))
    assert entry is not None
    store.execute(Delete(("topics/flights", *(root_key(entry.topic_id, number) for number in range(2)))))
    (place / "log").rename(place / "old log")
    fill(place, 200, 320)
    refused = export(place, kind, "--job", "first", *more)
    assert (refused.code, "was deleted and made again since" in refused.err) == (10, True), refused.err
    if kind != "parquet":  # which goes on with what was begun
        assert export(place, kind, "--job", "second").code == 0
        assert exported(place, kind) == held(place)
        assert len(exported(place, kind)) == 120


def test_offsets_that_retention_took_are_an_error_or_left_out(place: Path, inline: None) -> None:
    assert export(place, "delta").code == 0
    fill(place, 120, 200)
    from tiered.format.keys import Role
    from tiered.remote.catalog import Catalog
    from tiered.remote.topics import load_topic
    from tiered.store.driver import drive
    from tiered.store.location import open_store

    store = open_store(bucket(place))
    entry = drive(store, load_topic("flights"))
    assert entry is not None
    catalog = Catalog(entry.topic_id, 0, "flights")
    drive(store, catalog.claim(Role.MAINTAINER, "test"))
    drive(store, catalog.trim(90))
    refused = export(place, "delta")
    assert refused.code == 14
    done = export(place, "delta", "--skip-lost")
    assert done.code == 0
    first = min(offset for partition, offset, *_ in exported(place, "delta") if partition == 0)
    assert first == 0
    assert {row for row in held(place) if row[0] == 0} <= set(exported(place, "delta"))


@pytest.mark.parametrize("name", ["a#b", "a?b", "a day", "100%", "ü"])
def test_a_folder_is_where_its_url_says_whatever_its_name_holds(place: Path, inline: None, name: str) -> None:
    """pyarrow reads ``file:///x/a#b`` as ``/x/a``: each file took the place of the one before it, unseen."""
    odd = run(*LINE, "--remote", bucket(place), "--format", "parquet", "--to", f"file://{place}/odd/{name}", "--json")
    assert (odd.code, odd.done["files"] > 2) == (0, True), odd.err
    rows = ds.dataset(str(place / "odd" / name), format="parquet").to_table().select(COLUMNS).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == held(place)
    assert [path.name for path in (place / "odd").iterdir()] == [name]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_relative_folder_is_that_of_the_shell(
    place: Path, inline: None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    done = run(*LINE, "--remote", bucket(place), "--format", kind, "--to", kind)
    assert (done.code, exported(place, kind)) == (0, held(place)), done.err


@pytest.mark.parametrize("url", ["file:///lake/a#b", "s3://lake/a?b"])
def test_a_delta_table_at_a_place_that_deltalake_cuts_is_refused(place: Path, url: str) -> None:
    refused = run(*LINE, "--remote", bucket(place), "--format", "delta", "--to", url)
    assert (refused.code, f"{url} has a ? or a #" in refused.err) == (2, True)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_column_that_the_table_does_not_have_is_refused_before_a_file_is_written(
    place: Path, kind: str, inline: None
) -> None:
    """Delta took the files, and whoever read the table saw none of their headers."""
    assert export(place, kind).code == 0
    fill(place, 120, 160)
    refused = export(place, kind, "--headers", "--job", "wide")
    assert (refused.code, "has no column headers" in refused.err) == (2, True), refused.err
    assert len(exported(place, kind)) == 120
    assert export(place, kind).code == 0
    assert exported(place, kind) == held(place)


def test_a_partitioned_delta_table_is_refused(place: Path, inline: None) -> None:
    """Its files had no value of the partition: all rows read null there."""
    from deltalake import DeltaTable

    from tiered.spark.schema import arrow_schema_of, kafka_schema

    schema = arrow_schema_of(kafka_schema(include_headers=False))
    DeltaTable.create(str(place / "delta"), schema, partition_by=["partition"])
    refused = export(place, "delta")
    assert (refused.code, "is partitioned by partition" in refused.err) == (2, True), refused.err
    assert DeltaTable(str(place / "delta")).version() == 0


def test_wrong_arguments(place: Path) -> None:
    url = bucket(place)
    assert "needs --to URL" in run("export", "flights", "--remote", url, "--format", "delta").err
    assert "NAMESPACE.NAME" in run("export", "flights", "--remote", url, "--format", "iceberg").err
    nowhere = run("export", "flights", "--remote", url, "--format", "iceberg", "--catalog", "lake", "--table", "a.b")
    assert (nowhere.code, "the Iceberg catalog lake cannot be opened: URI missing" in nowhere.err) == (2, True)
    assert "PYICEBERG_CATALOG__LAKE__URI" in nowhere.err
    where = ("--format", "parquet", "--to", f"file://{place}/x")
    assert run("export", "nobody", "--remote", url, *where).code == 10
    assert run("export", "flights", "--remote", url, "--format", "parquet", "--to", "what://x").code == 2
