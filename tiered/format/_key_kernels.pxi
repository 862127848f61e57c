# The newest offset of every key, and what a cleaning leaves of a batch; a part of _kernels.pyx. Twin: pure_kernels.KeyTable.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define soon_needed(address) __builtin_prefetch(address)
    #else
    #define soon_needed(address) ((void)0)
    #endif

    /* Memory that is filled soon may lie on large pages, where the system has them: a fault of a page costs as much as
       ten keys. It is a wish: whatever the answer, the memory is as good as before. */
    #if defined(__linux__)
    #include <sys/mman.h>
    #endif
    static void wish_large_pages(void *memory, size_t size) {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        const size_t large = (size_t)2 << 20;
        size_t start = ((size_t)memory + large - 1) / large * large, end = ((size_t)memory + size) / large * large;
        if (start < end) madvise((void *)start, end - start, MADV_HUGEPAGE);
    #endif
    }

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
    void wish_large_pages(void*, size_t) noexcept nogil

cdef extern from * nogil:
    """
    /* SipHash-2-4 of 128 bits of eight keys at once, one in each lane: they have equally many whole words of 8 bytes. */
    #if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10)
    #define SIP_TARGET __attribute__((target("avx512f")))

    static int sip_ways(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512f") != 0;
    }

    #define SIP_ROUND \\
        a = _mm512_add_epi64(a, b), b = _mm512_xor_si512(_mm512_rol_epi64(b, 13), a), a = _mm512_rol_epi64(a, 32); \\
        c = _mm512_add_epi64(c, d), d = _mm512_xor_si512(_mm512_rol_epi64(d, 16), c); \\
        a = _mm512_add_epi64(a, d), d = _mm512_xor_si512(_mm512_rol_epi64(d, 21), a); \\
        c = _mm512_add_epi64(c, b), b = _mm512_xor_si512(_mm512_rol_epi64(b, 17), c), c = _mm512_rol_epi64(c, 32)

    /* lasts: what is behind the whole words, with the length of the key in the highest byte. */
    SIP_TARGET static void sip_lanes(
        const uint64_t *secret, const unsigned char *const *keys, int64_t words, const uint64_t *lasts,
        uint64_t *high, uint64_t *low
    ) {
        __m512i a = _mm512_set1_epi64((int64_t)(secret[0] ^ 0x736F6D6570736575));
        __m512i b = _mm512_set1_epi64((int64_t)(secret[1] ^ 0x646F72616E646F6D ^ 0xEE));
        __m512i c = _mm512_set1_epi64((int64_t)(secret[0] ^ 0x6C7967656E657261));
        __m512i d = _mm512_set1_epi64((int64_t)(secret[1] ^ 0x7465646279746573));
        __m512i m;
        uint64_t word[8];
        for (int64_t at = 0; at <= words; ++at) {
            if (at < words) {
                for (int lane = 0; lane < 8; ++lane) word[lane] = little_word(keys[lane] + 8 * at);
                m = _mm512_loadu_si512(word);
            } else {
                m = _mm512_loadu_si512(lasts);
            }
            d = _mm512_xor_si512(d, m);
            SIP_ROUND; SIP_ROUND;
            a = _mm512_xor_si512(a, m);
        }
        c = _mm512_xor_si512(c, _mm512_set1_epi64(0xEE));
        SIP_ROUND; SIP_ROUND; SIP_ROUND; SIP_ROUND;
        _mm512_storeu_si512(high, _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
        b = _mm512_xor_si512(b, _mm512_set1_epi64(0xDD));
        SIP_ROUND; SIP_ROUND; SIP_ROUND; SIP_ROUND;
        _mm512_storeu_si512(low, _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
    }
    #else
    static int sip_ways(void) { return 0; }
    static void sip_lanes(
        const uint64_t *secret, const unsigned char *const *keys, int64_t words, const uint64_t *lasts,
        uint64_t *high, uint64_t *low
    ) {}
    #endif
    """
    int sip_ways()
    void sip_lanes(
        const uint64_t* secret, const unsigned char* const* keys, int64_t words, const uint64_t* lasts,
        uint64_t* high, uint64_t* low
    )

