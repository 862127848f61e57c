"""How much code one thing takes: product functions called and modules touched, counted by a profiler.

::

    python scripts/calls.py [--modules]    # one append, one cold read of one record, one sync of one segment
    python scripts/calls.py --json

On a memory store and a warm process: every import is done and each thing was done once before it is counted. A
generator that is resumed counts again; threads that begin meanwhile are counted, too. It counts its own working tree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tiered  # noqa: E402 - of this working tree, wherever it is called from

PACKAGES = tuple(f"{ROOT / name}/" for name in ("tiered", "uploader"))


class Count:
    """What was called while it was on."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def of(self, what: Callable[[], object]) -> None:
        """Counts what ``what`` does, in this thread and in those that it starts."""
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        try:
            what()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # how it is turned off

    def _seen(self, frame: FrameType, event: str, arg: object) -> None:
        del arg
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            with self._lock:
                self.calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    def as_json(self) -> dict[str, int]:
        """The two figures."""
        return {"calls": self.calls.total(), "modules": len({name for name, _ in self.calls})}

    def by_module(self) -> list[tuple[int, str]]:
        """Calls of each module, most first."""
        found: Counter[str] = Counter()
        for (name, _), count in self.calls.items():
            found[str(Path(name).relative_to(ROOT))] += count
        return [(count, name) for name, count in found.most_common()]


def count_all() -> dict[str, Count]:
    """Each thing once, after it was done once uncounted."""
    counts = {"append": Count(), "cold_read": Count(), "sync": Count()}
    with tempfile.TemporaryDirectory() as folder, tiered.open(f"{folder}/log", remote="memory://calls") as log:
        topic = log.topic("t", partitions=1, create=True)
        topic.append(b"warm")
        log.sync()
        topic.append(b"value")
        counts["append"].of(lambda: topic.append(b"value"))
        counts["sync"].of(log.sync)
        for count in (Count(), counts["cold_read"]):
            with tiered.open_reader("memory://calls") as reader:
                count.of(lambda reader=reader: [r.value for r in reader.topic("t").read(start=2, end=3)])
    return counts


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--modules", action="store_true", help="calls of each module, too")
    arguments = parser.parse_args()
    counts = count_all()
    if arguments.json:
        print(json.dumps({name: count.as_json() for name, count in counts.items()}, indent=1))
        return 0
    for name, count in counts.items():
        figures = count.as_json()
        print(f"{name:10} {figures['calls']:6,} calls in {figures['modules']:3} modules")
        if arguments.modules:
            print("\n".join(f"  {calls:6,} {module}" for calls, module in count.by_module()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
