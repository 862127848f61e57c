"""The first record of an empty log: once a volume has claimed the partition, the bucket says which offset it gets.

An uploader may claim a partition for a directory whose application knows of no bucket, and the bucket may end at
offset N while the log would begin at 0. The claim's proof is on the disk before the claim is sent. So::

    the uploader:     writes the proof      then looks whether the log is empty     then claims it as empty
    the application:  writes the record     then looks whether there is a proof     then acknowledges it

and whichever of the two comes second sees the other. So a log is never claimed as empty while a record is acknowledged
in it at an offset that the bucket has given to another record.
"""

from __future__ import annotations

from dataclasses import replace

from tiered.errors import FencedError
from tiered.local.disk.uploader_files import PartitionUpload
from tiered.local.partition.context import PartitionContext

BEGIN_PATIENCE_S = 5.0
"""How long the first append to a log without records waits for the uploader that claims it just now; once."""
BEGIN_POLL_S = 0.02
NO_EPOCH = -2
"""Below that of any note, -1 included: that of a restore."""


class FirstAppendGuard:
    """Guard of the first record of an empty log. Reads small files, with one ``stat`` each while they are unchanged.

    ``granted``: (token, claim epoch) of the claim that gave this process the first offset of the log. After a newer
    claim appends wait until the upload checkpoint has that claim's epoch.
    """

    __slots__ = ("_context", "_was_patient", "granted")

    def __init__(self, context: PartitionContext) -> None:
        self.granted: tuple[str | None, int] = (None, NO_EPOCH)
        self._context = context
        self._was_patient = False

    def wait(self) -> None:
        """Wait, once, for an uploader that is claiming this empty log. No lock is held."""
        if self._context.begun or self._was_patient or not self._context.segments.empty:
            return
        clock = self._context.clock
        deadline = clock.monotonic() + BEGIN_PATIENCE_S
        while self.obstacle(self._context.segments.end):
            if clock.monotonic() >= deadline:
                self._was_patient = True
                return  # the append itself is refused
            clock.sleep(BEGIN_POLL_S)

    def need(self) -> str | None:
        """Return the token of the present claim, for :meth:`check_first_append`. Raises FencedError: no record yet.

        The caller holds the partition's lock.
        """
        end = self._context.segments.end
        token = self.token()  # before the obstacles: a proof that comes between the two is found afterwards
        why = self.obstacle(end)
        if why:
            raise self.refusal(end, why)
        return token

    def check_first_append(self, token: str | None) -> None:
        """Raise FencedError if an uploader made a claim while the first record was written: cut the record back.

        ``token``: the result of :meth:`need`. The caller holds the lock. Appends stay refused until the uploader
        reports the claim.
        """
        if self.token() != token:
            context = self._context
            context.upload = replace(context.upload or PartitionUpload(0), fenced=True)
            raise self.lost(self._context.segments.active.base_offset)

    def token(self) -> str | None:
        """Return the token of the last claim that this directory made, or tried to make; None without any."""
        return self._context.around.claims.proof(self._context.tp).token

    def obstacle(self, end: int) -> str:
        """Return the reason why an empty log that ends at ``end`` must not accept a record now; ``""`` if it may."""
        proof = self._context.around.claims.find(self._context.tp)
        token, epoch = self.granted
        if proof is None or (proof.token is not None and proof.token == token):
            return ""
        noted = self._context.around.uploads.read().get(self._context.tp)
        if noted is not None and noted.end_offset <= end and noted.claim_epoch > epoch:
            return ""
        if proof.token is None and proof.restored_from is None:
            return "it was set aside from here, and goes on where the bucket ends"
        return "an uploader has claimed it for this directory, and goes on where the bucket ends"

    def refusal(self, end: int, why: str) -> FencedError:
        """Return the error of a refused append. ``why``: a reason from :meth:`obstacle`."""
        return FencedError(
            f"{self._context.tp} has no records on this disk: {why}, which may be above offset {end}",
            hint="open the log with its remote=, which asks the bucket; `tiered status` shows the claim",
        )

    def lost(self, end: int) -> FencedError:
        """Return the error of a first record during which a claim was made."""
        return FencedError(
            f"{self._context.tp}: an uploader claimed it for this directory while its first record was written"
            f" at offset {end}: the record was taken back",
            hint="append again in a moment; if it is refused then, `tiered repair rejoin` sets this disk's files aside",
        )
