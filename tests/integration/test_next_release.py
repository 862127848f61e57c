"""An upgrade and its rollback: a build of the next release and this one write the same log in turn.

The next release adds a field to each root and a section to each bundle. It is this source with two lines changed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import plain_reader

SOURCE = Path(__file__).parents[2]
CHANGES = {
    "tiered/format/root.py": ('        "topic_id": root.topic_id.hex,\n', '        "next_release": {"added": 1},\n'),
    "tiered/format/bundle.py": (
        "        (SectionKind.TXN, txn.encode()),\n",
        '        (99, b"of the next release"),\n',
    ),
}
WRITE = """
import sys
import tiered
log_dir, remote, round_ = sys.argv[1:]
with tiered.open(log_dir, remote=remote) as log:
    topic = log.topic("t", create=True, config={"cleanup.policy": "compact,delete"})
    topic.append_many([(f"{n} of {round_}".encode(), b"k%d" % n) for n in range(5)])
    log.sync()
"""
READ = """
import json, sys
import tiered
with tiered.open_reader(sys.argv[1], log_dir=sys.argv[2]) as reader:
    print(json.dumps([record.value.decode() for record in reader.topic("t").read(0)]))
"""


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("next")
    for package in ("tiered", "uploader"):
        shutil.copytree(SOURCE / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, added) in CHANGES.items():
        text = (folder / name).read_text()
        assert text.count(before) == 1
        (folder / name).write_text(text.replace(before, before + added))
    return folder


def call(source: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_upgrade_and_its_rollback_lose_nothing(tmp_path: Path, next_release: Path) -> None:
    log_dir, remote = str(tmp_path / "log"), f"file://{tmp_path / 'bucket'}"
    written: list[str] = []
    for round_, source in enumerate([SOURCE, next_release, SOURCE, next_release, SOURCE]):
        call(source, "-c", WRITE, log_dir, remote, str(round_))
        written += [f"{n} of {round_}" for n in range(5)]
        for reader in (SOURCE, next_release):
            assert json.loads(call(reader, "-c", READ, remote, log_dir)) == written
            call(reader, "-m", "tiered", "check", "--remote", remote, "--log-dir", log_dir)
    assert marks(tmp_path / "bucket") == (["next_release"], 2)
    call(SOURCE, "-m", "tiered", "maintain", "t", "--only", "compact,merge", "--remote", remote, "--yes")
    for reader in (SOURCE, next_release):
        call(reader, "-m", "tiered", "check", "--remote", remote, "--log-dir", log_dir)
        assert json.loads(call(reader, "-c", READ, remote, log_dir))[-5:] == written[-5:]
    assert marks(tmp_path / "bucket")[0] == ["next_release"]


def marks(bucket: Path) -> tuple[list[str], int]:
    """Return the field of the next release in the root, and the number of bundles with its section."""
    found = plain_reader.objects(bucket)
    roots = [plain_reader.framed(data)[0] for key, data in found.items() if key.endswith("/root")]
    bundles = [data for key, data in found.items() if key.endswith(".idx")]
    fields = sorted({"next_release"}.intersection(*roots))
    return fields, sum(b"of the next release" in each for each in bundles)
