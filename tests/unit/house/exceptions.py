"""What breaks a rule of the house today. Only ever shrinks: ``test_rules.py`` fails for an entry that is mended."""

from __future__ import annotations

ROWS_OF_ROOTS: set[str] = set()
"""1: files that use ``root.rows``."""

DRIVERS: set[str] = set()
"""2: files that drive steps."""

DEEP_CLASSES: set[str] = set()
"""3: classes with more than one class of ours above them."""

WALKERS: set[str] = set()
"""4: files with a loop over batches."""

VISIBILITY: set[str] = set()
"""4: files that decide what ``read_committed`` hides."""

DIRECTORY_VIEWS: set[str] = set()
"""4: files that look at a log directory by themselves."""

UPLOADER = "tiered/engine/steps.py"
"""4: the one file that uploads."""

UPLOADERS: set[str] = set()
"""4: files that upload beside the engine."""

UNJOURNALLED: set[str] = set()
"""5: files that upload without a line of the journal."""

SIGNATURES: set[str] = set()
"""6: what one face has and the other one has not, or has otherwise."""

WITHOUT_CALLERS: set[str] = {
    # What a format fixes, by its name.
    "tiered/format/rows.py: TRASH_BYTES",
    # What tests look at, where nothing else shows it.
    "tiered/local/disk/fd_pool.py: PooledFiles.open_count",
    "tiered/plan/producer_state.py: ProducerState.producer",
}
"""8: public functions, methods, classes and constants without a caller in the product."""
