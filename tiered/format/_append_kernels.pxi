# Part of _kernels.pyx: the append of one batch where nothing is out of the ordinary. The twin is
# ``tiered.format.pure_kernels``.

cdef extern from *:
    """
    #include <structmember.h>
    #include <unistd.h>

    /* Where the instances of a class keep a slot, as the interpreter itself reads it; 0: it is no slot. */
    static Py_ssize_t place_of_slot(PyObject *descriptor) {
        PyMemberDef *member;
        if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return 0;
        member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : 0;
    }
    """
    Py_ssize_t place_of_slot(object)
    ssize_t pwrite(int, const void*, size_t, long) nogil

cdef extern from "Python.h":
    void Py_XDECREF(PyObject*)

cdef object TRUTH = True
cdef object FALSEHOOD = False
cdef PyObject* TRUE = <PyObject*>TRUTH
cdef PyObject* FALSE = <PyObject*>FALSEHOOD


cdef Py_ssize_t place_of(kind, str name) except -1:
    cdef Py_ssize_t place = place_of_slot(kind.__dict__.get(name))
    if place <= 0:
        raise TypeError(f"{kind.__name__}.{name} is no slot")
    return place


cdef inline PyObject* slot(PyObject* instance, Py_ssize_t place) noexcept:
    """Borrowed; NULL if it is not set. The class of the instance was looked at."""
    return (<PyObject**>(<char*>instance + place))[0]


cdef inline bint number(PyObject* instance, Py_ssize_t place, int64_t* n) noexcept:
    """Whether it holds an ``int`` of 64 bits."""
    cdef PyObject* found = slot(instance, place)
    return found != NULL and whole(found, INT64_MIN, INT64_MAX, n)


cdef inline void set_slot(PyObject* instance, Py_ssize_t place, object value) noexcept:
    """Instead of what it holds: a number, or a truth value, whose end runs no code."""
    cdef PyObject** at = <PyObject**>(<char*>instance + place)
    cdef PyObject* before = at[0]
    Py_INCREF(value)
    at[0] = <PyObject*>value
    Py_XDECREF(before)


@cython.final
cdef class PlainPlaces:
    """Where the classes of a partition keep what an append looks at. One for all partitions."""

    cdef object condition, upload, segments, leadership, beginning, reserve, producers, flusher, active, stats, lease
    cdef Py_ssize_t closed, ending, offline, uploaded, under_way, resume_at
    cdef Py_ssize_t fenced, uploaded_end
    cdef Py_ssize_t end, growing
    cdef Py_ssize_t epoch, unassigned
    cdef Py_ssize_t begun
    cdef Py_ssize_t left, low
    cdef Py_ssize_t state
    cdef Py_ssize_t flushed
    cdef Py_ssize_t log, base_offset, size_bytes, segment_bytes, time_bound, clock_bound, offset_bound
    cdef Py_ssize_t interval, since_index, max_timestamp, max_timestamp_offset, leader_epoch, appended_ms, totals
    cdef Py_ssize_t total_bytes, crc32c, records, min_time, max_time, last_epoch
    cdef Py_ssize_t lock, descriptor, failed, used, dirty

    def __init__(
        self, condition, upload, segments, leadership, beginning, reserve, producers, flusher, active, stats, lease
    ):
        self.condition, self.upload, self.segments, self.leadership = condition, upload, segments, leadership
        self.beginning, self.reserve, self.producers, self.flusher = beginning, reserve, producers, flusher
        self.active, self.stats, self.lease = active, stats, lease
        self.closed, self.ending = place_of(condition, "closed"), place_of(condition, "ending")
        self.offline, self.uploaded = place_of(condition, "offline"), place_of(condition, "upload")
        self.under_way, self.resume_at = place_of(condition, "under_way"), place_of(condition, "resume_at")
        self.fenced, self.uploaded_end = place_of(upload, "fenced"), place_of(upload, "end_offset")
        self.end, self.growing = place_of(segments, "end"), place_of(segments, "active")
        self.epoch, self.unassigned = place_of(leadership, "epoch"), place_of(leadership, "unassigned")
        self.begun = place_of(beginning, "begun")
        self.left, self.low = place_of(reserve, "_left"), place_of(reserve, "_low")
        self.state = place_of(producers, "state")
        self.flushed = place_of(flusher, "flushed")
        self.log, self.base_offset = place_of(active, "_log"), place_of(active, "base_offset")
        self.size_bytes, self.segment_bytes = place_of(active, "size_bytes"), place_of(active, "segment_bytes")
        self.time_bound, self.clock_bound = place_of(active, "_time_bound"), place_of(active, "_clock_bound")
        self.offset_bound = place_of(active, "_offset_bound")
        self.interval, self.since_index = place_of(active, "_interval"), place_of(active, "_since_index")
        self.max_timestamp = place_of(active, "max_timestamp")
        self.max_timestamp_offset = place_of(active, "max_timestamp_offset")
        self.leader_epoch, self.appended_ms = place_of(active, "leader_epoch"), place_of(active, "appended_ms")
        self.totals = place_of(active, "stats")
        self.total_bytes, self.crc32c = place_of(stats, "size_bytes"), place_of(stats, "crc32c")
        self.records, self.last_epoch = place_of(stats, "records"), place_of(stats, "leader_epoch")
        self.min_time, self.max_time = place_of(stats, "min_timestamp"), place_of(stats, "max_timestamp")
        self.lock, self.descriptor = place_of(lease, "lock"), place_of(lease, "descriptor")
        self.failed, self.used, self.dirty = place_of(lease, "failed"), place_of(lease, "used"), place_of(lease, "dirty")


