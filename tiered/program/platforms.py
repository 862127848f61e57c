"""This machine: platforms on which the tests were run, as the table of README.md has them, and installed versions."""

from __future__ import annotations

import enum
import platform
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")


class Standing(enum.Enum):
    """Degree to which a platform is known to work. The value is a text about it."""

    RUN = "the tests run here"
    EXPECTED = "expected to work, but the tests were not run here"
    WITHOUT = "without any promise"


Names = Mapping[Standing, tuple[str, ...]]

SYSTEMS: Names = {
    Standing.RUN: ("Linux x86-64 with glibc",),
    Standing.EXPECTED: ("Linux on arm64", "Linux with musl", "macOS"),
    Standing.WITHOUT: ("Windows",),
}
PYTHONS: Names = {
    Standing.RUN: ("CPython 3.11",),
    Standing.EXPECTED: ("CPython 3.12", "CPython 3.13", "CPython 3.14"),
    Standing.WITHOUT: ("PyPy", "free-threaded builds"),
}
FILE_SYSTEMS: Names = {
    Standing.RUN: ("ext4", "tmpfs"),
    Standing.EXPECTED: ("XFS", "Btrfs", "ZFS", "overlay"),
    Standing.WITHOUT: ("NFS", "SMB", "FUSE"),
}
_ALIASES = {"nfs4": "nfs", "cifs": "smb", "smb2": "smb", "smb3": "smb", "fuseblk": "fuse"}
"""Names of the kernel for file systems of the table."""


def standing(name: str, names: Names) -> Standing:
    """Return how well a platform is known to work. A name that is not in ``names`` counts as expected to work."""
    found = (each for each, listed in names.items() if name.lower() in (one.lower() for one in listed))
    return next(found, Standing.EXPECTED)


def system_name(system: str, machine: str, libc: str) -> str:
    """Return the name of a system in ``SYSTEMS``. The arguments are results of :mod:`platform`."""
    if system != "Linux":
        return {"Darwin": "macOS"}.get(system, system)
    if machine in ("aarch64", "arm64"):
        return "Linux on arm64"
    if libc != "glibc":
        return "Linux with musl"
    return f"Linux {machine.replace('_', '-')} with glibc"


def this_system() -> str:
    """Return the name of this machine's system, for example ``Linux x86-64 with glibc``, as in ``SYSTEMS``."""
    return system_name(platform.system(), platform.machine(), platform.libc_ver()[0])


def this_python() -> str:
    """Return the name of this process's Python, for example ``CPython 3.11``, as in ``PYTHONS``."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "free-threaded builds"
    implementation = platform.python_implementation()
    return implementation if implementation != "CPython" else f"CPython {'.'.join(platform.python_version_tuple()[:2])}"


def file_system_of(directory: Path, mounts: str) -> str:
    """Return a directory's type of file system, from the text of ``/proc/self/mountinfo``; ``""`` if unknown."""
    found, longest = "", -1
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        if len(words) < 5 or not rest:
            continue
        point = Path(words[4].replace("\\040", " "))
        if directory.is_relative_to(point) and len(point.parts) >= longest:  # the last of equal ones covers the others
            found, longest = rest.split()[0], len(point.parts)
    kind = found.lower().partition(".")[0]  # fuse.sshfs
    return _ALIASES.get(kind, kind)


def this_file_system(directory: Path) -> str:
    """Return the type of the file system of a directory on this machine; ``""`` if the system does not report it."""
    try:
        return file_system_of(directory.resolve(), MOUNTS.read_text())
    except OSError:
        return ""


_PARTS = ("boto3", "botocore", "crc32c", "cramjam", "lz4", "zstandard", "numpy", "pyarrow", "pyspark", "click", "rich")


def product_version() -> str:
    """Return the version of the distribution, ``unknown`` in a checkout that is not installed."""
    try:
        return metadata.version("tieredlog")
    except metadata.PackageNotFoundError:
        return "unknown"


def part_versions() -> dict[str, str]:
    """Return the versions of Python and of each installed dependency, and the platform, by name. Imports none."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for part in _PARTS:
        try:
            found[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            continue
    return found


def version_lines() -> list[str]:
    """Return the lines of ``tiered --version``."""
    parts = ", ".join(f"{name} {version}" for name, version in part_versions().items())
    return [f"tiered {product_version()}", parts]
