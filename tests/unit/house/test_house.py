"""The house itself: public names, cheap import, the error tree, what the README shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tiered
from tiered import errors

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()


def test_every_public_name_resolves_and_is_listed() -> None:
    for name in tiered.__all__:
        assert getattr(tiered, name) is not None
    assert set(dir(tiered)) == set(tiered.__all__)
    assert len(tiered.__all__) < 20
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tiered.nothing  # type: ignore[attr-defined]  # that is the point


def test_import_touches_no_sdk_no_numpy_and_starts_no_thread() -> None:
    code = (
        "import sys, threading, tiered;"
        "heavy = ('boto3', 'botocore', 'aiobotocore', 'numpy', 'pyarrow', 'pyspark', 'click', 'asyncio', 'tiered.aio');"
        "print(sorted(m for m in heavy if m in sys.modules),"
        "threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[] 1"


def test_a_file_beside_the_rooms_is_rare() -> None:
    files = sorted(path.name for path in Path(tiered.__file__).parent.glob("*.py"))
    assert len(files) <= 15, f"a new concept has a room: {files}"


def test_opening_a_directory_store_imports_no_sdk(tmp_path: Path) -> None:
    code = (
        "import sys, tiered\n"
        f"with tiered.open({str(tmp_path / 'log')!r}, remote='file://{tmp_path / 'store'}') as log:\n"
        "    log.topic('t', create=True).append(b'v')\n"
        "print([m for m in ('boto3','botocore','aiobotocore','pyarrow','pyspark','click') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_an_error_says_what_to_do_next() -> None:
    error = errors.OffsetOutOfRangeError("t-0: offset 9", requested=9, earliest=0, latest=5, hint="start at 0")
    assert str(error) == "t-0: offset 9 (start at 0)"
    assert error.as_json()["exit_code"] == 14
    assert (error.requested, error.earliest, error.latest) == (9, 0, 5)


def test_the_quick_start_prints_what_it_should(tmp_path: Path) -> None:
    section = README.split("## Quick start")[1]
    block = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert block is not None
    code = block[1].replace("file:///tmp/tieredlog-bucket", f"file://{tmp_path / 'bucket'}")
    assert code.count(str(tmp_path)) == 2
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith(" 0")
    assert "b'C-88'" in lines[1]
    assert lines[2:] == ["""[b'{"id": 4711}']""", "1"]
