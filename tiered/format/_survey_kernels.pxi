# The walk of recovery: a run of batches verified and indexed in one call. Included by _kernels.pyx.

cdef object SURVEY = pure_kernels.Survey


def survey(data, order, bint dense, epoch, pace):
    cdef int64_t reached, beyond, end, newest, base, position, interval, since, largest, largest_at, timed
    cdef int64_t first, last, stamp, first_stamp = -1, at = 0, opening = -1, last_at = -1, before = -1
    cdef Py_ssize_t size
    cdef const unsigned char* start
    cdef const unsigned char* head
    cdef bint producers = False, transactional = False
    cdef bytearray offsets = bytearray(), times = bytearray()
    cdef int32_t entry[2]
    cdef Timed timed_entry
    cdef Py_buffer view
    asked, limit, stop = order
    start_of_segment, place, every, behind, most, most_at, last_timed = pace
    if not (
        whole(<PyObject*>asked, 0, INT64_MAX, &reached)
        and whole(<PyObject*>limit, 0, INT64_MAX, &beyond)
        and whole(<PyObject*>stop, 0, INT64_MAX, &end)
        and whole(<PyObject*>epoch, INT64_MIN, INT64_MAX, &newest)
        and whole(<PyObject*>start_of_segment, 0, reached, &base)
        and whole(<PyObject*>place, 0, INT64_MAX - INT32_MAX, &position)
        and whole(<PyObject*>every, 0, INT32_MAX, &interval)
        and whole(<PyObject*>behind, 0, INT64_MAX - MAX_BATCH_BYTES - LOG_OVERHEAD_BYTES, &since)
        and whole(<PyObject*>most, INT64_MIN, INT64_MAX, &largest)
        and whole(<PyObject*>most_at, INT64_MIN, INT64_MAX, &largest_at)
        and whole(<PyObject*>last_timed, INT64_MIN, INT64_MAX, &timed)
    ):
        return pure_kernels.survey(data, order, dense, epoch, pace)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const unsigned char*>view.buf
        while reached < end and position + at <= INT32_MAX:
            head = start + at
            size = batch_size(head, start + view.len)
            if size == ODD:
                break
            first = get_fixed(head, 8)
            last = first + get_fixed(head + LAST_DELTA_AT, 4)
            if (
                first < reached
                or first >= end
                or last >= beyond
                or last - base > INT32_MAX
                or (dense and first != reached)
                or get_fixed(head + COUNT_AT, 4) > last - first + 1
                or get_fixed(head + LEADER_EPOCH_AT, 4) > newest
            ):
                break
            if crc_of_batch(head, size) != <uint32_t>get_fixed(head + CRC_AT, 4):
                break
            stamp = get_fixed(head + MAX_TIMESTAMP_AT, 8)
            if opening < 0:
                opening, first_stamp = first, stamp
            producers = producers or get_fixed(head + PRODUCER_ID_AT, 8) >= 0
            transactional = transactional or get_fixed(head + ATTRIBUTES_AT, 2) & TRANSACTIONAL_BIT != 0
            if stamp > largest:
                largest, largest_at = stamp, last
            if since > interval:
                since = 0
                entry[0], entry[1] = <int32_t>(last - base), <int32_t>(position + at)
                offsets += PyBytes_FromStringAndSize(<char*>entry, sizeof(entry))
                if largest >= 0 and largest > timed:
                    timed = largest
                    timed_entry.timestamp, timed_entry.relative = largest, largest_at - base
                    times += PyBytes_FromStringAndSize(<char*>&timed_entry, sizeof(timed_entry))
            since += size
            last_at, before = at, reached
            reached = last + 1
            at += size
    finally:
        PyBuffer_Release(&view)
    if not at:
        return None
    return SURVEY(
        at, opening, reached, last_at, before, first_stamp, producers, transactional, since, (largest, largest_at),
        bytes(offsets), bytes(times),
    )
