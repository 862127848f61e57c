"""Each sentence is broken once on purpose, and the check objects with that sentence."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest

from tests.unit.format.catalog.building import paged_root
from tiered.format.keys import FLAG_MAINTAINER, FLAG_STAGED, Role
from tiered.format.page import Pointers
from tiered.format.root import STATE_SEALED, CompactedRange, Root, Sealed
from tiered.format.rows import Rows, Tally, Trash
from tiered.model import TRASH_LIST, TRASH_TREE, EpochEntry, Row, TrashEntry
from tiered.plan.catalog_edit import TrimIntent
from tiered.plan.commit import AppendIntent, ClaimIntent, Intent, Stamp, create_root
from tiered.plan.invariants import CHANGE_CHECKS, CHECKS, VERSION_STEP, check_root
from tiered.plan.ownership import VolumeProof
from tiered.plan.rebuild import Objects, rebuilt


def stamp(name: str, epoch: int = 1, role: Role = Role.WRITER) -> Stamp:
    return Stamp(name, 1_000, role, epoch, "host:1")


def row(base: int, end: int, uid: int, epoch: int = 1) -> Row:
    return Row(base, end, base, end, 100, 5, uid, uid, 50, epoch, end - base, 0, 0)


def root_of(value: object) -> Root:
    assert isinstance(value, Root), value
    return value


def history() -> list[Root]:
    """create, claim w, append three, claim m, trim one, claim w again, append one."""
    volume = VolumeProof("v", False, 0)
    roots = [create_root(UUID(int=9), 0, "t", stamp("c0"))]
    intents: list[tuple[Intent, Stamp]] = [
        (ClaimIntent(Role.WRITER, "host:1", volume, "t1"), stamp("c1")),
        (AppendIntent((row(0, 10, 1), row(10, 20, 2), row(20, 30, 3)), "a1"), stamp("c2")),
        (ClaimIntent(Role.MAINTAINER, "gc:1"), stamp("c3", 0, Role.MAINTAINER)),
        (TrimIntent(12), stamp("c4", 1, Role.MAINTAINER)),
        (ClaimIntent(Role.WRITER, "host:2", VolumeProof("v", False, 30, "t1", "a1"), "t2"), stamp("c5")),
        (AppendIntent((row(30, 40, 4, 2),), "a2"), stamp("c6", 2)),
    ]
    for intent, mark in intents:
        roots.append(root_of(intent.apply(roots[-1], mark)))
    return roots


GOOD = history()[-1]


def test_every_version_of_a_good_history_is_true_of_each_earlier_one() -> None:
    roots = history()
    for index, root in enumerate(roots):
        assert check_root(root) == []
        for earlier in roots[: index + 1]:
            assert check_root(root, earlier) == []


def test_a_rebuilt_root_begins_its_totals_again() -> None:
    claims = {role: GOOD.roles[role.value].epoch for role in Role}
    objects = Objects(tuple(GOOD.rows), (), claims)
    again = rebuilt(GOOD, objects, GOOD.version + VERSION_STEP, stamp("c9"))
    assert again.removed.records < GOOD.removed.records
    assert check_root(again, GOOD) == []
    assert [each.found for each in check_root(dataclasses.replace(again, version=GOOD.version + 2), GOOD)] != []


def rows_with(index: int, **changes: int) -> Rows:
    rows = list(GOOD.rows)
    rows[index] = rows[index]._replace(**changes)
    return Rows.from_rows(rows)


def with_rows(rows: Rows) -> Root:
    """Totals follow, so that only the sentence in question is broken."""
    return dataclasses.replace(
        GOOD, rows=rows, added=Tally(len(rows), rows.size_bytes, rows.records, rows.sum), removed=Tally()
    )


BROKEN: list[tuple[str, Root]] = [
    ("rows cover one range", with_rows(rows_with(1, base=21))),
    ("rows cover one range", with_rows(rows_with(1, base=19))),
    ("rows cover one range", with_rows(rows_with(1, base=30, next=30))),
    ("rows reach from start_offset", dataclasses.replace(GOOD, start_offset=9)),
    ("rows reach from start_offset", dataclasses.replace(GOOD, start_offset=20)),
    ("rows reach from start_offset", dataclasses.replace(GOOD, next_offset=41)),
    ("rows reach from start_offset", dataclasses.replace(GOOD, start_offset=50)),
    ("rows reach from start_offset", with_rows(Rows.from_rows([]))),
    ("live segments", dataclasses.replace(GOOD, added=dataclasses.replace(GOOD.added, segments=5))),
    ("live segments", dataclasses.replace(GOOD, added=dataclasses.replace(GOOD.added, size_bytes=5))),
    ("live segments", dataclasses.replace(GOOD, removed=dataclasses.replace(GOOD.removed, records=0))),
    ("live segments", dataclasses.replace(GOOD, added=dataclasses.replace(GOOD.added, sum=5))),
    ("live segments", dataclasses.replace(GOOD, rows=rows_with(0, crc=6))),
    ("every row is possible", with_rows(rows_with(0, size=0))),
    ("every row is possible", with_rows(rows_with(0, flags=2))),
    ("every row is possible", with_rows(rows_with(0, flags=64))),
    ("every row is possible", with_rows(rows_with(0, crc=-1))),
    ("every row is possible", with_rows(rows_with(0, crc=2**32))),
    ("every row is possible", with_rows(rows_with(0, min_ts=99))),
    ("every row is possible", with_rows(rows_with(0, records=-1))),
    ("every row is possible", with_rows(rows_with(0, idx_len=-1))),
    ("no object is named twice", with_rows(rows_with(0, id_hi=3, id_lo=3))),
    ("no object is named twice", with_rows(rows_with(0, id_hi=1, id_lo=1))),  # in the trash
    ("every row was uploaded", with_rows(rows_with(0, claim_epoch=3))),
    ("every row was uploaded", with_rows(rows_with(0, claim_epoch=0))),
    ("every row was uploaded", with_rows(rows_with(0, claim_epoch=2, flags=1))),
    ("lineage ascends", dataclasses.replace(GOOD, lineage=(EpochEntry(1, 0), EpochEntry(1, 5)))),
    ("lineage ascends", dataclasses.replace(GOOD, lineage=(EpochEntry(0, 5), EpochEntry(1, 5)))),
    ("lineage ascends", dataclasses.replace(GOOD, lineage=(EpochEntry(0, 41),))),
    ("lineage ascends", with_rows(rows_with(0, leader_epoch=1))),
    ("sealed holds", dataclasses.replace(GOOD, sealed=())),
    ("sealed holds", dataclasses.replace(GOOD, sealed=(Sealed("w", 2, "x", 0),))),
    ("sealed holds", dataclasses.replace(GOOD, sealed=GOOD.sealed * 2)),
    ("sealed holds", dataclasses.replace(GOOD, sealed=(*GOOD.sealed, Sealed("x", 1, "x", 0)))),
    ("the role that made", dataclasses.replace(GOOD, commit=dataclasses.replace(GOOD.commit, id="other"))),
    ("the role that made", dataclasses.replace(GOOD, commit=dataclasses.replace(GOOD.commit, epoch=1))),
    ("the role that made", dataclasses.replace(GOOD, commit=dataclasses.replace(GOOD.commit, role="x"))),
    ("the role that made", dataclasses.replace(GOOD, commit=dataclasses.replace(GOOD.commit, op="create"))),
    ("the role that made", dataclasses.replace(GOOD, prev_commit_id=GOOD.commit.id)),
    ("trash, floor", dataclasses.replace(GOOD, gc_floor=99)),
    ("trash, floor", dataclasses.replace(GOOD, trash=Trash.from_entries([TrashEntry(9, 9, 0, 99, 0, 1)]))),
    ("trash, floor", dataclasses.replace(GOOD, trash=Trash.from_entries([TrashEntry(9, 9, 0, 0, 0, 1)]))),
    ("trash, floor", dataclasses.replace(GOOD, txns=(("q", 1), ("q", 2)))),
    ("trash, floor", dataclasses.replace(GOOD, txns=tuple((str(i), i) for i in range(65)))),
    ("trash, floor", dataclasses.replace(GOOD, txns=(("q", 1),), txn_versions=(2, 3))),
    ("trash, floor", dataclasses.replace(GOOD, txns=(("q", 1), ("r", 1)), txn_versions=(3, 2))),
    ("trash, floor", dataclasses.replace(GOOD, txns=(("q", 1),), txn_versions=(2,), txns_floor=2)),
    ("trash, floor", dataclasses.replace(GOOD, txns=(("q", 1),), txn_versions=(99,))),
    ("every row is possible", with_rows(rows_with(0, flags=FLAG_STAGED | FLAG_MAINTAINER))),
]


PAGED = paged_root()


def with_pointer(level: str, index: int, **changes: int) -> Root:
    pointers = list(getattr(PAGED, level))
    pointers[index] = pointers[index]._replace(**changes)
    return dataclasses.replace(PAGED, **{level: Pointers.from_pointers(pointers)})  # type: ignore[arg-type]


BROKEN += [
    ("rows cover one range", with_pointer("leaves", 0, base=1601)),
    ("rows cover one range", with_pointer("inner", 0, next=1700)),
    ("rows reach from start_offset", dataclasses.replace(PAGED, start_offset=1600)),
    ("live segments", with_pointer("leaves", 1, sum_lo=5)),
    ("live segments", with_pointer("inner", 0, rows=17)),
    ("live segments", dataclasses.replace(PAGED, dead=Tally())),
    ("only the page in which", dataclasses.replace(GOOD, dead=Tally(1))),
    ("only the page in which", dataclasses.replace(PAGED, dead=Tally(16))),
    ("only the page in which", dataclasses.replace(PAGED, dead=Tally(0, 1))),
    ("only the page in which", dataclasses.replace(PAGED, start_offset=0)),
    *[
        ("every pointer is possible", with_pointer("leaves", 0, **change))
        for change in (
            *({"rows": 0}, {"page_len": 0}, {"size": -1}, {"records": -1}, {"min_ts": 2**62}, {"crc": -1}),
            *({"crc": 2**32}, {"flags": 2}, {"row_flags": 64}),
        )
    ],
    ("no object is named twice", with_pointer("leaves", 0, id_lo=PAGED.leaves.pointer(1).id_lo)),
    ("no object is named twice", with_pointer("inner", 0, id_lo=PAGED.leaves.pointer(1).id_lo)),
    (
        "no object is named twice",
        dataclasses.replace(PAGED, trash=Trash.from_entries([TrashEntry(0, 99, 0, 1, 0, 1, TRASH_TREE)])),
    ),
    ("every row was uploaded", with_pointer("leaves", 0, epoch=2)),
    ("every row was uploaded", with_pointer("leaves", 0, epoch=3, flags=1)),
    ("every row was uploaded", with_pointer("inner", 0, epoch=0)),
    ("lineage ascends", with_pointer("inner", 0, leader_epoch=1)),
    ("trash, floor", dataclasses.replace(PAGED, trash=Trash.from_entries([TrashEntry(9, 9, 0, 1, 0, 1, 5)]))),
    ("compacted ranges", dataclasses.replace(GOOD, cleaned=(CompactedRange(20, 0), CompactedRange(20, 5)))),
    ("compacted ranges", dataclasses.replace(GOOD, cleaned=(CompactedRange(41, 0),))),
]


def test_a_root_with_pages_breaks_no_sentence() -> None:
    assert check_root(PAGED) == []


@pytest.mark.parametrize(("sentence", "root"), BROKEN)
def test_a_broken_root_is_named_by_its_sentence(sentence: str, root: Root) -> None:
    found = [violation.sentence for violation in check_root(root)]
    assert any(one.startswith(sentence) for one in found), found


def after(**changes: object) -> Root:
    """The successor of GOOD, altered."""
    good = root_of(AppendIntent((row(40, 50, 5, 2),), "a3").apply(GOOD, stamp("c7", 2)))
    return dataclasses.replace(good, **changes)  # type: ignore[arg-type]  # field names are checked at run time


ROLES = after().roles
CLAIMED = root_of(ClaimIntent(Role.WRITER, "h", VolumeProof("v", False, 40, "t2", "a2"), "t3").apply(GOOD, stamp("c7")))

BROKEN_CHANGES: list[tuple[str, Root, Root]] = [
    ("identity", after(topic_id=UUID(int=8)), GOOD),
    ("identity", after(partition=1), GOOD),
    ("identity", after(topic="u"), GOOD),
    ("identity", after(created_ms=5), GOOD),
    ("version, epochs", after(version=3), GOOD),
    ("version, epochs", after(start_offset=11), GOOD),
    ("version, epochs", after(next_offset=39), GOOD),
    ("version, epochs", GOOD, dataclasses.replace(GOOD, gc_floor=1)),
    ("version, epochs", after(added=Tally()), GOOD),
    ("version, epochs", after(roles={**ROLES, "m": dataclasses.replace(ROLES["m"], epoch=0)}), GOOD),
    ("one version", after(version=GOOD.version), GOOD),
    ("one version", after(prev_commit_id="x"), GOOD),
    ("one version", after(version=GOOD.version + 2), GOOD),
    ("one version", after(commit=dataclasses.replace(after().commit, ts_ms=GOOD.commit.ts_ms)), GOOD),
    ("a claim seals", after(roles={**ROLES, "m": dataclasses.replace(ROLES["m"], epoch=2)}), GOOD),
    ("a claim seals", after(roles={**ROLES, "w": dataclasses.replace(ROLES["w"], epoch=3)}), GOOD),
    ("a claim seals", dataclasses.replace(CLAIMED, commit=dataclasses.replace(CLAIMED.commit, op="stage")), GOOD),
    ("a claim seals", dataclasses.replace(CLAIMED, sealed=GOOD.sealed), GOOD),
    ("a claim seals", dataclasses.replace(CLAIMED, sealed=(*GOOD.sealed, Sealed("w", 2, "not mine", 1))), GOOD),
    ("committed rows", after(rows=after().rows.slice(1)), GOOD),
    ("committed rows", after(rows=rows_with(1, crc=99).appended(after().rows.slice(3))), GOOD),
    ("committed rows", after(rows=GOOD.rows.slice(0, 1)), GOOD),
    ("what leaves the trash", after(trash=Trash.from_entries([])), GOOD),
    (
        "what leaves the trash",
        after(trash=Trash.from_entries([TrashEntry(9, 9, 0, 4, 0, 1, TRASH_LIST)]), gc_floor=4),
        GOOD,
    ),
    ("a log that is sealed", after(), dataclasses.replace(GOOD, state=STATE_SEALED)),
]


@pytest.mark.parametrize(("sentence", "root", "previous"), BROKEN_CHANGES)
def test_a_broken_change_is_named_by_its_sentence(sentence: str, root: Root, previous: Root) -> None:
    found = [violation.sentence for violation in check_root(root, previous)]
    assert any(one.startswith(sentence) for one in found), found


def test_every_sentence_is_broken_at_least_once() -> None:
    broken = {sentence for sentence, *_ in BROKEN} | {sentence for sentence, *_ in BROKEN_CHANGES}
    assert [s for s in [*CHECKS, *CHANGE_CHECKS] if not any(s.startswith(one) for one in broken)] == []


def test_a_violation_says_what_was_found() -> None:
    (violation,) = check_root(dataclasses.replace(GOOD, next_offset=41))
    rule = "rows reach from start_offset to next_offset"
    assert str(violation) == f"the last row ends at 40, the log at 41; the rule: {rule}"
