"""One command line, run in this process: exit code, both streams."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tiered.cli.main import run


@dataclass(frozen=True)
class Result:
    """What a command left."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.out.decode()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        """The last JSON line."""
        return self.messages[-1]


class Stream(io.TextIOWrapper):
    """A standard stream over memory that may call itself a terminal."""

    def __init__(self, data: bytes = b"", *, terminal: bool = False) -> None:
        self._bytes = io.BytesIO(data)
        super().__init__(self._bytes, encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def content(self) -> bytes:
        """What was written."""
        self.flush()
        return self._bytes.getvalue()


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Calls the command line with arguments; ``stdin=`` bytes, ``terminal=`` whether the output is one."""

    def call(*arguments: str | Path, stdin: bytes = b"", terminal: bool = False, closed: bool = False) -> Result:
        out, err = Stream(terminal=terminal), Stream()
        monkeypatch.setattr(sys, "stdin", None if closed else Stream(stdin))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        code = run([str(argument) for argument in arguments])
        return Result(code, out.content(), err.content().decode())

    return call


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of this machine reaches a test."""
    for name in (
        "TIERED_CONFIG",
        "TIERED_LOG_DIR",
        "TIERED_REMOTE",
        "TIERED_ENDPOINT_URL",
        "TIERED_REGION",
        "TIERED_EXPECTED_BUCKET_OWNER",
        "TIERED_SSE",
        "TIERED_SSE_KMS_KEY_ID",
        "TIERED_JSON",
        "TIERED_DEBUG",
        "TIERED_PROGRESS",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials")
