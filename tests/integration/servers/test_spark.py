"""Spark on MinIO: the sink, a stream, the verbs, and no secret in anything that is kept of them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tiered
from tests.integration.servers.commands import BUCKET, S3Server
from tests.integration.servers.conftest import use
from tests.spark.conftest import SETTINGS, need_java
from tests.spark.jobs.building import run
from tests.spark.staging import last_plan
from tiered.store.base import Get, Object
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.steps import list_all

pytestmark = pytest.mark.spark

REGION = "us-east-1"
URL = f"s3://{BUCKET}/on-spark"
WAIT_SECONDS = 200


@dataclass(frozen=True)
class Desk:
    """A session whose workers have the server's credentials in their environment, and what it keeps on disk."""

    spark: SparkSession
    server: S3Server
    folder: Path

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint_url": self.server.url, "region": REGION}

    @property
    def secret(self) -> str:
        return self.server.credentials["AWS_SECRET_ACCESS_KEY"]

    def read(self, topic: str) -> DataFrame:
        return self.spark.read.format("tiered").options(subscribe=topic, **self.options).load(URL)

    def write(self, rows: DataFrame, topic: str, **options: str) -> None:
        made = rows.write.format("tiered").mode("append").options(topic=topic, createTopic="3", **self.options)
        made.options(**options).save(URL)

    def held(self, topic: str) -> Counter[str]:
        """Values, by the library's own reader; offsets are without a gap."""
        found: Counter[str] = Counter()
        ends: dict[int, int] = {}
        with tiered.open_reader(URL, **self.options) as reader:
            for record in reader.topic(topic).read():
                assert record.offset == ends.get(record.partition, 0)
                ends[record.partition] = record.offset + 1
                found[(record.value or b"").decode()] += 1
        return found

    def job(self, *words: str) -> str:
        """Return the output of a verb, which ends with 0, or with 4: nothing to do."""
        place = ("--remote", f"{URL}?endpoint={self.server.url}&region={REGION}")
        done = run(*words, *place)
        assert done.code in (0, 4), done.err
        assert self.secret not in done.out + done.err
        return done.out


@pytest.fixture(scope="module")
def desk(servers: Callable[[str], S3Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    need_java()
    server, folder = servers("minio"), tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        use(server, patch)
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.setenv(name, sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]))
        builder = SparkSession.builder.master("local[2]").appName("on-minio")
        kept = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
        kept |= {"spark.eventLog.dir": f"file://{folder}/events", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
        for key, value in {**SETTINGS, **kept}.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        yield Desk(session, server, folder)
        session.stop()


def numbers(desk: Desk, count: int, tasks: int) -> DataFrame:
    return desk.spark.range(0, count, 1, tasks).selectExpr("concat('k', id) as key", "concat('v', id) as value")


def test_a_frame_of_many_tasks_and_the_same_transaction_again(desk: Desk) -> None:
    for _ in range(2):
        desk.write(numbers(desk, 400, 20), "flights", txnId="first-load")
        plan = last_plan(desk.spark)
        assert "Exchange" not in plan
        assert desk.secret not in plan
        assert desk.held("flights") == Counter(f"v{at}" for at in range(400))
    desk.write(numbers(desk, 10, 2), "flights")
    assert desk.held("flights").total() == desk.read("flights").count() == 410


def test_a_stream_from_topic_to_topic_each_row_once(desk: Desk) -> None:
    def copy() -> None:
        source = desk.spark.readStream.format("tiered").options(subscribe="trips", **desk.options)
        rows = source.options(startingOffsets="earliest", maxOffsetsPerTrigger="200").load(URL).select("key", "value")
        sink = rows.writeStream.format("tiered").options(topic="copies", createTopic="2", **desk.options)
        sink = sink.option("checkpointLocation", str(desk.folder / "checkpoint")).trigger(availableNow=True)
        assert sink.start(URL).awaitTermination(WAIT_SECONDS)

    desk.write(numbers(desk, 500, 4), "trips")
    copy()
    expected = Counter(f"v{at}" for at in range(500))
    assert desk.held("copies") == expected
    commits = desk.folder / "checkpoint" / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    last.unlink()  # the driver was killed behind the sink's commit
    (commits / f".{last.name}.crc").unlink()
    desk.write(numbers(desk, 30, 2), "trips")
    copy()
    assert desk.held("copies") == expected + Counter(f"v{at}" for at in range(30))


def test_no_secret_is_kept(desk: Desk) -> None:
    wrong = desk.spark.read.format("tiered").options(subscribe="flights", **desk.options)
    with pytest.raises(Exception) as error:
        wrong.load("s3://no-such-bucket/log").count()
    assert "no-such-bucket" in str(error.value)
    desk.write(numbers(desk, 3, 1), "kept", txnId="kept")
    assert desk.read("kept").count() == 3
    desk.job("check", "kept")
    texts = [str(error.value), *(path.read_text() for path in (desk.folder / "events").rglob("*") if path.is_file())]
    store = open_store(URL, **desk.options)
    for entry in drive(store, list_all("")):
        if entry.key.startswith("txn/"):
            found = store.execute(Get(entry.key))
            assert isinstance(found, Object)
            texts.append(found.data.decode(errors="replace"))
    assert any("SparkListenerSQLExecutionStart" in text for text in texts)  # the event log can be read
    assert not [text for text in texts if desk.secret in text]
