# Part of _kernels.pyx: records of batches -> the buffers of Arrow arrays.
#
# Odd input is left to ``columns``, the twin in numpy, which decodes or refuses it. A batch is taken whole or not at all.
# Room is made before a record is parsed: for the bytes that are there, never for a length that the data claims.

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.ref cimport Py_XDECREF
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memmove, memset

cdef extern from "Python.h":
    int resize_bytes "_PyBytes_Resize"(PyObject**, Py_ssize_t) except -1

cdef enum:
    SPARE_BYTES = 32  # behind the last value: short ones are copied by this much


@cython.final
@cython.no_gc
cdef class Growing:
    """Growing bytes. ``finish`` returns the written bytes, and frees the unused memory."""

    cdef PyObject* held
    cdef unsigned char* start
    cdef Py_ssize_t size, room
    cdef Py_ssize_t usual  # what was taken last, and some more

    def __dealloc__(self):
        Py_XDECREF(self.held)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = self.size + more
        if room <= self.room:
            return 0
        if self.held == NULL:
            room = max(room, self.usual)
            made = PyBytes_FromStringAndSize(NULL, room)
            Py_INCREF(made)
            self.held = <PyObject*>made
        else:
            room = max(room, self.room + self.room // 2)
            resize_bytes(&self.held, room)
        self.start = <unsigned char*>bytes_data(self.held)
        self.room = room
        return 0

    cdef bytes finish(self):
        cdef bytes made
        if self.held == NULL:
            return b""
        self.usual = self.size + self.size // 8
        if self.size != self.room:
            resize_bytes(&self.held, self.size)
        made = <bytes>self.held
        Py_XDECREF(self.held)
        self.held, self.start = NULL, NULL
        self.size = self.room = 0
        return made


cdef enum:
    MOST_KEPT = 256
    MOST_KEPT_BYTES = 67108864
    SMALL_BYTES = 65536  # up to here bytes are copied out, and the memory stays where it is

cdef struct Memory:
    unsigned char* start
    Py_ssize_t room

cdef Memory[MOST_KEPT] kept_memory  # idle blocks: the pages of fresh memory cost more than writing into them
cdef int kept_count = 0
cdef Py_ssize_t kept_bytes = 0


cdef Memory take_memory(Py_ssize_t size) noexcept:
    """Return ``size`` bytes or more: the smallest idle block of at most twice the size, or a new one (NULL: none).

    Of equal blocks the one that was returned last: its bytes may still be in a CPU's cache.
    """
    global kept_count, kept_bytes
    cdef Memory found
    cdef int i, best = -1
    for i in range(kept_count - 1, -1, -1):
        if size <= kept_memory[i].room <= 2 * size and (best < 0 or kept_memory[i].room < kept_memory[best].room):
            best = i
    if best < 0:
        found.room = size
        found.start = <unsigned char*>malloc(size)
        return found
    found = kept_memory[best]
    kept_count -= 1
    memmove(&kept_memory[best], &kept_memory[best + 1], (kept_count - best) * sizeof(Memory))
    kept_bytes -= found.room
    return found


cdef void give_memory(Memory memory) noexcept:
    """Keep the block as idle, and free the longest idle ones for it, as other sizes may be needed now."""
    global kept_count, kept_bytes
    cdef int gone = 0
    if memory.start == NULL:
        return
    if memory.room > MOST_KEPT_BYTES:
        free(memory.start)
        return
    while kept_count - gone == MOST_KEPT or kept_bytes + memory.room > MOST_KEPT_BYTES:
        kept_bytes -= kept_memory[gone].room
        free(kept_memory[gone].start)
        gone += 1
    kept_count -= gone
    memmove(kept_memory, &kept_memory[gone], kept_count * sizeof(Memory))
    kept_memory[kept_count] = memory
    kept_count += 1
    kept_bytes += memory.room


@cython.final
@cython.no_gc
cdef class Chunk:
    """Bytes of an Arrow buffer. The memory is reused after the last view of it is gone."""

    cdef Memory memory
    cdef Py_ssize_t size

    def __dealloc__(self):
        give_memory(self.memory)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory.start, self.size, 1, flags)


