"""Imports: files become records once under one job id; an export comes back as what it was."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tiered
from tests.spark.jobs.building import bucket, log, records, run
from tiered.errors import FencedError
from tiered.spark.jobs.json_lines import _read
from tiered.testing.clock import START_MS

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def held(folder: Path, topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
    with tiered.open_reader(bucket(folder)) as reader:
        found = reader.topic(topic).read()
        return sorted(((record.key, record.value, record.timestamp) for record in found), key=repr)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    del spark
    folder = tmp_path_factory.mktemp("import")
    with log(folder, {"flights": {}}) as opened:
        for at in range(0, 100, 20):
            opened.topic("flights").append_many(records(at, 20))
    return folder


def test_an_export_comes_back(place: Path) -> None:
    url = bucket(place)
    common = ("flights", "--remote", url, "--format", "parquet", "--to", f"file://{place}/out")
    assert run("export", *common, "--task-bytes", "3KiB").code == 0
    line = ("import", str(place / "out"), "--remote", url, "--into", "copied", "--format", "parquet")
    plan = run(*line, "--plan")
    assert (plan.code, plan.out.splitlines()[0].split()) == (0, ["file", "size"])
    assert "_tieredlog" not in plan.out
    done = run(*line, "--partitions", "2", "--job", "once", "--json")
    assert done.code == 0, done.err
    assert done.done["rows"] == 100
    assert held(place, "copied") == held(place, "flights")


def test_the_same_job_adds_nothing_and_another_one_does(place: Path) -> None:
    lines = [{"carrier": f"C{at % 3}", "at": START_MS + at} for at in range(30)]
    (place / "lines.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    line = ("import", str(place / "lines.json"), "--remote", bucket(place), "--into", "lines", "--format", "json")
    line += ("--key", "carrier", "--timestamp", "at", "--partitions", "1")
    assert run(*line, "--job", "first").code == 0
    expected = [(each["carrier"].encode(), json.dumps(each).encode(), each["at"]) for each in lines]  # type: ignore[attr-defined]
    assert held(place, "lines") == sorted(expected, key=repr)
    # The driver was killed before the receipt: the sink has committed, and knows the id.
    from tiered.spark.jobs.receipts import JobFolder
    from tiered.store.base import Delete
    from tiered.store.location import open_store

    store = open_store(bucket(place))
    store.execute(Delete((JobFolder(store, "first").key("receipt.json"),)))
    again = run(*line, "--job", "first", "--json")
    assert (again.code, len(held(place, "lines"))) == (0, 30)
    assert run(*line, "--job", "second").code == 0
    assert len(held(place, "lines")) == 60


def test_an_id_that_was_used_before_is_refused_although_its_folder_is_gone(place: Path) -> None:
    """The sink took other files for a repetition, added nothing, and the import told how much it had imported."""
    for name in ("old", "new"):
        (place / f"{name}.json").write_text(json.dumps({"name": name}) + "\n")
    line = ("--remote", bucket(place), "--into", "used", "--format", "json", "--partitions", "1", "--job", "load")
    assert run("import", str(place / "old.json"), *line).code == 0
    shutil.rmtree(Path(bucket(place).removeprefix("file://")) / "jobs" / "load")
    for _ in range(2):
        refused = run("import", str(place / "new.json"), *line)
        assert (refused.code, "the job id load was used before" in refused.err) == (2, True), refused.err
    assert [value for _, value, _ in held(place, "used")] == [b'{"name": "old"}']


def test_rows_of_other_files_are_json_or_one_field(place: Path) -> None:
    table = pa.table({"id": pa.array([1, 2]), "name": ["a", "b"], "at": pa.array([START_MS, START_MS + 1])})
    pq.write_table(table, place / "plain.parquet")
    line = (
        "import",
        str(place / "plain.parquet"),
        "--remote",
        bucket(place),
        "--format",
        "parquet",
        "--partitions",
        "1",
    )
    assert run(*line, "--into", "whole", "--key", "id", "--timestamp", "at").code == 0
    rows = [
        (b"1", {"id": 1, "name": "a", "at": START_MS}, START_MS),
        (b"2", {"id": 2, "name": "b", "at": START_MS + 1}, START_MS + 1),
    ]
    assert [(key, json.loads(value or b""), at) for key, value, at in held(place, "whole")] == rows
    assert run(*line, "--into", "named", "--key", "id", "--value", "name", "--timestamp", "at").code == 0
    assert held(place, "named") == [(b"1", b"a", START_MS), (b"2", b"b", START_MS + 1)]
    wrong = run(*line, "--into", "wrong", "--key", "nothing")
    assert (wrong.code, "the files have no field nothing" in wrong.err) == (2, True)


def test_a_path_is_taken_as_the_shell_gives_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (place / "a day of 100%.json").write_text('{"a": 1}\n')
    line = ("import", "a day of 100%.json", "--into", "relative", "--format", "json", "--partitions", "1")
    done = run(*line, "--remote", bucket(place))
    assert (done.code, len(held(place, "relative"))) == (0, 1), done.err


def test_a_name_that_is_a_pattern_or_hidden_to_spark_is_neither_another_file_nor_nothing(place: Path) -> None:
    """Spark reads ``day[1].json`` as the file ``day1.json``, and of ``_day.json`` nothing, without a word."""
    line = ("--format", "json", "--partitions", "1", "--remote", bucket(place))
    odd = place / "odd"
    names = ["day1.json", "day[1].json", "a{b,c}*?.json", "back\\slash.json", "k=[1]/x.json", "_k=1/x.json"]
    for name in (*names, "_day.json", "_stage/x.json", "x.json._COPYING_"):
        (odd / name).parent.mkdir(parents=True, exist_ok=True)
        (odd / name).write_text(json.dumps({"name": name}) + "\n")
    assert run("import", str(odd / "day[1].json"), "--into", "bracket", *line).code == 0
    assert [value for _, value, _ in held(place, "bracket")] == [b'{"name": "day[1].json"}']
    done = run("import", str(odd), "--into", "odd", *line, "--json")
    assert (done.done["files"], done.done["rows"]) == (len(names), len(names))
    assert sorted(json.loads(value or b"")["name"] for _, value, _ in held(place, "odd")) == sorted(names)
    for hidden in ("_day.json", "x.json._COPYING_"):
        refused = run("import", str(odd / hidden), str(odd / "day1.json"), "--into", "odd", *line)
        assert (refused.code, f"{hidden} has a name that Spark passes over" in refused.err) == (2, True)


def test_a_time_is_the_instant_that_the_file_has(place: Path, spark: SparkSession) -> None:
    """By way of its text it was the first of the two hours that the session's clock shows alike in autumn."""
    first = datetime(2024, 10, 27, 0, 30, 0, 123456, UTC)
    at = [first, first + timedelta(hours=1)]
    table = pa.table({"at": pa.array(at, pa.timestamp("us", "UTC")), "odd`name": ["summer", "winter"]})
    pq.write_table(table, place / "autumn.parquet")
    line = ("--remote", bucket(place), "--format", "parquet", "--partitions", "1", "--timestamp", "at")
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        assert run("import", str(place / "autumn.parquet"), *line, "--into", "autumn", "--key", "odd`name").code == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = held(place, "autumn")
    assert [(key, ms) for key, _, ms in found] == [
        (b"summer", int(at[0].timestamp() * 1000)),
        (b"winter", int(at[1].timestamp() * 1000)),
    ]
    assert [json.loads(value or b"") for _, value, _ in found] == [
        {"at": "2024-10-27T02:30:00.123456+02:00", "odd`name": "summer"},
        {"at": "2024-10-27T02:30:00.123456+01:00", "odd`name": "winter"},
    ]