BatchKeysResult = pure_kernels.BatchKeysResult
BatchFilterResult = pure_kernels.BatchFilterResult
RunKeysResult = pure_kernels.RunKeysResult
RunFilterResult = pure_kernels.RunFilterResult

cdef bint SIP_WAY = sip_ways() != 0  # whether eight keys are hashed at once

cdef enum:
    DELETE_HORIZON_BIT = 0x40
    SECRET_BYTES = 16
    LEAST_SLOTS = 64  # a power of two
    AHEAD = 16  # records whose slots are fetched into the cache together
    LANES = 8
    MOST_TAKEN = 13  # of 16 slots
    NOTED_BYTES = 64  # of notes which records are superseded, for each key that the table has room for
    LEAST_NOTED_BYTES = 4096
    KEPT_ROOM_BYTES = 4194304  # a larger buffer of what stays is given back at once
    MOST_GROWTH = 11  # bytes by which a record grows at most under another base timestamp: 9 of its delta, 1 of its length

cdef struct Slot:
    uint64_t high
    uint64_t low
    int64_t offset  # INT64_MIN: a free slot

cdef struct Wanted:
    uint64_t high
    uint64_t low
    int64_t offset
    int64_t place  # of the record in its batch
    const unsigned char* key
    int64_t size

cdef struct Judged:
    unsigned char* keeps  # 1 for each record that stays
    int64_t kept
    int64_t superseded
    int64_t expired
    int64_t no_key
    bint sets_horizon

cdef enum Ended:
    DONE
    FULL
    STOPPED  # at what is for the caller to look at

cdef struct Opened:
    const unsigned char* at
    const unsigned char* end
    int64_t count
    int64_t base_offset
    int64_t last_offset
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
    """Return the integer in fewer than 8 bytes, the least significant one first."""
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


cdef void digests(const uint64_t* secret, Wanted* wanted, int count) noexcept nogil:
    """Compute the digests of all keys, eight at a time where neighbours have about the same length."""
    cdef const unsigned char* keys[LANES]
    cdef uint64_t lasts[LANES]
    cdef uint64_t high[LANES]
    cdef uint64_t low[LANES]
    cdef int at = 0, lane, last
    cdef int64_t words
    cdef Wanted* w
    while at < count:
        words = wanted[at].size >> 3
        last = 0
        if SIP_WAY:
            while last < LANES and at + last < count and wanted[at + last].size >> 3 == words:
                last += 1
        if last < 3:
            siphash(secret, wanted[at].key, wanted[at].size, &wanted[at].high, &wanted[at].low)
            at += 1
            continue
        for lane in range(LANES):
            w = &wanted[at + lane if lane < last else at]
            keys[lane] = w.key
            lasts[lane] = <uint64_t>w.size << 56 | little(w.key + 8 * words, w.size & 7)
        sip_lanes(secret, keys, words, lasts, high, low)
        for lane in range(last):
            wanted[at + lane].high = high[lane]
            wanted[at + lane].low = low[lane]
        at += last


cdef inline void open_plain(const unsigned char* start, Py_ssize_t size, Opened* b) noexcept nogil:
    """Locate the records of an uncompressed batch."""
    b.at = start + HEADER_BYTES
    b.end = start + size
    b.attributes = <int>get_fixed(start + ATTRIBUTES_AT, 2)
    b.count = get_fixed(start + COUNT_AT, 4)
    b.base_offset = get_fixed(start, 8)
    b.last_offset = b.base_offset + get_fixed(start + LAST_DELTA_AT, 4)
    b.base_timestamp = get_fixed(start + BASE_TIMESTAMP_AT, 8)
    b.stamp = get_fixed(start + MAX_TIMESTAMP_AT, 8)


