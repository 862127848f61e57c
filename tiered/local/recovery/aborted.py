"""Holds the transaction indexes of recovered segments against their logs.

A segment that has neither transactions nor an index of them is never read for this. Where the log is damaged, or does
not know where a transaction began, nothing is changed: whoever asks is told why (``local.segment.side_files``).

Kafka's rule: docs/kafka-semantics.md#segment-recovery.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tiered.errors import CorruptionError
from tiered.format.keys import log_name, txn_index_name
from tiered.local.disk.files import Files
from tiered.local.segment.side_files import Place, settle_txn_index

LOGGER = logging.getLogger("tiered.local")


def rebuild_txn_index(files: Files, directory: Path, base_offset: int, end_offset: int) -> None:
    """Replaces the ``.txnindex`` of a sealed segment if it cannot be what the log says."""
    try:
        settle_txn_index(files, Place(directory, directory / log_name(base_offset), base_offset, end_offset), None)
    except CorruptionError as error:
        LOGGER.warning("txn_index_not_rebuilt path=%s error=%s", directory / txn_index_name(base_offset), error)


def has_entries(files: Files, directory: Path, base_offset: int) -> bool:
    """Whether anything stands in the ``.txnindex``; an entry without its marker hides what is committed later."""
    state = files.state(directory / txn_index_name(base_offset))
    return state is not None and state.size > 0
