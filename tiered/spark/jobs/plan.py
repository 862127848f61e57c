"""What a job is to do, as it stands in the bucket."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiered.errors import ConfigError, CorruptionError

FORMAT = 1
MAX_TASKS = 100_000
"""Tasks of one phase: the driver holds a description and a receipt of each."""

Task = Mapping[str, Any]
"""What a worker is told; a JSON object."""
Receipt = Mapping[str, Any]
"""What it did; a JSON object."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job as it was planned at ``began_ms``. ``facts``: what the driver has to remember of that moment."""

    job: str
    arguments: Mapping[str, Any]
    began_ms: int
    tasks: tuple[Task, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """JSON. Raises ConfigError for more than :data:`MAX_TASKS` tasks."""
        if len(self.tasks) > MAX_TASKS:
            raise ConfigError(
                f"the job {self.job} is cut into {len(self.tasks)} tasks, {MAX_TASKS} are the most",
                hint="a larger --task-bytes, or fewer topics in one job",
            )
        return encoded({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, *, key: str) -> JobPlan:
        """Raises CorruptionError, and ConfigError for one that a newer release wrote."""
        fields = decoded(data, key=key)
        if fields.pop("format", FORMAT) != FORMAT:
            raise ConfigError(f"{key} was written by a newer release", hint="go on with that release")
        return cls(**{**fields, "tasks": tuple(fields["tasks"])})


def encoded(fields: Mapping[str, Any]) -> bytes:
    """One JSON object, in one line."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def decoded(data: bytes, *, key: str) -> dict[str, Any]:
    """The inverse. Raises CorruptionError."""
    try:
        fields = json.loads(data)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise CorruptionError(
            f"{key} is no JSON object of a job",
            path_or_key=key,
            position=0,
            hint="begin the job under another id: --job NAME",
        )
    return fields
