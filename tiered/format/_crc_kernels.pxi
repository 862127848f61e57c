# CRC-32C: of bytes, and of bytes in a row out of the CRCs of its parts, so that what was summed once is not summed again.

cdef extern from * nogil:
    """
    /* A CRC is the rest of a polynomial over GF(2) divided by P. Bytes that lie D bits before others count as if they
       were x^D times as large: two multiplications without carry (of the lower and the upper 64 bits of 128) bring them
       there, and they are added to those others. So 16 bytes take the place of all before them, 4 or 16 lanes at a time.
       The crc32 instruction of the processor divides what is left, 8 bytes a step.

       A factor is x^(D+31) mod P for the lower half, x^(D-33) mod P for the upper one, its bits in reversed order. */
    #if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10)
    #include <immintrin.h>

    #define LANE_TARGET __attribute__((target("sse4.2,pclmul")))
    #define WIDE_TARGET __attribute__((target("sse4.2,pclmul,avx512f,avx512dq,vpclmulqdq")))

    static int crc_ways(void) {  /* 0: none, 1: lanes of 128 bits, 2: also of 512 bits */
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul")) return 0;
        return 1 + (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
                    && __builtin_cpu_supports("vpclmulqdq"));
    }

    LANE_TARGET static inline uint32_t crc_few(uint32_t crc, const unsigned char *at, size_t size) {
        uint64_t wide = crc, eight;
        for (; size >= 8; size -= 8, at += 8) {
            memcpy(&eight, at, 8);
            wide = _mm_crc32_u64(wide, eight);
        }
        for (crc = (uint32_t)wide; size; --size) crc = _mm_crc32_u8(crc, *at++);
        return crc;
    }

    LANE_TARGET static inline __m128i lane(const unsigned char *at) { return _mm_loadu_si128((const __m128i *)at); }

    LANE_TARGET static inline __m128i lane_on(__m128i bytes, __m128i factors, __m128i others) {
        __m128i lower = _mm_clmulepi64_si128(bytes, factors, 0x00), upper = _mm_clmulepi64_si128(bytes, factors, 0x11);
        return _mm_xor_si128(_mm_xor_si128(lower, upper), others);
    }

    /* One lane that stands for all before, and what follows it. */
    LANE_TARGET static inline uint32_t crc_ended(__m128i sum, const unsigned char *at, size_t size) {
        const __m128i by_128 = _mm_set_epi64x(0x493c7d27, 0xf20c0dfe);
        uint64_t crc;
        for (; size >= 16; size -= 16, at += 16) sum = lane_on(sum, by_128, lane(at));
        crc = _mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(sum)), (uint64_t)_mm_extract_epi64(sum, 1));
        return crc_few((uint32_t)crc, at, size);
    }

    LANE_TARGET static uint32_t crc_by_lanes(uint32_t crc, const unsigned char *at, size_t size) {
        const __m128i by_128 = _mm_set_epi64x(0x493c7d27, 0xf20c0dfe), by_512 = _mm_set_epi64x(0x9e4addf8, 0x740eef02);
        __m128i a, b, c, d;
        if (size < 128) return crc_few(crc, at, size);
        a = _mm_xor_si128(lane(at), _mm_cvtsi32_si128((int)crc));
        b = lane(at + 16), c = lane(at + 32), d = lane(at + 48);
        for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
            a = lane_on(a, by_512, lane(at));
            b = lane_on(b, by_512, lane(at + 16));
            c = lane_on(c, by_512, lane(at + 32));
            d = lane_on(d, by_512, lane(at + 48));
        }
        return crc_ended(lane_on(lane_on(lane_on(a, by_128, b), by_128, c), by_128, d), at, size);
    }

    WIDE_TARGET static inline __m512i wide_on(__m512i bytes, __m512i factors, __m512i others) {
        __m512i lower = _mm512_clmulepi64_epi128(bytes, factors, 0x00), upper = _mm512_clmulepi64_epi128(bytes, factors, 0x11);
        return _mm512_ternarylogic_epi64(lower, upper, others, 0x96);  /* xor of three */
    }

    WIDE_TARGET static uint32_t crc_by_wide_lanes(uint32_t crc, const unsigned char *at, size_t size) {
        const __m128i by_128 = _mm_set_epi64x(0x493c7d27, 0xf20c0dfe);
        const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x9e4addf8, 0x740eef02));
        const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0xb9e02b86, 0xdcb17aa4));
        __m512i a, b, c, d;
        __m128i sum;
        if (size < 512) return crc_by_lanes(crc, at, size);
        a = _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
        b = _mm512_loadu_si512(at + 64), c = _mm512_loadu_si512(at + 128), d = _mm512_loadu_si512(at + 192);
        for (at += 256, size -= 256; size >= 256; at += 256, size -= 256) {
            a = wide_on(a, by_2048, _mm512_loadu_si512(at));
            b = wide_on(b, by_2048, _mm512_loadu_si512(at + 64));
            c = wide_on(c, by_2048, _mm512_loadu_si512(at + 128));
            d = wide_on(d, by_2048, _mm512_loadu_si512(at + 192));
        }
        d = wide_on(wide_on(wide_on(a, by_512, b), by_512, c), by_512, d);
        sum = lane_on(_mm512_castsi512_si128(d), by_128, _mm512_extracti64x2_epi64(d, 1));
        sum = lane_on(lane_on(sum, by_128, _mm512_extracti64x2_epi64(d, 2)), by_128, _mm512_extracti64x2_epi64(d, 3));
        return crc_ended(sum, at, size);
    }

    static uint32_t crc_by(int way, uint32_t before, const unsigned char *at, size_t size) {
        return ~(way == 2 ? crc_by_wide_lanes(~before, at, size) : crc_by_lanes(~before, at, size));
    }
    #else
    static int crc_ways(void) { return 0; }
    static uint32_t crc_by(int way, uint32_t before, const unsigned char *at, size_t size) { return 0; }
    #endif
    """
    int crc_ways()
    uint32_t crc_by(int way, uint32_t before, const unsigned char* at, size_t size)

