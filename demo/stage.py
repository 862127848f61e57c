"""What the acts share: where things are, what the CSV says, and the commands of the product."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo.flights import Truth
from demo.processes import ROOT, Children, DemoError
from demo.report import Report
from demo.store import Place


@dataclass(slots=True)
class Stage:
    """What every act needs."""

    scratch: Path
    place: Place
    children: Children
    report: Report
    output: Path
    fast: bool = False
    truth: Truth = field(default_factory=Truth)

    @property
    def log_dir(self) -> Path:
        return self.scratch / "log"

    @property
    def where(self) -> list[str]:
        query = f"?endpoint={self.place.endpoint_url}" if self.place.endpoint_url else ""
        return ["--remote", self.place.url + query]

    def tiered(self, *arguments: str, timeout_s: float) -> dict[str, Any]:
        """What ``tiered ARGUMENTS --json`` prints. Raises DemoError if it does not end with 0 in time."""
        child = self.children.start(
            ["-m", "tiered", *self.where, "--json", *arguments], log="tiered.log", stdout=subprocess.PIPE
        )
        try:
            printed, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"`tiered {arguments[0]}` did not end within {timeout_s:.0f} s") from error
        if child.returncode != 0:
            said = (printed or self.children.tail("tiered.log"))[-1000:]
            raise DemoError(f"`tiered {' '.join(arguments)}` ended with status {child.returncode}: {said}")
        answer: dict[str, Any] = json.loads(printed)
        return answer


def without_java() -> str:
    """Why Spark's parts are skipped here; empty if they are not. Raises DemoError where they must not be."""
    check = subprocess.run([ROOT / "scripts" / "java-check"], capture_output=True, text=True, check=False)
    if check.returncode != 0:
        raise DemoError(check.stderr.strip())
    said = check.stderr.strip()
    return said.removeprefix("note: ") if "not found" in said else ""
