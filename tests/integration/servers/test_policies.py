"""The policies of the roles, enforced by MinIO: each role is a user with temporary keys under its own document."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.integration.servers.commands import BUCKET, S3Server
from tests.unit.cli.conftest import Cli, cli
from tests.unit.plan.iam_policy.work import ALLOWED, read, read_by_spark, samples, write, write_in_parts
from tiered.plan.iam_policy import ROLES, policy

__all__ = ["cli"]

SESSION_CHARACTERS = 2048
"""A document of a session has no more."""
NUMBERS = itertools.count(ord("a"))  # short, for that reason
Become = Callable[[str], None]


@pytest.fixture
def prefix() -> str:
    """A place of its own in the bucket."""
    return f"{chr(next(NUMBERS))}/p/"


@pytest.fixture
def url(prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix.rstrip('/')}"


def connect(server: S3Server, service: str, keys: dict[str, str]) -> Any:
    session = boto3.session.Session(
        keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"], keys.get("AWS_SESSION_TOKEN"), "us-east-1"
    )
    style = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    return session.client(service, endpoint_url=server.url, config=style)


def keys_of(server: S3Server, role: str, prefix: str) -> dict[str, str]:
    """Keys that the server gives to a user who may do what the role's document says."""
    whole = policy(role, f"arn:aws:s3:::{BUCKET}", prefix, leave_out=("Pin",))
    document = json.dumps(whole, separators=(",", ":"))
    if len(document) > SESSION_CHARACTERS:  # the exact form is held by the evaluator of tests/unit/plan/iam_policy
        document = shortened(whole)
    arn = f"arn:aws:iam::123456789012:role/{role}"
    with closing(connect(server, "sts", server.credentials)) as sts:
        given = sts.assume_role(RoleArn=arn, RoleSessionName=role, Policy=document)["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
        "AWS_SESSION_TOKEN": given["SessionToken"],
    }


def shortened(whole: dict[str, Any]) -> str:
    """The same rights in fewer letters: no names, resources of the same actions as one, one ``*`` for a partition."""
    rights: dict[tuple[str, str], list[str]] = {}
    for statement in whole["Statement"]:
        for resource in statement["Resource"]:
            rights.setdefault((resource, json.dumps(statement.get("Condition"))), []).extend(statement["Action"])
    merged: dict[tuple[str, str], list[str]] = {}
    for (resource, condition), actions in rights.items():
        merged.setdefault((json.dumps(sorted({*actions})), condition), []).append(resource)
    statements = [
        {"Effect": "Allow", "Action": json.loads(actions), "Resource": resources}
        | ({} if condition == "null" else {"Condition": json.loads(condition)})
        for (actions, condition), resources in merged.items()
    ]
    document = json.dumps(whole | {"Statement": statements}, separators=(",", ":"))
    return document.replace("??/" + "?" * 32 + "-*/", "*/").replace("?" * 8, "*")


@pytest.fixture
def become(minio: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Become:
    """From the call on everything that is opened has the keys of a role."""

    def begin(role: str) -> None:
        monkeypatch.setenv("TIERED_ENDPOINT_URL", minio.url)
        for name, value in keys_of(minio, role, prefix).items():
            monkeypatch.setenv(name, value)

    return begin


def refused(call: Callable[[], object]) -> bool:
    """Whether the server answers AccessDenied; an absent key is no refusal, any other error is one."""
    try:
        call()
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("AccessDenied", "NoSuchKey"):
            raise
        return error.response["Error"]["Code"] == "AccessDenied"
    return False


@pytest.mark.parametrize("role", ROLES)
def test_the_server_allows_exactly_the_table(minio: S3Server, prefix: str, role: str) -> None:
    admin, ours = (connect(minio, "s3", keys) for keys in (minio.credentials, keys_of(minio, role, prefix)))
    with closing(admin), closing(ours):
        strange = {"outside": ["../other/file"], "unknown": ["jobs/1/plan", "s/w00000001/x"]}
        for kind, made in (samples() | strange).items():
            key = f"{prefix}{made[0]}".replace("p/../", "")
            place = {"Bucket": BUCKET, "Key": key}
            admin.put_object(**place, Body=b"data")
            found = {
                "s3:GetObject": not refused(lambda place=place: ours.get_object(**place)),
                "s3:PutObject": not refused(lambda place=place: ours.put_object(**place, Body=b"new")),
                "s3:DeleteObject": not refused(lambda place=place: ours.delete_object(**place)),
            }
            assert found == {action: kind in ALLOWED.get((role, action), ()) for action in found}, kind
        lists_nothing = role == "sink"
        expectations = (("topics/", lists_nothing), ("", lists_nothing or role == "spark"), ("../", True))
        for at, expected in (*expectations, ("../other/", True)):
            listed = f"{prefix}{at}".replace("p/../", "")
            assert refused(lambda listed=listed: ours.list_objects_v2(Bucket=BUCKET, Prefix=listed)) == expected


def test_the_roles_do_their_work(tmp_path: Path, url: str, become: Become, cli: Cli) -> None:
    def done(*line: str | Path) -> None:
        seen = cli(*line, "--remote", url)
        assert seen.code in (0, 3), (line, seen.err, seen.text)

    become("writer")
    write(tmp_path / "log", url)
    write_in_parts(tmp_path / "log", url)
    done("doctor", "--log-dir", tmp_path / "log", "--write-probe")
    become("reader")
    read(url)
    done("status")
    done("restore", "--log-dir", tmp_path / "restored")
    become("spark")
    read_by_spark(url)
    become("auditor")
    done("check", "--read-data")
    become("maintainer")
    done("maintain", "--yes")
    become("auditor")
    done("check", "--read-data")
