# Part of _kernels.pyx: what an appender does for each record. The twin is ``tiered.format.accumulator``.

cdef extern from *:
    """
    /* An instance as its type makes it, without a call of __init__. */
    static PyObject *bare_instance(PyObject *kind, PyObject *no_arguments) {
        return ((PyTypeObject *)kind)->tp_new((PyTypeObject *)kind, no_arguments, NULL);
    }
    """
    object bare_instance(object, object)

cdef extern from "Python.h":
    Py_ssize_t PyByteArray_GET_SIZE(PyObject*)
    int PyByteArray_Resize(object, Py_ssize_t) except -1
    void* PyMem_Realloc(void*, size_t)
    PyObject* PyDict_GetItemWithError(object, object) except? NULL  # borrowed

cdef int64_t forks = 0  # of this process since its first ancestor
cdef tuple NO_ARGUMENTS = ()
cdef Py_ssize_t FIRST_ROOM = 4096


cdef int64_t now_of(clock) except? -1:
    """Return the time in milliseconds from ``clock``; None: from the machine's clock."""
    cdef timespec time
    if clock is not None:
        return clock()
    clock_gettime(CLOCK_REALTIME, &time)
    return <int64_t>time.tv_sec * 1000 + time.tv_nsec // 1000000


def _forked():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_forked)


cdef struct TimeRun:
    Py_ssize_t start  # the first record
    int64_t time  # of it and those behind it


