"""Journal, scanner, settings, status text and the health server, each by itself."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import sealed_in
from tests.support.faulty_files import FaultyFiles
from tests.unit.engine.world import topic_id, tp
from tiered.config import TopicConfig
from tiered.engine.drain import DrainMode
from tiered.engine.journal import COMPACT_LINES, Entry, Journal
from tiered.engine.partition import SegmentRef
from tiered.engine.scanner import Look, Scanner
from tiered.engine.status import PartitionView, Waiting
from tiered.errors import ClosedError, ConfigError, LocalIOError, NotFoundError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import JOURNAL_NAME, OFFSET_CHECKPOINT_NAME
from tiered.model import NewRecord, TopicPartition
from tiered.plan.pacing import ALL_TOPICS, Pause
from tiered.program.settings import parse_http
from tiered.program.uploader_status import UnsafeReason, reasons_of, verdict, wait_line
from tiered.store.location import StoreLocation
from tiered.testing.clock import FakeClock
from uploader import health
from uploader.config import Settings, resolve
from uploader.health import HealthServer, Probes
from uploader.service import Service, ServicePlace

FILES = PosixFiles()


def entry(base: int, epoch: int = 1, name: str = "k") -> Entry:
    return Entry(tp(0), epoch, base, f"{name}{base}.log", f"{name}{base}.idx")


def test_the_journal_survives_a_torn_line_and_forgets_what_is_done(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FILES)
    journal.put(entry(0))
    journal.put(entry(10))
    journal.part("k10.log", "u1")
    journal.part("k10.log", "u2")
    journal.done(["k0.log", "unknown"])
    journal.close()
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(path.read_bytes() + b'not json\n{"op":"put","topic":"t","par')
    again = Journal(tmp_path, FILES)
    assert again.skipped_lines == 1
    (left,) = again.before(tp(0), 2)
    assert (left.base, left.upload_ids) == (10, ("u1", "u2"))
    assert again.before(tp(0), 1) == []
    assert again.before(tp(1), 9) == []
    again.put(entry(20))
    again.close()
    assert [one.base for one in Journal(tmp_path, FILES).between(tp(0), 0, 21)] == [10, 20]


def test_what_the_journal_announces_is_durable_at_once(tmp_path: Path) -> None:
    """Before the first byte of an upload: a name that is forgotten is litter that nobody looks for."""
    files = FaultyFiles()
    journal = Journal(tmp_path, files)
    for announce, expected in (
        (lambda: journal.put(entry(0)), ["write", "sync"]),
        (lambda: journal.part("k0.log", "u1"), ["write", "sync"]),
        (lambda: journal.done(["k0.log"]), ["write"]),
    ):
        files.effects.clear()
        announce()
        assert files.effects == [(name, tmp_path / JOURNAL_NAME) for name in expected]
    journal.close()


def test_the_journal_does_not_grow_without_bound(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FILES)
    journal.put(entry(7, name="stays"))
    for base in range(COMPACT_LINES):
        journal._append([], sync=False)
        journal._put(entry(base))
        journal._lines += 1
        journal.done([f"k{base}.log"])
    assert len((tmp_path / JOURNAL_NAME).read_bytes().splitlines()) < COMPACT_LINES
    journal.close()
    assert [one.log_key for one in Journal(tmp_path, FILES).before(tp(0), 2)] == ["stays7.log"]


def test_the_journal_is_opened_again_where_no_handle_was_left(tmp_path: Path) -> None:
    """Another process has uploaded the directory meanwhile, and while the journal is rewritten."""
    none_left = False
    opening = ("open", JOURNAL_NAME)
    files = FaultyFiles(lambda what, path: errno.EMFILE if none_left and (what, path.name) == opening else 0)
    journal = Journal(tmp_path, files)
    journal.put(entry(0))
    with_others = Journal(tmp_path, FILES)
    with_others.put(entry(10))
    with_others.close()
    none_left = True
    for _ in range(2):
        with pytest.raises(LocalIOError):
            journal.refresh()
    none_left = False
    journal.refresh()
    assert [one.base for one in journal.before(tp(0), 2)] == [0, 10]
    journal._lines = 2 * COMPACT_LINES
    none_left = True
    with pytest.raises(LocalIOError):
        journal.done(["k0.log"])
    with pytest.raises(LocalIOError):
        journal.put(entry(20))
    none_left = False
    journal.put(entry(30))
    for found in (journal, Journal(tmp_path, FILES)):
        assert [one.base for one in found.before(tp(0), 2)] == [10, 30]
        found.close()
    with pytest.raises(ClosedError):
        journal.put(entry(40))


def test_the_scanner_tells_sealed_segments_once_and_never_reads_the_active_one(tmp_path: Path) -> None:
    clock = FakeClock()
    config = TopicConfig.from_properties({"segment.bytes": 2048, "segment.index.bytes": 1024})
    with LocalLog.open(tmp_path, clock=clock) as log:
        log.create_topic("t", 1, config, topic_id(1000))
        partition = log.partition(tp(0))
        for _ in range(30):
            partition.append([NewRecord(b"v" * 100)])
        scanner = Scanner(tmp_path, FILES, clock)
        look = scanner.scan()
        found = sealed_in(look)
        local = [segment.descriptor for segment in partition.sealed_segments()]
        assert [(s.base, s.end, s.size_bytes) for s in found] == [
            (d.base_offset, d.end_offset, d.size_bytes) for d in local
        ]
        (seen,) = look.seen
        assert (seen.local_start_offset, seen.end_offset) == (0, found[-1].end + 1)
        assert seen.active_bytes > 0
        assert look.writer
        assert scanner.scan() == Look()
        active = tmp_path / "t-0" / f"{found[-1].end:020d}.log"
        active.chmod(0)  # a look into it would fail, at least for those who are not root
        assert scanner.scan() == Look()
        active.chmod(0o644)
        partition.roll()
        assert [segment.base for segment in sealed_in(scanner.scan())] == [found[-1].end]
        segment = scanner.segment(tp(0), found[0])
        assert segment.descriptor == local[0]
    for path in sorted((tmp_path / "t-0").iterdir()):
        path.unlink()
    (tmp_path / "t-0").rmdir()
    assert scanner.scan().gone == [tp(0)]


def test_the_scanner_tells_a_topic_anew_that_was_made_again_since_the_last_scan(tmp_path: Path) -> None:
    """Its directory is there at both looks, with segments that begin where those of the deleted one did."""
    with LocalLog.open(tmp_path, clock=FakeClock()) as log:
        for name, number in (("t", 1000), ("u", 2000)):
            log.create_topic(name, 2, topic_id=topic_id(number))
            log.partition(TopicPartition(name, 0)).append([NewRecord(b"old")])
            log.partition(TopicPartition(name, 0)).roll()
        scanner = Scanner(tmp_path, FILES, FakeClock())
        scanner.scan()
        log.delete_topic("t")
        log.create_topic("t", 1, topic_id=topic_id(3000))
        log.partition(tp(0)).append([NewRecord(b"new")])
        log.partition(tp(0)).roll()
        with pytest.raises(NotFoundError, match="t-5 is not in"):
            scanner.segment(tp(5), SegmentRef(0, 1, 1, 0))
        look = scanner.scan()
        assert look.gone == [tp(0), tp(1)]
        (seen,), (again,) = look.seen, sealed_in(look)
        assert (seen.tp, seen.topic_id, again.base) == (tp(0), topic_id(3000), 0)
        segment = scanner.segment(tp(0), again)
        assert (segment.topic_id, scanner.topic_id(tp(0))) == (topic_id(3000), topic_id(3000))
        assert scanner.scan() == Look()


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


def test_the_scanner_names_a_directory_that_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"has no meta\.properties"):
        _ = Scanner(tmp_path, FILES, FakeClock()).volume_id


def test_settings_come_from_flag_environment_file_default_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "tiered.toml"
    text = 'log_dir = "/file"\nremote = "s3://b/${STAGE}"\njson = true\n[uploader]\nscan = "2s"\nuploads = 8\n'
    path.write_text(text)
    environ = {"STAGE": "prod", "TIERED_LOG_DIR": "/env", "TIERED_UPLOADER_UPLOADS": "9", "TIERED_OTHER": "x"}
    found = resolve({"uploads": 10, "scan": None, "drain": "sealed"}, environ, path)
    assert (found.log_dir, found.remote, found.uploads, found.scan) == (Path("/env"), "s3://b/prod", 10, 2000)
    assert (found.drain, found.http) == (DrainMode.SEALED, ("127.0.0.1", 9464))
    assert resolve({}, {}, None) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[uploader]\nuplods = 1", "the key uplods is not known .did you mean uploads?"),
        ("log-dri = 'x'", "the key log-dri is not known"),
        ("memory = '1GiB'", r"the key memory is not known .memory belongs in the table .uploader."),
        ("[uploder]\nuploads = 1", r"the key uploder is not known .did you mean uploader\?"),
        ("uploader = 3", "uploader is not a table"),
        ("[uploader]\nuploads = 0", "0 is not a whole number of at least 1"),
        ("[uploader]\nuploads = true", "not a whole number"),
        ("[uploader]\nscan = 'soon'", "soon"),
        ("[uploader]\nscan = 5", "scan in .*: 5 has no unit .5s"),
        ("[uploader]\nhttp = 9464", "9464 is not a text"),
        ("[uploader]\nhttp = 'x:y'", "is not host:port"),
        ("[uploader]\ndrain = 'most'", "none of inflight, sealed, all"),
        ("[uploader]\nscan = [1]", r"not a text or a number"),
        ("remote = '${NOWHERE}'", "is not in the environment"),
        ("[uploader]\nseal-idle = '1m'\nseal_idle = '2m'", "seal_idle is given twice"),
        ("= 3", "is not TOML"),
    ],
)
def test_wrong_settings_are_refused_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tiered.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        resolve({}, {}, path)
    assert "tiered.toml" in str(raised.value)


def test_the_http_address() -> None:
    assert parse_http("off") is None
    assert parse_http("[::1]:80") == ("::1", 80)
    assert parse_http(":0") == ("127.0.0.1", 0)


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
