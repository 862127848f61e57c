# Part of _kernels.pyx: rows of Arrow columns -> batches, each byte copied once. ``columns`` is the twin in numpy, and
# takes what is odd.

cdef enum:
    RECORD_OVERHEAD_BYTES = 36  # as ``columns`` has them: batches are cut alike
    HEADER_OVERHEAD_BYTES = 10
    MOST_VIEWS = 16


cdef struct Elements:
    const int32_t* starts
    const unsigned char* data
    const unsigned char* end
    const unsigned char* valid  # NULL: no element is null
    int64_t first_bit


cdef inline int64_t element(Elements* of, int64_t at, const unsigned char** field) noexcept nogil:
    """Return the bytes of an element, -1 for a null."""
    cdef int64_t bit = of.first_bit + at
    if of.valid != NULL and not of.valid[bit >> 3] >> (bit & 7) & 1:
        return -1
    field[0] = of.data + of.starts[at]
    return of.starts[at + 1] - of.starts[at]


cdef inline unsigned char* put_bytes(
    unsigned char* at, const unsigned char* field, int64_t size, const unsigned char* readable
) noexcept nogil:
    """Write a length and its bytes; ``SPARE_BYTES`` after them must be writable."""
    if size < 0:
        at[0] = NULL_LENGTH
        return at + 1
    at = put_varint(at, zigzag(size))
    if size <= SPARE_BYTES and readable - field >= SPARE_BYTES:
        memcpy(at, field, SPARE_BYTES)
    else:
        memcpy(at, field, size)
    return at + size


@cython.final
@cython.no_gc
cdef class ArrowRows:
    """Rows of columns for ``arrow_rows``; their memory stays pinned until the object is freed."""

    cdef Py_buffer[MOST_VIEWS] views
    cdef int held
    cdef int64_t count
    cdef Elements values, keys, names, insides
    cdef const int64_t* times
    cdef const int64_t* lists  # NULL: no row has headers

    def __dealloc__(self):
        cdef int i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])

    cdef Py_buffer* pin(self, buffer) except NULL:
        cdef Py_buffer* view = &self.views[self.held]
        PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
        self.held += 1
        return view

    cdef bint hold(self, Elements* into, given, int64_t count) except -1:
        """Return True if all elements are within the data. ``given``: validity, offsets, data, index of the first."""
        cdef int64_t first = given[3], i
        cdef Py_buffer* view
        validity, offsets, data = given[0], given[1], given[2]
        into.valid, into.first_bit = NULL, first
        if first < 0 or offsets is None:
            return False
        if validity is not None:
            view = self.pin(validity)
            if view.len < (first + count + 7) >> 3:
                return False
            into.valid = <const unsigned char*>view.buf
        view = self.pin(offsets)
        if view.len < 4 * (first + count + 1):
            return False
        into.starts = <const int32_t*>view.buf + first
        view = self.pin(b"" if data is None else data)
        into.data = <const unsigned char*>view.buf
        into.end = into.data + view.len
        if into.starts[0] < 0 or into.starts[count] > view.len:
            return False
        for i in range(count):
            if into.starts[i] > into.starts[i + 1]:
                return False
        return True

    def largest(self):
        cdef int64_t row, most = 0
        with nogil:
            for row in range(self.count):
                most = max(most, most_bytes_of(self, row))
        return most

    def run_ends(self, int64_t room):
        cdef int64_t row, most, taken = 0
        cdef list ends = []
        for row in range(self.count):
            most = most_bytes_of(self, row)
            if taken and taken + most > room:
                ends.append(row)
                taken = 0
            taken += most
        if taken:
            ends.append(self.count)
        return ends

    def by_partition(self, int64_t partitions, int64_t keyless, given):
        cdef int64_t* counts
        cdef int64_t** places
        cdef int32_t* chosen
        cdef Py_buffer view
        cdef bint has_given = given is not None
        if not 0 < partitions <= INT32_MAX:
            raise ValueError(f"there are no {partitions} partitions")
        if has_given:
            PyObject_GetBuffer(given, &view, PyBUF_SIMPLE)
        counts = <int64_t*>calloc(partitions, sizeof(int64_t))
        places = <int64_t**>calloc(partitions, sizeof(int64_t*))
        chosen = <int32_t*>malloc(max(1, self.count) * sizeof(int32_t))
        try:
            if counts == NULL or places == NULL or chosen == NULL:
                raise MemoryError
            if has_given and view.len != 8 * self.count:
                raise ValueError(f"{view.len // 8} partitions were given for {self.count} rows")
            choose_partitions(self, partitions, keyless, <const int64_t*>view.buf if has_given else NULL, chosen)
            return self.grouped(partitions, chosen, counts, places)
        finally:
            free(chosen)
            free(places)
            free(counts)
            if has_given:
                PyBuffer_Release(&view)

    cdef list grouped(self, int64_t partitions, const int32_t* chosen, int64_t* counts, int64_t** places):
        """Return the rows of each partition. ``counts`` and ``places`` are zeros."""
        cdef list found = []
        cdef bytes order
        cdef int64_t row, partition
        for row in range(self.count):
            if not 0 <= chosen[row] < partitions:
                raise IndexError(f"row {row}: there is no partition {chosen[row]}")
            counts[chosen[row]] += 1
        for partition in range(partitions):
            if counts[partition] == self.count:
                return [(partition, None)] if self.count else found
            if counts[partition]:
                order = PyBytes_FromStringAndSize(NULL, 8 * counts[partition])
                places[partition] = <int64_t*>PyBytes_AS_STRING(order)
                found.append((partition, order))
        with nogil:
            for row in range(self.count):
                places[chosen[row]][0] = row
                places[chosen[row]] += 1
        return found


