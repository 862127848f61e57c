"""Web collector: an HTTP endpoint that appends events and answers when they are on the disk. On asyncio.

    $ pip install fastapi uvicorn
    $ uvicorn --app-dir examples web_collector:app
    $ curl --json '{"page": "/prices"}' localhost:8000/events/V-42

One process writes a log directory. So run one worker of uvicorn: appends are fast, and one fsync serves all requests
that wait for one. A second machine has a directory and a topic of its own.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fastapi
import pydantic

import tiered

REMOTE = os.environ.get("TIERED_REMOTE", "file:///tmp/tieredlog-bucket")
LOG_DIR = os.environ.get("TIERED_LOG_DIR", "data/events")


class Event(pydantic.BaseModel):
    """One view of a page."""

    page: str
    seconds: float = 0


@asynccontextmanager
async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    """Have the log open while the server runs. Upload the rest when it stops."""
    async with tiered.aio.open(LOG_DIR, remote=REMOTE, uploader=tiered.uploader.Uploader()) as log:
        app.state.events = events = await log.topic("events", partitions=3, create=True)
        async with events.appender(linger_ms=2, durability="disk") as app.state.appender:
            yield
        await log.sync(timeout=25)


app = fastapi.FastAPI(lifespan=lifespan)


@app.post("/events/{visitor}", status_code=201)
async def collect(visitor: str, event: Event) -> dict[str, int]:
    """Append one event. A client that gets an answer will find it after a power cut."""
    receipt = await app.state.appender.append(event.model_dump_json().encode(), key=visitor.encode())
    stored = await receipt.result()
    return {"partition": stored.partition, "offset": stored.offset}


@app.get("/events")
async def recent(since: str = "-5m", most: int = 100) -> list[Event]:
    """Return events from a time on, such as `-5m` or `2026-01-31T12:00`. They come from the disk and the bucket."""
    found: list[Event] = []
    async for record in app.state.events.read(since=since):
        found.append(Event.model_validate_json(record.value))
        if len(found) == most:
            break
    return found


@app.exception_handler(tiered.TieredError)
async def failed(request: fastapi.Request, error: tiered.TieredError) -> fastapi.responses.JSONResponse:
    """Answer with the stable code of the error. A client may repeat a request after 503."""
    status = 503 if error.retriable else 400 if isinstance(error, tiered.errors.InvalidTimestampError) else 500
    return fastapi.responses.JSONResponse({"error": error.code}, status)