cdef class AccumulatedBatch:
    """Records of one pending batch; see ``accumulator.AccumulatedBatch``.

    Plain records are encoded into ``data`` on arrival. The first access to ``records``, or a record of another kind,
    decodes all of them into a list.
    """

    cdef public Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef list held  # None as long as all are encoded
    cdef object data  # a bytearray: room for the header, the records, room for more
    cdef Py_ssize_t used
    cdef bint keyed  # each record has a key
    cdef int64_t first, least, greatest
    cdef TimeRun* runs  # of encoded records
    cdef Py_ssize_t run_count
    cdef Py_ssize_t run_room
    cdef list times  # of others that were let go

    def __init__(self, Py_ssize_t size):
        self.size = size
        self.used = HEADER_BYTES
        self.keyed = True

    def __dealloc__(self):
        PyMem_Free(self.runs)

    @property
    def records(self):
        """All records as tuples, for ``append``. From the first access on, the batch stores them only in this list."""
        if self.held is None:
            self.held = self.decoded()
        return self.held

    def add(self, record):
        if self.held is None and self.is_plain(record):
            self.make_room()
            self.put(PyTuple_GET_ITEM(<PyObject*>record, 0), PyTuple_GET_ITEM(<PyObject*>record, 1), record[2])
            return
        self.records.append(record)
        self.count += 1

    cdef bint is_plain(self, record) except -1:
        cdef int64_t time
        return (
            (type(record) is tuple or type_of(<PyObject*>record) == NEW_RECORD)
            and PyTuple_GET_SIZE(<PyObject*>record) == FIELDS
            and is_field(PyTuple_GET_ITEM(<PyObject*>record, 0))
            and is_field(PyTuple_GET_ITEM(<PyObject*>record, 1))
            and whole(PyTuple_GET_ITEM(<PyObject*>record, 2), 0, INT64_MAX, &time)
            and PyTuple_GET_ITEM(<PyObject*>record, 3) == NONE
        )

    def packed(self):
        """Return the encoded batch; None unless every record was encoded on arrival.

        Its header has base offset 0 and leader epoch -1. The log assigns both later: the CRC does not cover them.
        """
        cdef unsigned char* start
        cdef unsigned char* at
        if self.held is not None or self.data is None:
            return None
        PyByteArray_Resize(self.data, self.used)
        start = <unsigned char*>PyByteArray_AS_STRING(self.data)
        at = put_fixed(start, 0, 8)
        at = put_fixed(at, self.used - LOG_OVERHEAD_BYTES, 4)
        at = put_fixed(at, -1, 4)
        at = put_fixed(at, 2, 1)  # magic
        at = put_fixed(at, 0, 4)  # CRC, below
        at = put_fixed(at, 0, 2)
        at = put_fixed(at, self.count - 1, 4)
        at = put_fixed(at, self.first, 8)
        at = put_fixed(at, self.greatest, 8)
        at = put_fixed(at, -1, 8)
        at = put_fixed(at, -1, 2)
        at = put_fixed(at, -1, 4)
        put_fixed(at, self.count, 4)
        put_fixed(start + CRC_AT, crc_of_batch(start, self.used), 4)
        return PackedBatch(self.data, self.count, self.first, self.least, self.greatest, self.keyed)

    def release(self):
        if self.held is not None:
            self.times = [record[2] for record in self.held]
        self.held = None
        self.data = None

    def time_of(self, Py_ssize_t index):
        cdef Py_ssize_t low = 0, high = self.run_count, middle
        if self.times is not None:
            return self.times[index]
        if not 0 <= index < self.count:
            raise IndexError(index)
        while high - low > 1:
            middle = (low + high) // 2
            if self.runs[middle].start <= index:
                low = middle
            else:
                high = middle
        return self.runs[low].time

    cdef list decoded(self):
        if self.data is None:
            return []
        encoded = bytes(memoryview(self.data)[HEADER_BYTES:self.used])
        records = pure_kernels.decode_records(encoded, self.count, 0, self.first, None)
        return [(record.value, record.key, record.timestamp, None) for record in records]

    cdef int make_room(self) except -1:
        if self.data is None:
            self.data = PyByteArray_FromStringAndSize(NULL, FIRST_ROOM)
        return 0

    cdef int put(self, PyObject* value, PyObject* key, int64_t time) except -1:
        """Append one encoded record. Allocates no Python object, so no other Python code runs during the call."""
        cdef Py_ssize_t delta_size, body, end
        cdef int64_t delta
        cdef unsigned char* at
        if not self.count:
            self.first = self.least = self.greatest = time
        delta = <int64_t>(<uint64_t>time - <uint64_t>self.first)
        delta_size = varint_size(zigzag(delta))
        body = 1 + delta_size + varint_size(zigzag(self.count)) + field_size(key) + field_size(value) + 1
        end = self.used + varint_size(zigzag(body)) + body
        if end > PyByteArray_GET_SIZE(<PyObject*>self.data):
            PyByteArray_Resize(self.data, end + end // 2)
        if not self.run_count or self.runs[self.run_count - 1].time != time:
            self.add_run(time)
        at = <unsigned char*>PyByteArray_AS_STRING(self.data) + self.used
        at = put_varint(at, zigzag(body))
        at[0] = 0  # attributes
        at = put_varint(at + 1, zigzag(delta))
        at = put_varint(at, zigzag(self.count))
        at = put_field(at, key)
        at = put_field(at, value)
        at[0] = 0  # headers
        self.used = end
        self.count += 1
        self.keyed = self.keyed and key != NONE
        if time < self.least:
            self.least = time
        elif time > self.greatest:
            self.greatest = time
        return 0

    cdef int add_run(self, int64_t time) except -1:
        cdef TimeRun* grown
        if self.run_count == self.run_room:
            grown = <TimeRun*>PyMem_Realloc(self.runs, (2 * self.run_room + 8) * sizeof(TimeRun))
            if grown == NULL:
                raise MemoryError
            self.runs = grown
            self.run_room = 2 * self.run_room + 8
        self.runs[self.run_count].start = self.count
        self.runs[self.run_count].time = time
        self.run_count += 1
        return 0


@cython.no_gc
cdef class AccumulatedRecord:
    """Base class of the receipt of one record; see ``accumulator.AccumulatedRecord``.

    Python's garbage collector does not track it: it refers to an appender and a batch, and is part of no cycle.
    """

    cdef readonly object _appender
    cdef readonly AccumulatedBatch _batch
    cdef readonly Py_ssize_t _index

    def __init__(self, appender, AccumulatedBatch batch, Py_ssize_t index):
        self._appender = appender
        self._batch = batch
        self._index = index


cdef class Accumulator:
    """Base class of an appender: its buffer, with an open batch for each partition.

    See ``accumulator.Accumulator``.
    """

    cdef readonly PlainLock _lock
    cdef public dict _open
    cdef public dict _halted
    cdef public object _keyless
    cdef public Py_ssize_t _held
    cdef public bint _closed
    cdef readonly Py_ssize_t _batch_bytes
    cdef readonly Py_ssize_t _buffer_bytes
    cdef Py_ssize_t record_bytes
    cdef public int _partitions  # more of them when the topic gets more
    cdef int64_t born  # the forks when it was made
    cdef object clock
    cdef object receipt

    def __init__(
        self,
        int partitions,
        *,
        Py_ssize_t record_bytes,
        Py_ssize_t batch_bytes,
        Py_ssize_t buffer_bytes,
        receipt,
        now_ms,
    ):
        if not issubclass(receipt, AccumulatedRecord):
            raise TypeError(f"{receipt} is no AccumulatedRecord")
        self._partitions = partitions
        self.record_bytes = record_bytes
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self.receipt = receipt
        self.clock = now_ms
        self.born = forks
        self._lock = PlainLock()
        self._open = {}
        self._halted = {}

    def __class_getitem__(cls, item):
        return cls

    @cython.annotation_typing(False)
    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp: Time | None = None,
        headers: Headers | None = None,
    ) -> Receipt:
        """Buffer one record and return its receipt, which is done once the record is in the log.

        The batch is written at the latest ``linger_ms`` after its first record. ``timestamp`` None means now. Records
        without a key share one partition until its batch is full. Blocks for at most ``max_block_ms`` while
        ``buffer_bytes`` are buffered, then raises AppendTimeoutError. Raises InvalidRecordError, AppendHaltedError,
        ClosedError or ForkedLogError. After an error the record is not buffered.
        """
        receipt = self.fast_buffer(value, key, partition, timestamp, headers)
        if receipt is None:
            receipt = self._try_buffer(value, key, partition, timestamp, headers)
            if receipt is None:
                return self._buffer_late(value, key, partition, timestamp, headers)
        return receipt

    def _buffer(self, value, key, partition, timestamp, headers):
        receipt = self.fast_buffer(value, key, partition, timestamp, headers)
        return self._try_buffer(value, key, partition, timestamp, headers) if receipt is None else receipt

    cdef object fast_buffer(self, value, key, partition, timestamp, headers):
        """Buffer one record and return its receipt; None, without buffering it, unless the fast path takes it.

        The fast path takes a key and a value of ``bytes`` without timestamp and headers, if the open batch has room.
        """
        cdef AccumulatedBatch batch
        cdef AccumulatedRecord receipt
        cdef PyObject* found
        cdef Py_ssize_t size
        cdef int64_t time
        if timestamp is not None or headers is not None or forks != self.born or not PyBytes_CheckExact(<PyObject*>value):
            return None
        size = self.record_bytes + PyBytes_GET_SIZE(<PyObject*>value)
        if key is not None:
            if not PyBytes_CheckExact(<PyObject*>key):
                return None
            size += PyBytes_GET_SIZE(<PyObject*>key)
        if partition is not None:
            chosen = partition
        elif key is not None:
            chosen = (
                hash_of_key(<unsigned char*>bytes_data(<PyObject*>key), PyBytes_GET_SIZE(<PyObject*>key)) & 0x7FFFFFFF
            ) % self._partitions
        else:
            chosen = self._keyless
        if not PyLong_CheckExact(<PyObject*>chosen):
            return None
        time = now_of(self.clock)
        if time < 0:
            return None
        receipt = bare_instance(self.receipt, NO_ARGUMENTS)
        # From here on nothing runs Python code, is collected or waits: no other thread comes between.
        if self._lock.is_held or self._closed or self._halted:
            return None
        found = PyDict_GetItemWithError(self._open, chosen)
        if found == NULL:
            return None
        batch = <AccumulatedBatch>found
        if batch.held is not None:
            return None  # something else is in it
        if batch.size + 2 * size > self._batch_bytes or self._held + size > self._buffer_bytes:
            return None  # it is full, or is with one more as large
        receipt._appender = self
        receipt._batch = batch
        receipt._index = batch.count
        batch.make_room()
        batch.put(<PyObject*>value, <PyObject*>key, time)
        batch.size += size
        self._held += size
        return receipt
