"""A process whose main thread has ended works on, with a bucket in a folder and behind the name of a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.integration.ends.program import RECORDS
from tests.support.moto import CREDENTIALS, locked_moto, make_bucket

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 300.0
FOUND = {"topics": ["t"], "read": RECORDS, "find": [3], "arrow": RECORDS}
BLOCKING = {"sync": ["1"], "uploader": 5, **FOUND}
ON_A_LOOP = {"aio sync": "1", **{f"aio {name}": value for name, value in FOUND.items()}}


@pytest.fixture(params=["folder", "name of a host"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A bucket, and what stands behind it on the command line."""
    if request.param == "folder":
        yield [f"file://{tmp_path}/bucket"]
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with locked_moto() as url:
        make_bucket(url, "ends")
        # A name: only that goes through the event loop's resolver.
        yield [f"s3://ends/{tmp_path.name}", url.replace("127.0.0.1", "localhost")]


@pytest.mark.parametrize("mode", ["first_use", "at_exit"])
def test_all_of_it_works_from_the_open_on(mode: str, place: list[str], tmp_path: Path) -> None:
    assert run(mode, place, tmp_path) == BLOCKING | ON_A_LOOP


def test_what_was_open_works_on(place: list[str], tmp_path: Path) -> None:
    found = run("opened", place, tmp_path)
    of_reader = {name: FOUND[name] for name in ("find", "arrow")}
    assert found == {"uploader": 6, "error": None, "read": 6, **of_reader} | ON_A_LOOP


def run(mode: str, place: list[str], home: Path) -> Any:
    """What the program found in a bucket with one topic."""
    s3: dict[str, Any] = {"endpoint_url": place[1]} if len(place) > 1 else {}
    with tiered.open(home / "filled", f"{place[0]}/filled", **s3) as log:
        topic = log.topic("t", create=True)
        for number in range(RECORDS):
            topic.append(b"v", key=b"k%d" % number)
        log.sync(60)
    line = [sys.executable, "-W", "error", "-m", "tests.integration.ends.program", mode, str(home), *place]
    done = subprocess.run(line, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)