cdef void choose_partitions(
    ArrowRows rows, int64_t partitions, int64_t keyless, const int64_t* given, int32_t* chosen
) noexcept nogil:
    """Set the partition of each row; INT32_MAX for an impossible one."""
    cdef const unsigned char* key = NULL
    cdef int64_t row, size, partition
    for row in range(rows.count):
        if given != NULL and given[row] != -1:
            partition = given[row]
        elif partitions == 1:
            partition = 0
        else:
            size = element(&rows.keys, row, &key)
            partition = keyless if size < 0 else <int64_t>(hash_of_key(key, size) & 0x7FFFFFFF) % partitions
        chosen[row] = <int32_t>partition if 0 <= partition < partitions else INT32_MAX


def arrow_rows(int64_t count, values, keys, timestamps, headers):
    cdef ArrowRows rows = ArrowRows.__new__(ArrowRows)
    cdef Py_buffer* view
    cdef int64_t elements, i
    if count < 0 or not rows.hold(&rows.values, values, count) or not rows.hold(&rows.keys, keys, count):
        return None
    view = rows.pin(timestamps)
    if view.len != 8 * count:
        return None
    rows.times = <const int64_t*>view.buf
    rows.count = count
    if headers is not None:
        bounds, names, insides = headers
        view = rows.pin(bounds)
        if view.len != 8 * (count + 1):
            return None
        rows.lists = <const int64_t*>view.buf
        elements = rows.lists[count]
        if rows.lists[0] or elements < 0 or elements > INT32_MAX:
            return None
        for i in range(count):
            if rows.lists[i] > rows.lists[i + 1]:
                return None
        if not rows.hold(&rows.names, names, elements) or not rows.hold(&rows.insides, insides, elements):
            return None
    return rows


cdef int64_t most_bytes_of(ArrowRows rows, int64_t row) noexcept nogil:
    """Return an upper bound of a record's bytes in a batch, like ``RecordColumns.sizes``."""
    cdef const unsigned char* field
    cdef int64_t i, bytes_there = RECORD_OVERHEAD_BYTES
    bytes_there += max(element(&rows.values, row, &field), 0) + max(element(&rows.keys, row, &field), 0)
    if rows.lists != NULL:
        for i in range(rows.lists[row], rows.lists[row + 1]):
            bytes_there += HEADER_OVERHEAD_BYTES
            bytes_there += max(element(&rows.names, i, &field), 0) + max(element(&rows.insides, i, &field), 0)
    return bytes_there


cdef inline int64_t size_of(int64_t size) noexcept nogil:
    return 1 if size < 0 else varint_size(zigzag(size)) + size


cdef unsigned char* put_row(unsigned char* at, ArrowRows rows, int64_t row, int64_t delta, int64_t number) noexcept nogil:
    """Write one record of at most ``most_bytes_of`` it. Return the position after it."""
    cdef const unsigned char* key = NULL
    cdef const unsigned char* value = NULL
    cdef const unsigned char* name = NULL
    cdef const unsigned char* inside = NULL
    cdef int64_t i, size, first = 0, behind = 0, headers = 0
    cdef int64_t key_size = element(&rows.keys, row, &key), value_size = element(&rows.values, row, &value)
    if rows.lists != NULL:
        first, behind = rows.lists[row], rows.lists[row + 1]
        for i in range(first, behind):
            headers += size_of(element(&rows.names, i, &name)) + size_of(element(&rows.insides, i, &inside))
    size = 1 + varint_size(zigzag(delta)) + varint_size(zigzag(number)) + size_of(key_size) + size_of(value_size)
    at = put_varint(at, zigzag(size + varint_size(zigzag(behind - first)) + headers))
    at[0] = 0  # attributes
    at = put_varint(put_varint(at + 1, zigzag(delta)), zigzag(number))
    at = put_bytes(at, key, key_size, rows.keys.end)
    at = put_bytes(at, value, value_size, rows.values.end)
    at = put_varint(at, zigzag(behind - first))
    for i in range(first, behind):
        size = element(&rows.names, i, &name)
        at = put_bytes(at, name, size, rows.names.end)
        size = element(&rows.insides, i, &inside)
        at = put_bytes(at, inside, size, rows.insides.end)
    return at


