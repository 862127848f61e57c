"""Credentials are handed to the SDK and appear nowhere else: words of every face are searched for a canary."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3.session
import pytest
from botocore.config import Config

import tiered
from tests.support.moto import locked_moto, make_bucket
from tests.support.proxy import Fault, FaultKind, FaultProxy
from tests.unit.cli.conftest import Cli
from tests.unit.plan.iam_policy.work import read, samples, write
from tiered.errors import TieredError
from tiered.spark.source import TieredDataSource
from tiered.store.base import ABSENT, Get, Put
from tiered.store.location import StoreLocation
from tiered.store.options import StoreOptions
from uploader.config import resolve

CANARY = {
    "AWS_ACCESS_KEY_ID": "AKIACANARYCANARYCANA",
    "AWS_SECRET_ACCESS_KEY": "canary/secret+0123456789",
    "AWS_SESSION_TOKEN": "canary-token-0123456789==",
}
NUMBERS = itertools.count()
REFUSALS = (
    Fault(FaultKind.ERROR, status=403, code="SignatureDoesNotMatch", times=-1),
    Fault(FaultKind.ERROR, status=403, code="InvalidAccessKeyId", times=-1),
    Fault(FaultKind.ERROR, status=400, code="ExpiredToken", times=-1),
    Fault(FaultKind.ERROR, status=400, code="InvalidRequest", times=-1),
)
"""The command line gives up at once after these."""
FAULTS = (
    *REFUSALS,
    Fault(FaultKind.ERROR, status=503, code="SlowDown", times=-1),
    Fault(FaultKind.RESET_BEFORE, times=-1),
    Fault(FaultKind.TRUNCATE, times=-1),
)


@pytest.fixture
def bucket() -> str:
    """Of one test: the servers of a process share their buckets."""
    return f"canary-{next(NUMBERS)}"


@pytest.fixture
def url(bucket: str) -> str:
    return f"s3://{bucket}/prod"


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch, bucket: str) -> Iterator[FaultProxy]:
    for name, value in CANARY.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as url, FaultProxy(url) as running:
        make_bucket(url, bucket)
        monkeypatch.setenv("TIERED_ENDPOINT_URL", running.url)
        yield running


@pytest.fixture
def talk() -> Iterator[io.StringIO]:
    """All that the product's loggers say, at their lowest level."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    loggers = [logging.getLogger(name) for name in ("tiered", "uploader")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield text
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


def clean(what: str, text: str | bytes) -> None:
    """None of the canaries, whole or a half of one, is in it."""
    data = text.encode() if isinstance(text, str) else text
    for name, secret in CANARY.items():
        for piece in (secret, secret[: len(secret) // 2 + 2], secret[len(secret) // 2 :]):
            assert piece.encode() not in data, f"{name} in {what}"


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    yield from ((str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file())


def test_the_searcher_finds_a_canary() -> None:
    with pytest.raises(AssertionError, match="AWS_SESSION_TOKEN in a text"):
        clean("a text", "x canary-token-01234567 y")


def test_objects_files_and_logs(tmp_path: Path, bucket: str, url: str, proxy: FaultProxy, talk: io.StringIO) -> None:
    write(tmp_path / "log", url)
    with tiered.open(tmp_path / "log", url, uploader=tiered.uploader.Uploader()) as log:
        clean("reprs", repr((log, log._store, log.topic("orders"), log._uploader, log.metrics())))
    read(url)
    place = StoreLocation.parse(url)
    clean("reprs", repr((place, str(place), place.s3, place.open(), place.open_aio(), place.raw_store())))
    clean("settings", repr(resolve({"remote": url}, {**CANARY}, None)))
    for name, data in files(tmp_path):
        clean(name, data)
    session = boto3.session.Session()
    client = session.client("s3", endpoint_url=proxy.url, config=Config(s3={"addressing_style": "path"}))
    with contextlib.closing(client):
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]]
        assert len(keys) > 4
        for key in keys:
            clean(key, client.get_object(Bucket=bucket, Key=key)["Body"].read())
    clean("logs", talk.getvalue())
    assert talk.getvalue()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind.value}-{fault.code}")
def test_errors_with_all_that_they_chain(
    tmp_path: Path, url: str, proxy: FaultProxy, talk: io.StringIO, cli: Cli, fault: Fault
) -> None:
    write(tmp_path / "log", url)
    proxy.add(fault)
    key = samples()["probe"][0]
    store = StoreLocation.parse(url).open(StoreOptions(deadline_seconds=0.1))
    calls: list[Callable[[], object]] = [
        lambda: store.execute(Get("topics/orders")),
        lambda: store.execute(Put(key, b"x", ABSENT)),
        lambda: tiered.open_reader(url, deadline_seconds=0.1).topics(),
    ]
    for call in calls:
        try:
            clean("an outcome", repr(call()))
        except TieredError as error:
            clean("an error", "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error)))
            clean("a pickled error", pickle.dumps(error))
    for line in (("topic", "list", "--debug"), ("doctor", "-v", "--json")) if fault in REFUSALS else ():
        seen = cli(*line, "--remote", url)
        clean("the command line", seen.out + seen.err.encode())
    clean("logs", talk.getvalue())


def test_the_command_line_and_the_daemon(tmp_path: Path, url: str, proxy: FaultProxy, cli: Cli) -> None:
    assert proxy.url
    write(tmp_path / "log", url)
    both = ("--log-dir", tmp_path / "log", "--remote", url, "--debug")
    for line in (
        ("config",), ("doctor", "-v", "--write-probe"), ("status", "--json"), ("cat", "orders"),
        ("check", "-v"), ("topic", "show", "orders", "--segments", "--json"), ("maintain", "--dry-run"),
        ("topic", "show", "orders"),
    ):  # fmt: skip
        seen = cli(*line, *both)
        assert seen.out
        clean(str(line), seen.out + seen.err.encode())
    seen = cli("check", "--read-data", *both)
    assert seen.code == 0
    clean("check", seen.out + seen.err.encode())
    for words in (["sync", "--log-format", "json"], ["sync", "--uploads", "none"]):
        command = [sys.executable, "-m", "uploader", *words, *map(str, both)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
        assert done.stdout + done.stderr
        clean(str(words), done.stdout + done.stderr)


def test_what_spark_sends_to_its_workers(tmp_path: Path, url: str, proxy: FaultProxy) -> None:
    assert proxy.url
    write(tmp_path / "log", url)
    source = TieredDataSource({"path": url, "subscribe": "orders"})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    sent = pickle.dumps((reader, parts))
    clean("the plan", sent + repr((source, reader, parts, vars(reader))).encode())
    assert len(sent) > 100