@cython.final
@cython.no_gc
cdef class Lent:
    """Growing bytes in reused memory."""

    cdef Memory memory
    cdef unsigned char* start
    cdef Py_ssize_t size
    cdef Py_ssize_t usual  # what was taken last, and some more

    def __dealloc__(self):
        give_memory(self.memory)

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = self.size + more
        cdef Memory made
        if room <= self.memory.room and self.start != NULL:
            return 0
        made = take_memory(max(room, self.usual if self.start == NULL else self.memory.room + self.memory.room // 2))
        if made.start == NULL:
            raise MemoryError
        if self.start != NULL:
            memcpy(made.start, self.start, self.memory.room)
            give_memory(self.memory)
        self.memory, self.start = made, made.start
        return 0

    cdef object finish(self):
        """Return the written bytes, read-only, and start over."""
        cdef Chunk made
        cdef unsigned char* shorter
        cdef Py_ssize_t size = self.size
        self.size = 0
        if size <= SMALL_BYTES:
            return PyBytes_FromStringAndSize(<char*>self.start, size) if size else b""
        self.usual = size + size // 8
        made = Chunk.__new__(Chunk)
        if 3 * size < self.memory.room:
            made.memory = take_memory(size)  # and the larger one is reused: its pages are mapped
            if made.memory.start == NULL:
                raise MemoryError
            memcpy(made.memory.start, self.start, size)
            made.size = size
            return memoryview(made)
        made.memory, made.size = self.memory, size
        self.memory.start, self.start, self.memory.room = NULL, NULL, 0
        if 4 * size < 3 * made.memory.room:
            shorter = <unsigned char*>realloc(made.memory.start, size)
            if shorter != NULL:
                made.memory.start, made.memory.room = shorter, size
        return memoryview(made)


cdef struct Binary:
    int32_t* ends  # where each element ends, behind a 0
    unsigned char* data
    unsigned char* valid
    int64_t count
    int64_t size
    int64_t nulls


@cython.final
@cython.no_gc
cdef class BinaryColumn:
    """An Arrow ``binary`` column or, with ``open_list``, the offsets of a ``list``."""

    cdef Lent ends, data, valid
    cdef Binary at

    def __cinit__(self):
        self.ends, self.data, self.valid = Lent.__new__(Lent), Lent.__new__(Lent), Lent.__new__(Lent)

    cdef int reserve(self, int64_t elements, int64_t data_bytes) except -1:
        cdef int64_t first = self.at.count >> 3, behind = (self.at.count + elements + 7) >> 3
        self.ends.size, self.data.size, self.valid.size = 4 * (self.at.count + 1), self.at.size, first
        self.ends.reserve(4 * elements)
        self.data.reserve(data_bytes + SPARE_BYTES)
        self.valid.reserve(behind - first + 1)
        self.at.ends, self.at.data, self.at.valid = <int32_t*>self.ends.start, self.data.start, self.valid.start
        self.at.ends[0] = 0
        if self.at.count & 7:
            self.at.valid[first] |= <unsigned char>(0xFF << (self.at.count & 7))
            first += 1
        memset(self.at.valid + first, 0xFF, behind - first)
        return 0

    cdef object finish(self):
        """Return the column as ``pure_kernels.ArrowBinary``, and empty it."""
        cdef Binary at = self.at
        if self.ends.start == NULL:
            self.reserve(0, 0)
        self.ends.size, self.data.size, self.valid.size = 4 * (at.count + 1), at.size, (at.count + 7) >> 3
        valid = self.valid.finish()
        self.at.count = self.at.size = self.at.nulls = 0
        return pure_kernels.ArrowBinary(self.ends.finish(), self.data.finish(), valid if at.nulls else None, at.nulls)


cdef inline void put_null(Binary* column) noexcept nogil:
    column.valid[column.count >> 3] &= <unsigned char>~(1 << (column.count & 7))
    column.nulls += 1


cdef inline void put_binary(
    Binary* column, const unsigned char* field, int64_t size, const unsigned char* readable
) noexcept nogil:
    """Append one element; a negative size is a null. ``readable``: the end of all readable bytes."""
    cdef unsigned char* into = column.data + column.size
    if size < 0:
        put_null(column)
    elif size <= SPARE_BYTES and readable - field >= SPARE_BYTES:
        memcpy(into, field, SPARE_BYTES)
        column.size += size
    else:
        memcpy(into, field, size)
        column.size += size
    column.count += 1
    column.ends[column.count] = <int32_t>column.size


cdef bint is_utf8(const unsigned char* at, int64_t size) noexcept nogil:
    """Return True if Python would decode the ``size`` bytes as UTF-8."""
    cdef const unsigned char* end = at + size
    cdef unsigned char lead, low, high
    cdef int more
    while at < end:
        lead = at[0]
        at += 1
        if lead < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - at < more or not low <= at[0] <= high:
            return False
        at += 1
        while more > 1:
            if at[0] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True


cdef struct Batch:
    const unsigned char* records
    const unsigned char* end
    int64_t count
    int64_t base_offset
    int64_t base_timestamp
    bint stamped
    int64_t stamp


cdef struct Bounds:
    int64_t first
    bint bounded
    int64_t beyond
    int64_t since
    bint until_known
    int64_t until


cdef inline bint kept(Bounds* bounds, int64_t offset, int64_t timestamp) noexcept nogil:
    return (
        offset >= bounds.first
        and (not bounds.bounded or offset < bounds.beyond)
        and timestamp >= bounds.since
        and (not bounds.until_known or timestamp < bounds.until)
    )


cdef int64_t count_headers(Batch* batch) noexcept nogil:
    """Return the number of headers in all records of the batch; ODD if a record is odd."""
    cdef Parsed r
    cdef int64_t i, found = 0
    cdef const unsigned char* at = batch.records
    for i in range(batch.count):
        if not parse(at, batch.end, batch.base_offset, batch.base_timestamp, &r):
            return ODD
        found += r.headers_count
        at = r.end
    return found


@cython.final
@cython.no_gc
cdef class ArrowColumns:
    """Collector of batches for ``arrow_columns``."""

    cdef bint keyed, valued, headed, timed, kinds_wanted, parses, micros, broken
    cdef Bounds bounds
    cdef readonly int64_t rows
    cdef readonly int64_t size_bytes
    cdef Lent offsets, times, kinds
    cdef BinaryColumn keys, values, lists, names, insides

    def __cinit__(self):
        self.offsets, self.times, self.kinds = Lent.__new__(Lent), Lent.__new__(Lent), Lent.__new__(Lent)
        self.keys, self.values = BinaryColumn.__new__(BinaryColumn), BinaryColumn.__new__(BinaryColumn)
        self.lists, self.names = BinaryColumn.__new__(BinaryColumn), BinaryColumn.__new__(BinaryColumn)
        self.insides = BinaryColumn.__new__(BinaryColumn)

    def add(self, batch):
        cdef Py_buffer view
        cdef const unsigned char* start
        cdef int64_t i, rows, room
        cdef Batch found
        cdef int attributes
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            start = <const unsigned char*>view.buf
            if self.broken or batch_size(start, start + view.len) != view.len:
                return False
            attributes = <int>get_fixed(start + ATTRIBUTES_AT, 2)
            found.count = get_fixed(start + COUNT_AT, 4)
            if attributes & CONTROL_BIT or not found.count:
                return False
            found.base_offset = get_fixed(start, 8)
            found.base_timestamp = get_fixed(start + BASE_TIMESTAMP_AT, 8)
            found.stamped = attributes & LOG_APPEND_TIME_BIT != 0
            found.stamp = get_fixed(start + MAX_TIMESTAMP_AT, 8)
            found.records = start + HEADER_BYTES
            found.end = start + view.len
            room = MAX_DECOMPRESSED_BYTES if attributes & CODEC_MASK else found.end - found.records
            if found.count > room // MIN_RECORD_BYTES:
                return False
            if not self.parses and found.count == get_fixed(start + LAST_DELTA_AT, 4) + 1:
                rows = self.count_up(&found)
            else:
                data = batch
                if attributes & CODEC_MASK:
                    data = decompress(
                        codec_of(attributes), memoryview(batch)[HEADER_BYTES:], max_bytes=MAX_DECOMPRESSED_BYTES
                    )
                    found.records = <const unsigned char*>PyBytes_AS_STRING(data)
                    found.end = found.records + PyBytes_GET_SIZE(<PyObject*>data)
                rows = self.put(&found)
                if rows == ODD:
                    return False
                self.size_bytes += found.end - found.records
        finally:
            PyBuffer_Release(&view)
        if self.kinds_wanted:
            self.broken = True  # unless there is memory
            self.kinds.size = 4 * self.rows
            self.kinds.reserve(4 * rows)
            self.broken = False
            for i in range(rows):
                (<int32_t*>self.kinds.start)[self.rows + i] = found.stamped
        self.rows += rows
        return True

    cdef int64_t count_up(self, Batch* batch) except -1:
        """Append the offsets of a full batch without parsing its records."""
        cdef int64_t i, at, first = max(batch.base_offset, self.bounds.first), behind = batch.base_offset + batch.count
        cdef int64_t* into
        if self.bounds.bounded:
            behind = min(behind, self.bounds.beyond)
        if behind <= first:
            return 0
        self.offsets.size = 8 * self.rows
        self.offsets.reserve(8 * (behind - first))
        into = <int64_t*>self.offsets.start + self.rows
        for i in range(behind - first):
            into[i] = first + i
        return behind - first

    cdef int64_t put(self, Batch* batch) except -2:
        """Append the rows of a batch. Return their number; ODD: none was added."""
        cdef int64_t rows, elements = 0, payload = batch.end - batch.records
        cdef Binary keys, values, lists, names, insides
        if batch.count > payload // MIN_RECORD_BYTES:
            return ODD
        if max(self.keys.at.size, self.values.at.size, self.names.at.size, self.insides.at.size) > INT32_MAX - payload:
            return ODD
        self.broken = True  # unless there is memory
        self.offsets.size = self.times.size = 8 * self.rows
        self.offsets.reserve(8 * batch.count)
        if self.timed:
            self.times.reserve(8 * batch.count)
        if self.keyed:
            self.keys.reserve(batch.count, payload)
        if self.valued:
            self.values.reserve(batch.count, payload)
        if self.headed:
            with nogil:
                elements = count_headers(batch)
            if elements == ODD:
                self.broken = False
                return ODD
            self.lists.reserve(batch.count, 0)
            self.names.reserve(elements, payload)
            self.insides.reserve(elements, payload)
        self.broken = False
        keys, values, lists, names, insides = self.keys.at, self.values.at, self.lists.at, self.names.at, self.insides.at
        with nogil:
            rows = self.fill(batch, elements, &keys, &values, &lists, &names, &insides)
        if rows != ODD:
            self.keys.at, self.values.at, self.lists.at, self.names.at, self.insides.at = keys, values, lists, names, insides
        return rows

    cdef int64_t fill(
        self, Batch* batch, int64_t elements, Binary* keys, Binary* values, Binary* lists, Binary* names, Binary* insides
    ) noexcept nogil:
        cdef Parsed r
        cdef int64_t i, rows = 0, most = INT64_MAX // 1000
        cdef int64_t* offsets = <int64_t*>self.offsets.start + self.rows
        cdef int64_t* times = <int64_t*>self.times.start + self.rows
        cdef const unsigned char* at = batch.records
        for i in range(batch.count):
            if not parse(at, batch.end, batch.base_offset, batch.base_timestamp, &r):
                return ODD
            at = r.end
            if batch.stamped:
                r.timestamp = batch.stamp
            if not kept(&self.bounds, r.offset, r.timestamp):
                continue
            offsets[rows] = r.offset
            if self.timed:
                if self.micros:
                    r.timestamp = 1000 * max(min(r.timestamp, most), -most)
                times[rows] = r.timestamp
            if self.keyed:
                put_binary(keys, r.key, r.key_size, batch.end)
            if self.valued:
                put_binary(values, r.value, r.value_size, batch.end)
            if self.headed:
                elements -= r.headers_count
                if elements < 0 or not put_list(lists, names, insides, &r, batch.end):
                    return ODD
            rows += 1
        return rows if at == batch.end else ODD

    def finish(self):
        cdef object keys = None, values = None, headers = None
        cdef int64_t rows = self.rows
        if self.broken:
            raise MemoryError
        self.offsets.size = self.times.size = 8 * rows
        self.kinds.size = 4 * rows
        if self.keyed:
            keys = self.keys.finish()
        if self.valued:
            values = self.values.finish()
        if self.headed:
            headers = self.lists.finish(), self.names.finish(), self.insides.finish()
        self.rows = self.size_bytes = 0
        times = self.times.finish() if self.timed else None
        kinds = self.kinds.finish() if self.kinds_wanted else None
        return pure_kernels.ArrowBuffers(rows, self.offsets.finish(), times, kinds, keys, values, headers)


cdef bint put_list(
    Binary* lists, Binary* names, Binary* insides, Parsed* r, const unsigned char* readable
) noexcept nogil:
    """Append the headers of a parsed record, none as a null. Return False for a name that is not UTF-8."""
    cdef const unsigned char* at = r.headers
    cdef const unsigned char* field
    cdef int64_t i, size
    if not r.headers_count:
        put_null(lists)
    for i in range(r.headers_count):
        at = get_field(at, r.end, &field, &size)
        if at == NULL or size < 0 or not is_utf8(field, size):
            return False
        put_binary(names, field, size, readable)
        at = get_field(at, r.end, &field, &size)
        if at == NULL:
            return False
        put_binary(insides, field, size, readable)
    lists.count += 1
    lists.ends[lists.count] = <int32_t>names.count
    return True


def arrow_columns(names, start, end, since, until, bint micros):
    cdef ArrowColumns made = ArrowColumns.__new__(ArrowColumns)
    made.keyed, made.valued, made.headed = "key" in names, "value" in names, "headers" in names
    made.timed, made.kinds_wanted, made.micros = "timestamp" in names, "timestampType" in names, micros
    made.bounds.since, made.bounds.until_known, made.bounds.bounded = INT64_MIN, until is not None, end is not None
    if (
        not whole(<PyObject*>start, INT64_MIN, INT64_MAX, &made.bounds.first)
        or (end is not None and not whole(<PyObject*>end, INT64_MIN, INT64_MAX, &made.bounds.beyond))
        or (since is not None and not whole(<PyObject*>since, INT64_MIN, INT64_MAX, &made.bounds.since))
        or (until is not None and not whole(<PyObject*>until, INT64_MIN, INT64_MAX, &made.bounds.until))
    ):
        return None
    made.parses = made.keyed or made.valued or made.headed or made.timed or since is not None or until is not None
    return made
