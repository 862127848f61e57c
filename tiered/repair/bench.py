"""Shared state of one repair: the log directory that it reads from, and the claims that it holds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from tiered.clock import SystemClock
from tiered.errors import TieredError
from tiered.format.keys import Role
from tiered.local.directory.read_only_log import LogView
from tiered.model import TopicPartition
from tiered.remote.cache import ByteCache
from tiered.remote.catalog import Catalog
from tiered.remote.lookup import SegmentLookup
from tiered.remote.segment_rewriter import Workshop
from tiered.remote.topics import TopicEntry
from tiered.store.base import Blocking, Steps
from tiered.store.capabilities import check_capabilities, probe


class Desk(NamedTuple):
    """One partition under a maintainer's claim: its catalog, and the workshop that writes segments."""

    catalog: Catalog
    shop: Workshop


class Workbench:
    """Shared state of the actions of one repair. Close it at the end.

    ``source``: the log directory that may hold lost segments, ``from_dir`` or else ``log_dir``.
    """

    def __init__(self, from_dir: Path | None, owner: str, log_dir: Path | None = None) -> None:
        self.source, self.owner = from_dir or log_dir, owner
        self._must_open = from_dir is not None
        self._view: LogView | None = None
        self._desks: dict[TopicPartition, Desk] = {}

    def view(self) -> Steps[LogView | None]:
        """Return the log directory that may hold lost segments, opened for reading; None without one."""
        if self._view is None and self.source is not None:
            try:
                self._view = yield Blocking(partial(LogView.open, self.source, clock=SystemClock()))
            except TieredError:
                if self._must_open:
                    raise  # a directory that is repaired, too, may be damaged itself
        return self._view

    def desk(self, tp: TopicPartition, entry: TopicEntry) -> Steps[Desk]:
        """Return the desk of a partition. The first call claims the maintainer's role: no collection runs beside it."""
        if tp not in self._desks:
            capabilities = yield from probe()
            check_capabilities(capabilities, "the store")
            catalog = Catalog(entry.topic_id, tp.partition, tp.topic, known=entry.known)
            claim = yield from catalog.claim(Role.MAINTAINER, self.owner)
            shop = Workshop(
                tp=tp,
                topic_id=entry.topic_id,
                lookup=SegmentLookup(tp, entry.topic_id, ByteCache()),
                capabilities=capabilities,
                claim_epoch=claim.epoch,
                index_interval_bytes=entry.settings.index_interval_bytes,
                lineage=claim.root.lineage,
            )
            self._desks[tp] = Desk(catalog, shop)
        return self._desks[tp]

    def close(self) -> None:
        """Close the log directory."""
        if self._view is not None:
            self._view.close()
            self._view = None
