"""A store that does not keep what S3 promises of conditions and checksums."""

from __future__ import annotations

from tiered.store.base import ABSENT, Get, Object, Outcome, Put, StoreRequest
from tiered.store.memory import MemoryStore


class Emulator(MemoryStore):
    """An emulator that ignores some conditions, or checksums, or both."""

    def __init__(self, *, ignores: str) -> None:
        super().__init__()
        self.ignores = ignores

    def execute(self, request: StoreRequest) -> Outcome:
        if isinstance(request, Put):
            if self.ignores == "checksum":
                request = Put(request.key, request.body, request.condition)
            elif self.ignores == "all" or (self.ignores == "create") == (request.condition is ABSENT):
                head = super().execute(Get(request.key))
                if isinstance(head, Object):
                    self._bucket.objects.pop(request.key)
                request = Put(request.key, request.body, ABSENT, request.crc32c)
        return super().execute(request)
