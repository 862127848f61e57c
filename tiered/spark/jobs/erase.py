"""``erase``: records of some keys leave a topic, as ``tiered erase`` does it on one machine.

Looks at segments, segments that are written anew and single objects that are read are tasks. The driver holds the
claim of each partition and commits: what tasks wrote under it is lost with it, and written again by the next run; what
they looked at is not. Keys are in the bucket, and on their way to workers, as hashes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tiered.care.erase import Erased, ErasePlan, Left, receipt_fields, receipt_steps, uid_of_key
from tiered.care.erase_parts import Committer, Seen, Standing, count_steps, look_steps, rewrite_steps, standing_steps
from tiered.clock import SystemIds
from tiered.errors import ConfigError, UnknownTopicError
from tiered.format.root import STATE_DELETING
from tiered.model import Row, TopicPartition
from tiered.plan.erasure import BlindSelection, Selection
from tiered.plan.jobs import bundled
from tiered.program.erasure import (
    left_line,
    noncurrent_commands,
    outcome_line,
    plan_fields,
    plan_table,
    question,
    stays,
)
from tiered.remote.fence import owner_of
from tiered.remote.topics import TopicEntry, load_topic_to_read
from tiered.spark.jobs.job import Outcome, Run
from tiered.spark.jobs.parts import part_of, parts_table, task_of
from tiered.spark.jobs.plan import JobPlan, Receipt, Task
from tiered.spark.jobs.status import task_capabilities
from tiered.spark.subscription import planning_pool
from tiered.store.base import Store
from tiered.store.driver import drive
from tiered.store.location import StoreLocation

MAX_LOOKS = 100
"""Rounds of looks of one job, all its runs together: one finds, one proves; more where others rewrite meanwhile."""
MAX_TASK_OBJECTS = 1000
"""Segments that one task writes anew, objects that one task reads."""
ROUND_TASKS = 256
"""Tasks whose rewrites are committed together: a driver that is killed loses at most so many."""
EXIT_LEFT = 3

LOOK, REWRITE, COUNT = "look", "rewrite", "count"
"""What a task does."""


def blind_arguments(store: Store, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``arguments`` with the ``selection`` as hashes, which are the topic's own. Raises UnknownTopicError."""
    entry = _entry(store, arguments["topic"])
    selection: Selection = arguments["selection"]
    return {**arguments, "selection": BlindSelection.of(selection, entry.topic_id).as_json()}


class Erase:
    """Arguments: ``topic``, ``partition`` (None: all), ``selection`` (hashed), ``now``, ``task_bytes``."""

    name = "erase"

    def plan(self, store: Store, arguments: Mapping[str, Any], now_ms: int) -> JobPlan:
        """What has to be looked at. Raises UnknownTopicError, ConfigError where ``now`` cannot be."""
        entry = _entry(store, arguments["topic"])
        selection = BlindSelection.of_json(arguments["selection"])
        if entry.topic_id != selection.topic_id:
            raise ConfigError(f"{entry.name} was deleted and made anew meanwhile", hint="begin another job")
        one = arguments["partition"]
        if one is not None and one >= entry.partitions:
            raise UnknownTopicError(
                f"topic {entry.name} has no partition {one}", hint=f"its partitions are 0 to {entry.partitions - 1}"
            )
        tasks: list[Task] = []
        partitions = []
        for number in range(entry.partitions) if one is None else [one]:
            tp, least = TopicPartition(entry.name, number), arguments["task_bytes"]
            standing = drive(store, standing_steps(tp, entry, selection, Seen(), least_bytes=least))
            if standing is None:
                continue
            committer = Committer(tp, entry, selection, "", "")
            if arguments["now"]:
                drive(store, committer.need_free())
            tasks += [_look_task(each) for each in standing.unseen]
            known = {"version": standing.version, "end_offset": standing.end_offset, "volume": standing.volume}
            partitions.append({"partition": number, **known, "holders": drive(store, committer.holders())})
        return JobPlan(self.name, arguments, now_ms, tuple(tasks), {"partitions": partitions})

    def table(self, plan: JobPlan) -> list[str]:
        """What is read. Which segments hold what is meant is known when they have been."""
        return parts_table(plan)

    def work(self, store: Store, plan: JobPlan, task: Task) -> Receipt:
        """One look, some segments written anew, or some objects read."""
        selection = BlindSelection.of_json(plan.arguments["selection"])
        if task["do"] == LOOK:
            part = part_of({name: value for name, value in task.items() if name != "do"})
            return drive(store, look_steps(part, selection))
        entry, tp = _entry(store, plan.arguments["topic"]), TopicPartition(plan.arguments["topic"], task["partition"])
        if task["do"] == COUNT:
            return {"records": [drive(store, count_steps(tp, entry, key, selection)) for key in task["keys"]]}
        rows = [Row(*each) for each in task["rows"]]
        names = {name: task[name] for name in ("job_id", "claim_epoch")}
        capabilities = task_capabilities(store)
        made = drive(store, rewrite_steps(tp, entry, rows, selection, capabilities=capabilities, **names))
        return {"made": [[list(old), list(new), gone] for old, new, gone in made]}

    def carry_out(self, run: Run) -> Outcome:
        """Look and rewrite until nothing is left, then write the receipts of `tiered erase`. Ask before it begins."""
        return _Erasure(run).carry_out()

    def lines(self, fields: Mapping[str, Any]) -> list[str]:
        """The plan of a dry run, or what was done and what still holds some."""
        if fields["dry_run"]:
            return [*plan_table(fields["partitions"]), *stays(fields["partitions"])]
        left = [
            left_line(f"{fields['topic']}-{one['partition']}", each)
            for one in fields["partitions"]
            for each in one["left"]
        ]
        return [*left, outcome_line(sum(one["records"] for one in fields["partitions"]), len(left))]


