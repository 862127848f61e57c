"""What `terraform/test` rendered, and a server that enforces it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "tieredlog-example"
ROLES = ("reader", "consumer", "writer", "maintainer", "auditor", "spark", "sink", "repair")


@pytest.fixture(scope="session")
def outputs() -> dict[str, Any]:
    """Outputs of examples/basic, by name."""
    path = os.environ.get("TERRAFORM_OUTPUTS")
    if path is None:
        pytest.fail("these tests look at what terraform rendered: run terraform/test")
    return {name: output["value"] for name, output in json.loads(Path(path).read_text()).items()}


@pytest.fixture(scope="session")
def policies(outputs: dict[str, Any]) -> dict[str, Any]:
    """Policy documents by role."""
    return {role: json.loads(outputs["policies"][role]) for role in ROLES}


@dataclass(frozen=True)
class Enforcing:
    """A server that checks signatures and policies, and who its users are: (access key, secret) and client by role."""

    url: str
    keys: dict[str, tuple[str, str]]
    clients: dict[str, Any]


@pytest.fixture(scope="session")
def client(enforcing: Enforcing) -> Callable[[str], Any]:
    """S3 clients by role."""
    return enforcing.clients.__getitem__


@pytest.fixture(scope="session")
def enforcing(outputs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Enforcing]:
    """Users by role ("admin": may do all; "impostor": the writer's key id, a wrong secret).

    The bucket has no policy of its own: the server ignores conditions, so that a Deny for plain http would
    refuse everything.
    """
    folder = tmp_path_factory.mktemp("moto")
    command = [str(ROOT / "localstack" / "moto")]
    started = subprocess.run(
        [*command, "start", "--port", "0", "--dir", str(folder), "--bucket", BUCKET],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    env = dict(line.removeprefix("export ").split("=", 1) for line in started.stdout.splitlines())
    url = env["TIERED_ENDPOINT_URL"]

    def connect(service: str, key: str, secret: str) -> Any:
        config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
        return boto3.client(
            service, endpoint_url=url, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret,
            config=config,
        )  # fmt: skip

    try:
        iam = connect("iam", "any", "any")
        documents = {**outputs["policies"], "admin": json.dumps(ADMIN)}
        clients, keys = {}, {}
        for role, document in documents.items():
            arn = iam.create_policy(PolicyName=role, PolicyDocument=document)["Policy"]["Arn"]
            iam.create_user(UserName=role)
            iam.attach_user_policy(UserName=role, PolicyArn=arn)
            key = iam.create_access_key(UserName=role)["AccessKey"]
            keys[role] = (key["AccessKeyId"], key["SecretAccessKey"])
            clients[role] = connect("s3", key["AccessKeyId"], key["SecretAccessKey"])
            if role == "writer":
                clients["impostor"] = connect("s3", key["AccessKeyId"], "a wrong secret")
        _enforce(url)
        yield Enforcing(url, keys, clients)
    finally:
        subprocess.run([*command, "kill", "--dir", str(folder)], check=True)


ADMIN = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def _enforce(url: str) -> None:
    """From here on no call is free."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request("POST", "/moto-api/reset-auth", body="0")
    assert connection.getresponse().status == 200
    connection.close()
