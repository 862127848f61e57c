"""Names of the bucket: object keys, and the rules for topic names.

Object keys, relative to the URL that the store was opened with::

    topics/{topic}
    {h2}/{topic_id}-{partition}/root
    {h2}/{topic_id}-{partition}/positions
    {h2}/{topic_id}-{partition}/s/{role}{epoch:08x}/{base:020d}-{uid}.log   and .idx, same uid
    {h2}/{topic_id}-{partition}/s/t/{uid}.log   and .idx: staged by a sink, offsets from 0
    {h2}/{topic_id}-{partition}/p/{role}{epoch:08x}/{uid}.page
    {h2}/{topic_id}-{partition}/pin/{uid}
    {h2}/{topic_id}-{partition}/snap/{name}
    {h2}/{topic_id}-{partition}/hist/{version:016x}
    {h2}/{topic_id}-{partition}/aside/{uid}
    jobs/gc/{topic_id}-{partition}/{version:016x}-{uid}
    jobs/gc/decisions/{uid}
    erasures/{topic_id}-{partition}/{id}/{name}.json
    txn/{id}/{batch}   and {batch}.{generation} after as many aborts: decision about a sink's batch
    groups/{group}/plan
    groups/{group}/members/{name}~{uid}
    groups/{group}/partitions/{topic_id}-{partition}
    probe/{uid}

``h2`` spreads partitions over the key space: S3 splits its load by prefix. ``topic_id`` is Kafka's UUID as 32 hex
digits: a topic that was deleted and created again never meets its old objects. Each key contains role and epoch,
as a fenced epoch can never commit again: an orphan's key thus proves that it is garbage.

Parsers of object keys are strict and return None for any other key, as a bucket may hold foreign objects. A
transaction id, a group and a member's name are percent-encoded in their keys. Parsers of local names follow Kafka and
raise ``ConfigError`` where Kafka refuses to start.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import re
from typing import NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from tiered.errors import ConfigError
from tiered.model import TRASH_MAINTAINER, TRASH_STAGED, Row, TrashEntry

MAX_TOPIC_CHARS = 249
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
TOPICS_PREFIX = "topics/"
PROBE_PREFIX = "probe/"
DECISIONS_PREFIX = "txn/"
ERASURES_PREFIX = "erasures/"
GROUPS_PREFIX = "groups/"
PREFIXES_KEPT = 1024
"""Cached prefixes of partitions; each costs a hash."""

FLAG_MAINTAINER = 0x1
"""Row flag: the objects' keys begin with ``m``, as compaction or another rewrite wrote them."""
FLAG_HOLE = 0x2
"""Row flag: the range has no records any more and no objects."""
FLAG_ABORTED_TXNS = 0x4
"""Row flag: the bundle has a transaction index, that is, the segment has records of aborted transactions."""
FLAG_STAGED = 0x8
"""Row flag: a sink staged the objects, ``s/t/{uid}``. Offsets in their batches and indexes begin at 0; readers add
the row's base.
"""
KNOWN_FLAGS = FLAG_MAINTAINER | FLAG_HOLE | FLAG_ABORTED_TXNS | FLAG_STAGED
MAX_BATCH = 2**32 - 1
"""Limit of a sink's batch numbers: 32 bits in the names of staged objects."""
TXN_CHARS = 16
"""Leading characters of a staged object's uid that identify its transaction id."""
STEM_CHARS = 24
"""Leading characters of a staged object's uid that identify its transaction and batch."""
MAX_GROUP_CHARS = 249
"""Limit of a percent-encoded group name in a key: as that of a topic."""
MAX_MEMBER_CHARS = 200
"""Limit of a percent-encoded member name, which is followed by ``~`` and 32 digits."""
MAX_TXN_CHARS = 200
"""Limit of a percent-encoded transaction id in a key: stores allow 255 characters between two slashes."""


class Role(enum.StrEnum):
    """Roles that commit to a catalog: writer and maintainer. The value is the letter in object keys."""

    WRITER = "w"
    MAINTAINER = "m"


