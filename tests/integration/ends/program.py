"""A program whose main thread ends before its work does: ``python -m tests.integration.ends.program MODE DIR URL``.

first_use     nothing of the log was used before
opened        all is open already, and used
at_exit       as ``first_use``, in a function of ``atexit``

Prints what each call gave as one JSON object.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiered

RECORDS = 30
SEGMENT_BYTES = 256 * 1024
BIG = bytes(100_000)
SECONDS = 60.0


def blocking(home: Path, remote: str, s3: dict[str, Any]) -> dict[str, Any]:
    """Every way that blocks, from the open on."""
    with tiered.open(home / "inline", f"{remote}/inline", **s3) as log:
        topic = log.topic("t", create=True)
        topic.append(b"1")
        log.sync(SECONDS)
        inline = [record.value.decode() for record in topic.read() if record.value]
    with tiered.open(home / "uploader", f"{remote}/uploader", uploader=tiered.uploader.Uploader(), **s3) as log:
        topic = log.topic("t", create=True, config={"segment.bytes": SEGMENT_BYTES})
        for _ in range(5):
            topic.append(BIG)
        log.sync(SECONDS)
        uploaded = topic.positions(0).uploaded_offset
    with tiered.open_reader(f"{remote}/filled", **s3) as reader:
        return {
            "sync": inline,
            "uploader": uploaded,
            "topics": sorted(reader.topics()),
            "read": sum(1 for _ in reader.topic("t").read()),
            "find": [record.offset for record in reader.find("t", key=b"k3")],
            "arrow": reader.to_arrow("t").num_rows,
        }


async def on_a_loop(home: Path, remote: str, s3: dict[str, Any], before: Callable[[], Any] | None) -> dict[str, Any]:
    """Every way of asyncio; ``before`` is awaited once all is open and used."""
    async with (
        tiered.aio.open(home / "aio", f"{remote}/aio", **s3) as log,
        tiered.aio.open_reader(f"{remote}/filled", **s3) as reader,
    ):
        topic = await log.topic("t", create=True)
        if before is not None:
            await topic.append(b"0")
            await log.sync(SECONDS)
            await reader.topics()
            await before()
        await topic.append(b"1")
        await log.sync(SECONDS)
        read = await reader.topic("t")
        return {
            "aio sync": [record.value.decode() async for record in topic.read() if record.value][-1],
            "aio topics": sorted(await reader.topics()),
            "aio read": len([record async for record in read.read()]),
            "aio find": [record.offset async for record in await reader.find("t", key=b"k3")],
            "aio arrow": (await reader.to_arrow("t")).num_rows,
        }


def opened(home: Path, remote: str, s3: dict[str, Any]) -> None:
    """All is open and at work when the main thread ends."""
    log = tiered.open(home / "uploader", f"{remote}/uploader", uploader=tiered.uploader.Uploader(), **s3)
    topic = log.topic("t", create=True, config={"segment.bytes": SEGMENT_BYTES})
    topic.append(BIG)
    reader = tiered.open_reader(f"{remote}/filled", **s3)
    reader.to_arrow("t")
    ready = threading.Event()

    def work() -> None:
        ready.wait(SECONDS)
        threading.main_thread().join()
        for _ in range(5):
            topic.append(BIG)
        log.sync(SECONDS)
        found = {
            "uploader": topic.positions(0).uploaded_offset,
            "error": topic.positions(0).uploader_error,
            "read": sum(1 for _ in topic.read()),
            "arrow": reader.to_arrow("t").num_rows,
            "find": [record.offset for record in reader.find("t", key=b"k3")],
        }
        log.close()
        reader.close()
        found |= looped
        print(json.dumps(found))

    looped: dict[str, Any] = {}
    ended = threading.Event()

    def loop() -> None:
        async def until_main_ended() -> None:
            over, here = asyncio.Event(), asyncio.get_running_loop()
            ready.set()

            def watch() -> None:
                threading.main_thread().join()
                here.call_soon_threadsafe(over.set)

            threading.Thread(target=watch, daemon=True).start()
            await over.wait()

        looped.update(asyncio.run(on_a_loop(home, remote, s3, until_main_ended)))
        ended.set()

    def both() -> None:
        looping = threading.Thread(target=loop)
        looping.start()
        looping.join(SECONDS)
        work()

    threading.Thread(target=both).start()
    ready.wait(SECONDS)


def main() -> None:
    """Runs one mode."""
    mode, home, remote = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    s3 = {"endpoint_url": sys.argv[4]} if len(sys.argv) > 4 else {}

    def all_of_it() -> None:
        found = blocking(home, remote, s3) | asyncio.run(on_a_loop(home, remote, s3, None))
        print(json.dumps(found))

    def after_main() -> None:
        threading.main_thread().join()
        all_of_it()

    match mode:
        case "first_use":
            threading.Thread(target=after_main).start()
        case "at_exit":
            atexit.register(all_of_it)
        case "opened":
            opened(home, remote, s3)


if __name__ == "__main__":
    main()
