"""The golden log directories of Apache Kafka 4.1.1: unpacked once, verified, and given names.

``data/README.md`` says what is inside. Tests take the session fixture ``kafka_fixtures`` (the path of the unpacked
``kafka-4.1``) and call the functions below with it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tiered.model import Headers

ARCHIVE = Path(__file__).parent / "data" / "kafka-4.1.tar.gz"
MAIN = "main"
ROOTS = (
    MAIN,
    "compact-before",
    "compact-after1",
    "compact-after2",
    "unclean-kill/before",
    "unclean-kill/after",
    "unclean-damaged/before",
    "unclean-damaged/after",
)


class ExpectedRecord(NamedTuple):
    """One line of the expected JSONL. A large value is given by size and SHA-256; ``value`` is None then."""

    offset: int
    timestamp: int
    timestamp_type: str
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    value_size: int | None
    value_sha256: str | None

    def matches_value(self, value: bytes | None) -> bool:
        """Whether ``value`` is the expected one."""
        if self.value_size is None:
            return value == self.value
        return value is not None and len(value) == self.value_size and _sha256(value) == self.value_sha256


class ExpectedOffsets(NamedTuple):
    """What the broker answered for a partition; ``lso`` is the last stable offset."""

    earliest: int
    latest: int
    lso: int


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def unpack(directory: Path) -> Path:
    """Unpacks the archive below ``directory``, checks every file against the manifest, returns ``kafka-4.1``."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    root = directory / "kafka-4.1"
    files = manifest(root)["files"]
    for name, fact in files.items():
        data = (root / name).read_bytes()
        if len(data) != fact["size"] or _sha256(data) != fact["sha256"]:
            raise AssertionError(f"golden file {name} differs from its manifest")
    return root


@functools.lru_cache(maxsize=4)
def manifest(fixtures: Path) -> dict[str, Any]:
    """``expected/manifest.json``."""
    loaded: dict[str, Any] = json.loads((fixtures / "expected" / "manifest.json").read_text())
    return loaded


def partitions(fixtures: Path, root: str = MAIN) -> list[str]:
    """Names of the partition directories of ``root`` (``topic-partition``), sorted."""
    return sorted(manifest(fixtures)["roots"][root]["partitions"])


def partition_facts(fixtures: Path, partition: str, root: str = MAIN) -> dict[str, Any]:
    """The manifest's entry: ``scenario``, ``demonstrates``, ``topicConfigs``, ``expected``, ``dumps``."""
    facts: dict[str, Any] = manifest(fixtures)["roots"][root]["partitions"][partition]
    return facts


def partition_dir(fixtures: Path, partition: str, root: str = MAIN) -> Path:
    """The directory with the segment files."""
    return fixtures / root / partition


def segment_files(fixtures: Path, suffix: str, *, root: str | None = None) -> list[Path]:
    """Every file ``<base><suffix>`` of the partitions of ``root`` (None: of all roots), sorted."""
    top = fixtures if root is None else fixtures / root
    return sorted(p for p in top.rglob(f"*{suffix}") if p.name[:20].isdigit() and p.name[20:] == suffix)


def base_offset(file: Path) -> int:
    """The number in the name of a segment file."""
    return int(file.name[:20])


def log_bases(fixtures: Path, partition: str, root: str = MAIN) -> list[int]:
    """Base offsets of the segments of a partition, ascending."""
    return sorted(base_offset(p) for p in partition_dir(fixtures, partition, root).glob("*.log"))


def expected_offsets(fixtures: Path, partition: str, root: str = MAIN) -> ExpectedOffsets | None:
    """Offsets as the broker reported them; None for partitions that cannot be consumed and ``before`` roots."""
    facts = partition_facts(fixtures, partition, root).get("expected")
    return None if facts is None else ExpectedOffsets(facts["earliest"], facts["latest"], facts["lso"])


def expected_records(
    fixtures: Path, partition: str, root: str = MAIN, *, isolation: str = "read_uncommitted"
) -> Iterator[ExpectedRecord]:
    """What a consumer sees from the log start offset on: ``read_uncommitted`` or ``read_committed``."""
    name = partition_facts(fixtures, partition, root)["expected"][isolation]
    with (fixtures / name).open(encoding="utf-8") as lines:
        for line in lines:
            r = json.loads(line)
            yield ExpectedRecord(
                offset=r["offset"],
                timestamp=r["timestamp"],
                timestamp_type=r["timestampType"],
                leader_epoch=r["leaderEpoch"],
                key=_decoded(r["key"]),
                value=_decoded(r.get("value")),
                headers=[(name, _decoded(value)) for name, value in r["headers"]] or (),
                value_size=r.get("valueSize"),
                value_sha256=r.get("valueSha256"),
            )


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