class SegmentName(NamedTuple):
    """Unique name of an uploaded segment within its partition. ``uid`` is 32 hex digits.

    ``staged``: the key has only the uid, because epoch and base were unknown when the segment was stored.
    """

    role: Role
    epoch: int
    base: int
    uid: str
    staged: bool = False


class PageName(NamedTuple):
    """Unique name of a page within its partition. ``uid`` is 32 hex digits."""

    role: Role
    epoch: int
    uid: str


class PageKey(NamedTuple):
    """Parts of a page's key."""

    topic_id: UUID
    partition: int
    name: PageName


class SegmentKey(NamedTuple):
    """Parts of a segment's key. ``suffix`` is ``log`` or ``idx``."""

    topic_id: UUID
    partition: int
    name: SegmentName
    suffix: str


class StagedKey(NamedTuple):
    """Parts of a staged object's key. ``suffix`` is ``log`` or ``idx``."""

    topic_id: UUID
    partition: int
    uid: str
    suffix: str


class DecisionKey(NamedTuple):
    """Parts of a decision's key. ``generation`` is the number of earlier aborts of the batch."""

    txn: str
    batch: int
    generation: int


class ErasureNoteKey(NamedTuple):
    """Parts of the key of an erasure's note about one segment.

    ``erasure``: id of the erasure. ``base``: first offset of the old segment. ``uid``: that of the new one.
    """

    erasure: str
    base: int
    uid: str


class GroupKey(NamedTuple):
    """Parts of a key below ``groups/``: of a member, of a partition (topic id and number), or of the plan."""

    group: str
    member: str | None = None
    partition: tuple[UUID, int] | None = None


# -- topic names -------------------------------------------------------------------------------------------------

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_topic_name(name: str) -> str:
    """Return the name: 1 to 249 of ``[a-zA-Z0-9._-]``, not ``.`` or ``..``. Raises ConfigError for other text."""
    if name in {".", ".."}:
        raise ConfigError(f"topic name {name!r} is not allowed", hint="choose another name: Kafka refuses '.' and '..'")
    if not TOPIC_NAME.fullmatch(name):
        shown = name if len(name) <= MAX_TOPIC_CHARS else name[:32] + "..."
        raise ConfigError(
            f"topic name {shown!r} is not allowed",
            hint=f"use 1 to {MAX_TOPIC_CHARS} of a-z A-Z 0-9 . _ - as Kafka does",
        )
    return name


# -- object keys ---------------------------------------------------------------------------------------------------

_PARTITION = r"(?P<h2>[0-9a-f]{2})/(?P<topic_id>[0-9a-f]{32})-(?P<partition>0|[1-9][0-9]{0,9})/"
_PARTITION_KEY = re.compile(_PARTITION + r".+")
_ROOT_KEY = re.compile(_PARTITION + r"(?:root|hist/(?P<version>[0-9a-f]{16}))")
_SEGMENT_KEY = re.compile(
    _PARTITION
    + r"s/(?P<role>[wm])(?P<epoch>[0-9a-f]{8})/(?P<base>[0-9]{20})-(?P<uid>[0-9a-f]{32})\.(?P<suffix>log|idx)"
)
_STAGED_KEY = re.compile(_PARTITION + r"s/t/(?P<uid>[0-9a-f]{32})\.(?P<suffix>log|idx)")
_DECISION_KEY = re.compile(
    r"txn/(?P<id>[^/]{1,200})/(?P<batch>0|[1-9][0-9]{0,9})(?:\.(?P<generation>[1-9][0-9]{0,5}))?"
)
_PAGE_KEY = re.compile(_PARTITION + r"p/(?P<role>[wm])(?P<epoch>[0-9a-f]{8})/(?P<uid>[0-9a-f]{32})\.page")
_SNAPSHOT = r"(?!now(?:[+-]|$))[a-zA-Z][a-zA-Z0-9._-]{0,99}"
_SNAP_KEY = re.compile(_PARTITION + rf"snap/(?P<name>{_SNAPSHOT})")
_PIN_KEY = re.compile(_PARTITION + r"pin/[0-9a-f]{32}")
_GC_AUDIT_KEY = re.compile(r"jobs/gc/[0-9a-f]{32}-[0-9]{1,10}/(?P<version>[0-9a-f]{16})-[0-9a-f]{32}")
_ERASURE_NOTE_KEY = re.compile(
    r"erasures/[0-9a-f]{32}-[0-9]{1,10}/(?P<erasure>[a-zA-Z][a-zA-Z0-9._-]{0,99})/segments/"
    r"(?P<base>[0-9]{20})-(?P<uid>[0-9a-f]{32})\.json"
)
_JOB_ID = re.compile(r"(?!gc$)[a-zA-Z][a-zA-Z0-9._-]{0,99}")
_GROUP_KEY = re.compile(
    r"groups/(?P<group>[^/]{1,249})/(?:plan|members/(?P<member>[^/]{34,233})|"
    r"partitions/(?P<topic_id>[0-9a-f]{32})-(?P<partition>0|[1-9][0-9]{0,9}))"
)
_TOPIC_KEY = re.compile(r"topics/(?P<topic>[a-zA-Z0-9._-]{1,249})")


