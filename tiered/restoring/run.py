"""``restore`` on the calling thread."""

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
    """Builds ``directory`` from ``store``. Raises ``ConfigError`` if it exists and is not empty, ``UnknownTopicError``,
    ``NotFoundError`` (no topics in the bucket), ``DiskFullError`` before the first byte is fetched,
    ``CorruptionError`` for objects that are not what the catalog says, for a root that is lost, and for a bucket that
    holds more than its registry names: less than all is restored only of what was selected. On an error nothing is
    left behind.
    """
    target = arguments.path("directory", directory)
    clock, ids = clock or SystemClock(), ids or SystemIds()
    with open_place(store, s3) as asked:
        steps = restore_steps(asked.url, target, options, clock=clock, ids=ids, files=files or PosixFiles())
        return Runner(asked, clock, ids).run(steps, handed_on(progress))
