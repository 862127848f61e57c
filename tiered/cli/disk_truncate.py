"""``tiered disk truncate``: cut a local log at an offset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from tiered.errors import ConfigError, LockedError
from tiered.local.directory.log_directory import LocalLog
from tiered.local.disk.uploader_files import uploader_lock
from tiered.local.segment.replacement import cut_end
from tiered.model import Positions, TopicPartition
from tiered.program.application import (
    Application,
    Command,
    confirm,
    one_partition,
    pass_application,
)
from tiered.program.open_log import open_directory, open_view, refuse_internal
from tiered.program.output import counted


@click.command("truncate", cls=Command)
@click.argument("partition", metavar="TOPIC:P")
@click.argument("offset", type=click.IntRange(min=0))
@pass_application
def truncate(app: Application, *, partition: str, offset: int) -> int:
    """Remove the records of a partition from OFFSET on.

    Records that a bucket holds are never removed. No writer and no uploader may be at work. The batch that holds
    OFFSET is removed whole: the log then ends where that batch began.

    \b
    Examples:
      tiered disk truncate flights:0 4711 --log-dir data --dry-run
      tiered disk truncate flights:0 4711 --log-dir data --yes
    """
    tp = one_partition(partition)
    refuse_internal(tp.topic)
    with open_view(app) as log:
        before = log.partition(tp).positions()
        _check(tp, offset, before)
        end = cut_end(log.files, log.partition(tp).view(), offset)
    fields = {
        "dry_run": app.dry_run,
        "topic": tp.topic,
        "partition": tp.partition,
        "start_offset": min(before.start_offset, end),
        "end_offset_before": before.end_offset,
        "end_offset": end,
        "removed_offsets": before.end_offset - end,
    }
    if end == before.end_offset:
        line = f"{tp} ends at offset {end} already: there is nothing to remove"
        return app.out.result("disk truncate", fields, [line])
    removed = counted(before.end_offset - end, "offset")
    kept = (
        f"the bucket holds all below {before.uploaded_offset}" if before.uploaded_offset > 0 else "no bucket has them"
    )
    whole = f"; {offset} lies in the batch that begins at {end}, which goes whole" if end < offset else ""
    app.out.say(f"{tp}: {removed} from {end} to {before.end_offset} go, {kept}{whole}")
    if not app.dry_run:
        confirm(app, "disk truncate", f"Remove {removed} of {tp}?")
        end = fields["end_offset"] = _cut(app, tp, end)
    line = f"{'dry run: ' if app.dry_run else ''}{tp} {'would end' if app.dry_run else 'ends'} at offset {end}"
    return app.out.result("disk truncate", fields, [line])


def _check(tp: TopicPartition, offset: int, positions: Positions) -> None:
    if offset > positions.end_offset:
        raise ConfigError(
            f"{tp} ends at offset {positions.end_offset}: there is nothing to cut at {offset}",
            hint=f"name an offset from {positions.start_offset} to {positions.end_offset}",
        )
    if offset < positions.uploaded_offset:
        raise ConfigError(
            f"{tp}: the bucket holds all below {positions.uploaded_offset}, the disk would end at {offset}",
            hint=f"name an offset from {positions.uploaded_offset} on: what a bucket holds is never cut here",
        )


@contextlib.contextmanager
def _without_uploader(app: Application, log: LocalLog) -> Iterator[None]:
    """Keep uploaders away: one could commit removed records afterwards. Raises LockedError."""
    lock = uploader_lock(log.directory, log.files)
    if log.files.state(lock.path) is None:  # no uploader ever ran here
        yield
        return
    try:
        lock.acquire(app.clock)
    except LockedError as error:
        error.hint = "it may be sending what would be cut: stop it, truncate, and start it again"
        raise
    try:
        log.refresh_uploads()  # its last commits are in the bucket
        yield
    finally:
        lock.release()


def _cut(app: Application, tp: TopicPartition, offset: int) -> int:
    """Cut the log. Return the end that the next open finds."""
    with open_directory(app) as log, _without_uploader(app, log):
        log.partition(tp).truncate_to(offset)
        log.transactions.positions.rewind_lost(app.clock.now_ms())
    with open_view(app) as view:
        return view.partition(tp).positions().end_offset