def h2(topic_id: UUID, partition: int) -> str:
    """Return two hex digits: the first byte of blake2b-128 over topic id and partition (big-endian int32)."""
    check_partition(partition)
    return hashlib.blake2b(topic_id.bytes + partition.to_bytes(4, "big"), digest_size=16).hexdigest()[:2]


@functools.lru_cache(maxsize=PREFIXES_KEPT)
def partition_prefix(topic_id: UUID, partition: int) -> str:
    """Return ``{h2}/{topic_id}-{partition}/``, the prefix of all objects of one partition."""
    return f"{h2(topic_id, partition)}/{topic_id.hex}-{partition}/"


def root_key(topic_id: UUID, partition: int) -> str:
    """Return the key of the root, the mutable catalog object of a partition."""
    return partition_prefix(topic_id, partition) + "root"


def positions_key(topic_id: UUID, partition: int) -> str:
    """Return the key of a partition's object with the positions of consumer groups, copied from the log directory."""
    return partition_prefix(topic_id, partition) + "positions"


def hist_key(topic_id: UUID, partition: int, version: int) -> str:
    """Return the key of the history copy of one version of the root. It is created once and never replaced."""
    return hist_prefix(topic_id, partition) + f"{bounded(version, MAX_INT64, 'version'):016x}"


def hist_prefix(topic_id: UUID, partition: int) -> str:
    """Return the common prefix of all history copies of a partition's root."""
    return partition_prefix(topic_id, partition) + "hist/"


def aside_key(topic_id: UUID, partition: int, uid: str) -> str:
    """Return the key for a copy of an object that a repair replaces or deletes. ``uid``: random, 32 hex digits."""
    return partition_prefix(topic_id, partition) + f"aside/{check_uid(uid)}"


def pin_key(topic_id: UUID, partition: int, uid: str) -> str:
    """Return the key of a reader's pin of a partition. ``uid``: random, 32 hex digits."""
    return partition_prefix(topic_id, partition) + f"pin/{check_uid(uid)}"


def check_snapshot_name(name: str) -> str:
    """Return the name: a letter, then up to 99 of ``[a-zA-Z0-9._-]``.

    Raises ConfigError for other text, and for a time such as ``now-1h``.
    """
    if not re.fullmatch(_SNAPSHOT, name):
        raise ConfigError(
            f"snapshot name {name[:100]!r} is not allowed",
            hint="use a letter, then up to 99 of a-z A-Z 0-9 . _ -; not a time such as now-1h",
        )
    return name


def snap_key(topic_id: UUID, partition: int, name: str) -> str:
    """Return the key of a snapshot. While it exists, a snapshot protects the objects that its copy of the root
    names.
    """
    return snap_prefix(topic_id, partition) + check_snapshot_name(name)


def snap_prefix(topic_id: UUID, partition: int) -> str:
    """Return the common prefix of all snapshots of a partition."""
    return partition_prefix(topic_id, partition) + "snap/"


def page_key(topic_id: UUID, partition: int, name: PageName) -> str:
    """Return the key of a page of a partition's catalog."""
    prefix = partition_prefix(topic_id, partition)
    return f"{prefix}p/{name.role.value}{_epoch_hex(name.epoch)}/{check_uid(name.uid)}.page"


