"""Wait of a coroutine: until a change, or for a time."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Wake-up call for one waiting coroutine. A change that comes while it works ends its next wait at once."""

    def __init__(self) -> None:
        self._changed = False
        self._waiting: asyncio.Future[None] | None = None

    def set(self) -> None:
        """End the wait, or the next one."""
        self._changed = True
        self._end()

    def _end(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for a change, at most ``seconds`` (None: for ever). Return False if only the time has passed."""
        if not self._changed:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = None if seconds is None else loop.call_later(max(0.0, seconds), self._end)
            try:
                await self._waiting
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        changed, self._changed = self._changed, False
        return changed
