"""The producers of a partition, read from its files: what they wrote last, and which transactions are open."""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.errors import CorruptionError, NotFoundError
from tiered.format.keys import snapshot_name
from tiered.format.producer_snapshot import ProducerEntry, decode_snapshot
from tiered.local.disk.files import Files
from tiered.local.disk.snapshots import snapshot_offsets
from tiered.local.segment.reading import View
from tiered.local.segment.scan import LogFile
from tiered.plan.producer_tails import ProducerTails

LOGGER = logging.getLogger("tiered.local")


def live_producers(files: Files, directory: Path, view: View, now_ms: int) -> tuple[ProducerEntry, ...]:
    """From the newest snapshot that can be read and the headers of the batches behind it, to the end of the view.

    Raises CorruptionError where lengths lead nowhere, NotFoundError if a file left meanwhile.
    """
    offset, tails = _newest_snapshot(files, directory, view)
    for extent in view.extents:
        if extent.end_offset <= offset or not extent.size_bytes:
            continue
        position = extent.segment.lookup.position_of(offset) if offset > extent.base_offset else 0
        with LogFile(files, extent.segment.path) as log:
            for span, batch in log.batches(position, extent.size_bytes):
                if span.last_offset >= offset:
                    tails.observe(log.header(batch, span.position))
    return tails.live(now_ms)


def stable_offset(producers: tuple[ProducerEntry, ...], end_offset: int) -> int:
    """The first offset of the oldest open transaction, else the end."""
    return min([p.txn_first_offset for p in producers if p.txn_first_offset >= 0], default=end_offset)


def _newest_snapshot(files: Files, directory: Path, view: View) -> tuple[int, ProducerTails]:
    for offset in reversed(snapshot_offsets(files, directory)):
        if not view.start_offset <= offset <= view.end_offset:
            continue
        try:
            return offset, ProducerTails(decode_snapshot(files.read(directory / snapshot_name(offset))))
        except (CorruptionError, NotFoundError) as error:
            LOGGER.warning("snapshot_passed_over path=%s error=%s", directory / snapshot_name(offset), error)
    return 0, ProducerTails()
