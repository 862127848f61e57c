"""Judgement of a bucket's lifecycle rules: what they delete of a log, and what they should delete and do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SCRUB_DAYS = 20
"""Days in which `check --read-data-subset 5%` reads all segments. Damage must be found while versions live."""
OUT_OF_REACH = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes that no reader gets without a restore."""

Rule = Mapping[str, Any]


class LifecycleFinding(NamedTuple):
    """One judgement. ``deletes``: the rule would delete the log."""

    text: str
    hint: str
    deletes: bool = False


def check_lifecycle_rules(rules: Sequence[Rule], bucket: str, prefix: str) -> list[LifecycleFinding]:
    """Return what is wrong with the rules for the log below ``prefix``, which is empty or ends with ``/``."""
    look = f"`aws s3api get-bucket-lifecycle-configuration --bucket {bucket}` prints the rules"
    rules = [rule for rule in rules if rule.get("Status") == "Enabled" and _touches(_prefix_of(rule), prefix)]
    found = []
    for rule in rules:
        name, days = rule.get("ID", "without a name"), _days(rule.get("Expiration", {}))
        if days:
            text = f"rule {name} deletes objects of the log {days}: only `tiered maintain` knows which may go"
            found.append(LifecycleFinding(text, f"delete that rule; {look}", deletes=True))
        classes = {each.get("StorageClass") for each in rule.get("Transitions", ())} & OUT_OF_REACH
        if classes:
            text = f"rule {name} moves objects to {min(classes)}, from which no reader gets them"
            found.append(LifecycleFinding(text, f"choose STANDARD_IA or GLACIER_IR; {look}"))
        kept = rule.get("NoncurrentVersionExpiration", {})
        short = kept.get("NoncurrentDays", SCRUB_DAYS)
        # A rule that spares the newest old version spares segments: they have no other one.
        if short < SCRUB_DAYS and not kept.get("NewerNoncurrentVersions"):
            text = f"rule {name} deletes old versions after {short} days, and a check of all bytes takes {SCRUB_DAYS}"
            found.append(LifecycleFinding(text, f"keep them for 30 days, as terraform/modules/bucket does; {look}"))
    aborts = [rule for rule in rules if "AbortIncompleteMultipartUpload" in rule]
    if not any(prefix.startswith(_prefix_of(rule)) for rule in aborts):
        hint = f"add AbortIncompleteMultipartUpload, as terraform/modules/bucket does; {look}"
        found.append(LifecycleFinding("no rule aborts unfinished uploads, and their parts are paid for", hint))
    return found


def _prefix_of(rule: Rule) -> str:
    chosen = rule.get("Filter", {})
    return str(rule.get("Prefix") or chosen.get("Prefix") or chosen.get("And", {}).get("Prefix") or "")


def _touches(chosen: str, prefix: str) -> bool:
    """Return True if a rule's prefix covers the log or a part of it. Probes may go."""
    return prefix.startswith(chosen) or (chosen.startswith(prefix) and not chosen.startswith(f"{prefix}probe/"))


def _days(expiration: Mapping[str, Any]) -> str:
    if "Days" in expiration:
        return f"after {expiration['Days']} days"
    return f"on {expiration['Date']:%Y-%m-%d}" if "Date" in expiration else ""
