"""Transaction coordinator of one log. It writes states of transactions to its own log, and markers to the partitions.

Durability of each step, for a transaction over partitions A and B::

    begin    __transaction_state-0: EMPTY      (a new id)                    page cache
    append   __transaction_state-0: ONGOING {A}, then {A, B}                 page cache
             A, B: batches of the producer
    commit   A, B fsynced
             __transaction_state-0: PREPARE_COMMIT {A, B}                    fsynced: now it is committed
             A, B: COMMIT markers                                            fsynced
             __transaction_state-0: COMPLETE_COMMIT                          page cache

If the process is killed before PREPARE_COMMIT, the transaction is aborted. After it, the next open writes the missing
markers before any read. A power cut may lose records from the page cache. The partitions then show which transactions
are open; those of this log's producers are aborted.

The coordinator's epoch is the newest leader epoch of its partition, as in Kafka; only a broker raises it.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tiered.clock import Clock
from tiered.errors import (
    ClosedError,
    CommitUnknownError,
    FencedError,
    LocalIOError,
    MarkersPendingError,
    ProducerFencedError,
    TieredError,
    UnknownTopicError,
)
from tiered.format.batch import encode_marker
from tiered.format.control import ControlType
from tiered.format.coordinator_records import NO_ID, TxnState, TxnValue
from tiered.format.kernels import PlainLock
from tiered.local.disk.lock import forked_error
from tiered.local.partition.write_log import WriteLog
from tiered.local.transactions.group_positions import GroupPositions
from tiered.local.transactions.state_log import LEAST_ID, PartitionHost, ProducerIds, StateLog
from tiered.model import TopicPartition
from tiered.plan.transactions import DEFAULT_TIMEOUT_MS, PREPARED, TransactionChange, TransactionCoordinator, TxnMarker
from tiered.plan.visibility import OpenTxn

LOGGER = logging.getLogger("tiered.local")

LOCKS = 64
"""Number of locks that transactional ids share; one is held while a transaction begins, grows or ends."""

FORGET_EVERY_MS = 60_000
"""Interval of the search for expired transactional ids."""

_DECIDED = frozenset({TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})


class TxnProducer(NamedTuple):
    """Producer of one transaction. It is valid until the transaction ends."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Transactions:
    """Transaction manager of a log: it begins, commits and aborts transactions. Thread-safe.

    The state log is read at the first transaction, or when the log is opened after an unclean stop.

    ``sees_all``: returns True if all directories of the log are open, so that a partition that is not found is gone.
    """

    def __init__(
        self, host: PartitionHost, ids: ProducerIds, clock: Clock, *, sees_all: Callable[[], bool] = lambda: True
    ) -> None:
        self._host = host
        self.positions = GroupPositions(host)
        self._host_sees_all = sees_all
        self._log = StateLog(host)
        self._ids = ids
        self._clock = clock
        self._lock = threading.RLock()
        self._locks = [PlainLock() for _ in range(LOCKS)]
        self._coordinator: TransactionCoordinator | None = None
        self._lent: dict[str, TxnProducer] = {}
        self._marked: dict[str, set[TopicPartition]] = {}  # decided transactions that are not complete
        self._ending = False
        self._forgotten_ms = 0
        self._recovered = True
        self._pid = os.getpid()

    # -- at an open ------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """End the transactions that an unclean stop left, before any read: complete prepared ones, abort open ones.

        Also set back positions of groups that are after the end of their partition. Failed writes are logged;
        :meth:`tick` or the next recovery repeats them. If the state log is unreadable, the open succeeds, and
        ``read_committed`` waits at the open transactions. Raises CorruptionError only if ``tiered-producer-ids.json``
        is damaged.
        """
        try:
            self.positions.rewind_lost(self._clock.now_ms())
        except TieredError as error:
            LOGGER.error("positions_not_checked error=%s", error)
        if not self._ids.any_given() and not self._log.is_ours:
            self._recovered = self._ids.sees_all
            return
        try:
            coordinator = self._load_coordinator()
            left = find_orphan_txns(self._host.awake(), coordinator, self._ids.is_ours)
        except TieredError as error:
            LOGGER.error("transactions_not_recovered error=%s", error)
            self._recovered = False  # the next open has to recover, even after a clean end
            return
        for each in left.later:  # the markers of the one before are all there: it was complete
            known = coordinator.find(each.name)
            self._marked[each.name] = set((known.partitions if known else ()) or ())
        for several in ((*left.nameless, *left.known), left.later):
            for each in several:
                self._adopt_leftover(coordinator, each)
            self._end_all(self._unfinished(coordinator))

    def _adopt_leftover(self, coordinator: TransactionCoordinator, each: OrphanTxn) -> None:
        """Add the open transaction ``each`` to the coordinator; abort it at once if its transactional id is lost.

        Errors are logged, so that other partitions are handled.
        """
        epoch, now_ms = each.txn.producer_epoch, self._clock.now_ms()
        try:
            if not each.name:
                self._abort(each.tp, each.txn, coordinator.epoch)
            elif coordinator.state(each.name) not in _DECIDED:
                step = coordinator.found(each.name, each.tp, producer_epoch=epoch, now_ms=now_ms)
                if step is not None:
                    self._record(coordinator, step)
        except TieredError as error:
            LOGGER.error("transaction_unsettled partition=%s error=%s", each.tp, error)

    def _end_all(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                with self._held(name):
                    self._end_open(self._load_coordinator(), name)
            except TieredError as error:
                LOGGER.error("transaction_unsettled id=%s error=%s", name, error)

    # -- a transaction ---------------------------------------------------------------------------------------------

    def begin(self, transactional_id: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> TxnProducer:
        """Begin a transaction with this id, and return its producer.

        If a transaction is open under the same id, abort it and fence its producer. Raises ConfigError for an
        impossible id or timeout, and ClosedError after the close began. Raises CommitUnknownError or
        MarkersPendingError if the earlier transaction cannot be ended.
        """
        with self._held(transactional_id):
            self._check_open(transactional_id)
            coordinator = self._load_coordinator()
            self._end_open(coordinator, transactional_id)
            if coordinator.state(transactional_id) in _DECIDED:
                self._complete(coordinator, transactional_id)
            known = coordinator.find(transactional_id)
            if known is None or known.timeout_ms != timeout_ms or transactional_id in self._lent:
                fresh = known is None or not coordinator.epochs_left(transactional_id)
                step = coordinator.init(
                    transactional_id,
                    new_producer_id=self._ids.next() if fresh else NO_ID,
                    now_ms=self._clock.now_ms(),
                    timeout_ms=timeout_ms,
                )
                known = self._record(coordinator, step)
            producer = _producer_of(transactional_id, known)
            self._lent[transactional_id] = producer
            return producer

    def join(self, producer: TxnProducer, partitions: Iterable[TopicPartition]) -> None:
        """Add ``partitions`` to the transaction, before its first write to them.

        Raises ProducerFencedError if the transaction was replaced or timed out, and ClosedError after the close began.
        """
        with self._held(producer.transactional_id):
            self._check_open(producer.transactional_id)
            coordinator = self._load_coordinator()
            name, producer_id, epoch = producer
            with self._lock:
                step = coordinator.add(
                    name, partitions, producer_id=producer_id, producer_epoch=epoch, now_ms=self._clock.now_ms()
                )
            if step is not None:
                self._record(coordinator, step)

    def check_owner(self, producer: TxnProducer) -> None:
        """Raise the errors of :meth:`join`. The lock of the transaction's id is not taken."""
        self._check_open(producer.transactional_id)
        self._load_coordinator().check_owner(*producer)

    def check_process(self) -> None:
        """Raise ForkedLogError in a forked child, whose copies of locks may be locked for ever."""
        if os.getpid() != self._pid:
            raise forked_error("the transaction coordinator", self._pid)

    def end(self, producer: TxnProducer, *, commit: bool) -> None:
        """Commit or abort the transaction. On return its outcome and its markers are durable.

        A partition that another volume owns now gets no marker. Raises ProducerFencedError if the transaction was
        replaced or timed out, ClosedError for a commit after the close began. Raises MarkersPendingError if the outcome
        is final, but a partition failed and gets its marker later. After DiskFullError or LocalIOError the
        transaction is still open. After CommitUnknownError the outcome may be on disk: the next open finds out.
        """
        name = producer.transactional_id
        with self._held(name):
            if self._ending and not commit:
                return  # close has aborted it
            self._check_open(name)
            coordinator = self._load_coordinator()
            txn = coordinator.find(name)
            if txn is not None and txn.state is not TxnState.ONGOING and _producer_of(name, txn) == producer:
                self._lent.pop(name, None)  # nothing was written: nothing to decide
                return
            step = coordinator.prepare(
                name,
                commit=commit,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                now_ms=self._clock.now_ms(),
                new_producer_id=self._spare_id(coordinator, name),
            )
            if step is None:
                return
            if commit and step.before is not None:
                for tp in step.before.partitions or ():
                    self._host.partition(tp).flush()
            self._decide(coordinator, step)
            self._lent.pop(name, None)
            self._finish(coordinator, name)

    def abort_orphans(self, tp: TopicPartition, *, any_producer: bool = False) -> int:
        """Abort open transactions in ``tp`` that other volumes left. Return the number of transactions found.

        Call this once this volume has claimed ``tp``. The claim fences those volumes: they can no longer end them here.
        Transactions of this log and of a Kafka cluster are skipped. ``any_producer``: abort those of a Kafka cluster,
        too, because ``tp`` is a copy without another writer. If another volume has claimed ``tp`` by now, no marker is
        written and a warning is logged.
        """
        orphans = [txn for txn in self._host.partition(tp).open_txns() if any_producer or txn.producer_id >= LEAST_ID]
        if orphans:
            ours = {value.producer_id for value in self.describe().values() if tp in (value.partitions or ())}
            orphans = [txn for txn in orphans if txn.producer_id not in ours]
        for txn in orphans:
            LOGGER.warning("orphaned_transaction_aborted partition=%s producer=%d", tp, txn.producer_id)
            try:
                self._abort(tp, txn, max(txn.coordinator_epoch, 0))
            except FencedError as error:  # another volume owns it by now: here it is only read
                LOGGER.warning("marker_left_out partition=%s error=%s", tp, error)
        return len(orphans)

    def describe(self) -> dict[str, TxnValue]:
        """Return the newest state of each transactional id, sorted by id. Expired ids are left out."""
        if not self._log.exists:
            return {}
        with self._lock:
            return dict(sorted(self._load_coordinator().transactions()))

    # -- as time passes --------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Abort transactions beyond their timeout, write missing markers, and delete expired transactional ids.

        The first error is raised at the end.
        """
        coordinator = self._coordinator
        if coordinator is None:
            return
        with self._lock:
            decided = [name for name in coordinator.unfinished() if coordinator.state(name) in PREPARED]
            due = coordinator.overdue(now_ms) + decided
            if not 0 <= now_ms - self._forgotten_ms < FORGET_EVERY_MS:
                self._forgotten_ms = now_ms
                due += [step.transactional_id for step in coordinator.forget(now_ms)]
        first: TieredError | None = None
        for name in due:
            try:
                with self._held(name):
                    self._end_if_overdue(coordinator, name, now_ms)
            except TieredError as error:
                first = first or error
        if first is not None:
            raise first

    def _end_if_overdue(self, coordinator: TransactionCoordinator, name: str, now_ms: int) -> None:
        state = coordinator.state(name)
        if state in _DECIDED or coordinator.is_overdue(name, now_ms):
            LOGGER.warning("transaction_ended_by_coordinator id=%s state=%s", name, state.name)
            self._end_open(coordinator, name)
            return
        step = coordinator.forget_id(name, now_ms)
        if step is not None and name not in self._lent:
            self._record(coordinator, step)

    def check_caller(self) -> None:
        """Raise ReentrantCallError if this thread interrupted its own change of a transaction (a signal handler)."""
        for lock in self._locks:
            lock.check_caller()

    def close(self, timeout_seconds: float) -> bool:
        """Abort open transactions. Return True if no transaction is unfinished.

        Return False in a forked child, and if the recovery at the open failed. Return False also if the change of
        another thread takes longer than ``timeout_seconds``.
        """
        if os.getpid() != self._pid:
            return False
        ending, self._ending = self._ending, True  # changes of partitions are refused from now on
        for lock in self._locks if not ending else ():
            if not lock.hold(timeout_seconds):  # earlier changes are over once their lock was free
                return False
            lock.release()
        coordinator = self._coordinator
        if coordinator is None:
            return self._recovered
        if not ending:
            self._end_all(self._unfinished(coordinator))
        return self._recovered and not self._unfinished(coordinator)

    def _unfinished(self, coordinator: TransactionCoordinator) -> list[str]:
        with self._lock:
            return coordinator.unfinished()

    def _check_open(self, name: str) -> None:
        if self._ending:
            raise ClosedError(
                f"transaction {name!r}: the log is closed, which aborted the transaction unless it was committed",
                hint="open the log again, and begin a new transaction",
            )

    # -- steps; the lock of the id is held -------------------------------------------------------------------------

    def _end_open(self, coordinator: TransactionCoordinator, name: str) -> None:
        state = coordinator.state(name)
        if state in {TxnState.ONGOING, TxnState.PREPARE_EPOCH_FENCE}:
            new_id = self._spare_id(coordinator, name)
            self._decide(coordinator, coordinator.fence(name, now_ms=self._clock.now_ms(), new_producer_id=new_id))
            self._lent.pop(name, None)
        elif state not in _DECIDED:
            return
        self._finish(coordinator, name)

    def _spare_id(self, coordinator: TransactionCoordinator, name: str) -> int:
        return NO_ID if coordinator.epochs_left(name) else self._ids.next()

    def _decide(self, coordinator: TransactionCoordinator, step: TransactionChange) -> None:
        """Write the PREPARE_COMMIT or PREPARE_ABORT record ``step``, durably, and apply it.

        Raises CommitUnknownError if the record may or may not be on disk, DiskFullError if it is not.
        """
        try:
            self._log.append(step, durable=True)
        except LocalIOError as error:
            raise CommitUnknownError(
                f"transaction {step.transactional_id!r}: it is unknown whether its outcome is on disk: {error.message}",
                hint="repair the disk and open the log again: the open completes or aborts it",
            ) from error
        with self._lock:
            coordinator.apply(step)

    def _record(self, coordinator: TransactionCoordinator, step: TransactionChange) -> TxnValue:
        """Append the record of ``step``, which no recovery needs, without an fsync, and apply it. Return the state."""
        self._log.append(step)
        with self._lock:
            coordinator.apply(step)
        return step.after or TxnValue(NO_ID, -1, 0, TxnState.DEAD)

    def _finish(self, coordinator: TransactionCoordinator, name: str) -> None:
        """Write the missing markers to all partitions, durably, then the record that the transaction is complete.

        Raises MarkersPendingError if a marker could not be written.
        """
        marked = self._marked.setdefault(name, set())
        owed: tuple[TopicPartition, TieredError] | None = None
        written: list[WriteLog] = []
        for each in coordinator.markers(name):
            if each.tp in marked:
                continue
            try:
                log = self._mark(each)
                if log is not None:
                    written.append(log)
            except (FencedError, ProducerFencedError) as error:
                LOGGER.warning("marker_left_out partition=%s id=%s error=%s", each.tp, name, error)
            except TieredError as error:
                owed = (each.tp, error)
        for log in written:
            try:
                log.flush()
                marked.add(log.tp)
            except TieredError as error:
                owed = (log.tp, error)
        if owed is not None:
            raise MarkersPendingError(
                f"the outcome of transaction {name!r} is final ({coordinator.state(name).name}), but its marker could "
                f"not be written to {owed[0]}: {owed[1].message}",
                hint="repair that disk and open the log again; until then read_committed reads wait at this "
                "transaction",
            ) from owed[1]
        try:
            self._complete(coordinator, name)
        except TieredError as error:  # all markers are durable; the next tick, or the next open, notes that
            LOGGER.warning("completion_not_noted id=%s error=%s", name, error)

    def _mark(self, owed: TxnMarker) -> WriteLog | None:
        """Append a marker, and return the partition, which the caller flushes. Return None if the topic was deleted.

        Raises UnknownTopicError if the partition may be in a directory that is not open, FencedError if another volume
        owns it, ProducerFencedError if the marker's epoch is too old.
        """
        log = self._find(owed.tp)
        if log is not None:
            marker = encode_marker(
                ControlType.ABORT if owed.abort else ControlType.COMMIT,
                owed.coordinator_epoch,
                self._clock.now_ms(),
                producer_id=owed.producer_id,
                producer_epoch=owed.producer_epoch,
            )
            log.append_as_coordinator(marker)
        return log

    def _abort(self, tp: TopicPartition, txn: OpenTxn, coordinator_epoch: int) -> None:
        """Write the ABORT marker of ``txn``, durably. Call this for a transaction that no coordinator will end."""
        log = self._mark(TxnMarker(tp, txn.producer_id, txn.producer_epoch, coordinator_epoch, abort=True))
        if log is not None:
            log.flush()

    def _sees_all(self) -> bool:
        return self._host_sees_all() and self._ids.sees_all

    def _find(self, tp: TopicPartition) -> WriteLog | None:
        try:
            return self._host.partition(tp)
        except UnknownTopicError:
            if not self._sees_all():
                raise
        try:
            return self._host.partition(tp)  # the partition may just have arrived in another directory
        except UnknownTopicError:
            if tp.topic in self._host.topics():
                raise
            return None

    def _complete(self, coordinator: TransactionCoordinator, name: str) -> None:
        self._record(coordinator, coordinator.complete(name, now_ms=self._clock.now_ms()))
        self._marked.pop(name, None)

    def _load_coordinator(self) -> TransactionCoordinator:
        with self._lock:
            if self._coordinator is None:
                self._coordinator = self._log.load(may_make=self._sees_all())
            return self._coordinator

    def _held(self, transactional_id: str) -> PlainLock:
        self.check_process()
        return self._locks[zlib.crc32(transactional_id.encode("utf-8", "surrogatepass")) % LOCKS]


def _producer_of(transactional_id: str, value: TxnValue) -> TxnProducer:
    return TxnProducer(transactional_id, value.producer_id, value.producer_epoch)


class OrphanTxn(NamedTuple):
    """Transaction that an unclean stop left open in ``tp``. ``name``: its transactional id, ``""`` if it is lost."""

    tp: TopicPartition
    txn: OpenTxn
    name: str


class OrphanTxns(NamedTuple):
    """Open transactions after an unclean stop. ``nameless``: their transactional id is lost; they are aborted at once.

    ``known``: the coordinator's log has their id. They get the outcome in that log, or are aborted without one.
    ``later``: they began after the last transaction of their id in that log, so that its outcome is not theirs.
    """

    nameless: list[OrphanTxn]
    known: list[OrphanTxn]
    later: list[OrphanTxn]


def find_orphan_txns(
    writers: Iterable[WriteLog], coordinator: TransactionCoordinator, is_ours: Callable[[int], bool]
) -> OrphanTxns:
    """Return the open transactions of this log's producers in the partitions ``writers``.

    Those of other producers are skipped. A producer belongs to this log if ``is_ours`` returns True for its id, or if
    the coordinator's log has it. A partition that cannot be read is logged and skipped.
    """
    owners: dict[int, str] = {}
    for name, value in coordinator.transactions():
        owners[value.producer_id] = name
        if value.next_producer_id != NO_ID:
            owners[value.next_producer_id] = name
    found = OrphanTxns([], [], [])
    for writer in writers:
        try:
            open_txns = writer.open_txns()
        except TieredError as error:
            LOGGER.error("open_transactions_unknown partition=%s error=%s", writer.tp, error)
            continue
        for txn in open_txns:
            owner = owners.get(txn.producer_id)
            if owner is None:
                if is_ours(txn.producer_id):
                    found.nameless.append(OrphanTxn(writer.tp, txn, ""))
            elif coordinator.is_later(owner, txn.producer_id, txn.producer_epoch):
                found.later.append(OrphanTxn(writer.tp, txn, owner))
            else:
                found.known.append(OrphanTxn(writer.tp, txn, owner))
    return found
