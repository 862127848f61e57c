"""The command that prints a policy."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.conftest import Cli
from tiered.plan.iam_policy import ROLES, policy

KEY = "arn:aws:kms:eu-central-1:123456789012:key/1111"


@pytest.mark.parametrize("role", ROLES)
def test_the_document_is_the_answer(cli: Cli, role: str) -> None:
    expected = policy(role, "arn:aws:s3:::acme", "logs/prod/", leave_out=("Pin", "PinKey"))
    seen = cli("iam-policy", "--role", role, "--remote", "s3://acme/logs/prod")
    assert (seen.code, json.loads(seen.out)) == (0, expected)
    told = cli("iam-policy", "--role", role, "--remote", "s3://acme/logs/prod", "--json").summary
    assert (told["role"], told["policy"]) == (role, expected)


def test_the_key_the_pins_and_the_partition_of_aws(cli: Cli) -> None:
    line = (
        "iam-policy",
        "--role",
        "reader",
        "--remote",
        f"s3://acme?region=cn-north-1&sse=aws:kms&kms_key={KEY}",
        "--pins",
    )
    seen = cli(*line)
    assert json.loads(seen.out) == policy("reader", "arn:aws-cn:s3:::acme", "", kms_key_arn=KEY)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("--role", "reader"), "no remote tier was named"),
        (("--role", "king", "--remote", "s3://acme"), "king"),
        (("--role", "reader", "--remote", "memory://acme"), "memory:// has no IAM policies"),
        (("--remote", "file:///no/such/folder"), "file:// has no IAM policies"),
        (("--remote", "s3://acme"), "no role was named"),
        (("--role", "reader", "--remote", "s3://acme/a*b"), "the prefix 'a*b' has a character that policies expand"),
        (("--role", "reader", "--remote", "s3://acme/${x}"), "has a character that policies expand"),
        (
            ("--role", "reader", "--remote", "s3://acme?sse=aws:kms&kms_key=1111"),
            "is not an ARN",
        ),
    ],
)
def test_what_no_policy_can_say_is_refused(cli: Cli, line: tuple[str, ...], message: str) -> None:
    seen = cli("iam-policy", *line)
    assert (seen.code, seen.out) == (2, b"")
    assert message in seen.err
