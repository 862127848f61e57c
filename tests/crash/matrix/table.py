"""The operations."""

from __future__ import annotations

from tests.crash.matrix.appends import APPENDS
from tests.crash.matrix.lifecycles import LIFECYCLES
from tests.crash.matrix.removals import REMOVALS

OPERATIONS = (*APPENDS, *REMOVALS, *LIFECYCLES)
