"""``check`` on the calling thread."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Unpack

from tiered import arguments
from tiered.checking.check import CheckOptions, CheckReport, check_steps
from tiered.config import S3Keywords
from tiered.findings import OnFinding, Progress, handed_on
from tiered.local.disk.files import Files, PosixFiles
from tiered.store.place import Place, open_place
from tiered.store.runner import Runner


def check(
    log_dir: str | Path | None,
    store: Place | None,
    options: CheckOptions = CheckOptions(),
    *,
    files: Files | None = None,
    progress: Progress | None = None,
    on_finding: OnFinding | None = None,
    **s3: Unpack[S3Keywords],
) -> CheckReport:
    """Check a log directory, a bucket or both. ``on_finding`` gets each finding as it is made.

    Raises ``NotFoundError`` (no such directory), ``UnknownTopicError``, and the errors of a store that does not answer:
    a check that could not look is an error, never a clean report.
    """
    directory = None if log_dir is None else arguments.path("log_dir", log_dir)
    with contextlib.ExitStack() as opened:
        asked = None if store is None else opened.enter_context(open_place(store, s3))
        steps = check_steps(directory, None if asked is None else asked.url, options, files or PosixFiles())
        return Runner(asked).run(steps, handed_on(progress, on_finding))
