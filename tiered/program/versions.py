"""Versions of the program and its dependencies, for ``--version``, ``doctor`` and bug reports."""

from __future__ import annotations

import platform
from importlib import metadata

_PARTS = ("boto3", "botocore", "crc32c", "cramjam", "lz4", "zstandard", "numpy", "pyarrow", "pyspark", "click", "rich")


def product_version() -> str:
    """Return the version of the distribution, ``unknown`` in a checkout that is not installed."""
    try:
        return metadata.version("tieredlog")
    except metadata.PackageNotFoundError:
        return "unknown"


def part_versions() -> dict[str, str]:
    """Return the versions of Python and every installed dependency. Nothing is imported."""
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
