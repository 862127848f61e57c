"""What the network does to requests: a forecast for some seconds, dice for each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

from tests.support.proxy import Fault, FaultKind

Chances = Mapping[str, float]

_FAULTS = {
    "latency": lambda dice: Fault(FaultKind.LATENCY, seconds=dice.uniform(0.05, 0.6)),
    "slow body": lambda dice: Fault(FaultKind.SLOW, seconds=dice.uniform(0.1, 1.0)),
    "reset before": lambda _: Fault(FaultKind.RESET_BEFORE),
    "reset after": lambda _: Fault(FaultKind.LOST_RESPONSE),
    "truncated": lambda _: Fault(FaultKind.TRUNCATE),
    "500": lambda _: Fault(FaultKind.ERROR, status=500, code="InternalError"),
    "503": lambda _: Fault(FaultKind.ERROR, status=503, code="SlowDown"),
    "403": lambda _: Fault(FaultKind.ERROR, status=403, code="AccessDenied"),
}

FORECASTS: Mapping[str, tuple[float, Chances]] = {
    "fair": (4, {}),
    "drizzle": (4, dict.fromkeys(_FAULTS, 0.01)),
    "storm": (2, dict.fromkeys(_FAULTS, 0.06)),
    "lost answers": (2, {"reset after": 0.3}),
    "far away": (1, {"latency": 0.6, "slow body": 0.3}),
    "overload": (1, {"503": 0.6, "500": 0.1}),
    "refusal": (1, {"403": 0.4}),
    "outage": (1, {"reset before": 1.0}),
}
"""By name: weight, and the chance of each fault."""


class Weather:
    """Called by the proxy under its lock. ``met`` counts the faults by name."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._chances: Chances = {}
        self.met: Counter[str] = Counter()
        self.forecasts: Counter[str] = Counter()

    def change(self) -> str:
        """Other weather; its name."""
        name = self._dice.choices(list(FORECASTS), [weight for weight, _ in FORECASTS.values()])[0]
        self._chances = FORECASTS[name][1]
        self.forecasts[name] += 1
        return name

    def clear(self) -> None:
        """No faults from now on."""
        self._chances = {}

    def choose(self, method: str, target: str) -> Fault | None:
        """The fault of one request, None for most."""
        left = self._dice.random()
        for name, chance in self._chances.items():
            left -= chance
            if left < 0:
                self.met[name] += 1
                return _FAULTS[name](self._dice)
        return None
