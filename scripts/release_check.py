"""Check the wheels in ``dist`` before they are published: ``make release-check``.

Each wheel is installed into a fresh environment of its interpreter. There the README's first program runs, and the
bucket and the directory of format 1 are read. An upgrade and its rollback run from the source.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {"tiered", "uploader", "pyspark_tiered"}
READ = """
import json, sys
from pathlib import Path
import tiered
from release import records
folder = Path(sys.argv[1])
expected = json.loads((folder / "records.json").read_text())
assert records(tiered.open_reader(f"file://{folder / 'bucket'}")) == expected["bucket"]
assert records(tiered.open_reader(log_dir=folder / "log")) == expected["log"]
assert "site-packages" in tiered.__file__, tiered.__file__
"""


def main() -> int:
    """Check all wheels. Return 1 if there is none."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    if newest is None or newest[1] != version:
        print(f"release-check: pyproject.toml has {version}, CHANGELOG.md begins with {newest and newest[1]}")
        return 1
    wheels = sorted((ROOT / "dist").glob(f"tieredlog-{version}-*.whl"))
    for wheel in wheels:
        check_contents(wheel)
        check_installed(wheel)
        print(f"release-check: {wheel.name} is right")
    run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "tests/golden/test_format_1.py",
            "tests/integration/test_next_release.py",
        ]
    )
    return 0 if wheels else 1


def check_contents(wheel: Path) -> None:
    """Raise if the wheel has other packages, lacks types or kernels, or names a path of this machine."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
        if tops != PACKAGES or "tiered/py.typed" not in names or not any(name.endswith(".so") for name in names):
            raise SystemExit(f"release-check: {wheel.name} holds {sorted(tops)}; py.typed and kernels are needed")
        for name in names:
            if name.endswith((".py", "RECORD", "METADATA")) and str(ROOT).encode() in archive.read(name):
                raise SystemExit(f"release-check: {name} in {wheel.name} names a path of this machine")


def check_installed(wheel: Path) -> None:
    """Install the wheel for its interpreter, and run the README's first program and a reader of format 1."""
    number = re.search(r"-cp3(\d+)-", wheel.name)
    given = [python for python in sys.argv[1:] if number and minor_of(python) == number[1]]
    python = given[0] if given else shutil.which(f"python3.{number[1]}") if number else None
    if python is None:
        raise SystemExit(f"release-check: the interpreter of {wheel.name} is not on PATH")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run([python, "-m", "venv", f"{folder / 'env'}"])
        own = str(folder / "env/bin/python")
        run([own, "-m", "pip", "--disable-pip-version-check", "install", "-q", f"{wheel}[arrow,cli]"])
        program = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
        assert program is not None  # noqa: S101 - the README's tests hold it
        run([own, "-c", program[1].replace("/tmp/", f"{folder}/")], folder)  # noqa: S108 - the text of the README
        shutil.copy(ROOT / "tests/golden/release.py", folder / "release.py")
        with tarfile.open(ROOT / "tests/golden/data/format-1.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        (folder / "read.py").write_text(READ)
        run([own, "read.py", str(folder)], folder)
        run([str(folder / "env/bin/tiered"), "check", "--remote", f"file://{folder / 'bucket'}", "-q"], folder)


def minor_of(python: str) -> str:
    """Return the minor version of an interpreter, empty for a bare version number."""
    if not Path(python).is_file():
        return ""
    return subprocess.check_output([python, "-c", "import sys; print(sys.version_info[1])"], text=True).strip()


def run(command: list[str], folder: Path = ROOT) -> None:
    """Run a command. Its failure ends the check."""
    done = subprocess.run(command, cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(f"release-check: exit code {done.returncode} of {' '.join(command)[:200]}")


if __name__ == "__main__":
    raise SystemExit(main())
