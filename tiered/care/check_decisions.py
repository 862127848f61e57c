"""What sinks decided, as ``check`` sees it: each decision can be read."""

from __future__ import annotations

from tiered.errors import ConfigError, CorruptionError, RemotePermissionError
from tiered.findings import NEWER_RELEASE, Finding, Findings, Severity
from tiered.format.keys import DECISIONS_PREFIX, parse_decision_key
from tiered.remote.stage import read_decision
from tiered.store.base import Steps, list_all


def check_decisions() -> Steps[list[Finding]]:
    """What is wrong with the decisions of all sinks. Lists ``txn/``, and reads each."""
    found: list[Finding] = []
    try:
        listed = yield from list_all(DECISIONS_PREFIX)
    except RemotePermissionError as refused:
        findings = Findings(DECISIONS_PREFIX)
        findings.add(Severity.INFO, "not_listed", f"decisions of sinks are not looked at: {refused.message}")
        return findings.items
    for entry in listed:
        if parse_decision_key(entry.key) is None:
            continue
        findings = Findings(entry.key)
        try:
            yield from read_decision(entry.key)
        except CorruptionError as damage:
            findings.error("decision", f"{damage.message}; {damage.hint}", position=damage.position)
        except ConfigError as newer:
            findings.error(NEWER_RELEASE, newer.message)
        found += findings.items
    return found