def segment_key(topic_id: UUID, partition: int, segment: Row | SegmentName) -> str:
    """Return the key of the ``.log`` object of a catalog row, or of a name for a future upload."""
    role, epoch, base, uid, staged = segment_name(segment) if isinstance(segment, Row) else segment
    if staged:
        return staged_key(topic_id, partition, uid)
    stem = f"s/{role}{_epoch_hex(epoch)}/{bounded(base, MAX_INT64, 'base offset'):020d}-{check_uid(uid)}"
    return f"{partition_prefix(topic_id, partition)}{stem}.log"


def index_key(topic_id: UUID, partition: int, segment: Row | SegmentName) -> str:
    """Return the key of the ``.idx`` bundle of a catalog row, or of a name for a future upload."""
    return index_key_of(segment_key(topic_id, partition, segment))


def staged_key(topic_id: UUID, partition: int, uid: str) -> str:
    """Return the key of a ``.log`` object that a sink stages; :func:`index_key_of` gives its ``.idx``."""
    return f"{staged_prefix(topic_id, partition)}{check_uid(uid)}.log"


def staged_prefix(topic_id: UUID, partition: int) -> str:
    """Return the common prefix of all staged objects of a partition."""
    return partition_prefix(topic_id, partition) + "s/t/"


def staged_uid(txn: str, batch: int, random32: int) -> str:
    """Return the uid of one attempt at a staged segment: 96 bits from ``txn`` and ``batch``, then ``random32``."""
    return f"{staged_stem(txn, batch)}{bounded(random32, MAX_BATCH, 'random part'):08x}"


def staged_stem(txn: str, batch: int) -> str:
    """Return the first 24 hex digits of a staged uid: all objects of one batch share them."""
    return f"{_txn_hash(check_txn(txn))}{bounded(batch, MAX_BATCH, 'batch'):08x}"


def _txn_hash(txn: str) -> str:
    return hashlib.blake2b(txn.encode(), digest_size=8).hexdigest()


def check_txn(txn: str) -> str:
    """Return the transaction id: printable, 1 to 200 characters percent-encoded. Raises ConfigError for other text."""
    return _quotable(txn, MAX_TXN_CHARS, "transaction id")


def _quotable(text: str, limit: int, what: str) -> str:
    if not text or len(_quoted(text)) > limit or not text.isprintable():
        raise ConfigError(
            f"{what} {text[:80]!r} is not allowed",
            hint=f"use printable text of 1 to {limit} characters, counted after percent-encoding",
        )
    return text


def _quoted(txn: str) -> str:
    return quote(txn, safe="", errors="surrogatepass").replace(".", "%2E")


def decision_key(txn: str, batch: int, generation: int = 0) -> str:
    """Return the key of a sink's decision about a batch. ``generation``: number of earlier aborts of the batch."""
    key = f"{DECISIONS_PREFIX}{_quoted(check_txn(txn))}/{bounded(batch, MAX_BATCH, 'batch')}"
    return f"{key}.{generation}" if generation else key


def check_group_name(name: str, what: str = "group") -> str:
    """Return ``name``, that of a group or member. ``what``: "group" or "member".

    Raises ConfigError unless it is printable and, percent-encoded, has 1 to 249 characters (200 for a member).
    """
    return _quotable(name, MAX_GROUP_CHARS if what == "group" else MAX_MEMBER_CHARS, f"{what} name")


def group_prefix(group: str) -> str:
    """Return the common prefix of all objects of a group."""
    return f"{GROUPS_PREFIX}{_quoted(check_group_name(group))}/"


def group_plan_key(group: str) -> str:
    """Return the key of a group's plan: the assignment of partitions that its members agreed on."""
    return group_prefix(group) + "plan"


def group_members_prefix(group: str) -> str:
    """Return the common prefix of the objects of a group's members."""
    return group_prefix(group) + "members/"


