"""The bucket and the log directory that stand for format 1, and how they were made.

``python -m tests.golden.release OUT.tar.gz`` writes them again with the code of today, and ``... OUT.tar.gz groups`` a
bucket with groups of consumers. An archive is written once for each format: a newer release must read the one that was
published.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tiered
from tiered.cli.main import run
from tiered.model import Position, TopicPartition

ARCHIVE = Path(__file__).parent / "data/format-1.tar.gz"
GROUPS = Path(__file__).parent / "data/format-1-groups.tar.gz"
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
SMALL_SEGMENTS = 1160
"""More than the rows of a root without pages."""
MINUTE_MS = 60_000
BEGUN_MS = 1_764_000_000_000


def write(folder: Path) -> None:
    """Write ``log``, ``bucket`` and ``records.json``: what each reader must find."""
    remote = f"file://{folder / 'bucket'}"
    with tiered.open(folder / "log", remote=remote) as log:
        for codec in CODECS:
            topic = log.topic(f"codec-{codec}", partitions=2, create=True, config={"compression.type": codec})
            for round_ in range(3):
                topic.append_many([b"%s %d" % (codec.encode(), n) * 5 for n in range(20)], partition=round_ % 2)
                log.sync()
            topic.append(b"on the disk alone", partition=0)
        shapes = log.topic("shapes", create=True)
        shapes.append(b"v", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=BEGUN_MS)
        shapes.append(None, key=b"k", timestamp=BEGUN_MS + MINUTE_MS)
        shapes.append(b"", key=b"", timestamp=BEGUN_MS - MINUTE_MS)
        log.sync()
        txn = log.topic("txn", create=True)
        with txn.transaction("t") as transaction:
            transaction.append(b"committed")
        try:
            with txn.transaction("t") as transaction:
                transaction.append(b"aborted")
                raise KeyError
        except KeyError:
            pass
        txn.append(b"plain")
        log.sync()
        compacted = log.topic("compacted", create=True, config={"cleanup.policy": "compact"})
        for round_ in range(4):
            compacted.append_many([(b"%d of %d" % (n, round_), b"k%d" % n) for n in range(5)])
            log.sync()
        trimmed = log.topic("trimmed", create=True, config={"segment.bytes": 200})
        for number in range(20):
            trimmed.append(b"%d" % number * 10)
        log.sync()
    with tiered.open(folder / "another", remote=remote) as log:
        small = log.topic("small", create=True, config={"segment.bytes": 130})
        for number in range(SMALL_SEGMENTS):
            small.append(b"%d" % number * 10)
        log.sync()
    at = ["--remote", remote, "--yes", "-q"]
    assert run(["snapshot", "create", "kept", "--remote", remote, "-q"]) == 0
    assert run(["maintain", "compacted", "--only", "compact", *at]) == 0
    assert run(["maintain", "trimmed:0", "--start-offset", "9", *at]) == 0
    found = {"bucket": records(tiered.open_reader(remote)), "log": records(tiered.open_reader(log_dir=folder / "log"))}
    (folder / "records.json").write_text(json.dumps(found, indent=0))


def write_groups(folder: Path) -> None:
    """Write ``bucket`` and ``groups.json``: a group with a member at work, one whose members left, one of the log.

    ``groups.json`` has owner, position and metadata by partition, and position and metadata of the copies.
    """
    remote = f"file://{folder / 'bucket'}"
    with tiered.open(folder / "log", remote=remote) as log:
        orders = log.topic("orders", partitions=3, create=True)
        for partition in range(3):
            orders.append_many(
                [b"%d" % number for number in range(10 * partition, 10 * partition + 10)], partition=partition
            )
        with log.consumer("reports", "orders", stop_at="end") as reports:
            for _ in reports:
                pass
            reports.commit({TopicPartition("orders", 1): Position(7, 0, "of the log")})
        log.sync()
    positions = {TopicPartition("orders", number): Position(3 * number, 0, f"until {number}") for number in range(3)}
    with (
        tiered.open_reader(remote) as reader,
        reader.consumer("left & gone", "orders", stop_at="end", member="host-1") as left,
        reader.consumer("billing", "orders", member="host-2") as working,
    ):
        for _ in left:
            pass
        left.commit()
        left.close()
        working.poll()
        working.commit(positions)
        shutil.copytree(folder / "bucket", folder / "at-work")
    shutil.rmtree(folder / "bucket")
    (folder / "at-work").rename(folder / "bucket")
    shutil.rmtree(folder / "log")
    found = {
        "left & gone": {f"orders-{number}": ["", 10, ""] for number in range(3)},
        "billing": {f"orders-{tp.partition}": ["host-2", at.offset, at.metadata] for tp, at in positions.items()},
    }
    copies = {"reports": {"orders-1": [7, "of the log"]}}
    (folder / "groups.json").write_text(json.dumps({"bucket": found, "copies": copies}, indent=0))


def records(reader: tiered.Reader) -> dict[str, dict[str, list[Any]]]:
    """Return the visible records of each partition, for each isolation level."""
    found: dict[str, dict[str, list[Any]]] = {}
    with reader:
        for name in sorted(reader.topics()):
            topic = reader.topic(name)
            for partition in range(topic.partitions):
                levels = found[f"{name}-{partition}"] = {}
                for level in ("read_uncommitted", "read_committed"):
                    levels[level] = [plain(each) for each in topic.read(partition, isolation=level)]
    return found


def plain(record: Any) -> list[Any]:
    """Return a record as JSON values."""
    headers = [[name, text(value)] for name, value in record.headers]
    return [record.offset, record.timestamp, text(record.key), text(record.value), headers]


def text(data: bytes | None) -> str | None:
    """Return bytes in base64, None for no bytes."""
    return None if data is None else base64.b64encode(data).decode()


def pack(folder: Path, out: Path) -> None:
    """Write the files of ``folder`` into an archive, sorted by name, without times and owners."""
    with tarfile.open(out, "w:gz") as archive:
        for path in files(folder):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            archive.addfile(entry, io.BytesIO(path.read_bytes()))


def files(folder: Path) -> Iterable[Path]:
    """Return the files that stand for the format: no locks, and not the directory of the many segments."""
    kept = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)
    return [path for path in kept if not {".tiered", "another", ".lock"} & set(path.relative_to(folder).parts)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        (write_groups if sys.argv[2:] == ["groups"] else write)(Path(made))
        pack(Path(made), Path(sys.argv[1]))
