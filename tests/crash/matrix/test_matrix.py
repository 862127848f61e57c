"""Each operation of the hot tier, crashed and failed at its calls; a sample unless TIERED_CRASH_MATRIX=all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.matrix.runner import SEED, Matrix, Operation
from tests.crash.matrix.table import OPERATIONS


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.name for operation in OPERATIONS])
def test_what_was_promised_is_there(operation: Operation, tmp_path: Path) -> None:
    print(f"TIERED_CRASH_SEED={SEED}")
    result = Matrix(operation, tmp_path).run()
    assert result.failed == []
    assert result.checked > 0
