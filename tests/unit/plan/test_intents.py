"""Intents are pure functions of the root: applied again and again, against a list that is always right."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from tiered.format.keys import FLAG_HOLE, FLAG_MAINTAINER, Role
from tiered.format.root import STATE_DELETING, STATE_OPEN, STATE_SEALED, Root
from tiered.format.rows import Rows
from tiered.model import TRASH_MAINTAINER, Row
from tiered.plan.catalog_edit import Garbage, TrimIntent
from tiered.plan.commit import AppendIntent, ClaimIntent, Stamp, create_root
from tiered.plan.ownership import Refusal, RefusalReason, VolumeProof, decide_claim, hold, is_own_claim, since
from tiered.plan.root_lower_bounds import HELD_LIMIT, held_ids


def stamp(number: int, now_ms: int = 1_000, epoch: int = 1, role: Role = Role.WRITER) -> Stamp:
    return Stamp(f"c{number}", now_ms, role, epoch, "host:1")


def claimed(start_offset: int = 0) -> Root:
    root = create_root(UUID(int=9), 0, "t", stamp(0))
    volume = VolumeProof("v", False, start_offset, start_offset=start_offset)
    after = ClaimIntent(Role.WRITER, "host:1", volume, "t1").apply(root, stamp(1))
    assert isinstance(after, Root)
    return after


def row(base: int, end: int, uid: int) -> Row:
    return Row(base, end, -5, 7, 100, 5, uid, -uid, 50, 1, end - base, 0, 0)


def test_a_log_that_is_sealed_takes_no_claim_and_no_append() -> None:
    root = dataclasses.replace(claimed(), state=STATE_SEALED)
    for refusal in (
        AppendIntent((row(0, 5, 1),), "a").apply(root, stamp(2)),
        ClaimIntent(Role.MAINTAINER, "gc").apply(root, stamp(2)),
    ):
        assert isinstance(refusal, Refusal)
        assert refusal.reason is RefusalReason.STATE


def test_nothing_is_trimmed_of_a_log_that_is_destroyed() -> None:
    full = AppendIntent((row(0, 5, 1),), "a").apply(claimed(), stamp(2))
    assert isinstance(full, Root)
    for state, refused in ((STATE_OPEN, False), (STATE_SEALED, False), (STATE_DELETING, True)):
        found = TrimIntent(5).apply(dataclasses.replace(full, state=state), stamp(3))
        assert isinstance(found, Refusal) is refused
        assert not isinstance(found, Refusal) or found.reason is RefusalReason.STATE


def test_a_stamp_of_another_epoch_is_fenced_whatever_the_intent() -> None:
    for intent in (AppendIntent((row(0, 5, 1),), "a"), TrimIntent(0)):
        refusal = intent.apply(claimed(), stamp(2, epoch=2))
        assert isinstance(refusal, Refusal)
        assert refusal.reason is RefusalReason.FENCED
        assert "t-0" in refusal.message


def test_a_rebuilt_catalog_refuses_a_volume_that_ends_below_it() -> None:
    root = dataclasses.replace(create_root(UUID(int=9), 0, "t", stamp(0)), next_offset=50)
    assert isinstance(decide_claim(root, Role.WRITER, VolumeProof("v", False, 49)), Refusal)
    granted = decide_claim(root, Role.WRITER, VolumeProof("v", False, 50))
    assert not isinstance(granted, Refusal)
    assert granted.begins_at is None
    fresh = decide_claim(root, Role.WRITER, VolumeProof("v", True, 0))
    assert not isinstance(fresh, Refusal)
    assert (fresh.new_leader_epoch, fresh.begins_at) == (True, None)  # it goes on where the catalog ends


def test_trash_names_the_role_and_holes_leave_none() -> None:
    rows = Rows.from_rows(
        [row(0, 5, 1), row(5, 9, 2)._replace(flags=FLAG_MAINTAINER), row(9, 10, 3)._replace(size=0, flags=FLAG_HOLE)]
    )
    root = claimed()
    garbage = Garbage(root, stamp(2, now_ms=99_000))
    garbage.objects(rows)
    assert [(entry.id_hi, entry.kind, entry.removed_version, entry.removed_ms) for entry in garbage.trash] == [
        (1, 0, root.version + 1, 99_000),
        (2, TRASH_MAINTAINER, root.version + 1, 99_000),
    ]


def test_held_values_keep_the_first_and_the_newest_ids_once() -> None:
    assert hold("", "a") == "a"
    assert hold("a,b", "b", "", "c,d") == "a,b,c,d"
    many = hold("", *(str(i) for i in range(1000)))
    assert held_ids(many) == ("0", *(str(i) for i in range(1001 - HELD_LIMIT, 1000)))


def test_ids_before_the_one_that_a_root_carries_are_dead_those_behind_it_may_land() -> None:
    assert since("a,b,c,d", "c") == "c,d"
    assert since("a,b", "b") == "b"
    assert since("a,b", "of another volume") == "a,b"
    assert since("a,b", "") == "a,b"


def test_a_claim_is_a_volumes_own_only_by_its_proof() -> None:
    root = claimed()
    own = VolumeProof(root.writer.volume, False, 10, f"x,{root.writer.token},y", root.writer.last_append)
    assert is_own_claim(root, own)
    assert not is_own_claim(root, dataclasses.replace(own, volume_id="another"))
    assert not is_own_claim(root, dataclasses.replace(own, token="x,y"))
    appended = AppendIntent((row(0, 5, 1),), "a").apply(root, stamp(2))
    assert not isinstance(appended, Refusal)
    assert not is_own_claim(appended, own)
    assert is_own_claim(appended, dataclasses.replace(own, last_append="before,a"))
    assert not is_own_claim(create_root(UUID(int=9), 0, "t", stamp(0)), dataclasses.replace(own, volume_id=""))