cdef struct Growth:  # what an append finds of the active segment, and of its totals
    int64_t base, epoch, left, position, since, interval, latest
    int64_t records, least, greatest, crc
    bint is_counted


@cython.final
cdef class PlainAppend:
    """As ``tiered.format.pure_kernels.PlainAppend`` says."""

    cdef PlainPlaces at
    cdef object condition, segments, leadership, beginning, reserve, producers, flusher
    cdef PlainLock lock  # the partition's
    cdef object clock, write, add_entries, write_entries, break_off
    cdef object leases, uses  # of the pool of files, None: what is written goes through ``write``
    cdef object topic, partition
    cdef int64_t born  # the forks when it was made
    cdef bint is_plain, keyed, keeps_reserve
    cdef bint is_torn  # a write left a part of its bytes
    cdef str append_words
    cdef int64_t bits, most_bytes, before_ms, after_ms, flush_messages

    def __init__(
        self, PlainPlaces places, shared, *, flusher, producers, beginning, tp, now_ms, leases, uses, write,
        add_entries, write_entries, break_off, str append_words, bint keeps_reserve,
    ):
        self.at = places
        self.condition, self.segments, self.leadership = shared.condition, shared.segments, shared.leadership
        self.beginning, self.reserve, self.producers = beginning, shared.around.reserve, producers
        self.flusher = flusher
        for part, kind in (
            (self.condition, places.condition), (self.segments, places.segments), (self.reserve, places.reserve),
            (self.leadership, places.leadership), (beginning, places.beginning), (producers, places.producers),
            (flusher, places.flusher),
        ):
            if type(part) is not kind:
                raise TypeError(f"{type(part)} is not {kind}")
        self.lock = shared.lock
        self.topic, self.partition = tp
        self.clock, self.leases, self.uses = now_ms, leases, uses
        self.write, self.break_off = write, break_off
        self.append_words = append_words
        self.add_entries, self.write_entries = add_entries, write_entries
        self.keeps_reserve = keeps_reserve
        self.born = forks
        self.is_plain = False

    def configure(
        self, *, bint plain, bint keyed, bint logs_time, int64_t most_bytes, int64_t before_ms, int64_t after_ms,
        int64_t flush_messages,
    ):
        """As the twin says."""
        self.is_plain = plain
        self.keyed = keyed
        self.bits = LOG_APPEND_TIME_BIT if logs_time else 0
        self.most_bytes = most_bytes if most_bytes < MAX_BATCH_BYTES else MAX_BATCH_BYTES
        self.before_ms, self.after_ms = before_ms, after_ms
        self.flush_messages = flush_messages

    def append(self, records):
        """As the twin says."""
        cdef Measured m
        cdef int64_t now
        if not self.is_plain or forks != self.born:
            return None
        now = now_of(self.clock)
        begin(&m, records)
        try:
            return self.appended(&m, now)
        finally:
            PyMem_Free(m.places)

    cdef object append_one(self, PyObject* value, PyObject* key):
        """As ``append`` of one record; a value and a key that are None or ``bytes``."""
        cdef Measured m
        cdef Place place
        cdef PyObject* record
        if not self.is_plain or forks != self.born:
            return None
        made = (<object>value, <object>key, NO_TIME, None)
        record = <PyObject*>made
        m.items, m.places, m.count, m.given = &record, &place, 1, False
        return self.appended(&m, now_of(self.clock))

    cdef object append_given(self, Measured* m):
        if not self.is_plain or forks != self.born:
            return None
        return self.appended(m, now_of(self.clock))

    cdef object appended(self, Measured* m, int64_t now):
        cdef unsigned char* data
        cdef Py_ssize_t size
        cdef int64_t first, least, greatest
        if now < 0 or not m.count or not measure(m, now, self.keyed, self.most_bytes - HEADER_BYTES):
            return None
        first, least, greatest = m.first, m.least, m.greatest
        if self.bits:
            first = least = greatest = now
        elif now - least > self.before_ms or greatest - now > self.after_ms:
            return None
        size = HEADER_BYTES + m.size
        data = <unsigned char*>PyMem_Malloc(size)
        if data == NULL:
            raise MemoryError
        try:
            put_batch(data, m, 0, -1, self.bits, now, -1, -1, -1)  # outside the lock: offsets lie outside the CRC
            if not self.lock.take():
                self.lock.wait(-1, True)
            try:
                return self.store(data, size, m.count, now, first, least, greatest)
            finally:
                self.lock.drop()
        finally:
            PyMem_Free(data)

    cdef object store(
        self, unsigned char* data, Py_ssize_t size, int64_t count, int64_t now, int64_t first, int64_t least,
        int64_t greatest,
    ):
        """The lock is held. Nothing has changed where it answers None."""
        cdef PlainPlaces at = self.at
        cdef Growth g
        cdef PyObject* found = slot(<PyObject*>self.segments, at.growing)
        if found == NULL or type_of(found) != <PyObject*>at.active or not self.is_ordinary(&g, count, size):
            return None
        active = <object>found
        if not self.has_room(found, &g, size, count, now, greatest):
            return None
        found = slot(<PyObject*>active, at.totals)
        if found == NULL or not self.counts(found, &g):
            return None
        stats = <object>found
        end = <object>slot(<PyObject*>self.segments, at.end)
        put_fixed(data, g.base, 8)
        put_fixed(data + LEADER_EPOCH_AT, g.epoch, 4)
        if self.keeps_reserve:
            set_slot(<PyObject*>self.reserve, at.left, g.left - size)
        try:
            if self.leases is None:
                self.write(active, PyByteArray_FromStringAndSize(<char*>data, size))
            elif not self.written(<object>slot(<PyObject*>active, at.log), data, size, g.position):
                if self.is_torn:
                    self.is_torn = False
                    set_slot(<PyObject*>self.condition, at.resume_at, end)
                    set_slot(<PyObject*>self.condition, at.under_way, self.append_words)
                return None  # the general way cuts back what was written, or says why it cannot be
            return self.grow(active, stats, &g, data, size, count, now, first, least, greatest)
        except BaseException as error:
            # Before any Python code runs, in which an interrupt may come: whoever has the lock next cuts back to here.
            set_slot(<PyObject*>self.condition, at.resume_at, end)
            set_slot(<PyObject*>self.condition, at.under_way, self.append_words)
            self.break_off(error)
            raise

    cdef bint is_ordinary(self, Growth* g, int64_t count, Py_ssize_t size) noexcept:
        """Whether the partition refuses nothing, and has nothing to settle beside the batch."""
        cdef PlainPlaces at = self.at
        cdef PyObject* condition = <PyObject*>self.condition
        cdef PyObject* upload = slot(condition, at.uploaded)
        cdef int64_t n
        if (
            slot(condition, at.closed) != FALSE
            or slot(condition, at.ending) != FALSE
            or slot(condition, at.offline) != NONE
            or slot(condition, at.under_way) != NONE
            or slot(<PyObject*>self.beginning, at.begun) != TRUE
            or slot(<PyObject*>self.leadership, at.unassigned) != FALSE
            or slot(<PyObject*>self.producers, at.state) != NONE
            or not number(<PyObject*>self.segments, at.end, &g.base)
            or not number(<PyObject*>self.leadership, at.epoch, &g.epoch)
        ):
            return False
        if upload != NONE:  # the bucket has given the offsets below its end to other records
            if upload == NULL or type_of(upload) != <PyObject*>at.upload or slot(upload, at.fenced) != FALSE:
                return False
            if not number(upload, at.uploaded_end, &n) or g.base < n:
                return False
        if g.base < 0 or g.base > INT64_MAX - count:
            return False
        if not number(<PyObject*>self.flusher, at.flushed, &n) or g.base + count - n >= self.flush_messages:
            return False
        if self.keeps_reserve:
            if slot(<PyObject*>self.reserve, at.low) != FALSE:
                return False
            if not number(<PyObject*>self.reserve, at.left, &g.left) or g.left < size:
                return False
        return True

    cdef bint has_room(
        self, PyObject* active, Growth* g, Py_ssize_t size, int64_t count, int64_t now, int64_t greatest
    ) noexcept:
        """Whether the batch goes into the active segment, and is not its first one."""
        cdef PlainPlaces at = self.at
        cdef int64_t base_offset, bytes_bound, time_bound, clock_bound, offset_bound
        if slot(active, at.log) == NULL or slot(active, at.log) == NONE:
            return False
        if not (
            number(active, at.size_bytes, &g.position)
            and number(active, at.segment_bytes, &bytes_bound)
            and number(active, at.time_bound, &time_bound)
            and number(active, at.clock_bound, &clock_bound)
            and number(active, at.offset_bound, &offset_bound)
            and number(active, at.base_offset, &base_offset)
            and number(active, at.since_index, &g.since)
            and number(active, at.interval, &g.interval)
            and number(active, at.max_timestamp, &g.latest)
        ):
            return False
        return (
            0 < g.position <= bytes_bound - size
            and greatest <= time_bound
            and now < clock_bound
            and base_offset <= g.base + count - 1 <= offset_bound
        )

    cdef bint counts(self, PyObject* stats, Growth* g) noexcept:
        """Whether the totals of the segment are not known, or are numbers."""
        cdef PlainPlaces at = self.at
        g.is_counted = stats != NONE
        return not g.is_counted or (
            type_of(stats) == <PyObject*>at.stats
            and number(stats, at.records, &g.records)
            and number(stats, at.min_time, &g.least)
            and number(stats, at.max_time, &g.greatest)
            and number(stats, at.crc32c, &g.crc)
        )

    cdef bint written(self, handle, const unsigned char* data, Py_ssize_t size, int64_t position) except -1:
        """As ``PooledFiles.write_at`` of a file that is open; False where it is not, or not all was written."""
        cdef PlainPlaces at = self.at
        cdef PyObject* found = PyDict_GetItemWithError(self.leases, handle)
        cdef int64_t descriptor
        cdef PlainLock lock
        cdef Py_ssize_t done
        if found == NULL or type_of(found) != <PyObject*>at.lease:
            return False
        lease = <object>found
        lock = <PlainLock?>slot(found, at.lock)
        if not lock.take():
            return False
        try:
            if slot(found, at.failed) != NONE or not number(found, at.descriptor, &descriptor):
                return False
            if not 0 <= descriptor <= INT32_MAX:
                return False
            set_slot(found, at.used, next(self.uses))
            set_slot(found, at.dirty, TRUTH)
            with nogil:
                done = pwrite(<int>descriptor, data, size, position)
            self.is_torn = 0 < done < size
            return done == size
        finally:
            lock.drop()

    cdef object grow(
        self, object active, object stats, Growth* g, const unsigned char* data, Py_ssize_t size, int64_t count,
        int64_t now, int64_t first, int64_t least, int64_t greatest,
    ):
        """The batch is written: totals, index and end of the log."""
        cdef PlainPlaces at = self.at
        cdef PyObject* its = <PyObject*>active
        cdef PyObject* totals = <PyObject*>stats
        cdef int64_t before
        cdef int64_t last = g.base + count - 1
        base = <object>slot(<PyObject*>self.segments, at.end)
        end = g.base + count
        position = g.position + size
        epoch = <object>slot(<PyObject*>self.leadership, at.epoch)
        if greatest > g.latest:
            set_slot(its, at.max_timestamp, greatest)
            set_slot(its, at.max_timestamp_offset, last)
        if g.since > g.interval:
            self.index(active, self.add_entries(active, last, g.position))
            g.since = 0
        set_slot(its, at.since_index, g.since + size)
        if g.is_counted:
            set_slot(totals, at.records, g.records + count)
            if least < g.least or g.least < 0:
                set_slot(totals, at.min_time, least)
            if greatest > g.greatest:
                set_slot(totals, at.max_time, greatest)
            set_slot(totals, at.total_bytes, position)
            set_slot(totals, at.crc32c, <int64_t>joined_crc(
                crc_of(<uint32_t>g.crc, data, CRC_START), <uint32_t>get_fixed(data + CRC_AT, 4), size - CRC_START
            ))
            set_slot(totals, at.last_epoch, epoch)
        set_slot(its, at.size_bytes, position)
        set_slot(its, at.leader_epoch, epoch)
        if not number(its, at.appended_ms, &before) or before != now:
            set_slot(its, at.appended_ms, now)
        set_slot(<PyObject*>self.segments, at.end, end)
        return self.metadata(base, first, end)

    cdef int index(self, active, tuple entries) except -1:
        """As ``ActiveSegment.write_entries``."""
        handles, offset_entry, at_offset, time_entry, at_time = entries
        if handles is None or self.leases is None or not (
            self.entry_written(handles[0], offset_entry, at_offset)
            and (not time_entry or self.entry_written(handles[1], time_entry, at_time))
        ):
            self.write_entries(active, handles, offset_entry, at_offset, time_entry, at_time)
        return 0

    cdef bint entry_written(self, handle, bytes entry, int64_t position) except -1:
        return self.written(handle, <const unsigned char*>PyBytes_AS_STRING(entry), len(entry), position)

    cdef object metadata(self, object base, int64_t first, object end):
        made = bare_tuple(RECORD_METADATA, 5)
        set_field(made, 0, self.topic)
        set_field(made, 1, self.partition)
        set_field(made, 2, base)
        set_field(made, 3, first)
        set_field(made, 4, end)
        return made


