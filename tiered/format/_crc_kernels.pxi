# CRC-32C of bytes in a row out of the CRCs of its parts: what was summed once, to verify it, is not summed again.
#
# A CRC, seen as a polynomial over GF(2), moves on over n zero bytes by a product with x^(8n). For each n = 2^k that
# product is linear in the 32 bits of the CRC: the xor of four table entries, one for each of its bytes.

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
    """The tables: the first from the polynomial, each next one by going twice over the one before."""
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
    """The CRC of what has ``before``, followed by ``size`` bytes that have ``behind``."""
    cdef int power = 0
    if not has_zeros:
        make_zeros()
    while size:
        if size & 1:
            before = over(over_zeros[power], before)
        size >>= 1
        power += 1
    return before ^ behind


cdef uint32_t crc_of_few(uint32_t before, const unsigned char* at, Py_ssize_t size) noexcept nogil:
    """The CRC of what has ``before`` and of these bytes, one by one."""
    cdef uint32_t crc = ~before
    cdef Py_ssize_t i
    if not has_zeros:
        make_zeros()
    for i in range(size):
        crc = crc >> 8 ^ over_zeros[0][(crc ^ at[i]) & 0xFF]
    return ~crc
