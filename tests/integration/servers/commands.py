"""The commands of ``localstack/``, as tests use them: the way a developer starts a server is the way it is tested."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
S3_SERVERS = ("moto", "minio", "seaweedfs", "localstack")
BUCKET = "tiered"


def run(name: str, *arguments: str, check: bool = True, standard_input: str | None = None, **environment: str) -> str:
    """Standard output of ``localstack/NAME ARGUMENTS``; what it says on standard error goes into a failure."""
    command = [str(ROOT / "localstack" / name), *arguments]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        input=standard_input or "",
        env={**os.environ, **environment},
    )
    if check and done.returncode:
        pytest.fail(f"{shlex.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def require(name: str) -> None:
    """Skips the test with the command that would provide the server; in CI it fails instead."""
    command = [str(ROOT / "localstack" / name), "check"]
    if subprocess.run(command, check=False, capture_output=True).returncode == 0:
        return
    say = pytest.fail if os.environ.get("CI") else pytest.skip
    say(f"{name} is not installed: run localstack/{name} install (or localstack/setup for all)")


def exported(text: str) -> dict[str, str]:
    """The variables of ``export NAME=VALUE`` lines."""
    words = [shlex.split(line) for line in text.splitlines() if line.startswith("export ")]
    return dict(word[1].split("=", 1) for word in words)


@dataclass
class S3Server:
    """One running server with a folder of its own."""

    name: str
    folder: Path
    environment: dict[str, str]

    @classmethod
    def start(cls, name: str, folder: Path) -> S3Server:
        """Starts ``name`` on a free port with the bucket ``tiered``."""
        require(name)
        text = run(name, "start", "--port", "0", "--bucket", BUCKET, "--dir", str(folder))
        return cls(name, folder, exported(text))

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return self.environment["TIERED_ENDPOINT_URL"]

    @property
    def credentials(self) -> dict[str, str]:
        """What the AWS chain of an SDK finds in the environment."""
        return {key: value for key, value in self.environment.items() if key.startswith("AWS_")}

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        run(self.name, "kill", "--dir", str(self.folder))

    def start_again(self) -> None:
        """The same data on the same port."""
        port = self.url.rpartition(":")[2]
        run(self.name, "start", "--port", port, "--bucket", BUCKET, "--dir", str(self.folder))

    def stop(self) -> None:
        """TERM; quiet if it was not running."""
        run(self.name, "stop", "--dir", str(self.folder))