class _Erasure:
    """One run on the driver."""

    def __init__(self, run: Run) -> None:
        arguments = run.plan.arguments
        self._run, self._store = run, run.store
        self._selection = BlindSelection.of_json(arguments["selection"])
        self._entry = _entry(run.store, arguments["topic"])
        self._task_bytes: int = arguments["task_bytes"]
        self._now: bool = arguments["now"]
        self._owner = owner_of(f"tiered spark erase, job {run.job_id}")
        self._facts = {each["partition"]: each for each in run.plan.facts["partitions"]}
        self._seen = {number: Seen() for number in self._facts}
        self._committers = {
            number: Committer(
                TopicPartition(self._entry.name, number), self._entry, self._selection, run.job_id, self._owner
            )
            for number in self._facts
        }
        self._phases = SystemIds().uid()[:12]

    def carry_out(self) -> Outcome:
        run = self._run
        self._add(run.plan.tasks, run.tasks("reading"))
        looks, plans, rounds = 1, list[dict[str, Any]](), 0
        while True:
            standings = self._standings()
            parts = [part for standing in standings.values() for part in standing.unseen]
            if parts:
                looks += 1
                if looks > MAX_LOOKS:
                    raise ConfigError(
                        f"others have rewritten {self._entry.name} in each of {MAX_LOOKS} looks",
                        hint=f"end other maintainers for a while, then go on: --job {run.job_id}",
                    )
                phase = f"look-{looks}"
                tasks = run.kept_tasks(phase, [_look_task(part) for part in parts])
                self._add(tasks, run.tasks("reading again", tasks, phase=phase))
                continue
            if not plans:
                plans = [plan_fields(self._plan(number, standing)) for number, standing in standings.items()]
                for line in (*plan_table(plans), *stays(plans)):
                    run.say(line)
                if not run.agreed(question(plans)):
                    return Outcome({"dry_run": True, "partitions": plans}, is_end=False)
            rows = {number: [hit.row for hit in each.hits] for number, each in standings.items() if each.hits}
            if not rows:
                return self._ended(plans)
            rounds += 1
            self._rewrite(rows, f"rewrite-{self._phases}-{rounds}")

    def _add(self, tasks: Sequence[Task], receipts: Sequence[Receipt]) -> None:
        for task, receipt in zip(tasks, receipts, strict=True):
            self._seen[task["partition"]].add(receipt)

    def _standings(self) -> dict[int, Standing]:
        def of(number: int) -> Standing | None:
            steps = standing_steps(
                TopicPartition(self._entry.name, number),
                self._entry,
                self._selection,
                self._seen[number],
                end=self._facts[number]["end_offset"],
                least_bytes=self._task_bytes,
            )
            return drive(self._store, steps)

        with planning_pool("erase") as pool:
            found = dict(zip(self._facts, pool.map(of, self._facts), strict=True))
        return {number: standing for number, standing in found.items() if standing is not None}

    def _plan(self, number: int, standing: Standing) -> ErasePlan:
        facts, seen = self._facts[number], self._seen[number]
        return ErasePlan(
            TopicPartition(self._entry.name, number),
            self._entry,
            standing.version,
            facts["end_offset"],
            standing.volume,
            len(seen.uids),
            seen.read_bytes,
            standing.hits,
            tuple(facts["holders"]),
        )

    # -- rewriting -----------------------------------------------------------------------------------------------------

    def _rewrite(self, rows: Mapping[int, Sequence[Row]], phase: str) -> None:
        tasks = list(self._rewrite_tasks(rows))
        for at in range(0, len(tasks), ROUND_TASKS):
            group = tasks[at : at + ROUND_TASKS]
            receipts = self._run.tasks("writing anew", group, phase=f"{phase}-{at // ROUND_TASKS}")
            made: dict[int, list[tuple[Row, Row, int]]] = {}
            for task, receipt in zip(group, receipts, strict=True):
                found = [(Row(*old), Row(*new), gone) for old, new, gone in receipt["made"]]
                made.setdefault(task["partition"], []).extend(found)
            with planning_pool("erase") as pool:
                list(pool.map(lambda each: drive(self._store, self._committers[each[0]].commit(each[1])), made.items()))

    def _rewrite_tasks(self, rows: Mapping[int, Sequence[Row]]) -> Iterator[Task]:
        for number, mine in rows.items():
            committer = self._committers[number]
            drive(self._store, committer.claim())
            common = {
                "do": REWRITE,
                "partition": number,
                "claim_epoch": committer.claim_epoch,
                "job_id": self._run.job_id,
            }
            for group in bundled([row.size for row in mine], self._task_bytes, MAX_TASK_OBJECTS):
                size = sum(mine[at].size for at in group)
                yield {**common, "rows": [list(mine[at]) for at in sorted(group)], "size_bytes": size}

    # -- the end -------------------------------------------------------------------------------------------------------

    def _ended(self, plans: Sequence[Mapping[str, Any]]) -> Outcome:
        collected = {
            number: self._collected(committer) if self._now else None for number, committer in self._committers.items()
        }
        others = {number: drive(self._store, committer.others()) for number, committer in self._committers.items()}
        left = {number: list(self._known(number, found)) for number, found in others.items()}
        tasks = [task for number, found in others.items() for task in self._count_tasks(number, found)]
        receipts = self._run.tasks("proving", tasks, phase=f"prove-{self._phases}") if tasks else []
        for task, receipt in zip(tasks, receipts, strict=True):
            number = task["partition"]
            for key, records in zip(task["keys"], receipt["records"], strict=True):
                if records:
                    left[number].append(Left(key, records, others[number][key][1]))
        erased: list[Erased] = []
        for number, committer in self._committers.items():
            read = len(self._seen[number].uids | {uid_of_key(key) for key in others[number]})
            erased.append(drive(self._store, committer.ended(left[number], read, collected[number])))
        place = StoreLocation.parse(self._run.words["url"], environ={})
        facts = {
            "dry_run": False,
            "topic": self._entry.name,
            "owner": self._owner,
            "stays": stays(plans),
            "noncurrent_versions": noncurrent_commands(place, erased),
        }
        for one in erased:
            mine = {
                "stays": stays(plan for plan in plans if plan["partition"] == one.tp.partition),
                "noncurrent_versions": noncurrent_commands(place, [one]),
            }
            steps = receipt_steps(self._run.job_id, self._entry.topic_id, self._selection, one, facts | mine)
            drive(self._store, steps)
        fields = receipt_fields(self._run.job_id, self._entry.topic_id, self._selection, erased, facts)
        return Outcome(fields, 0 if fields["proven"] else EXIT_LEFT)

    def _collected(self, committer: Committer) -> Any:
        drive(self._store, committer.need_free())
        return drive(self._store, committer.collect())

    def _known(self, number: int, others: Mapping[str, tuple[int, str]]) -> Iterator[Left]:
        """Of the objects that are not alive, those of which a look has told that they hold any of it."""
        records = self._seen[number].records
        return (Left(key, records[uid], why) for key, (_, why) in others.items() if (uid := uid_of_key(key)) in records)

    def _count_tasks(self, number: int, others: Mapping[str, tuple[int, str]]) -> Iterator[Task]:
        """Of these what nobody has looked at."""
        keys = sorted(key for key in others if uid_of_key(key) not in self._seen[number].uids)
        sizes = [others[key][0] for key in keys]
        for group in bundled(sizes, self._task_bytes, MAX_TASK_OBJECTS):
            size = sum(sizes[at] for at in group)
            yield {"do": COUNT, "partition": number, "keys": [keys[at] for at in sorted(group)], "size_bytes": size}


def _look_task(part: Any) -> Task:
    return {"do": LOOK, **task_of(part)}


def _entry(store: Store, topic: str) -> TopicEntry:
    entry = drive(store, load_topic_to_read(topic))
    if entry is None or entry.state == STATE_DELETING:
        raise UnknownTopicError(f"there is no topic {topic!r}", hint="see `tiered topics list`")
    return entry