def group_member_key(group: str, member: str) -> str:
    """Return the key of a member's heartbeat object. ``member`` is ``{name}~{uid}``."""
    name, _, uid = member.rpartition("~")
    return f"{group_members_prefix(group)}{_quoted(check_group_name(name, 'member'))}~{check_uid(uid)}"


def group_partition_key(group: str, topic_id: UUID, partition: int) -> str:
    """Return the key of a group's object about one partition. It has the owner and the position."""
    check_partition(partition)
    return f"{group_prefix(group)}partitions/{topic_id.hex}-{partition}"


def index_key_of(log_key: str) -> str:
    """Return the key of the ``.idx`` bundle of a ``.log`` object."""
    return log_key.removesuffix(".log") + ".idx"


def topic_key(topic: str) -> str:
    """Return the key of a topic's registry entry. Raises ConfigError for a name that Kafka refuses."""
    return TOPICS_PREFIX + check_topic_name(topic)


def probe_key(uid: str) -> str:
    """Return the key of an object that tests the store's capabilities at the start."""
    return f"{PROBE_PREFIX}{check_uid(uid)}"


def gc_audit_key(topic_id: UUID, partition: int, version: int, uid: str) -> str:
    """Return the key of the audit object that records one deletion of garbage, of orphans, or of a whole partition.

    ``version``: version of the partition's root at that time; ``MAX_INT64`` for a whole partition.
    """
    prefix = gc_audit_prefix(topic_id, partition)
    return f"{prefix}{bounded(version, MAX_INT64, 'version'):016x}-{check_uid(uid)}"


def gc_audit_prefix(topic_id: UUID, partition: int) -> str:
    """Return the common prefix of all audit objects of a partition."""
    check_partition(partition)
    return f"jobs/gc/{topic_id.hex}-{partition}/"


def decisions_audit_key(uid: str) -> str:
    """Return the key of the audit object of one deletion of obsolete sink decisions."""
    return f"jobs/gc/decisions/{check_uid(uid)}"


def check_job_id(job_id: str) -> str:
    """Return the id: a letter, then up to 99 of ``[a-zA-Z0-9._-]``, not ``gc``. Raises ConfigError for other text."""
    if not _JOB_ID.fullmatch(job_id):
        raise ConfigError(
            f"job id {job_id[:100]!r} is not allowed",
            hint="use a letter, then up to 99 of a-z A-Z 0-9 . _ -; the id gc is reserved",
        )
    return job_id


def erasure_prefix(topic_id: UUID, partition: int) -> str:
    """Return the common prefix of the objects that erasures of a partition write.

    They are a note about each rewritten segment, and a receipt of each erasure.
    """
    check_partition(partition)
    return f"{ERASURES_PREFIX}{topic_id.hex}-{partition}/"


def erasure_note_prefix(topic_id: UUID, partition: int, erasure_id: str) -> str:
    """Return the common prefix of the notes of one erasure of a partition, one about each rewritten segment."""
    return f"{erasure_prefix(topic_id, partition)}{check_job_id(erasure_id)}/segments/"


def erasure_note_key(topic_id: UUID, partition: int, erasure_id: str, base: int, uid: str) -> str:
    """Return the key of an erasure's note about one segment with first offset ``base``, which is rewritten as
    ``uid``.
    """
    prefix = erasure_note_prefix(topic_id, partition, erasure_id)
    return f"{prefix}{bounded(base, MAX_INT64, 'offset'):020d}-{check_uid(uid)}.json"


def erasure_receipt_key(topic_id: UUID, partition: int, erasure_id: str) -> str:
    """Return the key of the receipt of one erasure of a partition."""
    return f"{erasure_prefix(topic_id, partition)}{check_job_id(erasure_id)}/receipt.json"


