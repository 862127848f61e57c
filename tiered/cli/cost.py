"""Command ``tiered cost``: print the cost of a log at its store, as it is or as planned."""

from __future__ import annotations

import http.client
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from tiered.config import parse_bytes, parse_duration_ms
from tiered.errors import ConfigError, RemotePermissionError
from tiered.format.keys import is_pin_key, parse_hist_key, parse_root_key, parse_segment_key, parse_snap_key
from tiered.format.local_names import LOG_SUFFIX
from tiered.local.disk.files import PosixFiles
from tiered.local.disk.uploader_files import uploader_lock
from tiered.plan.cost import GIB, MONTH_SECONDS, PRICES, STORAGE, Workload, plan_cost, price
from tiered.program.application import Application, Command, FiniteFloat, pass_application
from tiered.program.open_store import open_remote
from tiered.program.output import counted, human_bytes, human_duration
from tiered.program.partition_status import lock_holders
from tiered.program.uploader_status import fetch
from tiered.remote.catalog import Catalog
from tiered.remote.topics import list_topics
from tiered.store.base import Steps, Store
from tiered.store.driver import drive
from tiered.store.steps import Listing, list_unfinished

_LINE = re.compile(r'^tiered_store_requests_total\{op="(\w+)",status="\w+"\} (\S+)$', re.MULTILINE)
_PARSERS = (
    ("segments", parse_segment_key),
    ("roots", parse_root_key),
    ("copies of roots", parse_hist_key),
    ("snapshots", parse_snap_key),
)
_UPLOADS = {
    "startupload": "CreateMultipartUpload",
    "uploadpart": "UploadPart",
    "completeupload": "CompleteMultipartUpload",
    "abortupload": "AbortMultipartUpload",
}
UNLIMITED = "unlimited"
"""Retention of a log that keeps everything, as a topic does by default. Kafka's -1 means the same."""
SHORT_SECONDS = 3_600
"""Shortest measurement that is extrapolated to a month. The requests of a start and of a backlog are not steady."""


@click.command("cost", cls=Command)
@click.option("--records-per-second", type=FiniteFloat(0, 1e12), metavar="N", help="plan: records of all partitions")
@click.option("--record-bytes", default="1KiB", show_default=True, metavar="SIZE", help="plan: a record, with its key")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, help="plan: partitions")
@click.option("--seal", default="10m", show_default=True, metavar="TIME", help="plan: seal.ms")
@click.option("--segment", default="64MiB", show_default=True, metavar="SIZE", help="plan: segment.bytes")
@click.option("--retention", default=UNLIMITED, show_default=True, metavar="TIME", help="plan: retention.ms, or -1")
@click.option("--readers", type=click.IntRange(0), default=0, show_default=True, help="plan: readers that follow")
@click.option("--ratio", type=FiniteFloat(0, 10), default=1.0, show_default=True, help="plan: compressed size")
@click.option("--maintain-every", metavar="TIME", help="plan: rest between rounds of maintenance  [default: none]")
@pass_application
def command(app: Application, records_per_second: float | None, **shape: str | int | float | None) -> int:
    """Print what a log costs at its store, or will cost in a month.

    With --records-per-second it is a plan, and nothing is asked of the store. Otherwise it is a report: the bucket is
    listed, at one LIST per 1,000 objects. With --log-dir the requests of its running daemon are counted, too. Old
    versions of objects are not counted.

    \b
    Examples:
      tiered cost --records-per-second 1000 --record-bytes 500 --partitions 12 --seal 10m --retention 30d --readers 2
      tiered cost --remote s3://acme-logs/prod --log-dir data --json
    """
    prices = {"day": PRICES.day, "source": PRICES.source, "put": PRICES.write, "get": PRICES.read}
    fields: dict[str, object] = {"prices": {**prices, "gib_month": PRICES.gib_month}}
    if records_per_second is not None:
        lines = [_inputs(records_per_second, shape), *_plan(workload_of(records_per_second, shape), fields)]
    else:
        app.need_remote()
        store = open_remote(app)
        try:
            lines = _report(store, fields)
        finally:
            store.close()
        lines += _requests(app, fields) if app.log_dir is not None else []
    lines.append(f"prices of {PRICES.day}: {PRICES.source}")
    return app.out.result("cost", fields, lines)


