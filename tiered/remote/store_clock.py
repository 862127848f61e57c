"""Store's clock as a committer knows it: commits are dated near it, even if this machine's clock is wrong."""

from __future__ import annotations

from tiered.errors import ConfigError
from tiered.store.base import Object, Time

MAX_CLOCK_LEAD_MS = 3_600_000
"""Most that this machine's clock may be ahead of the store's at a commit, because grace times count from commits.

A machine whose clock is behind commits by the store's clock. Otherwise what it removed would be past its grace at once.
This machine's clock is compared, not the root's ``ts_ms``, which never goes back. After one commit dated ahead
(``file://`` has only the machine's clock), ``ts_ms`` would block commits until real time has caught up. Instead each
commit on such a root adds a millisecond. Its grace times last longer, never shorter.
"""


class StoreClock:
    """Store's clock, estimated from the dates of its answers. ``name``: the partition's, for messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._date: tuple[int, float] | None = None  # in ms, and the monotonic instant at which it was so

    def note(self, got: object, time: Time) -> None:
        """Record the date of the store's answer ``got``, which arrived at ``time``."""
        if isinstance(got, Object) and got.date_ms:
            self._date = (got.date_ms, time.monotonic)

    def ahead_of_store_ms(self, at_ms: int, time: Time) -> int:
        """Return by how many ms ``at_ms`` is ahead of the store's clock; 0 before the first answer with a date."""
        if self._date is None:
            return 0
        date_ms, read_at = self._date
        return at_ms - date_ms - int((time.monotonic - read_at) * 1000)

    def ahead(self, time: Time) -> bool:
        """Return True if this machine's clock seems to be far ahead.

        After a sleep the machine's time is right, but its monotonic clock did not count the sleep. A new answer
        decides.
        """
        return self.ahead_of_store_ms(time.now_ms, time) > MAX_CLOCK_LEAD_MS

    def trusted_ms(self, time: Time) -> int:
        """Return this machine's time, or the store's if the two are far apart."""
        return time.now_ms if self.agrees(time) else time.now_ms - self.ahead_of_store_ms(time.now_ms, time)

    def agrees(self, time: Time) -> bool:
        """Return True if this machine's clock is near the store's, judged by the answers so far."""
        return abs(self.ahead_of_store_ms(time.now_ms, time)) <= MAX_CLOCK_LEAD_MS

    def commit_ms(self, time: Time) -> int:
        """Return a commit's time: this machine's, or the store's if later. Raises ConfigError if it is far ahead."""
        ahead_ms = self.ahead_of_store_ms(time.now_ms, time)
        if self.ahead(time):
            raise ConfigError(
                f"{self._name}: this commit would be dated {ahead_ms} ms later than the store's clock",
                hint="set the clock of this machine: objects are kept for a grace time counted from it",
            )
        return time.now_ms - min(ahead_ms, 0)
