"""Restore on the calling thread."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from tiered import arguments
from tiered.clock import Clock, IdSource, SystemClock, SystemIds
from tiered.config import S3Keywords
from tiered.findings import Progress, handed_on
from tiered.local.disk.files import Files, PosixFiles
from tiered.restoring.plan import RestoreOptions
from tiered.restoring.restore import RestoreReport, restore_steps
from tiered.store.place import Place, open_place
from tiered.store.runner import Runner


def restore(
    store: Place,
    directory: str | Path,
    options: RestoreOptions = RestoreOptions(),
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    files: Files | None = None,
    progress: Progress | None = None,
    **s3: Unpack[S3Keywords],
) -> RestoreReport:
    """Build ``directory`` from ``store``. An error leaves nothing on disk.

    Raises ConfigError if the directory exists and is not empty, UnknownTopicError, NotFoundError if the bucket has no
    topics, DiskFullError before the first fetch. Raises CorruptionError if objects do not match the catalog, or a root
    is lost, or (unless ``options`` selects topics) the bucket has partitions that its registry does not name.
    """
    target = arguments.path("directory", directory)
    clock, ids = clock or SystemClock(), ids or SystemIds()
    with open_place(store, s3) as asked:
        steps = restore_steps(asked.url, target, options, clock=clock, ids=ids, files=files or PosixFiles())
        return Runner(asked, clock, ids).run(steps, handed_on(progress))