def workload_of(records_per_second: float, shape: dict[str, str | int | float | None]) -> Workload:
    """Build the workload from the options of a plan. ``shape``: options by name."""

    def seconds(name: str) -> float:
        option = "--" + name.replace("_", "-")
        found = parse_duration_ms(str(shape[name]), option) / 1000 if shape[name] is not None else 0.0
        if found < 0:
            raise ConfigError(
                f"{option}: {shape[name]!r} is less than 0", hint=f"write 0 or more, for example {option} 10m"
            )
        return found

    segment, record = parse_bytes(str(shape["segment"])), parse_bytes(str(shape["record_bytes"]))
    if record < 1:
        raise ConfigError(
            f"--record-bytes: {shape['record_bytes']!r} is less than 1", hint="write 1 or more, for example 1KiB"
        )
    if seconds("seal") <= 0 or segment < 1:
        raise ConfigError("--seal and --segment must be positive", hint="for example --seal 10m --segment 64MiB")
    return Workload(
        records_per_second,
        record,
        partitions=int(shape["partitions"] or 1),
        seal_seconds=seconds("seal"),
        segment_bytes=segment,
        retention_seconds=None if shape["retention"] in (UNLIMITED, "-1") else seconds("retention"),
        readers=int(shape["readers"] or 0),
        ratio=float(shape["ratio"] or 0),
        maintain_every_seconds=seconds("maintain_every"),
    )


def _inputs(records_per_second: float, shape: dict[str, str | int | float | None]) -> str:
    record = human_bytes(parse_bytes(str(shape["record_bytes"])))
    retention = UNLIMITED if shape["retention"] == "-1" else shape["retention"]
    every = f"every {shape['maintain_every']}" if shape["maintain_every"] else "never"
    return (
        f"for {records_per_second:,.12g} record{'' if records_per_second == 1 else 's'} per second of {record}"
        f" in {counted(int(shape['partitions'] or 1), 'partition')}, seal {shape['seal']}, segment {shape['segment']},"
        f" retention {retention}, {counted(int(shape['readers'] or 0), 'reader')}, ratio {shape['ratio']},"
        f" maintained {every}"
    )


def _plan(work: Workload, fields: dict[str, object]) -> list[str]:
    plan = plan_cost(work)
    fields |= {
        "workload": asdict(work),
        "requests": {op: round(count) for op, count in plan.requests.items()},
        "segment_bytes": round(plan.segment_bytes),
        "request_dollars": plan.request_dollars,
    }
    size, storage = human_bytes(round(plan.stored_bytes)), f"${plan.storage_dollars:,.2f}"
    segments = f"in segments of {human_bytes(round(plan.segment_bytes))}"
    requests = [
        *(f"{round(count):,} {_request_kind(op)} a month" for op, count in plan.requests.items()),
        f"requests: ${plan.request_dollars:,.2f} a month",
    ]
    if work.retention_seconds is None:
        fields |= {"growth_bytes": round(plan.stored_bytes), "growth_dollars": plan.storage_dollars}
        total = f"together: ${plan.request_dollars:,.2f} a month, and {storage} more each month"
        return [f"+{size} and {storage} each month, {segments}", *requests, total]
    together = plan.request_dollars + plan.storage_dollars
    fields |= {
        "stored_bytes": round(plan.stored_bytes),
        "storage_dollars": plan.storage_dollars,
        "month_dollars": together,
    }
    return [f"{size} stored, {segments}: {storage} a month", *requests, f"together: ${together:,.2f} a month"]


def _request_kind(op: str) -> str:
    return f"{_UPLOADS.get(op, op.upper())} requests"


