"""The checks of the model can fail: each is broken on purpose."""

from __future__ import annotations

import pytest

from tiered.model import NewRecord
from tiered.testing.model import ModelLog


@pytest.mark.parametrize(("end", "complaint"), [(1, "promised 2"), (4, "middle of a call"), (6, "appended 5")])
def test_a_log_that_comes_back_wrong_is_noticed(end: int, complaint: str) -> None:
    model = ModelLog()
    model.append([NewRecord(b"a"), NewRecord(b"b")], 0)
    model.flush()
    model.append([NewRecord(b"c")] * 3, 0)
    with pytest.raises(AssertionError, match=complaint):
        model.power_cut(end)


def test_a_log_that_comes_back_at_a_call_is_accepted() -> None:
    model = ModelLog()
    model.append([NewRecord(b"a"), NewRecord(b"b")], 0)
    model.append([NewRecord(b"c")] * 3, 0)
    model.power_cut(2)
    assert (model.end, len(model.records)) == (2, 2)
