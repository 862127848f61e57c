"""What a build makes with a compiler, without one, and where either is demanded."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXTENSION = f"tiered/format/_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"

pytest.importorskip("hatchling")


def build(folder: Path, kind: str = "wheel", **env: str) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """Runs a build as pip does; what it says, and what it made."""
    asked = {name: value for name, value in os.environ.items() if not name.startswith("TIERED_")}
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={**asked, **env}, capture_output=True, text=True, check=False)
    return done, sorted(folder.glob("*"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as held:
        return set(held.namelist())


def test_a_build_that_wants_no_extension_makes_the_pure_wheel(tmp_path: Path) -> None:
    done, (wheel,) = build(tmp_path, TIERED_NO_EXTENSION="1")
    assert done.returncode == 0
    assert wheel.name.endswith("-py3-none-any.whl")
    assert {"tiered/format/pure_kernels.py", "tiered/format/_kernels.pyi", "tiered/py.typed"} <= names(wheel)
    assert not [name for name in names(wheel) if name.endswith(".so")]
    assert "no compiled kernels" not in done.stdout + done.stderr


def test_without_a_compiler_the_wheel_is_pure_and_one_line_says_so(tmp_path: Path) -> None:
    done, (wheel,) = build(tmp_path, CC="there-is-no-such-compiler")
    assert done.returncode == 0
    assert wheel.name.endswith("-py3-none-any.whl")
    said = [line for line in (done.stdout + done.stderr).splitlines() if "no compiled kernels" in line]
    assert len(said) == 1
    assert "pure Python is slower" in said[0]


def test_a_build_that_must_have_the_extension_fails_without(tmp_path: Path) -> None:
    done, made = build(tmp_path, CC="there-is-no-such-compiler", TIERED_REQUIRE_EXTENSION="1")
    assert (done.returncode != 0, made) == (True, [])


def test_the_wheel_holds_kernels_that_work(tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    done, (wheel,) = build(tmp_path / "wheel", TIERED_REQUIRE_EXTENSION="1")
    assert done.returncode == 0
    assert f"cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
    assert [name for name in names(wheel) if name.endswith((".so", ".c", ".o"))] == [EXTENSION]
    with zipfile.ZipFile(wheel) as held:
        held.extractall(tmp_path / "site")
    code = "from tiered.format import _kernels, kernels; print(_kernels.__file__, kernels.KERNELS_IN_USE, sep='|')"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "TIERED_REQUIRE_EXTENSION": "1"}
    env.pop("TIERED_NO_EXTENSION", None)
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    place, at_work = found.stdout.strip().split("|")
    assert place == str(tmp_path / "site" / EXTENSION)
    assert at_work.startswith("compiled (Cython ")


def test_the_source_distribution_can_build_them(tmp_path: Path) -> None:
    done, (sdist,) = build(tmp_path, "sdist")
    assert done.returncode == 0
    with tarfile.open(sdist) as held:
        found = {name.partition("/")[2] for name in held.getnames()}
    parts = {
        f"tiered/format/{name}"
        for name in (
            "_kernels.pyx",
            "_kernels.pyi",
            "_arrow_kernels.pxi",
            "_arrow_encoder.pxi",
            "_accumulator.pxi",
            "_key_kernels.pxi",
            "_crc_kernels.pxi",
            "_survey_kernels.pxi",
        )
    }
    assert {"hatch_build.py", "pyproject.toml", *parts} <= found
    assert not [name for name in found if name.endswith((".so", ".c"))]