cdef inline bint is_ordinary(Opened* b) noexcept nogil:
    """Return True for records without transaction that can be read in place."""
    return (
        b.attributes & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT) == 0
        and 0 < b.count <= (b.end - b.at) // MIN_RECORD_BYTES
    )


cdef object open_batch(Py_buffer* view, Opened* b):
    """Locate the records of a batch, and return the object that holds them; None if odd, such as an old format."""
    cdef const unsigned char* start = <const unsigned char*>view.buf
    cdef object data = b""
    if batch_size(start, start + view.len) != view.len:
        return None
    open_plain(start, view.len, b)
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
    """Write a parsed record like ``pure_kernels.encode_record_at``."""
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
    """Table of keys with open addressing; for one thread at a time. Twin: ``pure_kernels.KeyTable``."""

    cdef uint64_t secret[2]
    cdef Slot* slots
    cdef uint64_t mask
    cdef int64_t count
    cdef int64_t capacity
    cdef uint64_t* noted  # a bit for each offset from first_noted on: whether a newer record of its key was put
    cdef int64_t first_noted, noted_words, most_words, newest
    cdef int64_t left_out  # records of the last batch that were not put, or lie outside its offsets
    cdef unsigned char* room  # for what stays of a run
    cdef Py_ssize_t room_bytes

    def __cinit__(self, int64_t capacity, bytes secret):
        if len(secret) != SECRET_BYTES or capacity < 1:
            raise ValueError("a table of keys needs room for one, and a secret of 16 bytes")
        self.secret[0] = little_word(<const unsigned char*>PyBytes_AS_STRING(secret))
        self.secret[1] = little_word(<const unsigned char*>PyBytes_AS_STRING(secret) + 8)
        self.capacity = capacity
        self.slots = self.blank(LEAST_SLOTS)
        self.mask = LEAST_SLOTS - 1
        self.newest = -1

    def __dealloc__(self):
        PyMem_Free(self.slots)
        PyMem_Free(self.noted)
        PyMem_Free(self.room)

    def __len__(self):
        return self.count

    def digest(self, bytes key not None):
        """Return the digest of a key, 16 bytes."""
        cdef Wanted w
        cdef unsigned char made[16]
        cdef int i
        siphash(self.secret, <const unsigned char*>PyBytes_AS_STRING(key), len(key), &w.high, &w.low)
        for i in range(8):
            made[i] = <unsigned char>(w.high >> (8 * i))
            made[8 + i] = <unsigned char>(w.low >> (8 * i))
        return PyBytes_FromStringAndSize(<char*>made, 16)

    def put(self, bytes key not None, int64_t offset):
        cdef Wanted w
        siphash(self.secret, <const unsigned char*>PyBytes_AS_STRING(key), len(key), &w.high, &w.low)
        w.offset = offset
        self.store(&w)

    def get(self, bytes key not None):
        cdef uint64_t high, low
        cdef Slot* slot
        siphash(self.secret, <const unsigned char*>PyBytes_AS_STRING(key), len(key), &high, &low)
        slot = self.find(high, low)
        return -1 if slot.offset == INT64_MIN else slot.offset

    def count_superseded_from(self, int64_t start):
        if not self.count and start >= 0:
            self.first_noted = start
            self.most_words = self.capacity if self.capacity < INT64_MAX // NOTED_BYTES else 1
            self.most_words = self.most_words * NOTED_BYTES // 8

    def put_batch(self, batch, int64_t start):
        cdef Py_buffer view
        cdef Opened b
        cdef int64_t records = 0, newest = -1
        cdef Ended how
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            data = open_batch(&view, &b)
            if data is None:
                return None
            self.put_all(&b, start, &records, &newest, &how)
            return BatchKeysResult(records, newest, how == FULL, how == STOPPED)
        finally:
            PyBuffer_Release(&view)

    def put_run(self, batches, int64_t start):
        cdef Py_buffer view
        cdef Opened b
        cdef const unsigned char* at
        cdef const unsigned char* end
        cdef Py_ssize_t size
        cdef int64_t count = 0, records = 0, newest = -1, looked, last
        cdef bint alone = True
        cdef Ended how = DONE
        PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
        try:
            at = <const unsigned char*>view.buf
            end = at + view.len
            while at != end and how == DONE:
                size = batch_size(at, end)
                if size == ODD:
                    break
                open_plain(at, size, &b)
                if not is_ordinary(&b):
                    break
                looked, last = 0, newest
                self.left_out = 0
                self.put_all(&b, start, &looked, &last, &how)
                if how == STOPPED:
                    break
                alone = alone and not self.left_out and get_fixed(at + PRODUCER_ID_AT, 8) < 0
                records += looked
                newest = last if how == FULL else b.last_offset
                count += 1
                at += size
            return RunKeysResult(at - <const unsigned char*>view.buf, count, records, newest, how == FULL, alone)
        finally:
            PyBuffer_Release(&view)

    cdef int put_all(self, Opened* b, int64_t start, int64_t* looked, int64_t* newest, Ended* how) except -1:
        """Add the keys of a batch. Set ``how`` it ended, ``looked`` (records examined), ``newest`` (last offset)."""
        cdef Parsed r
        cdef Wanted ahead[2][AHEAD]  # while the slots of one half come into the cache, the other one is put
        cdef Wanted* w
        cdef int64_t at = 0
        cdef int waiting, held = 0, half = 0
        how[0] = DONE
        while at < b.count or held:
            waiting = 0
            while at < b.count and waiting < AHEAD and how[0] == DONE:
                if not parse(b.at, b.end, b.base_offset, b.base_timestamp, &r):
                    how[0] = STOPPED
                    break
                b.at = r.end
                if r.key_size >= 0 and r.offset >= start:
                    w = &ahead[half][waiting]
                    w.key, w.size, w.offset, w.place = r.key, r.key_size, r.offset, at
                    waiting += 1
                if r.key_size < 0 or not max(start, b.base_offset) <= r.offset <= b.last_offset:
                    self.left_out += 1
                at += 1
            self.hash_all(ahead[half], waiting)
            half = 1 - half
            if held and not self.put_some(ahead[half], held, looked, newest):
                how[0] = FULL
                return 0
            held = waiting
            if not held and how[0] == STOPPED:
                break
        if b.at != b.end:
            how[0] = STOPPED
        looked[0] = at
        return 0

    cdef int put_some(self, Wanted* wanted, int count, int64_t* looked, int64_t* newest) except -1:
        """Add keys while there is room. Return 0 if the table is full; ``looked`` is then the place of the next key.
        """
        cdef int i
        for i in range(count):
            if self.count >= self.capacity:
                looked[0] = wanted[i].place
                return 0
            self.store(&wanted[i])
            newest[0] = wanted[i].offset
        return 1

    cdef inline void hash_all(self, Wanted* wanted, int count) noexcept nogil:
        """Compute digests of keys, and prefetch their slots."""
        cdef int i
        digests(self.secret, wanted, count)
        for i in range(count):
            soon_needed(&self.slots[wanted[i].high & self.mask])

    def filter_batch(self, batch, int64_t latest, bint keeps_tombstones, int64_t horizon_ms):
        cdef Py_buffer view
        cdef Opened b
        cdef Judged j
        cdef int64_t base = 0, greatest = 0
        cdef Py_ssize_t size
        j.keeps = NULL
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            data = open_batch(&view, &b)
            if data is None:
                return None
            j.keeps = <unsigned char*>PyMem_Malloc(b.count)
            if j.keeps == NULL:
                raise MemoryError
            if not self.judge(&b, latest, keeps_tombstones, False, &j):
                return None
            counts = (j.kept, j.superseded, j.expired, j.no_key, j.sets_horizon)
            if not j.kept or (j.kept == b.count and not j.sets_horizon):
                return BatchFilterResult(*counts, None, -1, -1)
            self.reserve(0, most_bytes(&b, j.keeps))
            size = put_kept(self.room, &b, &j, horizon_ms, &base, &greatest)
            return BatchFilterResult(*counts, PyBytes_FromStringAndSize(<char*>self.room, size), base, greatest)
        finally:
            self.give_back()
            PyMem_Free(j.keeps)
            PyBuffer_Release(&view)

    def filter_run(self, batches, int64_t latest, int64_t now_ms, int64_t horizon_ms, int64_t boundary):
        cdef Py_buffer view
        cdef Opened b
        cdef Judged j
        cdef const unsigned char* start
        cdef const unsigned char* at
        cdef const unsigned char* end
        cdef Py_ssize_t size, written = 0, body
        cdef int64_t count = 0, read = 0, kept = 0, superseded = 0, expired = 0, no_key = 0, rebuilt = 0, horizons = 0
        cdef int64_t after = -1, base = 0, greatest = 0, room = 0
        cdef bint same = True, keeps_tombstones
        j.keeps = NULL
        PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
        try:
            start = at = <const unsigned char*>view.buf
            end = at + view.len
            while at != end:
                size = batch_size(at, end)
                if size == ODD:
                    break
                open_plain(at, size, &b)
                if not is_ordinary(&b):
                    break
                if b.count > room:
                    room = 2 * b.count
                    PyMem_Free(j.keeps)
                    j.keeps = <unsigned char*>PyMem_Malloc(room)
                    if j.keeps == NULL:
                        raise MemoryError
                keeps_tombstones = b.attributes & DELETE_HORIZON_BIT == 0 or now_ms < b.base_timestamp
                if not self.judge(&b, latest, keeps_tombstones, True, &j):
                    break
                if not j.kept and (get_fixed(at + PRODUCER_ID_AT, 8) >= 0 or b.last_offset + 1 == boundary):
                    break
                if j.kept == b.count and not j.sets_horizon:
                    if not same:
                        self.reserve(written, size)
                        memcpy(self.room + written, at, size)
                    written += size
                elif j.kept:
                    body = HEADER_BYTES + most_bytes(&b, j.keeps)
                    if body > MAX_BATCH_BYTES:
                        break
                    self.reserve(written if not same else 0, body if not same else written + body)
                    if same:
                        memcpy(self.room, start, written)
                    body = put_kept(self.room + written + HEADER_BYTES, &b, &j, horizon_ms, &base, &greatest)
                    put_header(self.room + written, at, HEADER_BYTES + body, &b, &j, base, greatest)
                    written += HEADER_BYTES + body
                    same = False
                    rebuilt += 1
                    horizons += j.sets_horizon
                elif same:
                    self.reserve(0, written)
                    memcpy(self.room, start, written)
                    same = False
                count += 1
                read += b.count
                kept += j.kept
                superseded += j.superseded
                expired += j.expired
                no_key += j.no_key
                after = b.last_offset + 1
                at += size
            return RunFilterResult(
                at - start, after, None if same else PyBytes_FromStringAndSize(<char*>self.room, written),
                count, read, kept, superseded, expired, no_key, rebuilt, horizons,
            )
        finally:
            self.give_back()
            PyMem_Free(j.keeps)
            PyBuffer_Release(&view)

    cdef bint judge(self, Opened* b, int64_t latest, bint keeps_tombstones, bint by_notes, Judged* j) noexcept nogil:
        """Decide which records of a batch stay. Return False if a record is odd. ``j`` has room for one result each.

        ``by_notes``: use the bits of superseded offsets in place of key slots, for the offsets that have bits.
        """
        cdef Parsed r
        cdef Wanted ahead[AHEAD]
        cdef const unsigned char* at = b.at
        cdef int64_t place = 0, noted_bits = 64 * self.most_words if by_notes else 0, bit
        cdef int waiting, i
        cdef Slot* slot
        cdef bint has_tombstone = False
        j.superseded = j.expired = j.no_key = 0
        while place < b.count:
            waiting = 0
            while place < b.count and waiting < AHEAD:
                if not parse(at, b.end, b.base_offset, b.base_timestamp, &r):
                    return False
                at = r.end
                j.keeps[place] = 1
                if r.offset > latest:
                    has_tombstone = has_tombstone or r.value_size < 0
                elif r.key_size < 0:
                    j.no_key += 1
                    j.keeps[place] = 0
                elif r.offset >= self.first_noted and r.offset - self.first_noted < noted_bits:
                    bit = r.offset - self.first_noted
                    if bit >> 6 < self.noted_words and self.noted[bit >> 6] >> (bit & 63) & 1:
                        j.superseded += 1
                        j.keeps[place] = 0
                    elif r.value_size < 0:
                        has_tombstone = has_tombstone or keeps_tombstones
                        j.expired += not keeps_tombstones
                        j.keeps[place] = keeps_tombstones
                else:
                    if r.value_size < 0:
                        j.keeps[place] = 2
                    ahead[waiting].key = r.key
                    ahead[waiting].size = r.key_size
                    ahead[waiting].offset = r.offset
                    ahead[waiting].place = place
                    waiting += 1
                place += 1
            self.hash_all(ahead, waiting)
            for i in range(waiting):
                slot = self.find(ahead[i].high, ahead[i].low)
                if (-1 if slot.offset == INT64_MIN else slot.offset) > ahead[i].offset:
                    j.superseded += 1
                    j.keeps[ahead[i].place] = 0
                elif j.keeps[ahead[i].place] == 2:
                    has_tombstone = has_tombstone or keeps_tombstones
                    j.expired += not keeps_tombstones
                    j.keeps[ahead[i].place] = keeps_tombstones
        j.kept = b.count - j.superseded - j.expired - j.no_key
        j.sets_horizon = has_tombstone and not b.attributes & DELETE_HORIZON_BIT
        return at == b.end

    cdef int reserve(self, Py_ssize_t used, Py_ssize_t more) except -1:
        """Make room for ``more`` bytes after the first ``used`` bytes, which stay unchanged."""
        cdef unsigned char* made
        cdef Py_ssize_t size
        if used + more > self.room_bytes:
            size = used + more if used + more > 2 * self.room_bytes else 2 * self.room_bytes
            made = <unsigned char*>PyMem_Realloc(self.room, size)
            if made == NULL:
                raise MemoryError
            self.room, self.room_bytes = made, size
        return 0

    cdef void give_back(self) noexcept:
        if self.room_bytes > KEPT_ROOM_BYTES:
            PyMem_Free(self.room)
            self.room, self.room_bytes = NULL, 0

    cdef inline Slot* find(self, uint64_t high, uint64_t low) noexcept nogil:
        """Return the slot of a digest, or the free one where it belongs: there always is one."""
        cdef uint64_t at = high & self.mask
        cdef Slot* slot = &self.slots[at]
        while slot.offset != INT64_MIN and (slot.high != high or slot.low != low):
            at = (at + 1) & self.mask
            slot = &self.slots[at]
        return slot

    cdef inline int store(self, Wanted* w) except -1:
        cdef Slot* slot = self.find(w.high, w.low)
        if w.offset <= self.newest:
            self.most_words = 0  # offsets went back: the notes are void
        self.newest = w.offset
        if slot.offset == INT64_MIN:
            if (self.count + 1) * 16 > <int64_t>(self.mask + 1) * MOST_TAKEN:
                self.grow()
                slot = self.find(w.high, w.low)
            slot.high = w.high
            slot.low = w.low
            self.count += 1
        elif self.most_words:
            self.note(slot.offset)
        slot.offset = w.offset
        return 0

    cdef inline int note(self, int64_t offset) except -1:
        """Note that the record at ``offset`` is superseded."""
        cdef int64_t bit = offset - self.first_noted
        if bit < 0 or bit >> 6 >= self.most_words:
            return 0
        if bit >> 6 >= self.noted_words:
            self.note_more((bit >> 6) + 1)
        self.noted[bit >> 6] |= <uint64_t>1 << (bit & 63)
        return 0

    cdef int note_more(self, int64_t words) except -1:
        cdef int64_t i
        cdef uint64_t* made
        words = max(words, 2 * self.noted_words, LEAST_NOTED_BYTES // 8)
        words = min(words, self.most_words)
        made = <uint64_t*>PyMem_Realloc(self.noted, words * 8)
        if made == NULL:
            raise MemoryError
        for i in range(self.noted_words, words):
            made[i] = 0
        self.noted, self.noted_words = made, words
        return 0

    cdef Slot* blank(self, uint64_t slots) except NULL:
        cdef uint64_t i
        cdef Slot* made = <Slot*>PyMem_Malloc(slots * sizeof(Slot))
        if made == NULL:
            raise MemoryError
        wish_large_pages(made, slots * sizeof(Slot))
        for i in range(slots):
            made[i].offset = INT64_MIN
        return made

    cdef int grow(self) except -1:
        """Double the number of slots."""
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


cdef Py_ssize_t most_bytes(Opened* b, const unsigned char* keeps) noexcept nogil:
    """Return an upper bound of the bytes of the kept records. All were parsed before."""
    cdef const unsigned char* at = b.at
    cdef const unsigned char* before
    cdef int64_t place, size = 0
    cdef Py_ssize_t most = 0
    for place in range(b.count):
        before = at
        at = get_varint(at, b.end, &size) + size
        if keeps[place]:
            most += (at - before) + MOST_GROWTH
    return most


cdef Py_ssize_t put_kept(
    unsigned char* start, Opened* b, Judged* j, int64_t horizon_ms, int64_t* base, int64_t* greatest
) noexcept nogil:
    """Write the kept records; return their bytes, and set their base and greatest timestamp. All were parsed."""
    cdef Parsed r
    cdef const unsigned char* at = b.at
    cdef unsigned char* written = start
    cdef int64_t place
    cdef bint based = j.sets_horizon or b.attributes & DELETE_HORIZON_BIT != 0
    base[0] = horizon_ms if j.sets_horizon else b.base_timestamp
    greatest[0] = INT64_MIN
    for place in range(b.count):
        if not j.keeps[place]:
            at = get_varint(at, b.end, &r.offset)
            at += r.offset
            continue
        parse(at, b.end, b.base_offset, b.base_timestamp, &r)
        at = r.end
        if b.attributes & LOG_APPEND_TIME_BIT:
            r.timestamp = b.stamp
        if not based:
            based = True
            base[0] = r.timestamp
        if r.timestamp > greatest[0]:
            greatest[0] = r.timestamp
        written = put_again(written, &r, r.offset - b.base_offset, <int64_t>(<uint64_t>r.timestamp - <uint64_t>base[0]))
    return written - start


cdef int put_header(
    unsigned char* at, const unsigned char* head, Py_ssize_t size, Opened* b, Judged* j, int64_t base, int64_t greatest
) except -1:
    """Write the header of the batch at ``head`` for its kept records, like ``batch.rebuild_encoded``."""
    cdef int attributes = b.attributes & LOG_APPEND_TIME_BIT
    if j.sets_horizon or b.attributes & DELETE_HORIZON_BIT:
        attributes |= DELETE_HORIZON_BIT
    memcpy(at, head, HEADER_BYTES)
    put_fixed(at + LENGTH_AT, size - LOG_OVERHEAD_BYTES, 4)
    put_fixed(at + ATTRIBUTES_AT, attributes, 2)
    put_fixed(at + BASE_TIMESTAMP_AT, base, 8)
    if not b.attributes & LOG_APPEND_TIME_BIT:
        put_fixed(at + MAX_TIMESTAMP_AT, greatest, 8)
    put_fixed(at + COUNT_AT, j.kept, 4)
    put_fixed(at + CRC_AT, crc_of_batch(at, size), 4)
    return 0