def wildcards(role: Role | None = None) -> dict[str, str]:
    """Return IAM patterns by kind of key. ``?`` is one character, ``*`` any number of them, also slashes.

    ``role``: match only the segments and pages that this role writes; None: those of both roles.
    """
    partition = f"??/{'?' * 32}-*/"
    epoch = ("?" if role is None else role.value) + "?" * 8
    return {
        "topic": TOPICS_PREFIX + "*",
        "root": partition + "root",
        "copied": partition + "positions",
        "segment": f"{partition}s/{epoch}/*",
        "staged": f"{partition}s/t/*",
        "page": f"{partition}p/{epoch}/*",
        "pin": partition + "pin/*",
        "snapshot": partition + "snap/*",
        "history": partition + "hist/*",
        "aside": partition + "aside/*",
        "audit": "jobs/gc/*",
        "decision": f"{DECISIONS_PREFIX}*",
        "erasure": f"{ERASURES_PREFIX}*",
        "member": f"{GROUPS_PREFIX}*/members/*",
        "plan": f"{GROUPS_PREFIX}*/plan",
        "position": f"{GROUPS_PREFIX}*/partitions/*",
        "probe": f"{PROBE_PREFIX}*",
    }


def parse_partition_key(key: str) -> tuple[UUID, int] | None:
    """Return (topic id, partition) of any key below a partition's prefix, None for any other key."""
    return _partition_of(_PARTITION_KEY.fullmatch(key))


def parse_root_key(key: str) -> tuple[UUID, int] | None:
    """Return (topic id, partition) of the key of a root or of its history copy, None for any other key."""
    return _partition_of(_ROOT_KEY.fullmatch(key))


def parse_hist_key(key: str) -> int | None:
    """Return the version in the key of a history copy of a root, None for any other key."""
    match = _ROOT_KEY.fullmatch(key)
    if _partition_of(match) is None or match is None or match["version"] is None:
        return None
    return int(match["version"], 16)


def parse_gc_audit_key(key: str) -> int | None:
    """Return the root's version in the key of a partition's audit object, None for any other key."""
    match = _GC_AUDIT_KEY.fullmatch(key)
    return None if match is None else int(match["version"], 16)


def parse_erasure_note_key(key: str) -> ErasureNoteKey | None:
    """Return the parts of the key of an erasure's note, None for any other key."""
    match = _ERASURE_NOTE_KEY.fullmatch(key)
    return None if match is None else ErasureNoteKey(match["erasure"], int(match["base"]), match["uid"])


def parse_snap_key(key: str) -> str | None:
    """Return the name of a snapshot, None for any other key."""
    match = _SNAP_KEY.fullmatch(key)
    return None if match is None or _partition_of(match) is None else match["name"]


def is_pin_key(key: str) -> bool:
    """Return True if ``key`` is the key of a reader's pin of a partition."""
    return _partition_of(_PIN_KEY.fullmatch(key)) is not None


def parse_segment_key(key: str) -> SegmentKey | None:
    """Return the parts of a ``.log`` or ``.idx`` key. None for any other key, or with a wrong ``h2`` or number."""
    match = _SEGMENT_KEY.fullmatch(key)
    partition = _partition_of(match)
    if match is None or partition is None:
        return None
    epoch, base = int(match["epoch"], 16), int(match["base"])
    if epoch > MAX_INT32 or base > MAX_INT64:
        return None
    name = SegmentName(Role(match["role"]), epoch, base, match["uid"])
    return SegmentKey(partition[0], partition[1], name, match["suffix"])


def parse_staged_key(key: str) -> StagedKey | None:
    """Return the parts of the key of a staged object, None for any other key."""
    match = _STAGED_KEY.fullmatch(key)
    partition = _partition_of(match)
    return None if match is None or partition is None else StagedKey(*partition, match["uid"], match["suffix"])


def is_staged_by(row: Row, txn: str) -> bool:
    """Return True if the segment of ``row`` was staged by a batch of this transaction id."""
    return bool(row.flags & FLAG_STAGED) and join_uid(row.id_hi, row.id_lo).startswith(_txn_hash(txn))


def is_stem_of(txn: str, batch: int, uid: str) -> bool:
    """Return True if ``uid`` is that of an object staged by this batch of this transaction id. Accepts any text."""
    return uid.startswith(f"{_txn_hash(txn)}{batch:08x}")


def staged_batch(uid: str) -> int:
    """Return the number of the sink's batch that staged a segment, from the segment's uid."""
    return int(uid[TXN_CHARS:STEM_CHARS], 16)


