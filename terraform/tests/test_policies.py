"""Who may do what to which key: the rendered documents by an evaluator (with conditions), and enforced by a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from conftest import ROLES

from tests.support.iam import decision

BUCKET = "tieredlog-example"
PARTITION = "logs/a7/0123456789abcdef0123456789abcdef-12"
KEYS = {
    "topic": "logs/topics/orders",
    "root": f"{PARTITION}/root",
    "copied": f"{PARTITION}/positions",
    "page": f"{PARTITION}/p/w00000003/00ff.page",
    "segment": f"{PARTITION}/s/w00000003/00000000000000000042-00ff.log",
    "index": f"{PARTITION}/s/w00000003/00000000000000000042-00ff.idx",
    "rewritten": f"{PARTITION}/s/m00000003/00000000000000000042-00ff.log",
    "staged": f"{PARTITION}/s/t/00ff.log",
    "decision": "logs/txn/nightly/7",
    "pin": f"{PARTITION}/pin/00ff",
    "snapshot": f"{PARTITION}/snap/release-1",
    "history": f"{PARTITION}/hist/0000000000000001",
    "aside": f"{PARTITION}/aside/00ff",
    "audit": "logs/jobs/gc/0123456789abcdef0123456789abcdef-12/0000000000000001-00ff",
    "receipt": "logs/erasures/0123456789abcdef0123456789abcdef-12/nightly/receipt.json",
    "strange": "logs/jobs/compact-1/plan",
    "member": "logs/groups/billing/members/host~00ff",
    "plan": "logs/groups/billing/plan",
    "position": "logs/groups/billing/partitions/0123456789abcdef0123456789abcdef-12",
    "probe": "logs/probe/00ff",
    "outside": "other/file",
    "sibling": "logs-of-others/topics/orders",
}
LOG = {"topic", "root", "page", "segment", "index", "rewritten", "staged"}
READ = LOG | {"copied"}
PAST = {"snapshot", "history"}
GROUP = {"member", "plan", "position"}
WRITERS = {"segment", "index"}
SWAPPED = {"topic", "root", "history", "probe"}

# The whole table: every key kind that is not named here is refused.
ALLOWED: dict[tuple[str, str], set[str]] = {
    ("reader", "s3:GetObject"): READ | PAST | {"receipt"},
    ("reader", "s3:PutObject"): set(),
    ("reader", "s3:DeleteObject"): set(),
    ("consumer", "s3:GetObject"): READ | PAST | GROUP | {"receipt"},
    ("consumer", "s3:PutObject"): GROUP,
    ("consumer", "s3:DeleteObject"): {"member"},
    ("spark", "s3:GetObject"): READ | PAST | {"position"},
    ("spark", "s3:PutObject"): set(),
    ("spark", "s3:DeleteObject"): set(),
    ("sink", "s3:GetObject"): {"topic", "root", "staged", "decision", "history", "probe"},
    ("sink", "s3:PutObject"): SWAPPED | {"staged", "decision", "page"},
    ("sink", "s3:AbortMultipartUpload"): {"staged"},
    ("sink", "s3:PutObjectTagging"): {"staged"},
    ("sink", "s3:DeleteObject"): {"probe"},
    ("auditor", "s3:GetObject"): READ | PAST | GROUP | {"pin", "decision", "audit", "receipt"},
    ("auditor", "s3:PutObject"): set(),
    ("auditor", "s3:DeleteObject"): set(),
    ("writer", "s3:GetObject"): READ | {"history", "plan", "probe"},
    ("writer", "s3:PutObject"): WRITERS | SWAPPED | {"page", "copied"},
    ("writer", "s3:AbortMultipartUpload"): WRITERS,
    ("writer", "s3:PutObjectTagging"): WRITERS,  # a PUT with tags needs both
    ("writer", "s3:DeleteObject"): {"probe"},
    ("maintainer", "s3:GetObject"): READ | PAST | GROUP | {"receipt", "decision", "audit", "pin", "probe", "aside"},
    ("maintainer", "s3:AbortMultipartUpload"): WRITERS | {"rewritten"},
    ("maintainer", "s3:PutObject"): SWAPPED
    | {"rewritten", "pin", "snapshot", "audit", "receipt", "decision", "aside", "position"},
    ("maintainer", "s3:DeleteObject"): WRITERS
    | PAST
    | GROUP
    | {"rewritten", "staged", "decision", "root", "copied", "page", "pin", "probe", "aside"},
    ("repair", "s3:GetObject"): LOG | PAST | {"pin", "decision", "audit", "receipt", "aside", "probe"},
    ("repair", "s3:GetObjectVersion"): LOG | PAST | {"pin", "decision", "audit", "receipt", "aside"},
    ("repair", "s3:PutObject"): LOG | PAST | {"pin", "decision", "aside", "probe"},
    ("repair", "s3:PutObjectTagging"): WRITERS | {"rewritten", "staged"},
    ("repair", "s3:AbortMultipartUpload"): WRITERS | {"rewritten", "staged"},
    ("repair", "s3:DeleteObject"): PAST | {"pin", "probe"},
}
FORBIDDEN = (
    "s3:DeleteObjectVersion", "s3:PutBucketPolicy", "s3:PutLifecycleConfiguration", "s3:DeleteBucket",
    "s3:PutBucketVersioning", "s3:PutObjectAcl", "s3:BypassGovernanceRetention",
)  # fmt: skip


def arn(key: str) -> str:
    return f"arn:aws:s3:::{BUCKET}/{key}"


@pytest.mark.parametrize(("role", "action"), ALLOWED)
def test_the_documents_allow_exactly_the_table(policies: dict[str, Any], role: str, action: str) -> None:
    allowed = {kind for kind, key in KEYS.items() if decision(policies[role], action, arn(key), {}) == "Allow"}
    assert allowed == ALLOWED[role, action]


@pytest.mark.parametrize("role", ROLES)
def test_nobody_touches_versions_or_the_bucket(policies: dict[str, Any], role: str) -> None:
    for action in FORBIDDEN:
        for resource in (f"arn:aws:s3:::{BUCKET}", *map(arn, KEYS.values())):
            assert decision(policies[role], action, resource, {}) == "None", (action, resource)


@pytest.mark.parametrize(
    ("role", "prefix", "expected"),
    [
        ("reader", "logs/topics/", "Allow"),
        ("reader", "logs/topics/ord", "Allow"),
        ("reader", "logs/", "Allow"),
        ("reader", "log", "None"),
        ("reader", "other/", "None"),
        ("reader", "logs-of-others/", "None"),
        ("reader", "", "None"),
        ("reader", "logs/jobs/", "None"),
        ("auditor", "logs/", "Allow"),
        ("auditor", f"{PARTITION}/s/", "Allow"),
        ("auditor", "other/", "None"),
        ("auditor", "logs/txn/", "Allow"),
        ("reader", "logs/txn/", "None"),
        ("reader", "logs/groups/", "None"),
        ("consumer", "logs/groups/billing/members/", "Allow"),
        ("consumer", "logs/topics/", "Allow"),
        ("consumer", "logs/jobs/", "None"),
        ("spark", "logs/topics/", "Allow"),
        ("spark", "logs/", "None"),
        ("spark", f"{PARTITION}/", "None"),
        ("spark", f"{PARTITION}/hist/", "Allow"),
        ("spark", f"{PARTITION}/snap/", "Allow"),
        ("sink", "logs/topics/", "None"),
        ("sink", f"{PARTITION}/s/t/", "None"),
        ("reader", f"{PARTITION}/", "Allow"),
        ("writer", "logs/topics/", "Allow"),
        ("writer", "logs/", "Allow"),
        ("writer", "other/", "None"),
        ("writer", "", "None"),
        ("writer", "logs/jobs/", "None"),
        ("maintainer", "logs/", "Allow"),
        ("maintainer", f"{PARTITION}/", "Allow"),
        ("maintainer", "logs/jobs/", "None"),
        ("maintainer", "logs/jobs/gc/0123456789abcdef0123456789abcdef-12/", "Allow"),
        ("auditor", "logs/jobs/gc/0123456789abcdef0123456789abcdef-12/", "Allow"),
        ("reader", "logs/jobs/gc/0123456789abcdef0123456789abcdef-12/", "None"),
        ("maintainer", f"{PARTITION}/s/", "Allow"),
        ("maintainer", f"{PARTITION}/p/w00000003/", "Allow"),
        ("maintainer", f"{PARTITION}/pin/", "Allow"),
        ("maintainer", "other/", "None"),
        ("repair", f"{PARTITION}/hist/", "Allow"),
        ("repair", "other/", "None"),
        ("maintainer", "", "None"),
    ],
)
def test_listing_is_limited_by_prefix(policies: dict[str, Any], role: str, prefix: str, expected: str) -> None:
    bucket = f"arn:aws:s3:::{BUCKET}"
    assert decision(policies[role], "s3:ListBucket", bucket, {"s3:prefix": prefix}) == expected


@pytest.mark.parametrize("role", ROLES)
def test_who_lists_versions(policies: dict[str, Any], role: str) -> None:
    for prefix, expected in ((KEYS["root"], "Allow"), ("other/", "None")):
        context = {"s3:prefix": prefix}
        said = decision(policies[role], "s3:ListBucketVersions", f"arn:aws:s3:::{BUCKET}", context)
        assert said == (expected if role in ("repair", "auditor") else "None")


@pytest.mark.parametrize("role", ROLES)
def test_who_reads_the_lifecycle_rules(policies: dict[str, Any], role: str) -> None:
    said = decision(policies[role], "s3:GetLifecycleConfiguration", f"arn:aws:s3:::{BUCKET}", {})
    assert said == ("Allow" if role == "auditor" else "None")


@pytest.mark.parametrize("role", ROLES)
def test_absent_keys_are_told_from_refused_ones(policies: dict[str, Any], role: str) -> None:
    """S3 answers 404 only to callers who may list; that check carries no prefix."""
    assert decision(policies[role], "s3:ListBucket", f"arn:aws:s3:::{BUCKET}", {}) == "Allow"


PLAIN = {"aws:SecureTransport": "false"}
TLS = {"aws:SecureTransport": "true", "s3:ObjectCreationOperation": "true"}
PART = {"aws:SecureTransport": "true", "s3:ObjectCreationOperation": "false"}


@pytest.mark.parametrize(
    ("action", "kind", "context", "expected"),
    [
        ("s3:GetObject", "segment", PLAIN, "Deny"),
        ("s3:GetObject", "segment", TLS, "None"),
        ("s3:PutObject", "segment", TLS, "Deny"),
        ("s3:PutObject", "segment", {**TLS, "s3:if-none-match": "*"}, "None"),
        ("s3:PutObject", "segment", PART, "None"),
        ("s3:PutObject", "root", TLS, "Deny"),
        ("s3:PutObject", "root", {**TLS, "s3:if-match": '"etag"'}, "None"),
        ("s3:PutObject", "root", {**TLS, "s3:if-none-match": "*"}, "None"),
        ("s3:PutObject", "topic", TLS, "Deny"),
        ("s3:PutObject", "page", TLS, "Deny"),
        ("s3:PutObject", "strange", TLS, "None"),
        ("s3:PutObject", "outside", TLS, "None"),
    ],
)
def test_the_bucket_refuses_plain_http_and_blind_writes(
    outputs: dict[str, Any], action: str, kind: str, context: dict[str, str], expected: str
) -> None:
    assert decision(json.loads(outputs["bucket_policy"]), action, arn(KEYS[kind]), context) == expected


def refused(call: Callable[[], object]) -> bool:
    """Whether the server answers AccessDenied; any other error is one."""
    try:
        call()
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 403:
            return True
        raise
    return False


@pytest.mark.parametrize("role", ROLES)
def test_the_server_enforces_the_table(client: Callable[[str], Any], role: str) -> None:
    admin, ours = client("admin"), client(role)
    for kind, key in KEYS.items():
        admin.put_object(Bucket=BUCKET, Key=key, Body=b"data")
        read = refused(lambda key=key: ours.get_object(Bucket=BUCKET, Key=key))
        write = refused(lambda key=key: ours.put_object(Bucket=BUCKET, Key=key, Body=b"new"))
        delete = refused(lambda key=key: ours.delete_object(Bucket=BUCKET, Key=key))
        admin.delete_object(Bucket=BUCKET, Key=key)
        actual = {"s3:GetObject": not read, "s3:PutObject": not write, "s3:DeleteObject": not delete}
        assert actual == {action: kind in ALLOWED.get((role, action), ()) for action in actual}, kind


def test_a_wrong_secret_is_refused(client: Callable[[str], Any]) -> None:
    """The server really checks: without this, every refusal above could be luck."""
    client("admin").put_object(Bucket=BUCKET, Key=KEYS["root"], Body=b"data")
    assert not refused(lambda: client("writer").get_object(Bucket=BUCKET, Key=KEYS["root"]))
    assert refused(lambda: client("impostor").get_object(Bucket=BUCKET, Key=KEYS["root"]))
    client("admin").delete_object(Bucket=BUCKET, Key=KEYS["root"])
