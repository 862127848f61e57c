"""In which order sinks committed what they had decided, where the catalog that knew is lost. Pure.

A decision says what a batch adds to a partition, and what its driver had read of the root before: the version, and,
unless an older release made it, where the log ended. It does not say where the batch came to lie, but this is known:

::

    a commit comes after its decision               its base is at or above the end that was read
    a batch is decided once the one before of its   both lie in the order of their numbers, and the later
    id is in every partition                        one has read an end behind the earlier
    sinks add nothing but what they have decided    every end that was read is a sum of whole batches

So the ends that were read cut the log into stretches, and each holds just those batches that add up to its length. A
stretch of one batch is proven. Of one with several it is known what lies in it, and not in which order: their drivers
were at work side by side. Without ends only the batches of a single id are in a proven order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tiered.errors import CorruptionError
from tiered.format.decision import UNTOLD
from tiered.format.root import Root
from tiered.model import Row
from tiered.plan.commit import Stamp
from tiered.plan.lifecycle import Refusal
from tiered.plan.rebuild import VERSION_STEP
from tiered.plan.stage import StageIntent, forgotten_up_to

SIDE_BY_SIDE = 12
"""Batches of one stretch at most whose sums are tried: of more nothing is proven."""
FIRST_VERSIONS = 2
"""Versions of a root before anything but a sink can have moved its end: made, and claimed or handed over once."""
NAMED_BATCHES = 4
"""Batches that one sentence names; of more it tells the number."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What one decision adds to a partition. ``rows``: staged, in order. ``seen`` and ``end``: version and end of the
    root that its driver had read, the end ``UNTOLD`` where an older release decided. ``made_ms``: by the store."""

    txn: str
    batch: int
    rows: tuple[Row, ...]
    seen: int
    end: int = UNTOLD
    made_ms: int = 0

    @property
    def length(self) -> int:
        """Offsets that it takes."""
        return sum([row.next for row in self.rows])

    @property
    def name(self) -> str:
        """For people."""
        return f"batch {self.batch} of {self.txn}"


@dataclass(frozen=True, slots=True)
class Order:
    """All batches, one behind the other. Of the first ``proven`` the place is; ``why`` not of the others, ``""`` if of
    all: those are as they were decided, and each may have lain anywhere among them."""

    batches: tuple[Decided, ...]
    proven: int
    why: str = ""


def not_in(root: Root, batches: Iterable[Decided], unnamed: set[tuple[int, int]]) -> list[Decided]:
    """What ``root``, a copy that the catalog is to go on from, has not committed. ``unnamed``: both halves of the ids
    of what is staged and it does not name.

    Raises CorruptionError where that is not known: the root has forgotten an id, or is of another history.
    """
    found: list[Decided] = []
    for each in batches:
        last = root.last_batch(each.txn)
        if last >= each.batch:
            if each.seen >= root.version:
                raise _untold(
                    root,
                    f"{each.name} is in version {root.version}, and was decided after version {each.seen}: an older "
                    "root was put back, and sinks went on under it",
                )
        elif last < 0 and each.seen < forgotten_up_to(root, each.txn):
            if any((row.id_hi, row.id_lo) in unnamed for row in each.rows):
                raise _untold(root, f"whether {each.name} is committed is forgotten in version {root.version}")
        else:
            found.append(each)
    return found


def in_order(root: Root, batches: Sequence[Decided], *, fresh: bool = False, older: bool = False) -> Order:
    """Where ``batches`` lie behind the end of ``root``. ``fresh``: that is no copy, but an empty log; ``older``: it is
    one that was put back, under which sinks may have gone on.

    Nothing but sinks may have written since, and none of their decisions be missing. Raises CorruptionError where the
    decisions themselves say that this is not so.
    """
    batches = sorted(batches, key=lambda each: (each.seen, each.made_ms, each.txn, each.batch))
    _need_one_history(root, batches)
    if older:
        _need_behind(root, batches)
    if any(each.end == UNTOLD for each in batches):
        _need_versions(root, batches, fresh=fresh)
    if len({each.txn for each in batches}) > 1:
        if all(each.end != UNTOLD for each in batches):
            return _by_ends(root, batches)
        return Order(
            tuple(batches), 0, f"{_named(batches)} are of several ids, and not all say where the log ended for them"
        )
    at = root.next_offset
    for index, each in enumerate(batches):
        waited = not index and each.seen < root.version  # decided before the copy was made
        if each.end not in (UNTOLD, at) and not (waited and each.end < at):
            raise _missing(root, at, each.end, [each])
        at += each.length
    return Order(tuple(batches), len(batches))


def replayed(root: Root, batches: Sequence[Decided], stamp: Stamp) -> tuple[Root, tuple[Row, ...]]:
    """The root that the commits of ``batches``, one after the other, make of ``root``, and the rows that they add.

    Raises CorruptionError where one cannot have been made.
    """
    known = len(root.rows)
    for number, each in enumerate(batches):
        mine = replace(stamp, commit_id=f"{stamp.commit_id}-{number}")
        made = StageIntent(each.txn, each.batch, each.rows).apply(root, mine)
        if isinstance(made, Refusal):
            raise _untold(root, f"{each.name} cannot have been committed behind version {root.version}: {made.message}")
        root = made
    return root, tuple(root.rows)[known:]


def _need_one_history(root: Root, batches: Sequence[Decided]) -> None:
    """Raises CorruptionError where a later batch of an id has not seen the one before: an older root was put back."""
    newest: dict[str, Decided] = {}
    for each in sorted(batches, key=lambda each: each.batch):
        before = newest.get(each.txn)
        newest[each.txn] = each
        told = before is not None and UNTOLD not in (before.end, each.end)
        if before is not None and (each.seen <= before.seen or (told and each.end <= before.end)):
            raise _untold(
                root,
                f"{each.name} was decided after version {each.seen}, batch {before.batch} after {before.seen}: an "
                "older root was put back between them",
            )


def _need_behind(root: Root, batches: Sequence[Decided]) -> None:
    """Raises CorruptionError where something may have been committed in the place of what ``root`` has."""
    for each in batches:
        if each.seen < root.version or each.end == UNTOLD:
            raise _untold(
                root,
                f"{each.name} was decided after version {each.seen}, and version {root.version} was put back: it may "
                "have been committed since, or in the place of what was committed under that",
            )


def _need_versions(root: Root, batches: Sequence[Decided], *, fresh: bool) -> None:
    """Raises CorruptionError where versions tell of something else that may have moved the end of the log, which a
    decision that tells no end may have come behind."""
    first = batches[0]
    if fresh and first.seen > FIRST_VERSIONS:
        raise _untold(
            root,
            f"{first.name}, the first, was decided after version {first.seen}: where the log ended then nothing tells",
        )
    for before, after in itertools.pairwise([root.version, *(each.seen for each in batches)]):
        if after - before >= VERSION_STEP:
            raise _untold(root, f"the catalog was made anew between versions {before} and {after}")


def _by_ends(root: Root, batches: Sequence[Decided]) -> Order:
    """One stretch after the other."""
    placed, left, at = list[Decided](), list(batches), root.next_offset
    while left:
        due = [each for each in left if each.end <= at]
        bound = min((each.end for each in left if each.end > at), default=None)
        if bound is None and len(due) == 1:
            return Order((*placed, *due), len(placed) + 1)
        fits = [] if bound is None else _fits(due, left, at, bound)
        if bound is not None and not fits:
            raise _missing(root, at, bound, due)
        if len(fits) != 1 or len(fits[0]) != 1:
            why = f"{_named(due)} were decided side by side, and nothing tells which of them begins at offset {at}"
            return Order((*placed, *left), len(placed), why)
        (one,) = fits[0]
        placed.append(one)
        left.remove(one)
        at += one.length
    return Order(tuple(placed), len(placed))


def _fits(due: Sequence[Decided], left: Sequence[Decided], at: int, bound: int) -> list[tuple[Decided, ...]]:
    """What of ``due`` may lie from ``at`` to ``bound``, each with all that must; of too many two that are all of it."""
    must = {
        (each.txn, each.batch)
        for each in due
        if any(later.txn == each.txn and later.batch > each.batch and later.end <= bound for later in left)
    }
    if len(due) > SIDE_BY_SIDE:
        return [tuple(due), tuple(due)]
    every = (some for count in range(1, len(due) + 1) for some in itertools.combinations(due, count))
    return [
        some
        for some in every
        if sum(each.length for each in some) == bound - at and must <= {(each.txn, each.batch) for each in some}
    ]


def _named(batches: Sequence[Decided]) -> str:
    more = len(batches) - NAMED_BATCHES
    return ", ".join(each.name for each in batches[:NAMED_BATCHES]) + (f" and {more} more" if more > 0 else "")


def _missing(root: Root, at: int, end: int, due: Sequence[Decided]) -> CorruptionError:
    what = f"the decisions that are there ({_named(due)}) do not lead from offset {at} to {end}"
    return _untold(root, f"{what}, where the log ended for one of them: one is missing, or others wrote, too")


def _untold(root: Root, what: str) -> CorruptionError:
    return CorruptionError(
        f"{root.topic}-{root.partition}: at which offsets sinks have committed since is not known: {what}",
        path_or_key=root.key,
        hint="nothing was changed; put the root back from a version or a backup of the bucket (`tiered repair advice`)",
    )