@pytest.mark.parametrize(("text", "ansi"), [("99999999999999999999", "true"), ("27.03.2024", "false")])
def test_what_is_no_time_ends_the_import(place: Path, spark: SparkSession, text: str, ansi: str) -> None:
    """Its record had the time of the import."""
    (place / "untimed.json").write_text(f'{{"at": "{text}"}}\n')
    line = ("import", str(place / "untimed.json"), "--remote", bucket(place), "--format", "json", "--partitions", "1")
    before = str(spark.conf.get("spark.sql.ansi.enabled"))
    try:
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        refused = run(*line, "--into", "untimed", "--timestamp", "at")
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert (refused.code, f"a timestamp is no time: {text}" in refused.err) == (1, True), refused.err
    assert held(place, "untimed") == []


def test_what_only_some_of_the_files_have_is_imported_too(place: Path) -> None:
    """Spark takes the columns of one file for those of all: what others have besides was left out, unseen."""
    mixed = place / "mixed"
    mixed.mkdir()
    pq.write_table(pa.table({"id": [1]}), mixed / "a.parquet")
    pq.write_table(pa.table({"id": [2], "name": ["b"]}), mixed / "b.parquet")
    line = ("--remote", bucket(place), "--format", "parquet", "--partitions", "1")
    assert run("import", str(mixed), "--into", "mixed", *line, "--key", "id").code == 0
    assert [(key, json.loads(value or b"")) for key, value, _ in held(place, "mixed")] == [
        (b"1", {"id": 1}),
        (b"2", {"id": 2, "name": "b"}),
    ]


