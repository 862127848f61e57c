"""Each role does its real work under its own policy: nothing it needs is refused, nothing is granted for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.support.iam import decision, matches
from tests.unit.cli.conftest import Cli
from tests.unit.plan.iam_policy.conftest import Become
from tests.unit.plan.iam_policy.policed import BUCKET_ARN, KMS_ARN, PREFIX, Guard, Need, PolicedStore
from tests.unit.plan.iam_policy.work import (
    ACTIONS,
    ALLOWED,
    READ_RECORDS,
    VALUES,
    consume,
    read,
    read_by_spark,
    samples,
    write,
    write_by_spark,
    write_in_parts,
)
from tiered.errors import CorruptionError, NotFoundError, RemotePermissionError
from tiered.format import keys
from tiered.format.keys import Role
from tiered.model import TopicPartition
from tiered.plan.iam_policy import ROLES, policy
from tiered.store.base import Outcome, StoreRequest, UploadPart

DECISIONS = ("s3:ListBucket", "decision")
"""What sinks decided is an auditor's to check: to everybody else `check` says that it did not look."""
AUDIT_LINES = ("s3:ListBucket", "audit")
"""What collections noted proves that there was a newer root: who may not list it goes by what it may."""
OLD_VERSIONS = ("s3:ListBucketVersions", "partition")
"""Of a bucket that keeps none `check` warns who may list them."""
LAGS = ("s3:ListBucket", "group")
"""The lag of groups is for who may list them. To others `status` says that it cannot read them."""
OPTIONAL = ("Key", "Pin", "PinKey", "MissingIs404")
"""What terraform's module leaves out unless asked for."""


def test_each_kind_of_key_has_a_pattern_that_no_other_kind_matches() -> None:
    patterns = keys.wildcards()
    for kind, made in samples().items():
        for key in made:
            found = {name for name in patterns if matches(patterns[name], key)}
            assert found == {kind.removeprefix("maintainer's ")}
    own = keys.wildcards(Role.MAINTAINER)
    for kind in ("segment", "page"):
        assert all(matches(own[kind], key) for key in samples()[f"maintainer's {kind}"])
        assert not any(matches(own[kind], key) for key in samples()[kind])


@pytest.mark.parametrize("role", ROLES)
def test_the_documents_allow_exactly_the_table(role: str) -> None:
    document = policy(role, BUCKET_ARN, PREFIX, leave_out=("Pin",))
    strange = {"outside": ["../other/file"], "unknown": ["jobs/1/plan", "ab/root", "s/w00000001/x", "topic"]}
    for action in ACTIONS:
        allowed = {
            kind
            for kind, made in (samples() | strange).items()
            if any(decision(document, action, f"{BUCKET_ARN}/{PREFIX}{key}", {}) == "Allow" for key in made)
        }
        assert allowed == ALLOWED.get((role, action), set()), action
    pinning = policy(role, BUCKET_ARN, PREFIX)
    pin = f"{BUCKET_ARN}/{PREFIX}{samples()['pin'][0]}"
    assert (decision(pinning, "s3:PutObject", pin, {}) == "Allow") == (
        role in ("reader", "consumer", "maintainer", "repair")
    )
    for action in ("s3:GetObject", "s3:DeleteObject"):
        assert (decision(pinning, action, pin, {}) == "Allow") == (
            role in ("reader", "consumer", "maintainer", "repair") or (role, action) == ("auditor", "s3:GetObject")
        )


@pytest.mark.parametrize("role", ROLES)
def test_other_prefixes_are_out_of_reach(role: str) -> None:
    document = policy(role, BUCKET_ARN, PREFIX, kms_key_arn=KMS_ARN)
    for made in samples().values():
        for key in made:
            for place in ("", "logs/", "logs/prod2/", "other/logs/prod/"):
                for action in ACTIONS:
                    assert decision(document, action, f"{BUCKET_ARN}/{place}{key}", {}) == "None"
    topics = "None" if role == "sink" else "Allow"
    for prefix, expected in (("logs/prod/topics/", topics), ("logs/", "None"), ("", "None"), ("logs/prod2/", "None")):
        assert decision(document, "s3:ListBucket", BUCKET_ARN, {"s3:prefix": prefix}) == expected
    whole = {"s3:prefix": PREFIX}
    assert (decision(document, "s3:ListBucket", BUCKET_ARN, whole) == "Allow") == (role not in ("spark", "sink"))
    assert len(str(document)) < 6144


