"""Both twins of the kernels beside each other, whichever is at work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tiered.errors import TieredError
from tiered.format import kernels, pure_kernels

COMPILED = "tiered.format._kernels"
compiled: Any = importlib.import_module(COMPILED) if importlib.util.find_spec(COMPILED) else None
"""None if it is not built."""

needs_both = pytest.mark.skipif(compiled is None, reason="the compiled kernels are not built (make setup)")

NAMES = tuple(sorted({*kernels._TWINS, *kernels._COMPILED_ALONE} - {"PlainLock", "TurnLock"}))


@contextmanager
def at_work(twin: Any) -> Iterator[None]:
    """Within it the kernels are those of ``twin``."""
    before = {name: getattr(kernels, name) for name in (*NAMES, "KERNELS_IN_USE")}
    try:
        for name in NAMES:
            setattr(kernels, name, getattr(twin, name, kernels._odd))
        kernels.KERNELS_IN_USE = kernels.PURE if twin is pure_kernels else "compiled"
        yield
    finally:
        for name, function in before.items():
            setattr(kernels, name, function)


def outcome(call: Callable[[], object]) -> object:
    """What it returns, or what it raises with all that an error says."""
    try:
        return call()
    except TieredError as error:
        return type(error), str(error), error.message, error.hint, vars(error)
    except Exception as error:  # noqa: BLE001 - whatever the other twin raises
        return type(error), str(error)


def both(call: Callable[[], object]) -> tuple[object, object]:
    """The outcome of each twin: compiled, pure."""
    with at_work(compiled):
        ours = outcome(call)
    with at_work(pure_kernels):
        return ours, outcome(call)


@pytest.fixture(autouse=True, params=["compiled", "pure"])
def each_twin(request: pytest.FixtureRequest) -> Iterator[None]:
    """Imported into a module, it holds both twins to every test of it."""
    if request.param == "compiled" and compiled is None:
        pytest.skip("the compiled kernels are not built (make setup)")
    with at_work(compiled if request.param == "compiled" else pure_kernels):
        yield