def parse_decision_key(key: str) -> DecisionKey | None:
    """Return the parts of the key of a sink's decision, None for any other key."""
    match = _DECISION_KEY.fullmatch(key)
    if match is None or int(match["batch"]) > MAX_BATCH:
        return None
    found = DecisionKey(unquote(match["id"], errors="replace"), int(match["batch"]), int(match["generation"] or 0))
    return found if _quoted(found.txn) == match["id"] and found.txn.isprintable() else None


def parse_group_key(key: str) -> GroupKey | None:
    """Return the parts of the key of any object of a group, None for any other key."""
    match = _GROUP_KEY.fullmatch(key)
    if match is None:
        return None
    group, member, tp = unquote(match["group"]), None, None
    if match["member"] is not None:
        name, tilde, uid = match["member"].rpartition("~")
        if not tilde or not _UID.fullmatch(uid):
            return None
        member = f"{unquote(name)}~{uid}"
    elif match["topic_id"] is not None:
        tp = UUID(hex=match["topic_id"]), int(match["partition"])
        if tp[1] > MAX_INT32:
            return None
    return GroupKey(group, member, tp)


def parse_page_key(key: str) -> PageKey | None:
    """Return the parts of the key of a page, None for any other key."""
    match = _PAGE_KEY.fullmatch(key)
    partition = _partition_of(match)
    if match is None or partition is None or int(match["epoch"], 16) > MAX_INT32:
        return None
    return PageKey(*partition, PageName(Role(match["role"]), int(match["epoch"], 16), match["uid"]))


def parse_topic_key(key: str) -> str | None:
    """Return the topic of a registry key, None for any other key."""
    match = _TOPIC_KEY.fullmatch(key)
    if match is None or match["topic"] in {".", ".."}:
        return None
    return match["topic"]


def segment_name(row: Row) -> SegmentName:
    """Return the name (role, epoch, base, uid) by which a row's objects are stored."""
    role = Role.MAINTAINER if row.flags & FLAG_MAINTAINER else Role.WRITER
    uid = join_uid(row.id_hi, row.id_lo)
    return SegmentName(role, row.claim_epoch, row.base, uid, staged=bool(row.flags & FLAG_STAGED))


def trashed_segment(entry: TrashEntry) -> SegmentName:
    """Return the name (role, epoch, base, uid) by which the objects of a trash entry are stored."""
    role = Role.MAINTAINER if entry.kind & TRASH_MAINTAINER else Role.WRITER
    uid = join_uid(entry.id_hi, entry.id_lo)
    return SegmentName(role, entry.epoch, entry.base, uid, staged=bool(entry.kind & TRASH_STAGED))


def split_uid(uid: str) -> tuple[int, int]:
    """Return 32 hex digits as the two signed 64-bit halves that a row stores."""
    data = bytes.fromhex(check_uid(uid))
    return int.from_bytes(data[:8], "big", signed=True), int.from_bytes(data[8:], "big", signed=True)


def join_uid(id_hi: int, id_lo: int) -> str:
    """Return the 32 hex digits of a uid from its two signed 64-bit halves, as a row stores them."""
    return (id_hi.to_bytes(8, "big", signed=True) + id_lo.to_bytes(8, "big", signed=True)).hex()


def _partition_of(match: re.Match[str] | None) -> tuple[UUID, int] | None:
    if match is None:
        return None
    topic_id, partition = UUID(hex=match["topic_id"]), int(match["partition"])
    if partition > MAX_INT32 or h2(topic_id, partition) != match["h2"]:
        return None
    return topic_id, partition


_UID = re.compile(r"[0-9a-f]{32}")


def check_uid(uid: str) -> str:
    if not _UID.fullmatch(uid):
        raise ConfigError(f"object id {uid[:40]!r} is not 32 lower-case hex digits")
    return uid


def _epoch_hex(epoch: int) -> str:
    return f"{bounded(epoch, MAX_INT32, 'claim epoch'):08x}"


def check_partition(partition: int) -> None:
    bounded(partition, MAX_INT32, "partition")


def bounded(value: int, limit: int, what: str) -> int:
    if not 0 <= value <= limit:
        raise ConfigError(f"{what} {value} is outside 0..{limit}")
    return value
