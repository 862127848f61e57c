"""Platforms: the answers of ``doctor``, and the table of README.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import ROOT
from tiered.program.platforms import (
    FILE_SYSTEMS,
    PYTHONS,
    SYSTEMS,
    Names,
    Standing,
    file_system_of,
    standing,
    system_name,
)

MOUNTS = """\
22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
30 22 0:26 / /dev/shm rw - tmpfs tmpfs rw
31 22 0:40 / /mnt/my\\040share rw - nfs4 server:/ rw
32 22 0:41 / /mnt/ssh rw - fuse.sshfs host:/ rw
33 30 0:42 / /dev/shm rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("what", "names"), [("system", SYSTEMS), ("Python", PYTHONS), ("file system of the log", FILE_SYSTEMS)]
)
def test_the_table_of_the_readme_is_what_doctor_knows(what: str, names: Names) -> None:
    cells = " | ".join(", ".join(names[each]) for each in Standing)
    assert f"| {what} | {cells} |\n" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("directory", "found", "expected"),
    [
        ("/var/lib/log", "ext4", Standing.RUN),
        ("/mnt/my share/log", "nfs", Standing.WITHOUT),
        ("/mnt/ssh/log", "fuse", Standing.WITHOUT),
        ("/dev/shm/log", "overlay", Standing.EXPECTED),
    ],
)
def test_a_file_system_is_that_of_the_nearest_mount(directory: str, found: str, expected: Standing) -> None:
    assert file_system_of(Path(directory), MOUNTS) == found
    assert standing(found, FILE_SYSTEMS) is expected


@pytest.mark.parametrize(
    ("system", "machine", "libc", "name"),
    [
        ("Linux", "x86_64", "glibc", "Linux x86-64 with glibc"),
        ("Linux", "x86_64", "", "Linux with musl"),
        ("Linux", "aarch64", "glibc", "Linux on arm64"),
        ("Darwin", "arm64", "", "macOS"),
        ("Windows", "AMD64", "", "Windows"),
    ],
)
def test_each_system_has_a_name_of_the_table(system: str, machine: str, libc: str, name: str) -> None:
    assert system_name(system, machine, libc) == name
    assert name in {each for names in SYSTEMS.values() for each in names}