def in_order(folder: Path, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of partition 0."""
    with tiered.open_reader(bucket(folder)) as reader:
        return [(record.key, record.value) for record in reader.topic(topic).read(partition=0)]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_files_come_in_their_order_whatever_their_sizes(
    place: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark hands out the largest one first: a key's newest record came first, and a compaction kept the oldest."""
    monkeypatch.setattr("tiered.spark.jobs.importer.ORDER_BYTES", 4000)
    folder = place / f"order {kind}+100%"
    folder.mkdir()
    expected: list[tuple[bytes | None, bytes | None]] = []
    for file, count in enumerate([1, 300, 2, 40, 0, 3]):
        rows = [{"k": f"K{at % 2}", "v": f"{file}-{at}"} for at in range(count)]
        expected += [(row["k"].encode(), row["v"].encode()) for row in rows]
        name = folder / f"day [{file}]+é.{kind}"
        if kind == "json":
            name.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            table = pa.table({each: pa.array([row[each] for row in rows], pa.string()) for each in ("k", "v")})
            pq.write_table(table, name, row_group_size=50)
    line = ("--remote", bucket(place), "--format", kind, "--partitions", "1", "--key", "k", "--value", "v")
    done = run("import", str(folder), "--into", f"order-{kind}", *line, "--json")
    assert (done.code, done.done["rows"]) == (0, len(expected)), done.err
    assert in_order(place, f"order-{kind}") == expected
    # As they are named.
    last = [str(folder / f"day [{file}]+é.{kind}") for file in (3, 0)]
    assert run("import", *last, "--into", f"named-{kind}", *line).code == 0
    assert in_order(place, f"named-{kind}") == [*expected[303:343], expected[0]]


def test_a_file_that_is_named_twice_is_refused(place: Path) -> None:
    """Its records were added twice."""
    folder = place / "twice"
    folder.mkdir()
    (folder / "a.json").write_text('{"a": 1}\n')
    line = ("--into", "twice", "--remote", bucket(place), "--format", "json", "--partitions", "1")
    refused = run("import", str(folder), str(folder / "a.json"), *line)
    assert (refused.code, "twice/a.json is named twice" in refused.err) == (2, True), refused.err


def test_a_column_value_alone_makes_no_record_of_a_row(place: Path) -> None:
    """All other columns were left out, unseen."""
    rows = {"id": [1, 2], "value": ["x", "y"]}
    pq.write_table(pa.table(rows), place / "measured.parquet")
    line = ("--remote", bucket(place), "--format", "parquet", "--partitions", "1")
    assert run("import", str(place / "measured.parquet"), *line, "--into", "measured").code == 0
    assert in_order(place, "measured") == [(None, b'{"id":1,"value":"x"}'), (None, b'{"id":2,"value":"y"}')]
    pq.write_table(pa.table({**rows, "key": ["a", "b"]}), place / "keyed.parquet")
    refused = run("import", str(place / "keyed.parquet"), *line, "--into", "keyed")
    assert (refused.code, "and besides id, which no record would hold" in refused.err) == (2, True), refused.err
    named = ("--key", "key", "--value", "value")
    assert run("import", str(place / "keyed.parquet"), *line, "--into", "keyed", *named).code == 0
    assert in_order(place, "keyed") == [(b"a", b"x"), (b"b", b"y")]
    pq.write_table(pa.table({"key": ["a"], "value": ["x"], "offset": [7]}), place / "record.parquet")
    assert run("import", str(place / "record.parquet"), *line, "--into", "record").code == 0
    assert in_order(place, "record") == [(b"a", b"x")]


def test_columns_in_the_names_of_folders_are_columns(place: Path) -> None:
    """As Spark reads ``day=2024-01-01/x.parquet``: they were left out, unseen."""
    sales = place / "sales [x]"
    for year, shop, amount in (("2023", "a b", 1), ("2024", "a%2Fb", 2)):
        folder = sales / f"year={year}" / f"shop={shop}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"amount": [amount]}), folder / "x.parquet")
    line = ("--remote", bucket(place), "--format", "parquet", "--partitions", "1", "--key", "shop")
    expected = [
        (b"a b", {"amount": 1, "year": 2023, "shop": "a b"}),
        (b"a/b", {"amount": 2, "year": 2024, "shop": "a/b"}),
    ]
    places = {"folder": [sales], "glob": sorted(sales.iterdir())}
    for name, given in places.items():
        done = run("import", *map(str, given), *line, "--into", f"sales-{name}")
        assert done.code == 0, done.err
        found = [(key, json.loads(value or b"")) for key, value in in_order(place, f"sales-{name}")]
        assert found == expected, name


def test_a_field_with_parts_is_json(place: Path) -> None:
    """It was Spark's text for people, ``{1, x, y}``: without names, and nothing tells a comma inside a part."""
    table = pa.table({"who": [["p", "q, r"]], "what": [{"a": 1, "b": "x, y", "at": datetime(2024, 1, 1, tzinfo=UTC)}]})
    pq.write_table(table, place / "parts.parquet")
    line = ("--remote", bucket(place), "--format", "parquet", "--partitions", "1", "--key", "who", "--value", "what")
    assert run("import", str(place / "parts.parquet"), *line, "--into", "parts").code == 0
    assert in_order(place, "parts") == [(b'["p","q, r"]', b'{"a":1,"b":"x, y","at":"2024-01-01T00:00:00.000000Z"}')]


def test_blank_lines_are_no_records(place: Path) -> None:
    """As `tiered append --format json` has it: they became records without a key and with an empty value."""
    (place / "blank.json").write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n \t\n{"a": 2}\r\n\r\n')
    line = ("import", str(place / "blank.json"), "--into", "blank", "--remote", bucket(place), "--format", "json")
    done = run(*line, "--partitions", "1", "--key", "a", "--json")
    assert (done.code, done.done["rows"]) == (0, 2), done.err
    assert [(key, value) for key, value, _ in held(place, "blank")] == [(b"1", b'{"a": 1}'), (b"2", b'{"a": 2}')]


def test_a_line_that_is_no_json_ends_the_import(place: Path) -> None:
    """What was cut off had no key and no value: a tombstone, where a field is the value."""
    (place / "torn.json").write_text('{"a": "x", "b": "y"}\n{"a": "z", "b"')
    line = ("import", str(place / "torn.json"), "--into", "torn", "--remote", bucket(place), "--format", "json")
    for named in (("--key", "a", "--value", "b"), ()):
        refused = run(*line, "--partitions", "1", *named)
        assert (refused.code, 'torn.json is no JSON, it begins with {"a": "z", "b"' in refused.err) == (1, True), (
            refused.err
        )
        assert held(place, "torn") == []


@pytest.mark.parametrize(
    "line",
    [
        '{"a": 1}{"a": 2}',
        '{"a": 1},',
        '{"a": 1} and more',
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": "\udcff"}',
        "[" * 5000 + "]" * 5000,
    ],
)
def test_what_is_no_json_as_a_whole_is_no_line_of_json(line: str) -> None:
    """Of two documents in a line the first one counted, what came behind one was a part of the value."""
    assert _read(line.encode("utf-8", "surrogateescape"), ["a"]) == ("is no JSON", [])


def test_a_member_is_what_stands_there() -> None:
    """Numbers were read as doubles, and a name with a dot or a bracket was a path."""
    line = b'{ "p":0.12345678901234567891 ,"t" : 1.10, "o":{"e": 1e3,"d":[1.0, 2]}, "s":"\\u00e9\\n", '
    line += b'"a.b":1, "a":{"b":2}, "x[0]":1E400, "n":null, "u":true, "":"", "twice":1, "twice":2, "tab":"\t" } '
    expected: dict[str, bytes | None] = {
        "p": b"0.12345678901234567891",
        "t": b"1.10",
        "o": b'{"e": 1e3,"d":[1.0, 2]}',
        "s": "é\n".encode(),
        "a.b": b"1",
        "a": b'{"b":2}',
        "x[0]": b"1E400",
        "n": None,
        "u": b"true",
        "": b"",
        "twice": b"2",
        "tab": b"\t",
    }
    assert _read(line, list(expected)) == (None, list(expected.values()))
    assert _read(line, []) == (None, [])
    assert _read(line, ["t", "b"]) == ("has no member b", [])
    assert [_read(other, ["a"]) for other in (b"[1]", b'"a"', b"{}", b"null")] == [("has no member a", [])] * 4


def test_members_are_imported_as_they_stand_and_a_missing_one_ends_the_import(place: Path) -> None:
    """It was a record without a key, and where the value is named, a tombstone: of all, by a slip of the pen."""
    (place / "exact.json").write_text('{"k.x": 1.10, "v": {"p": 0.12345678901234567891}}\n{"k.x": null, "v": "é"}\n')
    line = ("import", str(place / "exact.json"), "--remote", bucket(place), "--format", "json", "--partitions", "1")
    assert run(*line, "--into", "exact", "--key", "k.x", "--value", "v").code == 0
    assert in_order(place, "exact") == [(b"1.10", b'{"p": 0.12345678901234567891}'), (None, "é".encode())]
    for named in (("--key", "k"), ("--value", "w"), ("--timestamp", "at")):
        refused = run(*line, "--into", "inexact", *named)
        told = f"exact.json has no member {named[1]}, it begins with"
        assert (refused.code, told in refused.err) == (1, True), refused.err
    assert held(place, "inexact") == []


def test_no_file_is_nothing_to_import_and_what_spark_refuses_is_told_as_its_own(place: Path) -> None:
    """Both ended as a failed program, a defect of this one."""
    odd = place / "differs"
    odd.mkdir()
    line = ("--into", "torn", "--remote", bucket(place), "--partitions", "1")
    for kind in ("json", "parquet"):
        none = run("import", str(odd), *line, "--format", kind, "--json")
        assert (none.code, none.done) == (0, {"files": 0, "rows": 0, "size_bytes": 0}), none.err
    pq.write_table(pa.table({"id": [1]}), odd / "a.parquet")
    pq.write_table(pa.table({"id": [["x"]]}), odd / "b.parquet")
    refused = run("import", str(odd), *line, "--format", "parquet", "--job", "differs")
    assert (refused.code, "error: Spark: " in refused.err, "--job differs" in refused.err) == (1, True, True), (
        refused.err
    )


def test_nothing_there_and_a_partition_of_a_local_log(place: Path) -> None:
    line = ("--remote", bucket(place), "--format", "json")
    assert run("import", str(place / "none"), "--into", "x", *line).code == 10
    (place / "one.json").write_text('{"a": 1}\n')
    owned = run("import", str(place / "one.json"), "--into", "flights", *line)
    assert owned.code == FencedError.exit_code
    assert "handover" in owned.err