cdef enum:
    LANES_ALONE = 1
    LONG_BYTES = 16384  # from this size on the wheel, three crc32 instructions at a time, is faster than narrow lanes
    SHARED_BYTES = 65536  # from this size on, more than a microsecond, other threads of Python run beside

cdef int CRC_WAY = crc_ways()
CRC_WAYS = tuple(range(LANES_ALONE, CRC_WAY + 1))
"""Numbers of the CRC-32C implementations that this processor has: 1 for vectors of 128 bits, 2 for 512 bits.

The last one is in use. The package ``crc32c`` is used without any, and for long data with 1 alone.
"""


cdef inline bint is_for_wheel(Py_ssize_t size) noexcept:
    return CRC_WAY == 0 or (CRC_WAY == LANES_ALONE and size >= LONG_BYTES)


cdef inline uint32_t crc_of(uint32_t before, const unsigned char* at, Py_ssize_t size) except? 0xFFFFFFFF:
    if is_for_wheel(size):
        return pure_kernels.crc32c(PyMemoryView_FromMemory(<char*>at, size, PyBUF_READ), before)
    return crc_by(CRC_WAY, before, at, size)


cdef inline uint32_t crc_of_batch(const unsigned char* head, Py_ssize_t size) except? 0xFFFFFFFF:
    return crc_of(0, head + CRC_START, size - CRC_START)


cdef inline uint32_t crc_beside(const unsigned char* head, Py_ssize_t size) except? 0xFFFFFFFF:
    """Return the CRC like ``crc_of_batch``. For a large batch other Python threads run meanwhile.

    The caller must keep the bytes alive.
    """
    cdef uint32_t crc
    if size < SHARED_BYTES or is_for_wheel(size):
        return crc_of_batch(head, size)
    with nogil:
        crc = crc_by(CRC_WAY, 0, head + CRC_START, size - CRC_START)
    return crc


def crc32c(data, value=0, /, *, way=None):
    """Return the CRC of any buffer, continued from ``value``. ``way``: one of ``CRC_WAYS``, for tests."""
    cdef Py_buffer view
    cdef uint32_t crc
    cdef int64_t before
    cdef int by = CRC_WAY
    if way is not None:
        if way not in CRC_WAYS:
            raise ValueError(f"this processor cannot sum by way {way}")
        by = way
    if not whole(<PyObject*>value, 0, UINT32_MAX, &before):
        return pure_kernels.crc32c(data, value)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if way is None and is_for_wheel(view.len):
            return pure_kernels.crc32c(data, value)
        if view.len < SHARED_BYTES:
            crc = crc_by(by, <uint32_t>before, <const unsigned char*>view.buf, view.len)
        else:
            with nogil:
                crc = crc_by(by, <uint32_t>before, <const unsigned char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


# A CRC moves on over n zero bytes by a product with x^(8n). For each n = 2^k that product is linear in the 32 bits of
# the CRC: the xor of four table entries, one for each of its bytes.

cdef enum:
    POWERS = 31  # of two: more bytes than a batch can have
    ENTRIES = 256  # for each byte of a CRC

cdef uint32_t[POWERS][4 * ENTRIES] over_zeros  # over 2^k zero bytes
cdef bint has_zeros = False


cdef inline uint32_t over(const uint32_t* table, uint32_t crc) noexcept nogil:
    return (
        table[crc & 0xFF]
        ^ table[ENTRIES + (crc >> 8 & 0xFF)]
        ^ table[2 * ENTRIES + (crc >> 16 & 0xFF)]
        ^ table[3 * ENTRIES + (crc >> 24)]
    )


cdef void make_zeros() noexcept nogil:
    """Fill the tables: the first from the polynomial, each next one by applying the one before twice."""
    global has_zeros
    cdef uint32_t value
    cdef int power, entry, bit
    for entry in range(4 * ENTRIES):
        value = <uint32_t>(entry % ENTRIES) << 8 * (entry // ENTRIES)
        for bit in range(8):
            value = value >> 1 ^ (<uint32_t>0x82F63B78 if value & 1 else <uint32_t>0)
        over_zeros[0][entry] = value
    for power in range(1, POWERS):
        for entry in range(4 * ENTRIES):
            value = over(over_zeros[power - 1], <uint32_t>(entry % ENTRIES) << 8 * (entry // ENTRIES))
            over_zeros[power][entry] = over(over_zeros[power - 1], value)
    has_zeros = True


cdef uint32_t joined_crc(uint32_t before, uint32_t behind, uint64_t size) noexcept nogil:
    """Return the CRC of bytes with CRC ``before``, followed by ``size`` bytes with CRC ``behind``."""
    cdef int power = 0
    if not has_zeros:
        make_zeros()
    while size:
        if size & 1:
            before = over(over_zeros[power], before)
        size >>= 1
        power += 1
    return before ^ behind
