"""``tiered iam-policy``: print the smallest IAM policy of a role for the bucket."""

from __future__ import annotations

import json

import click

from tiered.errors import ConfigError
from tiered.plan.iam_policy import ROLES, policy
from tiered.program.application import Application, Command, pass_application
from tiered.program.open_store import location
from tiered.store.location import StoreLocation

FAMILIES = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
"""Prefixes of ARNs in regions outside the common AWS partition."""


@click.command("iam-policy", cls=Command)
@click.option("--role", type=click.Choice(ROLES), help="the kind of program that gets it  [required]")
@click.option("--pins", is_flag=True, help="reader: may also pin what it reads")
@pass_application
def command(app: Application, role: str | None, pins: bool) -> int:
    """Print the smallest IAM policy for one kind of program.

    It names exactly the keys of --remote, and only actions that the program needs. Nothing is asked of the bucket. With
    a KMS key (an ARN) the policy has the key's part.

    \b
    Examples:
      tiered iam-policy --role writer --remote s3://acme-logs/prod > writer.json
      tiered iam-policy --role reader --remote s3://acme-logs/prod --json
    """
    scheme = StoreLocation.parse(app.need_remote(), environ={}).scheme
    if scheme != "s3":
        raise ConfigError(f"{scheme}:// has no IAM policies", hint="pass --remote s3://bucket/prefix")
    if role is None:
        raise ConfigError("no role was named", hint=f"pass --role {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    place = location(app)
    if set(place.prefix) & set("*?$"):
        raise ConfigError(
            f"the prefix {place.prefix!r} has a character that policies expand", hint="name a prefix without *, ? and $"
        )
    key = place.s3.sse_kms_key_id or ""
    if key and not key.startswith("arn:"):
        raise ConfigError(f"the KMS key {key!r} is not an ARN", hint="put ?kms_key=ARN into the URL")
    family = next((name for start, name in FAMILIES.items() if (place.s3.region or "").startswith(start)), "aws")
    prefix = f"{place.prefix}/" if place.prefix else ""
    left_out = () if pins else ("Pin", "PinKey")
    document = policy(role, f"arn:{family}:s3:::{place.bucket}", prefix, kms_key_arn=key, leave_out=left_out)
    return app.out.result("iam-policy", {"role": role, "policy": document}, json.dumps(document, indent=2).splitlines())
