"""Least permissions of each kind of program on a bucket, as IAM policy documents.

The key patterns come from ``keys.wildcards``. ``tests/unit/plan/iam_policy`` runs the work of each kind of program
under its document. A writer deletes only its probes, so its stolen key
cannot delete history. Objects that its journal names are deleted if it may delete, otherwise by a maintainer. No
role deletes old versions of objects.
"""

from __future__ import annotations

from typing import Any

from tiered.format.keys import GROUPS_PREFIX, Role, wildcards

ROLES = ("reader", "consumer", "writer", "maintainer", "auditor", "spark", "sink", "repair")
"""``consumer`` reads as a member of a group. ``spark`` reads with Spark, ``sink`` writes with it; a pipeline from log
to log is both. Of the commands on Spark, ``check`` needs auditor, ``export`` spark, ``maintain`` and ``erase``
maintainer. Use ``repair`` only while you repair a log: it reads old versions and overwrites any object of the log. It
deletes no segment.
"""
_CREATE = ["s3:PutObject", "s3:PutObjectTagging", "s3:AbortMultipartUpload"]
"""Actions that create an object with tags (lifecycle rules select segments by them)."""
_ENCRYPT = ["kms:Decrypt", "kms:GenerateDataKey"]
"""Key actions of a program that writes; multipart uploads need Decrypt, too."""

_LOG = ("topic", "root", "page", "segment", "staged")
_PAST = ("snapshot", "history")
_KEPT = ("snapshot", "audit", "erasure", "aside")
"""Kinds of objects that a maintainer writes for people to read: snapshots, reports and copies."""
_GROUP = ("member", "plan", "position")
_PIN = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]

Policy = dict[str, Any]


def policy(
    role: str, bucket_arn: str, prefix: str, *, kms_key_arn: str = "", leave_out: tuple[str, ...] = ()
) -> Policy:
    """Return the IAM policy document for ``role``, one of :data:`ROLES`.

    ``prefix``: key prefix of the log in the bucket, empty or with a final ``/``. ``kms_key_arn``: key that encrypts the
    objects, empty for none. ``leave_out``: ``Sid`` of statements to leave out, for example ``Pin`` and ``PinKey`` of
    readers, or ``MissingIs404``.
    """
    own = Role.MAINTAINER if role in ("maintainer", "repair") else Role.WRITER
    statements = _STATEMENTS[role](_Keys(f"{bucket_arn}/{prefix}", own))
    # Names for check, restore, repair; Spark's are for reading as of a time.
    past = [wildcards()[kind] for kind in ("snapshot", "history")]
    listed = {"spark": ["topics/*", *past], "sink": []}.get(role, ["", "topics/*", "??/*"])
    looks = role in ("maintainer", "auditor", "repair")
    listed += [wildcards()[kind] for kind in ("audit", "decision")] if looks else []
    listed += [wildcards()["erasure"]] if looks or role in ("reader", "consumer") else []
    listed += [f"{GROUPS_PREFIX}*"] if role in ("consumer", "maintainer", "auditor") else []
    if listed:
        under = _when("StringLike", [f"{prefix}{kind}" for kind in listed])
        versions = ["s3:ListBucketVersions"] if role in ("repair", "auditor") else []  # `check` warns without any
        statements.append(_allow("List", ["s3:ListBucket", *versions], bucket_arn) | under)
    statements += [
        # Without the right to list, S3 returns 403, not 404, for an absent key; that check has no prefix.
        _allow("MissingIs404", ["s3:ListBucket"], bucket_arn) | _when("Null", "true"),
    ]
    if role == "auditor":  # for `cost`; for this action S3 knows no condition on the prefix
        statements.append(_allow("Uploads", ["s3:ListBucketMultipartUploads"], bucket_arn))
    if role == "auditor":  # `doctor` judges the lifecycle rules
        statements.append(_allow("Lifecycle", ["s3:GetLifecycleConfiguration"], bucket_arn))
    if kms_key_arn:
        statements.append(
            _allow("Key", _ENCRYPT[:1] if role in ("reader", "auditor", "spark") else _ENCRYPT, kms_key_arn)
        )
    if role in ("reader", "consumer"):
        # A pin is renewed by a PUT with If-Match, for which S3 wants the right to read, too.
        statements.append(_allow("Pin", _PIN, _Keys(f"{bucket_arn}/{prefix}")("pin")))
        statements += [_allow("PinKey", _ENCRYPT[1:], kms_key_arn)] if kms_key_arn and role != "consumer" else []
    return {"Version": "2012-10-17", "Statement": [each for each in statements if each["Sid"] not in leave_out]}


