"""The status text and the health server, each by itself."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.world import topic_id, tp
from tiered.engine.status import PartitionView, Waiting
from tiered.errors import ConfigError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.uploader_files import OFFSET_CHECKPOINT_NAME
from tiered.model import NewRecord
from tiered.plan.pacing import ALL_TOPICS, Pause
from tiered.program.uploader_status import UnsafeReason, reasons_of, verdict, wait_line
from tiered.store.location import StoreLocation
from tiered.testing.clock import FakeClock
from uploader import health
from uploader.config import Settings
from uploader.health import HealthServer, Probes
from uploader.service import Service, ServicePlace
from uploader.telemetry import LOGGER_NAME, JsonFormatter, TextFormatter


async def test_a_directory_that_cannot_be_read_is_not_ready(tmp_path: Path) -> None:
    """All records of earlier scans were uploaded, so nothing else ever reported those that came since."""
    path = tmp_path / "log"
    with LocalLog.open(path, clock=FakeClock()) as log:
        log.create_topic("t", 1, topic_id=topic_id())
        log.partition(tp(0)).append([NewRecord(b"v")])
        log.partition(tp(0)).roll()
    place = ServicePlace(path, StoreLocation.parse(f"file://{tmp_path / 'store'}"))
    service = Service(place, Settings(http=None, scan=10))
    running = asyncio.create_task(service.run())
    checkpoint = path / OFFSET_CHECKPOINT_NAME

    async def seen(ready: bool) -> list[str]:
        async with asyncio.timeout(60):
            while bool(service._not_ready()) is ready or not checkpoint.exists():
                await asyncio.sleep(0.01)
        return service._not_ready()

    assert (await seen(True), service.status()["unread"]) == ([], None)
    assert reasons_of(service.status()) == []
    kept = checkpoint.read_bytes()
    checkpoint.write_bytes(b"?")
    (why,) = await seen(False)
    assert why.startswith(f"the log directory cannot be read: {checkpoint} cannot be read: ")
    document = service.status()
    assert (document["unread"]["reason"], document["out_of_service"]) == (why.partition("read: ")[2], [])
    assert [(each.code, each.text) for each in reasons_of(document)] == [("unreadable", why)]
    checkpoint.write_bytes(kept)
    assert (await seen(True), service.status()["unread"]) == ([], None)
    service.finish(60_000)
    assert (await running).code == 0


def view(**changes: object) -> PartitionView:
    values: dict[str, object] = {
        "tp": tp(0),
        "topic_id": topic_id(),
        "phase": "claimed",
        "claim_epoch": 3,
        "local_start_offset": 0,
        "end_offset": 1_204_991,
        "flushed_offset": 1_204_000,
        "uploaded_offset": 1_198_004,
        "lag_bytes": 11_744_051,
        "lag_ms": 188_000,
        "oldest_unuploaded_ms": 7_500_000,
        "segments_waiting": 3,
        "uploading": 1,
        "waiting": Waiting("permission", "uploading: AccessDenied", 940_000, "allow s3:PutObject"),
        **changes,
    }
    return PartitionView(**values)  # type: ignore[arg-type]  # a test may change any field


def document(**changes: object) -> dict[str, Any]:
    lines = [view(**changes)]
    store = {"oldest_request": {"op": "", "seconds": 0.0, "overdue": False}}
    return {**health.status_document(lines, now_ms=1_000_000, remote="s3://b", lag_limit_ms=600_000), "store": store}


@pytest.mark.parametrize(
    ("wait", "code"),
    [
        ("permission", "refused"),
        ("retry", "unavailable"),
        ("corruption", "damaged"),
        ("offset_gap", "damaged"),
        ("internal", "failed"),
        ("fenced", "fenced"),
        *((work, None) for work in ("seal", "upload", "commit", "pool", "claim", "topic", "cancel", "paused")),
    ],
)
def test_what_a_partition_waits_for_is_a_reason_or_work(wait: str, code: str | None) -> None:
    found = reasons_of(document(waiting=Waiting(wait, "because", 940_000, "that")))
    assert [each.code for each in found] == ([] if code is None else [code])
    for each in found:
        assert (each.text, each.since_ms, each.unblocks, each.topic, each.partition) == (
            *("t-0: because", 940_000, "that"),
            *("t", 0),
        )


def test_the_line_of_a_partition_knows_a_pause_before_its_uploader() -> None:
    (line,) = document(waiting=Waiting("seal", "5 bytes are in the active segment", 940_000, "a roll"))["partitions"]
    (waits,) = wait_line(line, 1_000_000)
    assert waits == "  waits    seal since 1m00s: 5 bytes are in the active segment; unblocked by a roll"
    assert list(wait_line(line, 1_000_000, Pause(5, "why"))) == ["  waits    paused: uploads are paused (why)"]


def test_work_that_takes_longer_than_the_limit_is_behind() -> None:
    waiting = Waiting("upload", "1 segment is being uploaded", 940_000, "the end of the uploads")
    assert reasons_of(document(waiting=waiting, lag_ms=600_000)) == []
    (late,) = reasons_of(document(waiting=waiting, lag_ms=600_001))
    assert (late.code, late.since_ms) == ("behind", 399_999)


def test_the_first_line_names_the_worst() -> None:
    assert verdict([], 0, "0 records") == "safe"
    low, refused = UnsafeReason("disk_low", "it is full"), UnsafeReason("refused", "t-0: 403", 0)
    assert verdict([low], 0, "0 records") == "NOT SAFE: the disk is nearly full: it is full"
    assert verdict([low, refused], 2, "2 records") == (
        "NOT SAFE: uploads are refused since 1970-01-01T00:00:00Z, 2 records on this disk only: t-0: 403"
        " (and 1 more below)"
    )


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_the_health_server_answers_and_is_not_impressed_by_rubbish() -> None:
    beat, missing, paused = [0], ["t-0 is not claimed"], ["t", ALL_TOPICS]
    probes = Probes(lambda: beat[0], lambda: missing, lambda: b"metric 1\n", dict, lambda: paused)
    server = HealthServer(probes, "127.0.0.1", 0)
    await server.start()
    try:
        with pytest.raises(ConfigError, match="cannot listen on"):
            await HealthServer(probes, "127.0.0.1", server.port).start()
        assert b"200 OK" in await ask(server.port, b"GET /livez HTTP/1.1\r\n\r\n")
        beat[0] = 60_000
        assert b"503" in await ask(server.port, b"GET /healthz?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\nt-0 is not claimed\n")
        missing.clear()
        ready = await ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert (b"200 OK" in ready, ready.endswith(b"\r\n\r\nready, paused: all topics, t\n")) == (True, True)
        paused.clear()
        assert (await ask(server.port, b"GET /readyz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\nready\n")
        assert (await ask(server.port, b"HEAD /metrics HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert b"405" in await ask(server.port, b"POST /metrics HTTP/1.1\r\n\r\n")
        assert b"400" in await ask(server.port, b"\x16\x03\x01rubbish\r\n\r\n")
        assert await ask(server.port, b"G" * 100_000 + b"\r\n\r\n") == b""
        assert b"404" in await ask(server.port, b"GET /../../etc/passwd HTTP/1.1\r\n\r\n")
    finally:
        await server.close()


def test_a_log_line_has_its_event_its_fields_and_its_traceback() -> None:
    try:
        raise ConfigError("because")
    except ConfigError as error:
        caught = (type(error), error, error.__traceback__)
    record = logging.LogRecord(LOGGER_NAME, logging.ERROR, "", 0, "%s", ("t-0: because",), caught)
    record.tiered_event, record.tiered_fields = "failed", {"topic": "t", "partition": 0}
    line = json.loads(JsonFormatter().format(record))
    found = (line["level"], line["event"], line["message"], line["topic"], line["partition"])
    assert found == ("error", "failed", "t-0: because", "t", 0)
    assert "Traceback" in line["traceback"]
    text, _, traceback = TextFormatter().format(record).partition("\n")
    assert text == "ERROR   failed t-0: t-0: because"
    assert traceback.startswith("Traceback")
    others = logging.LogRecord("botocore", logging.WARNING, "", 0, "slow", (), None)
    assert json.loads(JsonFormatter().format(others))["logger"] == "botocore"
    assert TextFormatter().format(others) == "WARNING botocore: slow"
