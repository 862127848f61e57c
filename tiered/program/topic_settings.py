"""Settings of a topic as a person reads them: sizes and times in their units, changed ones marked."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.config import MAX_LONG, UNLIMITED, TopicConfig
from tiered.program.output import columns, human_bytes, human_duration

SAME_AS_WHOLE = -2
"""What ``local.retention.*`` says for "the same as ``retention.*``"."""


def setting_lines(config: Mapping[str, str]) -> list[str]:
    """Name, value, meaning; ``*`` before those that are not the default. ``config`` holds texts by Kafka's names."""
    defaults = TopicConfig().to_text()
    rows = [
        ["*" if value != defaults.get(name) else "", name, value, setting_meaning(name, value)]
        for name, value in sorted(config.items())
    ]
    changed = any(row[0] for row in rows)
    note = ["", "* changed; the others are the defaults" if changed else "all settings are the defaults"]
    return [*columns(["", "setting", "value", "meaning"], rows), *note]


def setting_meaning(name: str, value: str) -> str:
    """The value with its unit, empty where the value says it all."""
    unit = name.rpartition(".")[2]
    if unit not in ("bytes", "ms", "messages"):
        return ""
    number = int(value)
    if number in (UNLIMITED, MAX_LONG):
        return "no limit"
    if number == SAME_AS_WHOLE:
        return f"as {name.removeprefix('local.')}"
    return {"bytes": human_bytes, "ms": human_duration}[unit](number) if unit in ("bytes", "ms") else ""