def test_statements_can_be_left_out() -> None:
    for role in ROLES:
        document = policy(role, BUCKET_ARN, PREFIX, kms_key_arn=KMS_ARN, leave_out=OPTIONAL)
        assert not {statement["Sid"] for statement in document["Statement"]} & set(OPTIONAL)


# -- the real work ---------------------------------------------------------------------------------------------------


def granted(guard: Guard) -> set[Need]:
    """All that a document allows, by action and kind of key."""
    objects = {
        (action, kind.removeprefix("maintainer's "))
        for action in ACTIONS
        for kind, made in samples().items()
        if decision(guard.policy, action, f"{BUCKET_ARN}/{PREFIX}{made[0]}", {}) == "Allow"
    }
    listed = {
        "topic": "topics/",
        "log": "",
        "partition": samples()["root"][0][:-4],
        "decision": "txn/",
        "group": "groups/",
    }
    lists = {
        ("s3:ListBucket", kind)
        for kind, prefix in listed.items()
        if decision(guard.policy, "s3:ListBucket", BUCKET_ARN, {"s3:prefix": PREFIX + prefix}) == "Allow"
    }
    crypt = ("kms:Decrypt", "kms:GenerateDataKey", "kms:Encrypt")
    keyed = {(action, "the key") for action in crypt if decision(guard.policy, action, KMS_ARN, {}) == "Allow"}
    return objects | lists | keyed


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part of a multipart upload is refused, so that the upload is aborted."""
    execute, failed = PolicedStore.execute, []

    def failing(store: PolicedStore, request: StoreRequest) -> Outcome:
        if isinstance(request, UploadPart) and not failed:
            failed.append(request)
            raise CorruptionError("a part", path_or_key=request.key)
        return execute(store, request)

    monkeypatch.setattr(PolicedStore, "execute", failing)


def test_a_writer(tmp_path: Path, url: str, become: Become, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = become("writer")
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "log", url)
    fail_once(monkeypatch)
    write_in_parts(tmp_path / "log", url)
    both = ("--log-dir", tmp_path / "log", "--remote", url)
    assert cli("topic", "create", "more", *both, "--partitions", "3").code == 0
    assert cli("append", "more", *both, stdin=b"a line\n").code == 0
    assert cli("doctor", *both, "--write-probe").code == 0
    assert cli("check", *both).code == 0
    assert cli("restore", "--remote", url, "--log-dir", tmp_path / "new").code in (0, 3)
    with tiered.open(tmp_path / "new", url) as log:
        log.topic("orders").append(b"after the loss")
        log.sync(timeout=60)
    # It may not take anything away: what failed attempts left is a maintainer's to collect.
    assert guard.refused <= {("s3:DeleteObject", "segment"), DECISIONS, AUDIT_LINES}
    assert granted(guard) - guard.used <= WITHOUT_WORK["writer"]


@pytest.mark.parametrize("role", ["reader", "auditor"])
def test_a_reader_and_an_auditor(tmp_path: Path, url: str, become: Become, cli: Cli, role: str) -> None:
    become("writer")
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "log", url)
    with tiered.open(tmp_path / "log", url) as log:
        log.topic("people", create=True).append(b"of alice", key=b"alice")
        log.sync(timeout=60)
    become("sink")
    write_by_spark(url)
    become("maintainer")
    assert cli("snapshot", "create", "release", "--remote", url).code == 0
    assert cli("erase", "people", "--key", "alice", "--remote", url, "--yes").code == 3  # the snapshot holds it
    guard = become(role)
    read(url)
    assert cli("cat", "orders", "--as-of", "1", "--remote", url).code == 10  # it was not kept: looked for everywhere
    for line in (
        ("topic", "list"), ("topic", "show", "orders"), ("status",), ("topic", "show", "orders", "--segments"),
        ("topic", "show", "orders", "--at", "-1h"), ("cat", "orders", "--isolation", "read_committed"), ("doctor",),
        ("check", "--read-data"), ("maintain", "--dry-run"),
        ("restore", "--log-dir", tmp_path / "restored"), ("snapshot", "list"), ("cat", "orders", "--as-of", "release"),
    ):  # fmt: skip
        seen = cli(*line, "--remote", url)
        assert seen.code in (0, 3), (line, seen.err, seen.text)
    past = cli("restore", "people", "--as-of", "release", "--log-dir", tmp_path / "past", "--remote", url)
    assert (past.code, "1 record that erase-" in past.err) == (3, True), past.err
    unseen = {DECISIONS, AUDIT_LINES, OLD_VERSIONS, LAGS} if role == "reader" else set()
    assert guard.refused == unseen
    assert granted(guard) - guard.used <= WITHOUT_WORK[role]


def test_a_consumer(tmp_path: Path, url: str, become: Become, cli: Cli) -> None:
    become("writer")
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "log", url)
    guard = become("consumer")
    consume(url)
    read(url)
    for line in (("topic", "list"), ("group", "show", "billing")):
        assert cli(*line, "--remote", url).code == 0
    assert guard.refused == set()
    assert granted(guard) - guard.used <= WITHOUT_WORK["consumer"]
    become("auditor")
    assert cli("group", "list", "--remote", url).code == 0
    guard = become("maintainer")
    assert cli("group", "reset", "billing", "--to", "beginning", "--remote", url, "--yes").code == 0
    assert cli("group", "delete", "billing", "--remote", url, "--yes").code == 0
    assert guard.refused == set()


def test_spark(tmp_path: Path, url: str, become: Become, cli: Cli) -> None:
    become("writer")
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "log", url)
    become("maintainer")
    assert cli("group", "reset", "billing", "orders:0", "--to", READ_RECORDS, "--remote", url, "--yes").code == 0
    guard = become("spark")
    read_by_spark(url)
    with pytest.raises(NotFoundError):
        read_by_spark(url, asof="2020-01-01")
    with pytest.raises(NotFoundError):
        read_by_spark(url, asof="1")
    for group in ("accounting", "billing"):
        read_by_spark(url, len(VALUES) - READ_RECORDS, startingoffsets=f"group:{group}")
    assert guard.refused == set()
    assert granted(guard) - guard.used <= WITHOUT_WORK["spark"]


def test_a_sink(tmp_path: Path, url: str, become: Become, cli: Cli) -> None:
    guard = become("sink")
    (tmp_path / "bucket").mkdir()
    write_by_spark(url)
    assert guard.refused == set()
    assert granted(guard) - guard.used <= WITHOUT_WORK["sink"]
    become("reader")
    with tiered.open_reader(url) as reader:
        assert sorted(record.value for record in reader.topic("copies").read()) == sorted(VALUES * 2)
    guard = become("maintainer")
    assert cli("maintain", "--only", "collect", "--orphans", "--remote", url, "--yes").code == 0
    assert cli("topic", "transfer", "copies", "local", "--remote", url, "--yes").code == 0
    assert guard.refused == set()


def test_a_maintainer(tmp_path: Path, url: str, become: Become, cli: Cli) -> None:
    become("writer")
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "log", url)
    guard = become("maintainer")
    assert cli("group", "list", "--remote", url).code == 0
    for line in (("create", "release"), ("list",), ("delete", "release", "--yes")):
        assert cli("snapshot", *line, "--remote", url).code == 0
    done = cli("maintain", "--remote", url, "--yes", "--json")
    assert (done.code, cli("status", "--remote", url).code) == (0, 0), done.err
    assert cli("doctor", "--remote", url, "--write-probe").code == 0
    with tiered.open_reader(url) as reader:
        assert reader.topic("orders").beginning_offsets()[TopicPartition("orders", 0)] > 0
    assert cli("erase", "orders", "--key", "nobody", "--remote", url, "--yes").code == 0
    assert cli("topic", "set", "orders", "gc.grace.ms=0", "--remote", url).code == 0
    assert cli("topic", "delete", "orders", "--remote", url, "--yes").code == 0
    assert cli("maintain", "--only", "collect", "--remote", url, "--yes").code == 0
    assert cli("maintain", "--only", "collect", "--orphans", "--remote", url, "--yes").code == 0
    assert not list((tmp_path / "bucket").rglob("*.log.obj"))
    assert not list((tmp_path / "bucket").rglob("root.obj"))
    assert guard.refused == set()
    assert granted(guard) - guard.used <= WITHOUT_WORK["maintainer"]


def test_a_repair(tmp_path: Path, url: str, become: Become, cli: Cli) -> None:
    """A root and an index are lost, and a segment whose bytes the disk holds. A copy below ``hist/`` is damaged."""
    become("writer")
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    write(tmp_path / "log", url)
    logs, indexes = (sorted(bucket.rglob(f"*-0/s/w*/*.{kind}.obj")) for kind in ("log", "idx"))
    for path in (logs[1], indexes[0], *bucket.rglob("*-1/root.obj"), bucket / "topics/orders.obj"):
        path.unlink()
    next(bucket.rglob("*-0/hist/*")).write_bytes(b"no copy")
    guard = become("repair")
    done = cli("repair", "--remote", url, "--from-dir", tmp_path / "log", "--yes")
    assert (done.code, "5 objects were repaired" in done.text) == (0, True), done.err
    assert guard.refused == set()
    assert granted(guard) - guard.used <= WITHOUT_WORK["repair"]
    become("reader")
    read(url)


@pytest.mark.parametrize("role", ["reader", "auditor"])
def test_who_may_pin(tmp_path: Path, url: str, become: Become, role: str) -> None:
    become("writer")
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "log", url)
    become(role)
    with pytest.raises(RemotePermissionError, match="orders-0"), tiered.open_reader(url, pin=True) as reader:
        next(reader.topic("orders").read(0))
    guard = become(role, leave_out=())
    if role == "reader":
        with tiered.open_reader(url, pin=True) as reader:
            assert len(list(reader.topic("orders").read(0))) == len(VALUES)
        assert {need for need in guard.used if need[1] == "pin"} == {
            ("s3:PutObject", "pin"),
            ("s3:DeleteObject", "pin"),
        }
    assert guard.refused == set()


@pytest.mark.parametrize("role", ["reader", "spark", "auditor"])
def test_who_reads_cannot_write(tmp_path: Path, url: str, become: Become, role: str) -> None:
    guard = become(role)
    (tmp_path / "bucket").mkdir()
    with pytest.raises(RemotePermissionError):
        write(tmp_path / "log", url)
    assert ("s3:PutObject", "probe") in guard.refused  # the first write
    assert guard.refused <= {
        ("s3:PutObject", "probe"),
        ("kms:GenerateDataKey", "the key"),
        ("s3:DeleteObject", "probe"),
    }
    assert not list((tmp_path / "bucket").rglob("*.obj"))


def test_without_the_statement_an_absent_topic_is_a_refusal(tmp_path: Path, url: str, become: Become) -> None:
    """S3 hides what is absent from who may not list: the product must not take that for absent."""
    become("writer")
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "log", url)
    become("reader", leave_out=OPTIONAL)
    with pytest.raises(RemotePermissionError), tiered.open_reader(url) as reader:
        reader.topic("absent")


KINDS = ("page", "snapshot", "history", "pin", "audit", "aside", "member", "plan", "position")
LATER = {(action, kind) for action in ACTIONS for kind in KINDS} | {("s3:ListBucket", "group")}
REWRITING = ("s3:GetObject", "s3:PutObject", "s3:PutObjectTagging", "s3:AbortMultipartUpload")
REWRITES = {(action, "segment") for action in REWRITING}
STAGED = {("s3:GetObject", "staged")}
DECIDED = {(action, "decision") for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")}
VERSIONS = {("s3:GetObjectVersion", kind.removeprefix("maintainer's ")) for kind in samples()}
WITHOUT_WORK: dict[str, set[Need]] = {
    "reader": {("s3:GetObject", "page")},
    "consumer": STAGED
    | {("s3:GetObject", kind) for kind in ("page", "snapshot", "history", "erasure", "member")}
    | {("s3:ListBucket", kind) for kind in ("log", "partition")},
    "spark": STAGED | {("s3:GetObject", kind) for kind in ("page", "snapshot")},
    "auditor": LATER,
    # What is large is sent in parts; a store that tells no checksum is read back; many rows go into pages.
    "sink": LATER | STAGED | {("s3:AbortMultipartUpload", "staged")},
    "writer": LATER | STAGED | {("s3:ListBucket", "partition")},
    # A bucket in a folder has no versions.
    "repair": LATER
    | REWRITES
    | STAGED
    | DECIDED
    | VERSIONS
    | {("s3:GetObject", "erasure")}
    | {(action, "staged") for action in REWRITING},
    "maintainer": LATER | REWRITES | STAGED | DECIDED | {("s3:DeleteObject", "staged"), ("s3:ListBucket", "log")},
}
"""Granted, as the key grammar has it, before the work above asks for it: it only shrinks."""