@cython.final
@cython.no_gc
cdef class BatchFiller:
    """Builder of one batch after the other, for ``batch_filler``."""

    cdef Growing held
    cdef Lent lent  # None: bytes are made, in ``held``
    cdef unsigned char* start  # of the memory of the one that is used
    cdef Py_ssize_t size, behind  # what of it is filled, and how much there is
    cdef int64_t room
    cdef readonly int64_t count, size_bytes, first, least, greatest
    cdef bint is_full, broken

    cdef int reserve(self, Py_ssize_t more) except -1:
        if self.size + more <= self.behind and self.start != NULL:
            return 0
        if self.lent is not None:
            self.lent.size = self.size
            self.lent.reserve(more)
            self.start, self.behind = self.lent.start, self.lent.memory.room
        else:
            self.held.size = self.size
            self.held.reserve(more)
            self.start, self.behind = self.held.start, self.held.room
        return 0

    cdef object detach(self):
        cdef Py_ssize_t size = self.size
        self.start, self.size, self.behind = NULL, 0, 0
        if self.lent is not None:
            self.lent.size = size
            return self.lent.finish()
        self.held.size = size
        return self.held.finish()

    def add(self, ArrowRows rows not None, order, int64_t at):
        cdef Py_buffer view
        cdef const int64_t* places = NULL
        cdef int64_t i, count = rows.count
        if order is not None:
            PyObject_GetBuffer(order, &view, PyBUF_SIMPLE)
            places, count = <const int64_t*>view.buf, view.len // 8
        try:
            if self.broken:
                raise MemoryError
            if places != NULL:
                for i in range(at, count):
                    if not 0 <= places[i] < rows.count:
                        raise IndexError(f"there is no row {places[i]}")
            self.is_full = False
            while at < count and not self.is_full:
                row = at if places == NULL else places[at]
                self.broken = True  # unless there is memory
                if self.start == NULL:
                    self.reserve(HEADER_BYTES)
                    self.size = HEADER_BYTES
                self.reserve(most_bytes_of(rows, row) + SPARE_BYTES)
                self.broken = False
                with nogil:
                    at = self.fill(rows, places, at, count)
        finally:
            if order is not None:
                PyBuffer_Release(&view)
        return at

    cdef int64_t fill(self, ArrowRows rows, const int64_t* places, int64_t at, int64_t count) noexcept nogil:
        """Add rows like :meth:`add` while they fit into the memory. There is always room for the first row."""
        cdef int64_t row, most, time
        cdef unsigned char* behind
        while at < count:
            row = at if places == NULL else places[at]
            most = most_bytes_of(rows, row)
            if self.count and self.size_bytes + most > self.room:
                self.is_full = True
                break
            if self.size + most + SPARE_BYTES > self.behind:
                break
            time = rows.times[row]
            if not self.count:
                self.first = self.least = self.greatest = time
            elif time < self.least:
                self.least = time
            elif time > self.greatest:
                self.greatest = time
            behind = put_row(
                self.start + self.size, rows, row, <int64_t>(<uint64_t>time - <uint64_t>self.first), self.count
            )
            self.size = behind - self.start
            self.size_bytes += most
            self.count += 1
            at += 1
        return at

    def finish(self, int64_t base_offset, int leader_epoch, int attributes, int64_t append_time_ms):
        cdef Py_ssize_t size = self.size
        cdef unsigned char* start = self.start
        cdef unsigned char* at
        cdef int64_t greatest = append_time_ms if attributes & LOG_APPEND_TIME_BIT else self.greatest
        if self.broken or not self.count:
            raise MemoryError if self.broken else ValueError("a batch needs at least one record")
        at = put_fixed(start, base_offset, 8)
        at = put_fixed(at, size - LOG_OVERHEAD_BYTES, 4)
        at = put_fixed(at, leader_epoch, 4)
        at = put_fixed(at, 2, 1)  # magic
        at = put_fixed(at, 0, 4)  # CRC, below
        at = put_fixed(at, attributes, 2)
        at = put_fixed(at, self.count - 1, 4)
        at = put_fixed(at, self.first, 8)
        at = put_fixed(at, greatest, 8)
        at = put_fixed(at, -1, 8)  # no producer, no epoch of it, no sequence
        at = put_fixed(at, -1, 2)
        at = put_fixed(at, -1, 4)
        put_fixed(at, self.count, 4)
        put_fixed(start + CRC_AT, crc_of_batch(start, size), 4)
        self.count = self.size_bytes = 0
        return self.detach()


def batch_filler(int64_t room, bint lend=False):
    cdef BatchFiller made = BatchFiller.__new__(BatchFiller)
    if lend:
        made.lent = Lent.__new__(Lent)
    else:
        made.held = Growing.__new__(Growing)
    made.room = min(room, MAX_BATCH_BYTES - HEADER_BYTES)
    return made


def key_hashes(int64_t count, keys):
    cdef ArrowRows rows = ArrowRows.__new__(ArrowRows)
    cdef int64_t i, size
    cdef const unsigned char* field = NULL
    cdef bytes made
    cdef uint32_t* into
    if count < 0 or not rows.hold(&rows.keys, keys, count):
        return None
    made = PyBytes_FromStringAndSize(NULL, 4 * count)
    into = <uint32_t*>PyBytes_AS_STRING(made)
    with nogil:
        for i in range(count):
            size = element(&rows.keys, i, &field)
            into[i] = hash_of_key(field, size) if size >= 0 else 0
    return made
