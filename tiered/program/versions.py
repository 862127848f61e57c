"""Versions of the program and of what it stands on, for ``--version``, ``doctor`` and bug reports."""

from __future__ import annotations

import platform
from importlib import metadata

_PARTS = ("boto3", "botocore", "crc32c", "cramjam", "lz4", "zstandard", "numpy", "pyarrow", "pyspark", "click", "rich")


def product_version() -> str:
    """The version of the distribution, ``unknown`` in a checkout that is not installed."""
    try:
        return metadata.version("tieredlog")
    except metadata.PackageNotFoundError:
        return "unknown"


def part_versions() -> dict[str, str]:
    """Python and every installed part; absent ones are left out. Nothing is imported."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for part in _PARTS:
        try:
            found[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            continue
    return found


def version_lines() -> list[str]:
    """What ``tiered --version`` prints."""
    parts = ", ".join(f"{name} {version}" for name, version in part_versions().items())
    return [f"tiered {product_version()}", parts]
