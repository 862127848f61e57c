"""A small evaluator of IAM policy documents: enough of the language for ours, and an error for anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Context = Mapping[str, str]


def matches(pattern: str, text: str) -> bool:
    """IAM's wildcards: ``*`` any characters (slashes too), ``?`` exactly one."""
    parts = [".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern]
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _list(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _condition(operator: str, key: str, wanted: list[str], context: Context) -> bool:
    present = context.get(key)
    if operator == "Null":
        return (present is None) == (wanted == ["true"])
    if present is None:
        return False
    if operator == "StringLike":
        return any(matches(pattern, present) for pattern in wanted)
    if operator == "Bool":
        return present in wanted
    raise ValueError(f"condition operator {operator} is not known to this evaluator")


def _applies(statement: Mapping[str, Any], action: str, resource: str, context: Context) -> bool:
    unknown = set(statement) - {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}
    if unknown:
        raise ValueError(f"statement elements {unknown} are not known to this evaluator")
    return (
        any(matches(pattern, action) for pattern in _list(statement["Action"]))
        and any(matches(pattern, resource) for pattern in _list(statement["Resource"]))
        and all(
            _condition(operator, key, _list(wanted), context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def applying(policy: Mapping[str, Any], action: str, resource: str, context: Context) -> list[Mapping[str, Any]]:
    """The statements that have something to say."""
    return [statement for statement in policy["Statement"] if _applies(statement, action, resource, context)]


def decision(policy: Mapping[str, Any], action: str, resource: str, context: Context) -> str:
    """``Allow``, ``Deny`` (said so) or ``None`` (nothing said: refused unless another policy allows)."""
    effects = {statement["Effect"] for statement in applying(policy, action, resource, context)}
    return "Deny" if "Deny" in effects else "Allow" if effects else "None"
