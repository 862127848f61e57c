# The newest offset of every key, and what a cleaning leaves of a batch; a part of _kernels.pyx. Twin: pure_kernels.KeyTable.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define soon_needed(address) __builtin_prefetch(address)
    #else
    #define soon_needed(address) ((void)0)
    #endif

    /* The integer in eight bytes, the least significant one first: one load, where a loop would take as long as the hash. */
    static inline uint64_t little_word(const unsigned char *at) {
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        uint64_t n;
        memcpy(&n, at, 8);
        return n;
    #else
        uint64_t n = 0;
        for (int i = 8; i--;) n = n << 8 | at[i];
        return n;
    #endif
    }
    """
    void soon_needed(const void*) noexcept nogil
    uint64_t little_word(const unsigned char*) noexcept nogil

Put = pure_kernels.Put
Kept = pure_kernels.Kept

cdef enum:
    DELETE_HORIZON_BIT = 0x40
    SECRET_BYTES = 16
    LEAST_SLOTS = 64  # a power of two
    AHEAD = 32  # records whose slots are fetched into the cache together
    MOST_GROWTH = 11  # bytes by which a record grows at most under another base timestamp: 9 of its delta, 1 of its length

cdef struct Slot:
    uint64_t high
    uint64_t low
    int64_t offset  # INT64_MIN: nobody's

cdef struct Wanted:
    uint64_t high
    uint64_t low
    int64_t offset
    int64_t place  # of the record in its batch

cdef struct Opened:
    const unsigned char* at
    const unsigned char* end
    int64_t count
    int64_t base_offset
    int64_t base_timestamp
    int64_t stamp
    int attributes


cdef inline uint64_t turned(uint64_t n, int bits) noexcept nogil:
    return n << bits | n >> (64 - bits)


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = turned(v[1], 13) ^ v[0]
    v[0] = turned(v[0], 32)
    v[2] += v[3]
    v[3] = turned(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = turned(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = turned(v[1], 17) ^ v[2]
    v[2] = turned(v[2], 32)


cdef inline uint64_t little(const unsigned char* at, Py_ssize_t size) noexcept nogil:
    """As ``little_word``, of fewer than 8 bytes."""
    cdef uint64_t n = 0
    while size:
        size -= 1
        n = n << 8 | at[size]
    return n


cdef inline void siphash(
    const uint64_t* secret, const unsigned char* at, Py_ssize_t size, uint64_t* high, uint64_t* low
) noexcept nogil:
    """SipHash-2-4 of 128 bits (Aumasson and Bernstein)."""
    cdef uint64_t v[4]
    cdef uint64_t m
    cdef uint64_t length = <uint64_t>size << 56
    v[0] = secret[0] ^ <uint64_t>0x736F6D6570736575
    v[1] = secret[1] ^ <uint64_t>0x646F72616E646F6D ^ 0xEE
    v[2] = secret[0] ^ <uint64_t>0x6C7967656E657261
    v[3] = secret[1] ^ <uint64_t>0x7465646279746573
    while size >= 8:
        m = little_word(at)
        v[3] ^= m
        sip_round(v)
        sip_round(v)
        v[0] ^= m
        at += 8
        size -= 8
    m = length | little(at, size)
    v[3] ^= m
    sip_round(v)
    sip_round(v)
    v[0] ^= m
    v[2] ^= 0xEE
    sip_round(v)
    sip_round(v)
    sip_round(v)
    sip_round(v)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    sip_round(v)
    sip_round(v)
    sip_round(v)
    sip_round(v)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef object open_batch(Py_buffer* view, Opened* b):
    """Where the records of a batch lie, and what holds them; None if anything is odd, such as an old format."""
    cdef const unsigned char* start = <const unsigned char*>view.buf
    cdef object data = b""
    if batch_size(start, start + view.len) != view.len:
        return None
    b.at = start + HEADER_BYTES
    b.end = start + view.len
    b.attributes = <int>get_fixed(start + ATTRIBUTES_AT, 2)
    b.count = get_fixed(start + COUNT_AT, 4)
    b.base_offset = get_fixed(start, 8)
    b.base_timestamp = get_fixed(start + BASE_TIMESTAMP_AT, 8)
    b.stamp = get_fixed(start + MAX_TIMESTAMP_AT, 8)
    if b.count <= 0:
        return None
    if b.attributes & CODEC_MASK:
        packed = PyMemoryView_FromMemory(<char*>b.at, b.end - b.at, PyBUF_READ)
        data = decompress(codec_of(b.attributes), packed, max_bytes=MAX_DECOMPRESSED_BYTES)
        if not PyBytes_CheckExact(<PyObject*>data):
            return None
        b.at = <const unsigned char*>PyBytes_AS_STRING(data)
        b.end = b.at + PyBytes_GET_SIZE(<PyObject*>data)
    return data if b.count <= (b.end - b.at) // MIN_RECORD_BYTES else None


cdef unsigned char* put_again(unsigned char* at, Parsed* r, int64_t offset_delta, int64_t timestamp_delta) noexcept nogil:
    """As ``pure_kernels.encode_record_at``, of a record that was parsed."""
    cdef const unsigned char* header = r.headers
    cdef const unsigned char* field = NULL
    cdef int64_t i, size
    cdef Py_ssize_t body
    body = 1 + varint_size(zigzag(timestamp_delta)) + varint_size(zigzag(offset_delta)) + varint_size(zigzag(r.headers_count))
    body += raw_size(r.key_size) + raw_size(r.value_size)
    for i in range(2 * r.headers_count):
        header = get_field(header, r.end, &field, &size)
        body += raw_size(size)
    at = put_varint(at, zigzag(body))
    at[0] = 0  # attributes
    at = put_varint(at + 1, zigzag(timestamp_delta))
    at = put_varint(at, zigzag(offset_delta))
    at = put_raw(at, r.key, r.key_size)
    at = put_raw(at, r.value, r.value_size)
    at = put_varint(at, zigzag(r.headers_count))
    header = r.headers
    for i in range(2 * r.headers_count):
        header = get_field(header, r.end, &field, &size)
        at = put_raw(at, field, size)
    return at


cdef inline Py_ssize_t raw_size(int64_t size) noexcept nogil:
    return 1 if size < 0 else varint_size(zigzag(size)) + size


cdef inline unsigned char* put_raw(unsigned char* at, const unsigned char* field, int64_t size) noexcept nogil:
    if size < 0:
        at[0] = NULL_LENGTH
        return at + 1
    at = put_varint(at, zigzag(size))
    memcpy(at, field, size)
    return at + size


@cython.final
cdef class KeyTable:
    """As ``pure_kernels.KeyTable``: open addressing, at most three of four slots taken; for one thread at a time."""

    cdef uint64_t secret[2]
    cdef Slot* slots
    cdef uint64_t mask
    cdef int64_t count
    cdef int64_t capacity

    def __cinit__(self, int64_t capacity, bytes secret):
        if len(secret) != SECRET_BYTES or capacity < 1:
            raise ValueError("a table of keys needs room for one, and a secret of 16 bytes")
        self.secret[0] = little_word(<const unsigned char*>PyBytes_AS_STRING(secret))
        self.secret[1] = little_word(<const unsigned char*>PyBytes_AS_STRING(secret) + 8)
        self.capacity = capacity
        self.slots = self.blank(LEAST_SLOTS)
        self.mask = LEAST_SLOTS - 1

    def __dealloc__(self):
        PyMem_Free(self.slots)

    def __len__(self):
        return self.count

    def digest(self, bytes key not None):
        """The digest of a key, 16 bytes."""
        cdef Wanted w
        cdef unsigned char made[16]
        cdef int i
        siphash(self.secret, <const unsigned char*>PyBytes_AS_STRING(key), len(key), &w.high, &w.low)
        for i in range(8):
            made[i] = <unsigned char>(w.high >> (8 * i))
            made[8 + i] = <unsigned char>(w.low >> (8 * i))
        return PyBytes_FromStringAndSize(<char*>made, 16)

    def put(self, bytes key not None, int64_t offset):
        """As the pure twin."""
        cdef Wanted w
        siphash(self.secret, <const unsigned char*>PyBytes_AS_STRING(key), len(key), &w.high, &w.low)
        w.offset = offset
        self.store(&w)

    def get(self, bytes key not None):
        """As the pure twin."""
        cdef uint64_t high, low
        cdef Slot* slot
        siphash(self.secret, <const unsigned char*>PyBytes_AS_STRING(key), len(key), &high, &low)
        slot = self.find(high, low)
        return -1 if slot.offset == INT64_MIN else slot.offset

    def put_batch(self, batch, int64_t start):
        """As the pure twin says."""
        cdef Py_buffer view
        cdef Opened b
        cdef Parsed r
        cdef Wanted ahead[AHEAD]
        cdef int64_t at = 0, newest = -1
        cdef int waiting = 0, i
        cdef bint odd = False
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            data = open_batch(&view, &b)
            if data is None:
                return None
            while at < b.count and not odd:
                waiting = 0
                while at < b.count and waiting < AHEAD:
                    if not parse(b.at, b.end, b.base_offset, b.base_timestamp, &r):
                        odd = True
                        break
                    b.at = r.end
                    if r.key_size >= 0 and r.offset >= start:
                        siphash(self.secret, r.key, r.key_size, &ahead[waiting].high, &ahead[waiting].low)
                        soon_needed(&self.slots[ahead[waiting].high & self.mask])
                        ahead[waiting].offset = r.offset
                        ahead[waiting].place = at
                        waiting += 1
                    at += 1
                for i in range(waiting):
                    if self.count >= self.capacity:
                        return Put(ahead[i].place, newest, True, False)
                    self.store(&ahead[i])
                    newest = ahead[i].offset
            return Put(at, newest, False, odd or b.at != b.end)
        finally:
            PyBuffer_Release(&view)

    def filter_batch(self, batch, int64_t latest, bint keeps_tombstones, int64_t horizon_ms):
        """As the pure twin says."""
        cdef Py_buffer view
        cdef Opened b
        cdef unsigned char* keeps = NULL
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            data = open_batch(&view, &b)
            if data is None:
                return None
            keeps = <unsigned char*>PyMem_Malloc(b.count)
            if keeps == NULL:
                raise MemoryError
            return self.filtered(&b, keeps, latest, keeps_tombstones, horizon_ms)
        finally:
            PyMem_Free(keeps)
            PyBuffer_Release(&view)

    cdef object filtered(self, Opened* b, unsigned char* keeps, int64_t latest, bint keeps_tombstones, int64_t horizon_ms):
        """``keeps`` has room for each record: 1 will say that it stays."""
        cdef Parsed r
        cdef Wanted ahead[AHEAD]
        cdef const unsigned char* at = b.at
        cdef int64_t place = 0, kept = 0, superseded = 0, expired = 0, no_key = 0
        cdef Py_ssize_t size = 0
        cdef int waiting, i
        cdef Slot* slot
        cdef bint has_tombstone = False, sets_horizon, based
        while place < b.count:
            waiting = 0
            while place < b.count and waiting < AHEAD:
                if not parse(at, b.end, b.base_offset, b.base_timestamp, &r):
                    return None
                keeps[place] = 1 if r.value_size >= 0 else 2
                if r.offset <= latest:
                    if r.key_size < 0:
                        no_key += 1
                        keeps[place] = 0
                    else:
                        siphash(self.secret, r.key, r.key_size, &ahead[waiting].high, &ahead[waiting].low)
                        soon_needed(&self.slots[ahead[waiting].high & self.mask])
                        ahead[waiting].offset = r.offset
                        ahead[waiting].place = place
                        waiting += 1
                elif r.value_size < 0:
                    has_tombstone = True
                place += 1
                at = r.end
            for i in range(waiting):
                slot = self.find(ahead[i].high, ahead[i].low)
                if (-1 if slot.offset == INT64_MIN else slot.offset) > ahead[i].offset:
                    superseded += 1
                    keeps[ahead[i].place] = 0
                elif keeps[ahead[i].place] == 2:
                    if keeps_tombstones:
                        has_tombstone = True
                    else:
                        expired += 1
                        keeps[ahead[i].place] = 0
        if at != b.end:
            return None
        kept = b.count - superseded - expired - no_key
        sets_horizon = has_tombstone and not b.attributes & DELETE_HORIZON_BIT
        counts = (kept, superseded, expired, no_key, sets_horizon)
        if not kept or (kept == b.count and not sets_horizon):
            return Kept(*counts, None, -1, -1)
        based = sets_horizon or b.attributes & DELETE_HORIZON_BIT != 0
        return Kept(*counts, *written_again(b, keeps, based, horizon_ms if sets_horizon else b.base_timestamp))

    cdef inline Slot* find(self, uint64_t high, uint64_t low) noexcept nogil:
        """The slot of a digest, or the free one where it belongs: there always is one."""
        cdef uint64_t at = high & self.mask
        cdef Slot* slot = &self.slots[at]
        while slot.offset != INT64_MIN and (slot.high != high or slot.low != low):
            at = (at + 1) & self.mask
            slot = &self.slots[at]
        return slot

    cdef inline int store(self, Wanted* w) except -1:
        cdef Slot* slot = self.find(w.high, w.low)
        if slot.offset == INT64_MIN:
            if (self.count + 1) * 4 > <int64_t>(self.mask + 1) * 3:
                self.grow()
                slot = self.find(w.high, w.low)
            slot.high = w.high
            slot.low = w.low
            self.count += 1
        slot.offset = w.offset
        return 0

    cdef Slot* blank(self, uint64_t slots) except NULL:
        cdef uint64_t i
        cdef Slot* made = <Slot*>PyMem_Malloc(slots * sizeof(Slot))
        if made == NULL:
            raise MemoryError
        for i in range(slots):
            made[i].offset = INT64_MIN
        return made

    cdef int grow(self) except -1:
        """Twice the slots."""
        cdef Slot* old = self.slots
        cdef uint64_t i, slots = self.mask + 1
        cdef Slot* slot
        cdef Slot* made = self.blank(2 * slots)
        self.slots = made
        self.mask = 2 * slots - 1
        for i in range(slots):
            if old[i].offset != INT64_MIN:
                slot = self.find(old[i].high, old[i].low)
                slot[0] = old[i]
        PyMem_Free(old)
        return 0


cdef tuple written_again(Opened* b, const unsigned char* keeps, bint has_horizon, int64_t horizon_ms):
    """The records that stay, their base timestamp, and the greatest of their timestamps. All were parsed before."""
    cdef Parsed r
    cdef const unsigned char* at = b.at
    cdef const unsigned char* before
    cdef unsigned char* written
    cdef unsigned char* start
    cdef int64_t place, base = horizon_ms, greatest = INT64_MIN
    cdef Py_ssize_t room = 0
    cdef bint based = has_horizon
    for place in range(b.count):
        before = at
        at = get_varint(at, b.end, &base)
        at += base
        if keeps[place]:
            room += (at - before) + MOST_GROWTH
    base = horizon_ms
    scratch = PyByteArray_FromStringAndSize(NULL, room)
    start = written = <unsigned char*>PyByteArray_AS_STRING(scratch)
    at = b.at
    for place in range(b.count):
        if not keeps[place]:
            at = get_varint(at, b.end, &r.offset)
            at += r.offset
            continue
        parse(at, b.end, b.base_offset, b.base_timestamp, &r)
        at = r.end
        if b.attributes & LOG_APPEND_TIME_BIT:
            r.timestamp = b.stamp
        if not based:
            based = True
            base = r.timestamp
        if r.timestamp > greatest:
            greatest = r.timestamp
        written = put_again(written, &r, r.offset - b.base_offset, <int64_t>(<uint64_t>r.timestamp - <uint64_t>base))
    return PyBytes_FromStringAndSize(<char*>start, written - start), base, greatest