cdef struct Groups:  # of records, by partition; all of it is of their number or that of the partitions
    PyObject** items  # borrowed
    int32_t* places  # in the call; behind them the partition of each
    Py_ssize_t* ends

cdef enum:
    MOST_GROUPS = 4096  # partitions of a topic: beyond, looking at each costs more than the records


cdef inline int32_t partition_of_key(PyObject* key, Py_ssize_t partitions) noexcept:
    return (hash_of_key(<unsigned char*>bytes_data(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF) % partitions


@cython.final
cdef class PlainAppends:
    """As ``tiered.format.pure_kernels.PlainAppends`` says."""

    cdef list logs
    cdef Py_ssize_t partitions

    def __init__(self, logs):
        self.logs = list(logs)
        self.partitions = len(self.logs)

    def append(self, value, key, partition):
        """As the twin says."""
        cdef int64_t chosen
        if not is_field(<PyObject*>value) or not is_field(<PyObject*>key):
            return None
        if partition is not None:
            if not whole(<PyObject*>partition, 0, self.partitions - 1, &chosen):
                return None
        elif self.partitions == 1:
            chosen = 0
        elif key is None:
            return None
        else:
            chosen = partition_of_key(<PyObject*>key, self.partitions)
        log = self.logs[chosen]
        return None if log is None else (<PlainAppend>log).append_one(<PyObject*>value, <PyObject*>key)

    def append_many(self, records, fixed, int keyless):
        """As the twin says."""
        cdef Measured m
        cdef Groups g
        cdef Py_ssize_t i
        cdef tuple given
        if not (PyList_CheckExact(<PyObject*>records) or PyTuple_CheckExact(<PyObject*>records)):
            return None
        if self.partitions > MOST_GROUPS or not 0 <= keyless < self.partitions:
            return None
        given = tuple(records)  # nobody takes a record away, whatever runs meanwhile
        begin(&m, given)
        g.items, g.places, g.ends = NULL, NULL, NULL
        try:
            if not m.count or not self.grouped(&g, &m, -1 if fixed is None else fixed, keyless):
                return None
            return self.append_groups(&g, &m)
        finally:
            PyMem_Free(m.places)
            PyMem_Free(g.items)
            PyMem_Free(g.places)
            PyMem_Free(g.ends)

    cdef bint grouped(self, Groups* g, Measured* m, int fixed, int keyless) except -1:
        """The records in the order of their partitions; False if one is odd."""
        cdef Fields f
        cdef Py_ssize_t i, partition, before = 0, count
        cdef int32_t* chosen
        g.items = <PyObject**>PyMem_Malloc(m.count * sizeof(PyObject*))
        g.places = <int32_t*>PyMem_Malloc(2 * m.count * sizeof(int32_t))
        g.ends = <Py_ssize_t*>PyMem_Malloc((self.partitions + 1) * sizeof(Py_ssize_t))
        if g.items == NULL or g.places == NULL or g.ends == NULL:
            raise MemoryError
        chosen = g.places + m.count
        for partition in range(self.partitions + 1):
            g.ends[partition] = 0
        for i in range(m.count):
            if not fields_of(m.items[i], True, &f) or not is_field(f.value) or not is_field(f.key):
                return False
            if not is_given_time(f.timestamp) or (f.headers != NONE and headers_size(f.headers) == ODD):
                return False
            if fixed >= 0:
                chosen[i] = fixed
            elif f.key == NONE or self.partitions == 1:
                chosen[i] = keyless
            else:
                chosen[i] = partition_of_key(f.key, self.partitions)
            g.ends[chosen[i]] += 1
        for partition in range(self.partitions + 1):  # where each begins, for now
            count = g.ends[partition]
            g.ends[partition] = before
            before += count
        for i in range(m.count):
            g.items[g.ends[chosen[i]]] = m.items[i]
            g.places[g.ends[chosen[i]]] = <int32_t>i
            g.ends[chosen[i]] += 1
        return True

    cdef object append_groups(self, Groups* g, Measured* m):
        cdef list written = []
        cdef list left = []
        cdef Py_ssize_t partition, i, start = 0, end
        m.given = True
        for partition in range(self.partitions):
            end = g.ends[partition]
            if end > start:
                m.items, m.count = g.items + start, end - start
                log = None if left else self.logs[partition]
                done = None if log is None else (<PlainAppend>log).append_given(m)
                if done is None:
                    left.append((
                        partition,
                        [<object>g.items[i] for i in range(start, end)],
                        [g.places[i] for i in range(start, end)],
                    ))
                else:
                    written.append(done)
            start = end
        return written, left
