"""What an appender holds when the program ends is written, or counted in a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tiered

RECORDS = 1000
LATER = 3_600_000
"""Nothing is due before the program ends."""

BEGIN = f"""
import asyncio, atexit, multiprocessing, os, sys, threading
import tiered

def fill(count={RECORDS}):
    global log, appender
    log = tiered.open(sys.argv[1])
    appender = log.topic("t", create=True, config={{"max.message.bytes": 1000}}).appender(linger_ms={LATER})
    for number in range(count):
        appender.append(b"%d" % number)

async def fill_on_a_loop():
    global log, appender
    log = await tiered.aio.open(sys.argv[1])
    appender = await (await log.topic("t", create=True)).appender(linger_ms={LATER})
    for number in range({RECORDS}):
        await appender.append(b"%d" % number)
"""

WORKER = """
def work():
    threading.main_thread().join()
    fill()
threading.Thread(target=work).start()
"""
DAEMON = """
done = threading.Event()
threading.Thread(target=lambda: (fill(), done.set()), daemon=True).start()
done.wait()
"""
DROPPED = """
def run():
    fill()
    del globals()["log"], globals()["appender"]
run()
"""
CHILD = """
child = multiprocessing.get_context("fork").Process(target=fill)
child.start()
child.join()
"""
LATE = """
def more():
    for number in range(500, 1000):
        appender.append(b"%d" % number)
atexit.register(more)
"""
FIRST = "import atexit\natexit.register(lambda: more())\n"

ENDS = {
    "the end of main": ("fill()", 0),
    "sys.exit": ("fill(); sys.exit(3)", 3),
    "an exception": ("fill(); raise ValueError", 1),
    "a worker thread": (WORKER, 0),
    "a daemon thread": (DAEMON, 0),
    "nobody holds it": (DROPPED, 0),
    "a child of multiprocessing": (CHILD, 0),
    "an earlier function of atexit": ("fill(500)\n" + LATE, 0),
    "asyncio": ("asyncio.run(fill_on_a_loop())", 0),
}


def ended(directory: Path, program: str, first: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", first + BEGIN + program, str(directory)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)


def values(directory: Path) -> list[bytes | None]:
    with tiered.open(directory) as log:
        return [record.value for record in log.topic("t").read()]


@pytest.mark.parametrize("end", ENDS)
def test_it_is_written(end: str, tmp_path: Path) -> None:
    program, code = ENDS[end]
    done = ended(tmp_path / "log", program)
    assert done.returncode == code, done.stderr
    assert values(tmp_path / "log") == [b"%d" % number for number in range(RECORDS)]


def test_a_function_of_atexit_that_comes_later_may_append_too(tmp_path: Path) -> None:
    done = ended(tmp_path / "log", "fill(500)\n" + LATE.replace("atexit.register(more)", ""), FIRST)
    assert (done.returncode, done.stderr) == (0, "")
    assert values(tmp_path / "log") == [b"%d" % number for number in range(RECORDS)]


def test_a_forked_child_writes_nothing_of_its_parents(tmp_path: Path) -> None:
    done = ended(tmp_path / "log", "fill()\nif not os.fork(): sys.exit()\nos.wait()")
    assert (done.returncode, done.stderr) == (0, "")
    assert values(tmp_path / "log") == [b"%d" % number for number in range(RECORDS)]


def test_what_cannot_be_written_is_counted(tmp_path: Path) -> None:
    done = ended(tmp_path / "log", "fill(10)\nfor _ in range(3): appender.append(bytes(2000))")
    assert "RuntimeWarning: 3 records of an appender of t were not written: " in done.stderr
    assert "max.message.bytes is 1000" in done.stderr
    assert values(tmp_path / "log") == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("end", ["appender.flush()", "appender.close()", "log.close()"])
def test_what_a_call_has_raised_is_not_counted_again(end: str, tmp_path: Path) -> None:
    program = f"""
fill(10)
appender.append(bytes(2000))
try:
    {end}
except tiered.TieredError as error:
    print(error.code)
"""
    done = ended(tmp_path / "log", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() != []