class _Keys:
    """Builder of ARN patterns for kinds of object keys. ``objects``: their common prefix, an ARN.

    :meth:`own` covers only segments and pages of ``role``; None: of all roles.
    """

    def __init__(self, objects: str, role: Role | None = None) -> None:
        self._objects = objects
        self._role = role

    def __call__(self, *kinds: str) -> list[str]:
        return self._arns(wildcards(), kinds)

    def own(self, *kinds: str) -> list[str]:
        return self._arns(wildcards(self._role), kinds)

    def _arns(self, patterns: dict[str, str], kinds: tuple[str, ...]) -> list[str]:
        return [self._objects + patterns[kind] for kind in kinds]


def _read(keys: _Keys) -> list[Policy]:
    """Allow the reads of Spark, also of the positions of consumer groups, at which a read may begin."""
    return [_allow("Read", ["s3:GetObject"], keys(*_LOG, *_PAST, "copied", "position"))]


def _restore(keys: _Keys) -> list[Policy]:
    """Allow the reads of a reader: the log, earlier catalogs, and the list of erasures."""
    return [_allow("Read", ["s3:GetObject"], keys(*_LOG, *_PAST, "copied", "erasure"))]


def _consume(keys: _Keys) -> list[Policy]:
    """Allow the requests of a member of a group. It deletes only objects of members."""
    return [
        *_restore(keys),
        _allow("Group", ["s3:GetObject", "s3:PutObject"], keys(*_GROUP)),
        _allow("Leave", ["s3:DeleteObject"], keys("member")),
    ]


def _audit(keys: _Keys) -> list[Policy]:
    kinds = (*_LOG, *_PAST, "copied", "pin", "decision", "audit", "erasure", *_GROUP)
    return [_allow("Read", ["s3:GetObject"], keys(*kinds))]


def _write(keys: _Keys) -> list[Policy]:
    return [
        _allow("Read", ["s3:GetObject"], keys(*_LOG, "copied", "history", "plan")),
        _allow("Create", _CREATE, keys.own("segment")),
        _allow("Keep", ["s3:PutObject"], keys.own("page", "history")),
        _allow("Swap", ["s3:PutObject"], keys("root", "topic", "copied")),
        _allow("Probe", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], keys("probe")),
    ]


def _sink(keys: _Keys) -> list[Policy]:
    """Allow a sink's requests. It reads its staged objects back only if the store reports no checksum."""
    return [
        _allow("Read", ["s3:GetObject"], keys("topic", "root", "staged", "decision", "history")),
        _allow("Create", _CREATE, keys("staged")),
        _allow("Keep", ["s3:PutObject"], [*keys.own("page", "history"), *keys("decision")]),
        _allow("Swap", ["s3:PutObject"], keys("root", "topic")),
        _allow("Probe", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], keys("probe")),
    ]


def _maintain(keys: _Keys) -> list[Policy]:
    return [
        *_audit(keys),
        # It aborts batches that no sink commits, and deletes old decisions.
        _allow("Decide", ["s3:PutObject", "s3:DeleteObject"], keys("decision")),
        _allow("Create", _CREATE[:2], keys.own("segment")),
        _allow("Keep", ["s3:PutObject"], [*keys.own("page", "history"), *keys(*_KEPT)]),
        _allow("Aside", ["s3:GetObject"], keys("aside")),
        _allow("Swap", ["s3:PutObject"], keys("root", "topic", "pin", "position")),
        _allow(
            "Collect",
            ["s3:DeleteObject"],
            keys("segment", "staged", "page", "root", "copied", "pin", "snapshot", "history", "aside", *_GROUP),
        ),
        _allow("Abort", ["s3:AbortMultipartUpload"], keys("segment")),
        _allow("Probe", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], keys("probe")),
    ]


def _repair(keys: _Keys) -> list[Policy]:
    """Allow the requests of `repair`, which writes intact versions of objects back under any key of the log.

    It deletes no segment.
    """
    everything = keys(*_LOG, *_PAST, "pin", "decision", "audit", "erasure", "aside")
    return [
        _allow("Read", ["s3:GetObject", "s3:GetObjectVersion"], everything),
        _allow("Create", _CREATE, keys("segment", "staged")),
        _allow("Keep", ["s3:PutObject"], keys("page", "root", "topic", "decision", "pin", "aside", *_PAST)),
        # Damaged copies without an intact version; never a segment.
        _allow("Drop", ["s3:DeleteObject"], keys("pin", *_PAST)),
        _allow("Probe", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], keys("probe")),
    ]


_STATEMENTS = {
    "reader": _restore,
    "consumer": _consume,
    "writer": _write,
    "maintainer": _maintain,
    "auditor": _audit,
    "spark": _read,
    "sink": _sink,
    "repair": _repair,
}


def _allow(sid: str, actions: list[str], resources: list[str] | str) -> Policy:
    resource = [resources] if isinstance(resources, str) else resources
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource}


def _when(operator: str, value: list[str] | str) -> Policy:
    return {"Condition": {operator: {"s3:prefix": value}}}