def _kind(key: str) -> str:
    found = next((kind for kind, parse in _PARSERS if parse(key) is not None), "")
    if found == "segments" and not key.endswith(LOG_SUFFIX):
        return "indexes"
    return found or ("pins" if is_pin_key(key) else "other")


def _live_bytes() -> Steps[int]:
    """Return the bytes of segments that the catalogs name."""
    total = 0
    for entry in (yield from list_topics()):
        for partition in range(entry.partitions):
            root = yield from Catalog(entry.topic_id, partition, entry.name).load()
            total += 0 if root is None else root.added.size_bytes - root.removed.size_bytes
    return total


def _listed() -> Steps[tuple[Counter[tuple[str, str]], Counter[str]]]:
    """Return the bytes of all objects in the bucket by (kind, storage class), and their number by kind."""
    sizes: Counter[tuple[str, str]] = Counter()
    counts: Counter[str] = Counter()
    listing = Listing("")
    while listing.more:
        for entry in (yield from listing.page()):
            sizes[_kind(entry.key), entry.storage_class] += entry.size
            counts[_kind(entry.key)] += 1
    return sizes, counts


def _report(store: Store, fields: dict[str, object]) -> list[str]:
    sizes, counts = drive(store, _listed())
    try:
        unfinished = len(drive(store, list_unfinished(""))[0])
    except RemotePermissionError:
        unfinished = -1
    live = drive(store, _live_bytes())
    stored = sum(size for (kind, _), size in sizes.items() if kind == "segments")
    total = sum(sizes.values())
    dollars = sum(size / GIB * STORAGE.get(name, PRICES.gib_month) for (_, name), size in sizes.items())
    fields |= {
        "bytes": [{"kind": kind, "storage_class": name, "bytes": size} for (kind, name), size in sorted(sizes.items())],
        "objects": dict(counts),
        "unfinished_uploads": None if unfinished < 0 else unfinished,
        "live_segment_bytes": live,
        "garbage_bytes": max(0, stored - live),
        "storage_dollars": dollars,
    }
    lines = [f"{human_bytes(size)} of {kind}, {name}" for (kind, name), size in sorted(sizes.items())]
    return [
        *lines,
        f"{human_bytes(live)} of the segments are live; the rest is garbage until a collection",
        *([f"{counted(unfinished, 'unfinished upload')}: their parts cost, too"] if unfinished > 0 else []),
        f"{human_bytes(total)} in {counted(sum(counts.values()), 'object')}: ${dollars:,.2f} a month",
    ]


def _requests(app: Application, fields: dict[str, object]) -> list[str]:
    """Add the requests of the log directory's daemon to ``fields``. Return lines about them."""
    directory = app.log_dir or Path()
    address = str(uploader_lock(directory, PosixFiles()).note().get("http", ""))
    holder = lock_holders(directory).get("uploader")
    if not address or holder is None:
        return ["no daemon runs on the log directory: its requests are not known"]
    requests = requests_of(metrics_at(address))
    seconds = max(1.0, (app.clock.now_ms() - holder.since_ms) / 1000)
    month = price(requests) * MONTH_SECONDS / seconds if seconds >= SHORT_SECONDS else None
    fields |= {"requests": requests, "request_seconds": seconds, "request_dollars": price(requests)}
    fields["request_month_dollars"] = month
    rate = "too short to extrapolate to a month" if month is None else f"at this rate ${month:,.2f} a month"
    return [
        *(f"{count:,} {_request_kind(op)}" for op, count in sorted(requests.items())),
        f"the daemon's requests in {human_duration(round(seconds * 1000))}: ${price(requests):.6f}; {rate}",
    ]


def metrics_at(address: str) -> str:
    """Return the text of ``/metrics`` of the daemon at ``address``, ``""`` if it does not answer."""
    try:
        return fetch(address, "/metrics").decode()
    except (OSError, http.client.HTTPException):
        return ""


def requests_of(text: str) -> dict[str, int]:
    """Return the number of requests by kind, from the text of ``/metrics``."""
    found: Counter[str] = Counter()
    for op, count in _LINE.findall(text):
        found[op] += round(float(count))
    return dict(found)
