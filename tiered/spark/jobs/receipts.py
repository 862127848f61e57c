"""What a job keeps in the bucket, below ``jobs/{id}/``. Every object is created once, by who comes first.

::

    plan.json              what is to be done; whoever starts the job again goes on with it
    {phase}.json           tasks that were planned on the way
    {phase}/{number}.json  the receipt of one task; a task that has one is not done again
    {phase}/{number}.{run}.{uid}.json  how far a long attempt of it is (``status``)
    {name}.json            a decision of the driver
    receipt.json           the end: what was done, and the exit code
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tiered.errors import NotFoundError
from tiered.format.crc import crc32c
from tiered.format.keys import check_job_id, job_key
from tiered.spark.jobs.plan import JobPlan, Receipt, Task, decoded, encoded
from tiered.store.base import Get, Object, Steps, Store, list_all
from tiered.store.driver import drive
from tiered.store.puts import put_unique
from tiered.store.threads import ThreadPool

GETS_AT_ONCE = 16
PLAN, RECEIPT = "plan.json", "receipt.json"
TASKS = "tasks"
"""The phase whose tasks stand in the plan."""


class JobFolder:
    """The objects of one job. Thread-safe. Raises what the store raises, CorruptionError."""

    def __init__(self, store: Store, job_id: str) -> None:
        self.job_id = check_job_id(job_id)
        self._store = store

    def plan(self) -> JobPlan | None:
        """The plan, None before the job began."""
        data = self.read_bytes(PLAN)
        return None if data is None else JobPlan.from_bytes(data, key=self.key(PLAN))

    def keep_plan(self, plan: JobPlan) -> JobPlan:
        """``plan``, or the one that was there first."""
        return JobPlan.from_bytes(self.keep_bytes(PLAN, plan.to_bytes()), key=self.key(PLAN))

    def read(self, name: str) -> dict[str, Any] | None:
        """What was kept under ``name``."""
        data = self.read_bytes(f"{name}.json")
        return None if data is None else decoded(data, key=self.key(f"{name}.json"))

    def keep(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """``fields``, or what was kept under ``name`` first."""
        key = f"{name}.json"
        return decoded(self.keep_bytes(key, encoded(fields)), key=self.key(key))

    def receipt(self) -> dict[str, Any] | None:
        """The end of the job, None before it."""
        return self.read(RECEIPT.removesuffix(".json"))

    def conclude(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Ends the job."""
        return self.keep(RECEIPT.removesuffix(".json"), fields)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def keep_tasks(self, phase: str, tasks: Iterable[Task]) -> tuple[Task, ...]:
        """The tasks of a phase beside the plan, as they were kept first."""
        return tuple(self.keep(phase, {"tasks": list(tasks)})["tasks"])

    def tasks(self, phase: str, plan: JobPlan) -> tuple[Task, ...]:
        """Of a phase, by number."""
        if phase == TASKS:
            return plan.tasks
        kept = self.read(phase)
        return tuple(kept["tasks"]) if kept is not None else ()

    def done(self, phase: str) -> set[int]:
        """Numbers of the tasks that have a receipt. One LIST."""
        prefix = self.key(f"{phase}/")
        listed = drive(self._store, list_all(prefix))
        names = (entry.key.removeprefix(prefix).removesuffix(".json") for entry in listed)
        return {int(name) for name in names if name.isdecimal()}

    def statuses(self, phase: str, run: str) -> tuple[set[int], dict[int, int]]:
        """:meth:`done`, and of the other tasks the bytes that their furthest attempt in ``run`` tells."""
        prefix = self.key(f"{phase}/")
        done: set[int] = set()
        attempts: list[tuple[int, str]] = []
        for entry in drive(self._store, list_all(prefix)):
            number, _, rest = entry.key.removeprefix(prefix).removesuffix(".json").partition(".")
            if number.isdecimal() and not rest:
                done.add(int(number))
            elif number.isdecimal() and rest.startswith(f"{run}."):
                attempts.append((int(number), entry.key))
        attempts = [each for each in attempts if each[0] not in done]
        told: dict[int, int] = {}
        with ThreadPool(GETS_AT_ONCE, "tiered-statuses") as pool:
            found = pool.map(lambda each: self._store.execute(Get(each[1])), attempts)
            for (of, key), got in zip(attempts, found, strict=True):
                if isinstance(got, Object):
                    told[of] = max(int(decoded(got.data, key=key)["bytes"]), told.get(of, 0))
        return done, told

    def status_stem(self, phase: str, number: int, run: str) -> str:
        """Where the keys of what an attempt tells begin."""
        return self.key(f"{_numbered(phase, number).removesuffix('.json')}.{run}")

    def task_receipts(self, phase: str, numbers: Iterable[int]) -> dict[int, Receipt]:
        """Of these tasks, which have one."""
        wanted = sorted(numbers)
        with ThreadPool(GETS_AT_ONCE, "tiered-receipts") as pool:
            found = pool.map(lambda number: self.read_bytes(_numbered(phase, number)), wanted)
            return {
                number: decoded(data, key=self.key(_numbered(phase, number)))
                for number, data in zip(wanted, found, strict=True)
                if data is not None
            }

    def keep_receipt(self, phase: str, number: int, receipt: Receipt) -> Receipt:
        """The receipt of a task, as it was kept first."""
        name = _numbered(phase, number)
        return decoded(self.keep_bytes(name, encoded(receipt)), key=self.key(name))

    def keep_bytes(self, name: str, body: bytes) -> bytes:
        """``body``, or the bytes that were kept under ``name`` first."""
        return drive(self._store, _create(self.key(name), body))

    def read_bytes(self, name: str) -> bytes | None:
        """The bytes under ``name``, None before any were kept."""
        found = self._store.execute(Get(self.key(name)))
        return found.data if isinstance(found, Object) else None

    # -- objects -------------------------------------------------------------------------------------------------

    def key(self, name: str) -> str:
        """Below the prefix of the bucket's URL."""
        return job_key(self.job_id, name)


def _create(key: str, body: bytes) -> Steps[bytes]:
    """``body`` once it lies at ``key``, or what lay there before: an answer without ETag says that something did."""
    result = yield from put_unique(key, body, crc32c(body))
    if result.etag:
        return body
    found = yield Get(key)
    if not isinstance(found, Object):
        raise NotFoundError(
            f"{key} was there and is gone: somebody deletes what the job keeps", hint="begin it under another id"
        )
    return found.data


def _numbered(phase: str, number: int) -> str:
    return f"{phase}/{number:06d}.json"
