"""Roots and pages decoded and checked once: all processes of a world read the same few bytes, and none can change what
it has of them. Half of a seed's time went there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tests.sim.bucket import ledger
from tiered.format import page, root
from tiered.format.root import Root
from tiered.plan.invariants import CHANGE_CHECKS, Violation, check_root
from tiered.remote import root_view, roots
from tiered.remote.gc import sink_orphans

DECODERS = (
    (root_view, "decode_root"),
    (roots, "decode_root"),
    (sink_orphans, "decode_root"),
    (ledger, "decode_root"),
    (root, "decode_root"),
    (page, "_decoded"),
)
CHECKERS = (root_view, roots, ledger)


def _remembering(decode: Callable[..., Any], known: dict[tuple[Any, ...], Any]) -> Callable[..., Any]:
    def remembered(data: bytes, *arguments: Any, **options: Any) -> Any:
        asked = (decode.__name__, data, *arguments, *options.values())
        found = known.get(asked)
        if found is None:
            found = known[asked] = decode(data, *arguments, **options)
        return found

    return remembered


class _Checked:
    """``check_root``: what one root alone must be is looked at once."""

    def __init__(self) -> None:
        self._sound: dict[int, Root] = {}  # by identity, which is nobody else's while the root is held here

    def __call__(self, root: Root, previous: Root | None = None) -> list[Violation]:
        if id(root) not in self._sound:
            if flaws := check_root(root, previous):
                return flaws
            self._sound[id(root)] = root
            return []
        if previous is None:
            return []
        return [
            Violation(sentence, what) for sentence, check in CHANGE_CHECKS.items() for what in check(root, previous)
        ]


@contextlib.contextmanager
def decoded_once() -> Iterator[None]:
    """For as long as one world runs."""
    known: dict[tuple[Any, ...], Any] = {}
    checked = _Checked()
    correct = [(module, name, getattr(module, name)) for module, name in DECODERS]
    correct += [(module, "check_root", module.check_root) for module in CHECKERS]  # type: ignore[attr-defined]  # imported
    try:
        for module, name in DECODERS:
            setattr(module, name, _remembering(getattr(module, name), known))
        for module in CHECKERS:
            module.check_root = checked  # type: ignore[attr-defined]  # they import it
        yield
    finally:
        for module, name, function in correct:
            setattr(module, name, function)
