"""Ownership of a partition: the volume table, evaluated again on every retry of a claim.

=====================================================  ====================  ======================================
a writer claims                                        the root says         result
=====================================================  ====================  ======================================
any volume                                             no writer yet         granted
any volume                                             the volume ``spark``  refused: sinks write it, until a handover
a volume without records (also one the root names)     last claim by any     granted: resumes at ``next_offset``
                                                                             under a new leader epoch
a sidecar's, no segment of whose broker begins there,  last claim by any     refused: its segments do not continue
or whose broker has other records below (``lineage``)                        the log
volume V whose disk holds the root's token and         last claim by V       granted
last append
volume V whose disk does not hold both                 last claim by V       refused: a copy or an old snapshot
a new volume, restored to exactly ``next_offset``      last claim by another granted, new leader epoch
a new volume, restored to another offset               last claim by another refused: rejoin
volume V with records                                  last claim by another refused: V lost the log
=====================================================  ====================  ======================================

The proof matters because copied volumes and restored snapshots are everyday events in a cloud. With the volume id
alone a copy would take ``next_offset`` as its own and acknowledge records that the log does not hold.

A maintainer holds no records; its claim is always granted. All Spark sinks are one volume, ``spark``: each is
exactly-once by its own id, so that they need no epoch among themselves (``plan.sink_commit``). A sink may take a
partition without any claim, and is refused where a local log owns it. A handover moves a partition, to the volume
``local`` for the next local log without records.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tiered.format.keys import Role
from tiered.format.root import STATE_OPEN, Root
from tiered.plan.root_lower_bounds import HELD_LIMIT, HELD_SEPARATOR, held_ids

SPARK_VOLUME = "spark"
"""Owner of a partition that sinks write."""
LOCAL_VOLUME = "local"
"""Owner of a partition that was handed back to local logs and that none of them has claimed yet."""


class RefusalReason(enum.Enum):
    """Reasons for refusing an intent."""

    FENCED = "fenced"  # another claim owns the role, or the volume may not claim
    STATE = "state"  # the log is sealed or being deleted
    GAP = "gap"  # the append does not begin where the catalog ends
    OUT_OF_RANGE = "out_of_range"  # an offset beyond the end
    INVALID = "invalid"  # the call itself is wrong
    GONE = "gone"  # the rows to be changed are no longer there
    NOTHING = "nothing"  # already so: no commit is needed


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of an intent by a root. ``message`` names topic, partition and offsets."""

    reason: RefusalReason
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class RestoredFrom:
    """Root from which a log directory was restored: its version and end."""

    version: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class VolumeProof:
    """State of a volume's disk that a claim presents as evidence.

    ``token`` and ``last_append``: lists of ids of the volume's claims and appends, separated by commas, as stored on
    its disk. ``restored_from``: the root from which the disk was restored, None if it was not.
    ``empty``: the volume has no records. ``start_offset``, ``end_offset`` and ``leader_epoch`` are those of the local
    log. An empty catalog without a writer begins at this ``start_offset``. ``joints``: the only offsets, ascending, at
    which an empty volume can continue, because records of a Kafka broker's log arrive in whole segments. None: at any.
    """

    volume_id: str
    empty: bool
    end_offset: int
    token: str = ""
    last_append: str = ""
    restored_from: RestoredFrom | None = None
    start_offset: int = 0
    leader_epoch: int = -1
    joints: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Decision to grant a claim. ``new_leader_epoch``: the volume starts a new leader epoch at ``next_offset``.

    ``begins_at``: first offset of a catalog that is still empty, otherwise None.
    """

    new_leader_epoch: bool
    begins_at: int | None = None


def hold(value: str, *more: str) -> str:
    """Return ``value``, a list of ids as stored on disk, with the ids ``more`` at its end. Skip empty and known ids.

    Beyond ``HELD_LIMIT`` the first id and the newest ones stay. The first id is that of the root that was read last.
    The others belong to commits whose outcome is unknown.
    """
    ids = list(dict.fromkeys([id_ for each in (value, *more) for id_ in held_ids(each)]))
    return HELD_SEPARATOR.join(ids if len(ids) <= HELD_LIMIT else [ids[0], *ids[1 - HELD_LIMIT :]])


def since(value: str, seen: str) -> str:
    """Return the ids in ``value``, a list as stored on disk, from ``seen`` on; all of them if ``seen`` is missing.

    ``seen``: the id that a root had when it was read. Each id belongs to one conditional PUT of a root, and these PUTs
    are sent one after the other. So a PUT before that of ``seen`` can no longer succeed, and a later one can.
    """
    if value == seen:
        return value
    ids = held_ids(value)
    return HELD_SEPARATOR.join(ids[ids.index(seen) :]) if seen in ids else value


def decide_claim(root: Root, role: Role, volume: VolumeProof | None) -> Grant | Refusal:
    """Return the grant or the refusal of a claim of ``role`` on ``root``. A maintainer may always claim an open log.

    The writer's role goes to the volume that proves the last claim, or without one to any volume. The volume must not
    end below the catalog. The role also goes to a volume that was restored to exactly the end, or has no records. The
    ``joints`` of a volume without records must include the end. All others are refused, and all while Spark sinks own
    the partition. ``volume``: None for a maintainer only.
    """
    if root.state != STATE_OPEN:
        return Refusal(RefusalReason.STATE, f"{root.where} is {root.state}: it cannot be claimed")
    if role is not Role.WRITER:
        return Grant(new_leader_epoch=False)
    if volume is None or not volume.volume_id:
        return Refusal(RefusalReason.INVALID, f"{root.where}: the writer's claim has no volume id")
    writer = root.writer
    begun = bool(root.added.segments or root.next_offset)
    if writer.volume == SPARK_VOLUME:
        return _sinks_own(root, volume)
    if (writer.epoch == 0 or writer.volume == LOCAL_VOLUME) and not begun:
        return Grant(new_leader_epoch=True, begins_at=volume.start_offset)
    if volume.empty:
        return _no_joint(root, volume) or Grant(new_leader_epoch=True)
    if writer.epoch == 0:  # a catalog rebuilt from its objects knows no writer any more
        return _behind(root, volume) or Grant(new_leader_epoch=True)
    if volume.volume_id == writer.volume:
        return _same_volume(root, volume)
    # mutant lost-volume-is-fenced
    return _other_volume(root, volume)


def sink_refused(root: Root) -> Refusal | None:
    """Return a refusal if a Spark sink may not write to this partition, otherwise None.

    A sink may not write if a local log owns the partition, or if the log is sealed or being deleted.
    """
    writer, is_open = root.writer, root.state == STATE_OPEN
    if not is_open:
        return Refusal(RefusalReason.STATE, f"{root.where} is {root.state}: no sink may write to it")
    untouched = writer.epoch == 0 and not (root.added.segments or root.next_offset)
    if writer.volume == SPARK_VOLUME or untouched:
        return None
    owner = f"volume {writer.volume} (claimed by {writer.owner}, epoch {writer.epoch})"
    if not writer.volume:
        owner = "an unknown writer: its catalog was rebuilt"
    elif writer.volume == LOCAL_VOLUME:
        owner = f"local logs (handed over by {writer.owner})"
    return Refusal(
        RefusalReason.FENCED,
        f"{root.where} belongs to {owner}: a Spark sink may not write to it",
        hint=f"`tiered topic transfer {root.topic} spark` gives the topic to sinks, and fences its local log",
    )


def is_own_claim(root: Root, volume: VolumeProof) -> bool:
    """Return True if ``volume`` made the writer's claim in ``root``, and holds the claim's token and last append.

    The volume id alone is no proof: a copy or an older snapshot of the disk has the same id.
    """
    return root.writer.epoch > 0 and volume.volume_id == root.writer.volume and not _missing(root, volume)


def _missing(root: Root, volume: VolumeProof) -> str:
    """Return the part of the proof that this volume lacks: "claim" or "append"; ``""`` if it has both."""
    writer = root.writer
    if writer.token not in held_ids(volume.token):
        return "claim"
    return "append" if writer.last_append and writer.last_append not in held_ids(volume.last_append) else ""


def _no_joint(root: Root, volume: VolumeProof) -> Refusal | None:
    """Return a refusal if no segment of a sidecar's volume begins at ``next_offset``. None: the volume can continue.

    The claim of a volume that cannot continue would only fence other writers.
    """
    end, joints = root.next_offset, volume.joints
    if joints is None or end in joints:
        return None
    below, above = [at for at in joints if at < end], [at for at in joints if at > end]
    if below and above:
        what = f"which is inside the broker's segment {below[-1]} to {above[0]}"
        hint = (
            "another replica with other segments was uploaded: run the sidecar beside that replica; if it is lost, "
            "upload this one under another prefix"
        )
    elif above:
        what = f"the broker's log begins at {above[0]}: the offsets between were deleted before they were linked"
        hint = "run the sidecar beside a replica that still has these offsets, or upload this one under another prefix"
    else:
        what = f"the broker's last segment begins at {below[-1] if below else 0}, below it"
        hint = "wait until this replica has caught up, or run the sidecar beside the replica that was uploaded"
    return Refusal(
        RefusalReason.GAP, f"{root.where}: the bucket ends at offset {end}, {what}; nothing was claimed", hint=hint
    )


def _behind(root: Root, volume: VolumeProof) -> Refusal | None:
    """Return a refusal if the volume ends below ``next_offset``: its next records would reuse committed offsets."""
    if volume.end_offset >= root.next_offset:
        return None
    return Refusal(
        RefusalReason.FENCED,
        f"{root.where}: volume {volume.volume_id} ends at offset {volume.end_offset}, below the committed end "
        f"{root.next_offset}: its disk has lost records",
        hint=f"run `tiered repair rejoin {root.topic}:{root.partition}`: the log then continues at the committed end",
    )


def _same_volume(root: Root, volume: VolumeProof) -> Grant | Refusal:
    # mutant volume-proves-itself
    missing = _missing(root, volume)
    if not missing:
        # mutant volume-behind-is-refused
        return _behind(root, volume) or Grant(new_leader_epoch=False)
    return Refusal(
        RefusalReason.FENCED,
        f"{root.where}: volume {volume.volume_id} lacks its last {missing}, which the catalog has: "
        f"it is a copy, or an older snapshot, of the volume that {root.writer.owner} claimed",
        hint=f"use the original disk, or run `tiered repair rejoin {root.topic}:{root.partition}` here; nothing was "
        "deleted",
    )


def _other_volume(root: Root, volume: VolumeProof) -> Grant | Refusal:
    # mutant volume-with-records-is-refused
    writer, restored = root.writer, volume.restored_from
    rejoin = f"tiered repair rejoin {root.topic}:{root.partition}"
    owner = f"volume {writer.volume}" if writer.volume else "no volume"
    # mutant restored-volume-has-no-tail
    if restored is not None and restored.version <= root.version and volume.end_offset == restored.next_offset:
        if volume.end_offset == root.next_offset:
            return Grant(new_leader_epoch=True)
        return Refusal(
            RefusalReason.FENCED,
            f"{root.where}: volume {volume.volume_id} was restored up to offset {volume.end_offset}, "
            f"the catalog ends at {root.next_offset} since {writer.owner} wrote on",
            hint=f"`{rejoin}` sets this disk's files aside and continues where the bucket ends",
        )
    return Refusal(
        RefusalReason.FENCED,
        f"{root.where} belongs to {owner} (claimed by {writer.owner}, epoch {writer.epoch}): "
        f"volume {volume.volume_id} holds records up to offset {volume.end_offset} and may not write it",
        hint=f"`{rejoin}` sets this disk's files aside and continues where the bucket ends",
    )


def _sinks_own(root: Root, volume: VolumeProof) -> Refusal:
    return Refusal(
        RefusalReason.FENCED,
        f"{root.where} belongs to Spark sinks (since {root.writer.owner}, epoch {root.writer.epoch}): the local log "
        f"of volume {volume.volume_id} may not write it before `tiered topic transfer {root.topic} local`",
        hint=f"transfer the topic, then run `tiered repair rejoin {root.topic}:{root.partition}` for this disk",
    )
