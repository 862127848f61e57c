"""What ``doctor`` says of the guards of a bucket, on a server that ignores one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

import tiered
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket
from tests.support.proxy import Fault, FaultKind, FaultProxy
from tests.unit.cli.conftest import Cli
from tiered.cli.doctor import STRANGER
from tiered.store.driver import drive
from tiered.store.location import open_store
from tiered.store.steps import list_all

OWNER = "123456789012"
REMOTE = "s3://guarded/p"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultProxy]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as url, FaultProxy(url) as proxy:
        make_bucket(url, "guarded")
        monkeypatch.setenv("TIERED_ENDPOINT_URL", proxy.url)
        with tiered.open(tmp_path / "log", REMOTE, sse="AES256") as log:
            log.topic("t", create=True)
        yield proxy


def test_the_owner_is_asked_for_and_a_store_that_ignores_it_is_told(cli: Cli, server: FaultProxy) -> None:
    def owner() -> tuple[str, str]:
        seen = cli("doctor", "--remote", f"{REMOTE}?owner={OWNER}", "--json")
        found = next(each for each in seen.summary["checks"] if each["name"] == "owner")
        return found["state"], found["found"]

    assert owner() == ("warn", "the store ignores expected_bucket_owner")
    asked = Fault(FaultKind.ERROR, method="GET", query="max-keys=1&", status=403, code="AccessDenied", times=-1)
    server.add(asked)
    assert owner() == ("ok", f"the bucket belongs to the account {OWNER}")
    checks = {each["name"] for each in cli("doctor", "--remote", REMOTE, "--json").summary["checks"]}
    assert "owner" not in checks
    assert STRANGER != OWNER


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("", "ok"),
        ("?sse=AES256", "ok"),
        ("?sse=aws:kms", "warn"),
        ("?sse=aws:kms&kms_key=alias/log", "warn"),
    ],
)
def test_the_encryption_of_what_is_there_is_held_against_what_is_asked_for(
    cli: Cli, server: FaultProxy, query: str, state: str
) -> None:
    assert server.url
    seen = cli("doctor", "--remote", REMOTE + query, "--json")
    found = next(each for each in seen.summary["checks"] if each["name"] == "encryption")
    assert (found["state"], found["found"].split(";")[0]) == (state, "of topics/t: AES256")


def test_a_bucket_without_versions_is_named(cli: Cli, server: FaultProxy, tmp_path: Path) -> None:
    remote = "s3://older/p"

    def versions() -> tuple[str, str]:
        seen = cli("doctor", "--remote", remote, "--json")
        found = next(each for each in seen.summary["checks"] if each["name"] == "older versions")
        return found["state"], found["found"]

    def checked(*options: str) -> tuple[bool, bool]:
        seen = cli("check", "--remote", remote, *options)
        assert seen.code == 0
        return "keeps no versions" in seen.err, "a scrub in" in seen.err

    make_bucket(server.url, "older")
    with tiered.open(tmp_path / "older", remote) as log:
        log.topic("t", create=True)
    assert versions() == ("warn", "the bucket keeps no versions of objects")
    assert checked() == (False, False)
    assert checked("--read-data") == (True, False)
    s3 = boto3.client("s3", endpoint_url=server.url, region_name="us-east-1")
    s3.put_bucket_versioning(Bucket="older", VersioningConfiguration={"Status": "Enabled"})
    with tiered.open(tmp_path / "older", remote) as log:
        log.topic("t").append(b"x")
        log.topic("u", create=True)
        log.sync(timeout=60)
    assert checked("--read-data") == (False, False)
    assert checked("--read-data-subset", "7/30") == (False, False)
    assert checked("--read-data-subset", "7/31") == (False, True)
    server.add(Fault(FaultKind.ERROR, method="GET", query="versions", status=403, code="AccessDenied", times=-1))
    assert versions()[0] == "skip"
    assert checked("--read-data") == (False, False)


@pytest.mark.parametrize(("status", "code", "exit_code"), [(404, "NoSuchBucket", 10), (403, "AccessDenied", 12)])
def test_status_shows_the_disk_where_the_bucket_is_absent_or_refuses(
    cli: Cli, server: FaultProxy, tmp_path: Path, status: int, code: str, exit_code: int
) -> None:
    server.add(Fault(FaultKind.ERROR, status=status, code=code, times=-1))
    seen = cli("status", "--log-dir", tmp_path / "log", "--remote", REMOTE)
    assert seen.code == exit_code
    lines = seen.text.splitlines()
    assert lines[0].startswith("NOT SAFE: the bucket's part is not known: ")
    assert lines[1].startswith("t-0   end 0   flushed 0")
    assert lines[-1].startswith("problem: the bucket cannot be read: ")
    assert code in lines[-1]


def test_a_store_without_multi_delete_is_named_and_collected(cli: Cli, server: FaultProxy, tmp_path: Path) -> None:
    remote = f"{REMOTE}/singles"
    with tiered.open(tmp_path / "other", remote) as log:
        log.topic("t", create=True)

    def write() -> str:
        seen = cli("doctor", "--remote", remote, "--write-probe", "--json")
        found = next(each for each in seen.summary["checks"] if each["name"] == "write")
        return str(found["found"]).rpartition(", ")[2]

    assert write() == "multi-delete"
    server.add(Fault(FaultKind.ERROR, method="POST", query="delete", status=400, code="MissingContentMD5", times=-1))
    assert write() == "no multi-delete: objects are deleted one by one"
    with tiered.open(tmp_path / "other", remote) as log:
        log.topic("t").append(b"v")
        log.sync()
    assert cli("maintain", "--only", "collect", "--orphans", "--yes", "--remote", remote).code == 0
    assert cli("topic", "delete", "t", "--yes", "--remote", remote).code == 0
    store = open_store(remote)
    kept = {entry.key.partition("/")[0] for entry in drive(store, list_all(""))}
    store.close()
    assert "probe" not in kept
