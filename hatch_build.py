"""Builds the compiled kernels, ``tiered/format/_kernels.pyx``, into a wheel, or in place for an editable install.

It also makes the readme of the package's page on an index.

Without Cython, a C compiler or Python's headers the wheel is the pure one, and one line says so: all works, slower.
``TIERED_NO_EXTENSION=1`` asks for that; ``TIERED_REQUIRE_EXTENSION=1`` makes a build fail that has no extension.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")
"""A link to a file of the repository: on the page of an index it leads nowhere."""

SOURCE = Path("tiered/format/_kernels.pyx")


class ReadmeHook(MetadataHookInterface):
    """Hatchling calls it for the metadata of a package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme: README.md, with links to files of the repository as plain text."""
        text = LINK.sub(r"\1", (Path(self.root) / "README.md").read_text("utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class KernelsHook(BuildHookInterface[Any]):
    """Hatchling calls it before (``initialize``) and after (``finalize``) it makes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """``version`` is ``editable`` or ``standard``."""
        if _asked("TIERED_NO_EXTENSION"):
            return
        name = SOURCE.with_suffix("").name + sysconfig.get_config_var("EXT_SUFFIX")
        self._folder = tempfile.TemporaryDirectory(prefix="tiered-kernels-")
        try:
            built = compile_extension(Path(self.root) / SOURCE, Path(self._folder.name) / name)
        except (ImportError, OSError, subprocess.CalledProcessError, RuntimeError) as error:
            if _asked("TIERED_REQUIRE_EXTENSION"):
                raise
            self.app.display_warning(f"tieredlog: no compiled kernels, pure Python is slower: {_in_a_line(error)}")
            return
        target = SOURCE.with_name(name)
        if version == "editable":
            beside = Path(self.root) / f"{target}.new"  # replaced at once: a process may have the old one in use
            beside.write_bytes(built.read_bytes())
            beside.replace(Path(self.root) / target)
            return
        build_data["force_include"][str(built)] = target.as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel has its copy."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _asked(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def _in_a_line(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.strip().splitlines() or [str(error)]
        return next((line for line in lines if "error" in line), lines[-1]).strip()
    return " ".join(str(error).split())


def compile_extension(source: Path, target: Path) -> Path:
    """Cython, then the compiler that built this Python; ``CC``, ``CFLAGS`` and ``LDFLAGS`` as everywhere.

    Raises ImportError without Cython, OSError without a compiler, CalledProcessError for one that refuses.
    """
    from Cython.Compiler.Errors import CompileError
    from Cython.Compiler.Main import compile as translate

    c_file = target.with_name("_kernels.c")
    try:
        translated = translate(str(source), output_file=str(c_file), full_module_name="tiered.format._kernels")
    except CompileError as error:
        raise RuntimeError(f"{source}: {error}") from error
    if translated.num_errors:
        raise RuntimeError(f"{source}: {translated.num_errors} errors of Cython")
    object_file = target.with_suffix(".o")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))
    flags = shlex.split(f"{sysconfig.get_config_var('CFLAGS')} {sysconfig.get_config_var('CCSHARED')}")
    given = shlex.split(os.environ.get("CFLAGS", ""))
    includes = [f"-I{sysconfig.get_path(kind)}" for kind in ("include", "platinclude")]
    _run([*compiler, *flags, "-O2", "-g0", *given, *includes, "-c", str(c_file), "-o", str(object_file)])
    linker = shlex.split(os.environ.get("LDSHARED") or sysconfig.get_config_var("LDSHARED"))
    _run([*linker, str(object_file), *given, *shlex.split(os.environ.get("LDFLAGS", "")), "-o", str(target)])
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise subprocess.CalledProcessError(done.returncode, command[0], done.stdout, done.stderr)
