# cython: language_level=3, auto_pickle=False
"""The compiled twin of ``pure_kernels``: a whole batch at a time, one pass that measures and one that writes.

A ``def`` without a docstring is described in ``pure_kernels`` or ``_kernels.pyi``, under the same name. *Odd*
input (a subclass, another buffer than ``bytes``, a size beyond the limit, a time before 1970) is left to the pure twin,
which encodes or refuses it: this file raises no error of the product. Only exact ``list``, ``tuple``, ``bytes``,
``str`` and ``int`` are accepted: none of these runs Python code between the two passes.

The memory of a batch is allocated once its size is known and below the limit, and is filled to the last byte.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_FromMemory, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject_RichCompare, PyTypeObject
from cpython.pythread cimport (
    NOWAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.ref cimport Py_INCREF, Py_REFCNT, PyObject
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
cimport cython
from libc.stdint cimport INT16_MAX, INT16_MIN, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, UINT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

import os

from tiered.format import pure_kernels
from tiered.format.codecs import MAX_DECOMPRESSED_BYTES, codec_of, decompress
from tiered.format.records import datetime_of, hash_of, made_again, shown_fields, values_of
from tiered.format.locks import has_ended, reentrant_call
from tiered.model import NO_TIMESTAMP, NewRecord, PackedBatch, RecordMetadata
from tiered.times import SECONDS_END, SECONDS_FROM

cdef extern from *:
    """
    #define type_of(object) ((PyObject *)Py_TYPE(object))

    /* An instance of a NamedTuple without its fields: they are set before other code sees it. */
    static PyObject *bare_tuple(PyObject *kind, Py_ssize_t fields) {
        PyTypeObject *type = (PyTypeObject *)kind;
        PyObject *made = type->tp_alloc(type, fields);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) ((PyTupleObject *)made)->ob_hash = -1;  /* 3.14 keeps the hash; -1: not known yet */
    #endif
        return made;
    }

    /* Puts other bytes into an object that was made for ``room`` of them; 0: it has other references, or does not suit.

       The holder of the only reference may change it, as _PyBytes_Resize does: no code sees it between its two lives. One
       that stays referenced wastes at most its own size and 64 bytes. */
    static int refill(PyObject *held, Py_ssize_t room, const void *bytes, Py_ssize_t size) {
    #ifdef Py_GIL_DISABLED
        return 0;  /* another thread may take one meanwhile */
    #endif
        if (size < 2 || size > room || room - size > 64 + size || Py_REFCNT(held) != 1) return 0;
        memcpy(PyBytes_AS_STRING(held), bytes, size);
        PyBytes_AS_STRING(held)[size] = 0;
        Py_SET_SIZE(held, size);
        ((PyBytesObject *)held)->ob_shash = -1;  /* not known yet */
        return 1;
    }

    #include <structmember.h>

    #define KEY_SLOT offsetof(struct __pyx_obj_6tiered_6format_8_kernels_Decoded, its_key)
    #define VALUE_SLOT offsetof(struct __pyx_obj_6tiered_6format_8_kernels_Decoded, its_value)

    /* A read-only attribute as ``__slots__`` makes one, which Cython has no word for. */
    static int add_slot(PyTypeObject *type, int number, const char *name, Py_ssize_t at) {
        static PyMemberDef slots[2];  /* the descriptor refers to it */
        PyMemberDef *slot = &slots[number];
        PyObject *descriptor;
        int done;
        slot->name = name, slot->type = T_OBJECT_EX, slot->offset = at, slot->flags = READONLY;
        descriptor = PyDescr_NewMember(type, slot);
        if (descriptor == NULL) return -1;
        done = PyDict_SetItemString(type->tp_dict, name, descriptor);
        Py_DECREF(descriptor);
        PyType_Modified(type);
        return done;
    }
    """
    object bare_tuple(object, Py_ssize_t)
    bint refill(PyObject*, Py_ssize_t, const void*, Py_ssize_t) noexcept
    int add_slot(PyTypeObject*, int, const char*, Py_ssize_t) except -1
    const Py_ssize_t KEY_SLOT
    const Py_ssize_t VALUE_SLOT
    const int CYTHON_HEX_VERSION
    PyObject* type_of(PyObject*)

cdef extern from "Python.h":
    # Borrowed references, of objects whose type was looked at.
    int PyList_CheckExact(PyObject*)
    int PyTuple_Check(PyObject*)
    int PyTuple_CheckExact(PyObject*)
    int PyBytes_CheckExact(PyObject*)
    int PyUnicode_CheckExact(PyObject*)
    int PyLong_CheckExact(PyObject*)
    PyObject** PySequence_Fast_ITEMS(PyObject*)
    Py_ssize_t PyList_GET_SIZE(PyObject*)
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject*)
    Py_ssize_t PyTuple_GET_SIZE(PyObject*)
    PyObject* PyTuple_GET_ITEM(PyObject*, Py_ssize_t)
    Py_ssize_t PyBytes_GET_SIZE(PyObject*)
    char* bytes_data "PyBytes_AS_STRING"(PyObject*)
    long long PyLong_AsLongLongAndOverflow(PyObject*, int*)
    const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*)
    void PyErr_Clear()

COMPILED = f"Cython {CYTHON_HEX_VERSION >> 24}.{CYTHON_HEX_VERSION >> 16 & 0xFF}.{CYTHON_HEX_VERSION >> 8 & 0xFF}"

cdef enum:
    HEADER_BYTES = 61
    LOG_OVERHEAD_BYTES = 12
    LEADER_EPOCH_AT = 12
    CRC_AT = 17
    CRC_START = 21
    LENGTH_AT = 8
    MAGIC_AT = 16
    ATTRIBUTES_AT = 21
    LAST_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    SEQUENCE_AT = 53
    HEADER_FIELDS = 13
    COUNT_AT = 57
    CODEC_MASK = 0x07
    LOG_APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    FIELDS = 4  # value, key, timestamp, headers
    NULL_LENGTH = 1  # -1, in zigzag
    ODD = -1
    MIN_RECORD_BYTES = 7
    MIN_HEADER_BYTES = 2
    SHORT_BYTES = 3  # of a varint at most that is read without a look at its end
    SHORT_START_BYTES = 13  # of a record: length, attributes, two deltas, the length of its key, each as long as that
    MAX_BATCH_BYTES = 2147483647

cdef object NO_TIME = NO_TIMESTAMP
cdef int64_t FROM_SECONDS = SECONDS_FROM
cdef int64_t END_SECONDS = SECONDS_END
cdef PyObject* NONE = <PyObject*>None
cdef object RECORD_METADATA = RecordMetadata
cdef object TRUTH = True
cdef PyObject* TRUE = <PyObject*>TRUTH  # of True itself Cython makes a number
cdef PyObject* NEW_RECORD = <PyObject*>NewRecord
cdef PyObject* BATCH_FORM = <PyObject*>pure_kernels.BatchForm
cdef PyObject* BLOCK = <PyObject*>pure_kernels.Block

cdef struct Place:
    int64_t delta  # of the timestamp, wrapped to 64 bits
    Py_ssize_t body  # bytes of the record behind its length

cdef struct Timed:  # an entry of a time index
    int64_t timestamp
    int64_t relative

cdef struct Measured:
    PyObject** items
    Place* places
    Py_ssize_t count
    Py_ssize_t size
    int64_t first
    int64_t least
    int64_t greatest
    int64_t reported  # as the time of the first record
    bint given  # as append_many takes them: NewRecord, (value, key) or a value

cdef struct Form:  # of a batch: ``pure_kernels.BatchForm`` and the producer
    bint keyed, mutable, given
    PyObject* place  # topic and partition, borrowed; None: no metadata is wanted
    int64_t most_bytes, attributes, before_ms, after_ms, producer, epoch, sequence

cdef struct Fields:  # borrowed
    PyObject* value
    PyObject* key
    PyObject* timestamp
    PyObject* headers


cdef inline uint64_t zigzag(int64_t n) noexcept nogil:
    return (<uint64_t>n << 1) ^ <uint64_t>(n >> 63)


cdef inline Py_ssize_t varint_size(uint64_t z) noexcept nogil:
    cdef Py_ssize_t size = 1
    while z >= 0x80:
        z >>= 7
        size += 1
    return size


cdef inline unsigned char* put_varint(unsigned char* at, uint64_t z) noexcept nogil:
    while z >= 0x80:
        at[0] = <unsigned char>(z | 0x80)
        at += 1
        z >>= 7
    at[0] = <unsigned char>z
    return at + 1


cdef inline unsigned char* put_fixed(unsigned char* at, uint64_t n, int size) noexcept nogil:
    """Write ``size`` bytes, the most significant one first."""
    cdef int shift = 8 * size
    while shift:
        shift -= 8
        at[0] = <unsigned char>(n >> shift)
        at += 1
    return at


cdef inline int64_t get_fixed(const unsigned char* at, int size) noexcept nogil:
    """Return the signed integer in ``size`` bytes, the most significant one first."""
    cdef int64_t n = <signed char>at[0]
    cdef int i
    for i in range(1, size):
        n = <int64_t>(<uint64_t>n << 8) | at[i]
    return n


cdef inline Py_ssize_t field_size(PyObject* field) noexcept:
    """Return the size of a key or a value with its length; ODD if it is neither None nor ``bytes``."""
    if field == NONE:
        return 1
    if not PyBytes_CheckExact(field):
        return ODD
    cdef Py_ssize_t size = PyBytes_GET_SIZE(field)
    return varint_size(zigzag(size)) + size


cdef inline unsigned char* put_field(unsigned char* at, PyObject* field) noexcept:
    cdef Py_ssize_t size
    if field == NONE:
        at[0] = NULL_LENGTH
        return at + 1
    size = PyBytes_GET_SIZE(field)
    at = put_varint(at, zigzag(size))
    memcpy(at, bytes_data(field), size)
    return at + size


cdef Py_ssize_t headers_size(PyObject* headers) noexcept:
    """Return the size of all headers with their count; ODD unless a list or tuple of ``(str, bytes | None)``."""
    cdef Py_ssize_t i, count, length, part, size
    cdef PyObject** items
    cdef PyObject* name
    if not (PyList_CheckExact(headers) or PyTuple_CheckExact(headers)):
        return ODD
    count = PySequence_Fast_GET_SIZE(headers)
    items = PySequence_Fast_ITEMS(headers)
    size = varint_size(zigzag(count))
    for i in range(count):
        if not PyTuple_CheckExact(items[i]) or PyTuple_GET_SIZE(items[i]) != 2:
            return ODD
        name = PyTuple_GET_ITEM(items[i], 0)
        if not PyUnicode_CheckExact(name):
            return ODD
        if PyUnicode_AsUTF8AndSize(name, &length) == NULL:
            PyErr_Clear()
            return ODD
        part = field_size(PyTuple_GET_ITEM(items[i], 1))
        if part == ODD:
            return ODD
        size += varint_size(zigzag(length)) + length + part
    return size


cdef unsigned char* put_headers(unsigned char* at, PyObject* headers) noexcept:
    cdef Py_ssize_t i, length, count = PySequence_Fast_GET_SIZE(headers)
    cdef PyObject** items = PySequence_Fast_ITEMS(headers)
    cdef const char* name
    at = put_varint(at, zigzag(count))
    for i in range(count):
        name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(items[i], 0), &length)  # kept by the text: it cannot fail again
        at = put_varint(at, zigzag(length))
        memcpy(at, name, length)
        at = put_field(at + length, PyTuple_GET_ITEM(items[i], 1))
    return at


cdef inline bint whole(PyObject* number, int64_t least, int64_t most, int64_t* n) noexcept:
    """Return True for an ``int`` in ``least..most``, which ``n`` gets."""
    cdef int overflow = 0
    if not PyLong_CheckExact(number):
        return False
    n[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return not overflow and least <= n[0] <= most


cdef inline bint as_time(PyObject* number, int64_t now_ms, int64_t* time) noexcept:
    """Return True for a time, or -1, which stands for ``now_ms``."""
    if not whole(number, -1, INT64_MAX, time):
        return False
    if time[0] == -1:
        time[0] = now_ms
    return True


cdef inline bint is_given_time(PyObject* number) noexcept:
    """Return True for an ``int`` that may be milliseconds, or for none."""
    cdef int64_t time
    if number == <PyObject*>NO_TIME:
        return True
    return whole(number, INT64_MIN, INT64_MAX, &time) and not FROM_SECONDS <= time < END_SECONDS


cdef inline bint fields_of(PyObject* record, bint given, Fields* f) noexcept:
    """Set ``f`` to the fields of a record, whatever their types. Return False if ``record`` is not a record."""
    if type_of(record) == NEW_RECORD or (not given and PyTuple_CheckExact(record)):
        if PyTuple_GET_SIZE(record) != FIELDS:
            return False
        f.value = PyTuple_GET_ITEM(record, 0)
        f.key = PyTuple_GET_ITEM(record, 1)
        f.timestamp = PyTuple_GET_ITEM(record, 2)
        f.headers = PyTuple_GET_ITEM(record, 3)
        return True
    if not given:
        return False
    f.key = f.headers = NONE
    f.timestamp = <PyObject*>NO_TIME
    if PyBytes_CheckExact(record):
        f.value = record
        return True
    if not PyTuple_CheckExact(record) or PyTuple_GET_SIZE(record) != 2:
        return False
    f.value = PyTuple_GET_ITEM(record, 0)
    f.key = PyTuple_GET_ITEM(record, 1)
    return True


cdef bint measure(Measured* m, int64_t now_ms, bint keyed, Py_ssize_t most_bytes) noexcept:
    """Set sizes and times of all records in ``m``, whose items, places and count are set. False: a record is odd."""
    cdef Py_ssize_t i, key, value, headers, body
    cdef Fields f
    cdef int64_t time
    m.size = 0
    for i in range(m.count):
        if not fields_of(m.items[i], m.given, &f):
            return False
        value = field_size(f.value)
        key = field_size(f.key)
        if value == ODD or key == ODD or (keyed and f.key == NONE):
            return False
        if (m.given and not is_given_time(f.timestamp)) or not as_time(f.timestamp, now_ms, &time):
            return False
        headers = 1 if f.headers == NONE else headers_size(f.headers)
        if headers == ODD:
            return False
        if i == 0:
            m.first = m.least = m.greatest = time
        elif time < m.least:
            m.least = time
        elif time > m.greatest:
            m.greatest = time
        m.places[i].delta = <int64_t>(<uint64_t>time - <uint64_t>m.first)
        body = 1 + varint_size(zigzag(m.places[i].delta)) + varint_size(zigzag(i)) + key + value + headers
        m.places[i].body = body
        m.size += varint_size(zigzag(body)) + body
        if m.size > most_bytes:
            return False
    return True


cdef unsigned char* put_records(unsigned char* at, Measured* m) noexcept:
    cdef Py_ssize_t i
    cdef Fields f
    for i in range(m.count):
        fields_of(m.items[i], m.given, &f)
        at = put_varint(at, zigzag(m.places[i].body))
        at[0] = 0  # attributes
        at = put_varint(at + 1, zigzag(m.places[i].delta))
        at = put_varint(at, zigzag(i))
        at = put_field(at, f.key)
        at = put_field(at, f.value)
        if f.headers == NONE:
            at[0] = 0
            at += 1
        else:
            at = put_headers(at, f.headers)
    return at


cdef int begin(Measured* m, object records) except -1:
    """Set items, count and places in ``m`` from ``records``. The count is 0 unless they are a plain list or tuple."""
    cdef PyObject* held = <PyObject*>records
    m.places = NULL
    m.count = 0
    m.given = False
    if PyList_CheckExact(held) or PyTuple_CheckExact(held):
        m.count = PySequence_Fast_GET_SIZE(held)
        m.items = PySequence_Fast_ITEMS(held)
    if m.count:
        m.places = <Place*>PyMem_Malloc(m.count * sizeof(Place))
        if m.places == NULL:
            raise MemoryError
    return 0


cdef int fill(unsigned char* start, Measured* m) except -1:
    if put_records(start, m) != start + m.size:
        raise SystemError("records were not written as they were measured")
    return 0


def encode_records(records, base_timestamp):
    cdef Measured m
    cdef int64_t base
    cdef bytes data
    begin(&m, records)
    try:
        if (
            m.count
            and as_time(<PyObject*>base_timestamp, -1, &base)
            and measure(&m, -1, False, MAX_BATCH_BYTES - HEADER_BYTES)
            and base == m.first
        ):
            data = PyBytes_FromStringAndSize(NULL, m.size)
            fill(<unsigned char*>PyBytes_AS_STRING(data), &m)
            return data, m.greatest
    finally:
        PyMem_Free(m.places)
    return pure_kernels.encode_records(records, base_timestamp)


def encode_batch(records, form, now_ms, append_time_ms, base_offset, leader_epoch, producer, crc=0):
    cdef Measured m
    cdef Form f
    cdef int64_t now, append_time, base, epoch, before
    if not (
        form_of(<PyObject*>form, <PyObject*>producer, &f)
        and whole(<PyObject*>now_ms, -1, INT64_MAX, &now)
        and whole(<PyObject*>append_time_ms, INT64_MIN, INT64_MAX, &append_time)
        and whole(<PyObject*>base_offset, INT64_MIN, INT64_MAX, &base)
        and whole(<PyObject*>leader_epoch, INT32_MIN, INT32_MAX, &epoch)
        and whole(<PyObject*>crc, 0, UINT32_MAX, &before)
    ):
        return None
    begin(&m, records)
    m.given = f.given
    try:
        if not m.count or base > INT64_MAX - m.count or not measure(&m, now, f.keyed, f.most_bytes - HEADER_BYTES):
            return None
        if f.attributes & LOG_APPEND_TIME_BIT:
            if append_time < 0:
                return None
            m.reported = m.least = m.greatest = append_time
        elif now < 0 and f.after_ms != INT64_MAX:
            return None  # a clock before 1970: the difference may be beyond 64 bits
        elif now >= 0 and (now - m.least > f.before_ms or m.greatest - now > f.after_ms):
            return None
        else:
            m.reported = m.first
        return assemble(&m, &f, base, epoch, <uint32_t>before)
    finally:
        PyMem_Free(m.places)


cdef inline bint form_of(PyObject* form, PyObject* producer, Form* f) noexcept:
    """Read a ``BatchForm`` and the three numbers of a producer. Return False unless all are in range."""
    if type_of(form) != BATCH_FORM or PyTuple_GET_SIZE(form) != 8:
        return False
    if not PyTuple_Check(producer) or PyTuple_GET_SIZE(producer) != 3:
        return False
    f.place = PyTuple_GET_ITEM(form, 7)
    if f.place != NONE and (not PyTuple_Check(f.place) or PyTuple_GET_SIZE(f.place) != 2):
        return False
    f.keyed = PyTuple_GET_ITEM(form, 0) == TRUE
    f.mutable = PyTuple_GET_ITEM(form, 3) == TRUE
    f.given = PyTuple_GET_ITEM(form, 4) == TRUE
    return (
        whole(PyTuple_GET_ITEM(form, 1), HEADER_BYTES, MAX_BATCH_BYTES, &f.most_bytes)
        and whole(PyTuple_GET_ITEM(form, 2), INT16_MIN, INT16_MAX, &f.attributes)
        and whole(PyTuple_GET_ITEM(form, 5), 0, INT64_MAX, &f.before_ms)
        and whole(PyTuple_GET_ITEM(form, 6), 0, INT64_MAX, &f.after_ms)
        and whole(PyTuple_GET_ITEM(producer, 0), INT64_MIN, INT64_MAX, &f.producer)
        and whole(PyTuple_GET_ITEM(producer, 1), INT16_MIN, INT16_MAX, &f.epoch)
        and whole(PyTuple_GET_ITEM(producer, 2), INT32_MIN, INT32_MAX, &f.sequence)
    )


cdef tuple assemble(Measured* m, Form* f, int64_t base, int64_t leader_epoch, uint32_t before):
    """Return (the whole batch, its facts, its first time, the CRC of a file that ends with it, its metadata)."""
    cdef Py_ssize_t size = HEADER_BYTES + m.size
    cdef unsigned char* start
    cdef unsigned char* at
    if f.mutable:
        data = PyByteArray_FromStringAndSize(NULL, size)
        start = <unsigned char*>PyByteArray_AS_STRING(data)
    else:
        data = PyBytes_FromStringAndSize(NULL, size)
        start = <unsigned char*>PyBytes_AS_STRING(data)
    at = put_fixed(start, base, 8)
    at = put_fixed(at, size - LOG_OVERHEAD_BYTES, 4)
    at = put_fixed(at, leader_epoch, 4)
    at = put_fixed(at, 2, 1)  # magic
    at = put_fixed(at, 0, 4)  # CRC, below
    at = put_fixed(at, f.attributes, 2)
    at = put_fixed(at, m.count - 1, 4)
    at = put_fixed(at, m.first, 8)
    at = put_fixed(at, m.greatest, 8)
    at = put_fixed(at, f.producer, 8)
    at = put_fixed(at, f.epoch, 2)
    at = put_fixed(at, f.sequence, 4)
    at = put_fixed(at, m.count, 4)
    fill(at, m)
    put_fixed(start + CRC_AT, crc_of_batch(start, size), 4)
    facts = size, base + m.count - 1, m.count, m.least, m.greatest
    metadata = None
    if f.place != NONE:
        metadata = bare_tuple(RECORD_METADATA, 5)
        set_field(metadata, 0, <object>PyTuple_GET_ITEM(f.place, 0))
        set_field(metadata, 1, <object>PyTuple_GET_ITEM(f.place, 1))
        set_field(metadata, 2, base)
        set_field(metadata, 3, m.reported)
        set_field(metadata, 4, base + m.count)
    return data, facts, m.reported, <int64_t>crc_with(before, start, size), metadata


def assign_offsets(batch, base_offset, leader_epoch, crc=0):
    cdef Py_buffer view
    cdef int64_t base, epoch, before
    if not (
        whole(<PyObject*>base_offset, INT64_MIN, INT64_MAX, &base)
        and whole(<PyObject*>leader_epoch, INT32_MIN, INT32_MAX, &epoch)
        and whole(<PyObject*>crc, 0, UINT32_MAX, &before)
    ):
        return pure_kernels.assign_offsets(batch, base_offset, leader_epoch, crc)
    try:
        PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
    except (BufferError, TypeError):
        return pure_kernels.assign_offsets(batch, base_offset, leader_epoch, crc)
    try:
        if view.len >= LEADER_EPOCH_AT + 4:
            put_fixed(<unsigned char*>view.buf, base, 8)
            put_fixed(<unsigned char*>view.buf + LEADER_EPOCH_AT, epoch, 4)
            return <int64_t>crc_with(<uint32_t>before, <unsigned char*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return pure_kernels.assign_offsets(batch, base_offset, leader_epoch, crc)


cdef inline uint32_t crc_with(uint32_t before, const unsigned char* batch, Py_ssize_t size) except? 0xFFFFFFFF:
    """Return the CRC of a file that had ``before``, with this batch. The CRC of the batch itself is reused."""
    cdef Py_ssize_t whole_size = get_fixed(batch + LENGTH_AT, 4) + LOG_OVERHEAD_BYTES
    if not HEADER_BYTES <= whole_size <= size:
        return crc_of(before, batch, size)  # no batch of format v2
    return joined_crc(
        crc_of(before, batch, CRC_START), <uint32_t>get_fixed(batch + CRC_AT, 4), whole_size - CRC_START
    )


cdef struct Parsed:
    int64_t offset
    int64_t timestamp
    const unsigned char* key
    int64_t key_size  # negative: null
    const unsigned char* value
    int64_t value_size
    const unsigned char* headers
    int64_t headers_count
    const unsigned char* end


cdef const unsigned char* get_long(
    const unsigned char* at, const unsigned char* end, int most_bits, uint64_t* z
) noexcept nogil:
    """Read a number of any length, still in zigzag. Return the position after it; NULL past ``most_bits`` or the end.
    """
    cdef int shift = 0
    cdef unsigned char byte
    z[0] = 0
    while at < end and shift < most_bits:
        byte = at[0]
        at += 1
        z[0] |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return at
        shift += 7
    return NULL


cdef inline const unsigned char* get_varint(const unsigned char* at, const unsigned char* end, int64_t* n) noexcept nogil:
    """Read a varint. Return the position after it; NULL past 5 bytes or past the end."""
    cdef uint64_t z
    cdef uint32_t low
    if end - at >= 2 and at[0] < 0x80:  # most numbers have a byte, nearly all others two
        low = at[0]
        at += 1
    elif end - at >= 2 and at[1] < 0x80:
        low = (at[0] & 0x7F) | <uint32_t>at[1] << 7
        at += 2
    else:
        at = get_long(at, end, 35, &z)
        if at == NULL:
            return NULL
        low = <uint32_t>z
    n[0] = <int32_t>((low >> 1) ^ (0 - (low & 1)))
    return at


cdef inline const unsigned char* get_varlong(const unsigned char* at, const unsigned char* end, int64_t* n) noexcept nogil:
    """Read a varlong. Return the position after it; NULL past 10 bytes or past the end."""
    cdef uint64_t z
    if end - at >= 2 and at[0] < 0x80:
        z = at[0]
        at += 1
    elif end - at >= 2 and at[1] < 0x80:
        z = (at[0] & 0x7F) | <uint64_t>at[1] << 7
        at += 2
    else:
        at = get_long(at, end, 70, &z)
        if at == NULL:
            return NULL
    n[0] = <int64_t>((z >> 1) ^ (0 - (z & 1)))
    return at


cdef inline const unsigned char* get_field(
    const unsigned char* at, const unsigned char* end, const unsigned char** field, int64_t* size
) noexcept nogil:
    """Read a key or a value before ``end``. Return the position after it, or NULL."""
    at = get_varint(at, end, size)
    if at == NULL or size[0] > end - at:
        return NULL
    field[0] = at
    return at + size[0] if size[0] > 0 else at


cdef const unsigned char* skip_headers(const unsigned char* at, const unsigned char* end, int64_t count) noexcept nogil:
    """Check that ``count`` headers fit before ``end``. Return the position after them, or NULL."""
    cdef const unsigned char* field
    cdef int64_t i, size
    if count < 0 or count * MIN_HEADER_BYTES > end - at:
        return NULL
    for i in range(count):
        at = get_field(at, end, &field, &size)
        if at == NULL or size < 0:  # a name is never null
            return NULL
        at = get_field(at, end, &field, &size)
        if at == NULL:
            return NULL
    return at


cdef inline const unsigned char* get_short(const unsigned char* at, int64_t* n) noexcept nogil:
    """Read a varint of at most three readable bytes. Return NULL for a longer or a negative one."""
    cdef uint32_t z = at[0]
    if z >= 0x80:
        at += 1
        z = z & 0x7F | <uint32_t>at[0] << 7
        if z >= 0x4000:
            at += 1
            z = z & 0x3FFF | <uint32_t>at[0] << 14
            if z >= 0x200000:
                return NULL
    n[0] = z >> 1
    return at + 1 if not z & 1 else NULL


cdef inline bint parse(
    const unsigned char* at, const unsigned char* data_end, int64_t base_offset, int64_t base_timestamp, Parsed* r
) noexcept nogil:
    """Parse the record at ``at``, which ends before ``data_end``. False: the pure twin must decode the record."""
    cdef const unsigned char* start = at
    cdef int64_t length, later, further
    if data_end - at >= SHORT_START_BYTES:  # the usual record: short numbers, a key and a value, no headers
        at = get_short(at, &length)
        if at != NULL and length <= data_end - at:
            r.end = at + length
            at = get_short(at + 1, &later)
            if at != NULL:
                at = get_short(at, &further)
            if at != NULL:
                if at[0] == NULL_LENGTH:
                    at += 1
                    r.key_size = -1
                else:
                    at = get_short(at, &r.key_size)
            if at != NULL and r.key_size <= r.end - at and base_offset <= INT64_MAX - further:
                r.key = at
                if r.key_size > 0:
                    at += r.key_size
                if at + SHORT_BYTES <= data_end:
                    at = get_short(at, &r.value_size)
                    if at != NULL and at < r.end and r.value_size == r.end - at - 1 and r.end[-1] == 0:
                        r.value = at
                        r.headers = r.end
                        r.headers_count = 0
                        r.offset = base_offset + further
                        r.timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>later)
                        return True
    return parse_any(start, data_end, base_offset, base_timestamp, r)


cdef bint parse_any(
    const unsigned char* at, const unsigned char* data_end, int64_t base_offset, int64_t base_timestamp, Parsed* r
) noexcept nogil:
    """Parse any valid record; :func:`parse` is the fast path."""
    cdef int64_t length, delta
    at = get_varint(at, data_end, &length)
    if at == NULL or length < MIN_RECORD_BYTES - 1 or length > data_end - at:
        return False
    r.end = at + length
    at = get_varlong(at + 1, r.end, &delta)  # behind the attributes: unused; any value is accepted, as Kafka does
    if at == NULL:
        return False
    r.timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>delta)
    at = get_varint(at, r.end, &delta)
    if at == NULL or (delta > 0 and base_offset > INT64_MAX - delta) or (delta < 0 and base_offset < INT64_MIN - delta):
        return False
    r.offset = base_offset + delta
    at = get_field(at, r.end, &r.key, &r.key_size)
    if at == NULL:
        return False
    at = get_field(at, r.end, &r.value, &r.value_size)
    if at == NULL:
        return False
    r.headers = get_varint(at, r.end, &r.headers_count)
    if r.headers == NULL:
        return False
    return skip_headers(r.headers, r.end, r.headers_count) == r.end


cdef inline object as_field(const unsigned char* start, int64_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>start, size)


cdef list as_headers(const unsigned char* at, const unsigned char* end, int64_t count):
    """Decode the headers of a parsed record, whose bytes do not change."""
    cdef list headers = []
    cdef const unsigned char* start
    cdef int64_t i, size
    for i in range(count):
        at = get_field(at, end, &start, &size)
        try:
            name = PyUnicode_DecodeUTF8(<char*>start, size, NULL)
        except UnicodeDecodeError:
            name = pure_kernels.header_name(PyBytes_FromStringAndSize(<const char*>start, size))
        at = get_field(at, end, &start, &size)
        headers.append((name, as_field(start, size)))
    return headers


cdef inline void set_field(object made, Py_ssize_t at, object field) noexcept:
    Py_INCREF(field)
    PyTuple_SET_ITEM(made, at, field)


cdef enum:
    OFFSET_GIVEN = 1
    TIME_GIVEN = 2
    HEADERS_KNOWN = 4
    ALL_GIVEN = 7


@cython.no_gc
cdef class Decoded:
    """Fields of a record: ``key`` and ``value`` are made at once, the others on first access.

    Readers nearly always need these two, and the interpreter reads a plain slot faster than it calls a getter. Headers
    are at ``headers_at`` in ``data``, whose bytes do not change; None: no bytes are left to decode.
    """

    cdef object data
    cdef int64_t offset_there, timestamp_there, headers_count
    cdef int64_t key_room, value_room  # sizes that the bytes of key and value were made for; 0: they came from elsewhere
    cdef const unsigned char* headers_at
    cdef const unsigned char* headers_end
    cdef int known
    cdef object its_offset, its_timestamp, its_key, its_value, its_headers

    @property
    def offset(self):
        return self.its_offset if self.known & OFFSET_GIVEN else self.offset_there

    @property
    def timestamp(self):
        return self.its_timestamp if self.known & TIME_GIVEN else self.timestamp_there

    @property
    def headers(self):
        cdef object data = self.data  # a name that is not UTF-8 runs Python code, which may detach this record meanwhile
        if not self.known & HEADERS_KNOWN:
            if not self.headers_count:
                return ()
            self.its_headers = as_headers(self.headers_at, self.headers_end, self.headers_count)
            self.known |= HEADERS_KNOWN
        return self.its_headers

    cdef int take(self, Parsed* r, object data) except -1:
        """Set all fields from a parsed record in ``data``. Nothing else may refer to this object."""
        if self.known:
            self.its_offset = self.its_timestamp = self.its_headers = None
            self.known = 0
        self.headers_count = 0
        if not refill(<PyObject*>self.its_key, self.key_room, r.key, r.key_size):
            self.key_room = 0  # as long as it is not known that there are new ones
            self.its_key = as_field(r.key, r.key_size)
            self.key_room = r.key_size
        if not refill(<PyObject*>self.its_value, self.value_room, r.value, r.value_size):
            self.value_room = 0
            self.its_value = as_field(r.value, r.value_size)
            self.value_room = r.value_size
        self.offset_there, self.timestamp_there = r.offset, r.timestamp
        if r.headers_count:
            self.headers_at, self.headers_end, self.headers_count = r.headers, r.end, r.headers_count
            if self.data is not data:
                self.data = data
        elif self.data is not None:
            self.data = None
        return 0

    cdef void give(self, offset, timestamp, key, value, headers):
        """Set all fields from objects."""
        self.its_offset, self.its_timestamp, self.its_key, self.its_value = offset, timestamp, key, value
        self.its_headers = headers or ()
        self.known = ALL_GIVEN
        self.key_room = self.value_room = 0
        self.data = None

    cdef int detach(self) except -1:
        """Decode all fields, so that the record no longer refers to its batch."""
        if self.data is not None:
            self.headers
            self.data = None
        return 0

    cdef tuple values(self):
        raise NotImplementedError

    def __iter__(self):
        return iter(self.values())

    def __getitem__(self, place):
        return self.values()[place]

    def __repr__(self):
        return shown_fields(type(self).__name__, self._fields, self.values())

    def __hash__(self):
        return hash_of(self.values())

    def __richcmp__(self, other, int operator):
        values = values_of(self._fields, other)
        return NotImplemented if values is None else PyObject_RichCompare((<Decoded>self).values(), values, operator)

    @classmethod
    def _make(cls, values):
        """Build a record from all field values, in declaration order."""
        return cls(*values)

    def _asdict(self):
        """Return the fields by name."""
        return dict(zip(self._fields, self.values()))

    def _replace(self, **fields):
        """Return a copy with other values for these fields. Raises TypeError for an unknown name."""
        return type(self)(**{**self._asdict(), **fields})

    def __reduce__(self):
        return made_again, (type(self).__name__, self.values())


add_slot(<PyTypeObject*>Decoded, 0, "key", KEY_SLOT)
add_slot(<PyTypeObject*>Decoded, 1, "value", VALUE_SLOT)


@cython.final
@cython.no_gc
cdef class Record(Decoded):
    """One decoded record; see ``records.Record``."""

    _fields = __match_args__ = ("offset", "timestamp", "key", "value", "headers")

    def __init__(self, offset, timestamp, key, value, headers):
        self.give(offset, timestamp, key, value, headers)

    cdef tuple values(self):
        return self.offset, self.timestamp, self.its_key, self.its_value, self.headers

    def __len__(self):
        return 5


@cython.final
@cython.no_gc
cdef class Origin:
    """Fields that all records of a batch share."""

    cdef object topic, partition, kind, epoch, tier


cdef Origin NOWHERE = Origin()


@cython.final
@cython.no_gc
cdef class ConsumerRecord(Decoded):
    """One record as a reader sees it; see ``records.ConsumerRecord``."""

    cdef Origin origin

    _fields = __match_args__ = (
        "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch", "tier",
    )

    def __cinit__(self):
        self.origin = NOWHERE

    def __init__(
        self, topic, partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch=-1, tier="local"
    ):
        cdef Origin origin = Origin.__new__(Origin)
        origin.topic, origin.partition, origin.kind, origin.epoch = topic, partition, timestamp_type, leader_epoch
        origin.tier = tier
        self.origin = origin
        self.give(offset, timestamp, key, value, headers)

    @property
    def topic(self):
        return self.origin.topic

    @property
    def partition(self):
        return self.origin.partition

    @property
    def timestamp_type(self):
        return self.origin.kind

    @property
    def leader_epoch(self):
        return self.origin.epoch

    @property
    def tier(self):
        return self.origin.tier

    @property
    def datetime(self):
        """The timestamp as an aware UTC datetime."""
        return datetime_of(self.timestamp)

    cdef tuple values(self):
        cdef Origin at = self.origin
        return (
            at.topic, at.partition, self.offset, self.timestamp, at.kind, self.its_key, self.its_value, self.headers,
            at.epoch, at.tier,
        )

    def __len__(self):
        return 10


@cython.final
@cython.no_gc_clear
cdef class Records:
    """Iterator over the records of batches: ``Record``, or ``ConsumerRecord`` within the reader's bounds.

    The last two records are remembered. A remembered one without other references becomes the next record, and its key
    and value are reused. One with other references is detached: it then has its own bytes and no longer refers to the
    batch.
    """

    cdef object data
    cdef const unsigned char* start
    cdef const unsigned char* at
    cdef const unsigned char* end
    cdef int64_t count
    cdef int64_t left
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef bint stamped  # ``stamp`` replaces every timestamp
    cdef int64_t stamp
    cdef bint begun
    cdef bint over
    cdef Origin origin  # None: plain Records
    cdef object run  # whole batches, of which those from ``behind`` to ``run_end`` are to come
    cdef const unsigned char* behind
    cdef const unsigned char* run_end
    cdef bint alone
    cdef int64_t first
    cdef int64_t beyond  # INT64_MAX is above every offset
    cdef int64_t since
    cdef int64_t until
    cdef bint bounded, from_time, to_time
    cdef Decoded last, before

    def __iter__(self):
        return self

    def __next__(self):
        cdef Parsed r
        cdef Decoded made
        cdef int shown
        if not self.begun:
            self.begin()
        while not self.over:
            if not self.left:
                if not self.advance():
                    break
                continue
            self.left -= 1
            if not parse(self.at, self.end, self.base_offset, self.base_timestamp, &r):
                made = self.odd_record()
                if made is None:
                    continue
                return made
            self.at = r.end
            if self.stamped:
                r.timestamp = self.stamp
            if self.origin is not None:
                if (
                    r.offset < self.first
                    or (self.from_time and r.timestamp < self.since)
                    or (self.to_time and r.timestamp >= self.until)
                ):
                    continue
                if self.bounded and r.offset >= self.beyond:
                    break
            made = self.blank()
            made.take(&r, self.data)
            return made
        self.finish()
        raise StopIteration

    def __dealloc__(self):
        self.finish()

    cdef int begin(self) except -1:
        """Start a batch. As in Kafka, the data of a batch without records is ignored."""
        self.begun = True
        self.left = self.count
        if not self.count:
            self.at = self.end
        elif self.count < 0 or self.count > (self.end - self.start) // MIN_RECORD_BYTES:
            self.finish()
            pure_kernels.check_count(self.payload(), self.count)
        return 0

    cdef bint advance(self) except -1:
        """Move to the next batch of the run that has records for the reader. Return False if there is none."""
        cdef const unsigned char* header
        cdef int64_t most
        cdef int attributes
        if self.at != self.end:
            self.finish()
            pure_kernels.check_used_up(self.payload(), self.count, self.at - self.start)
        while self.behind != self.run_end:
            header = self.behind
            self.behind += LOG_OVERHEAD_BYTES + get_fixed(header + LENGTH_AT, 4)
            attributes = <int>get_fixed(header + ATTRIBUTES_AT, 2)
            most = get_fixed(header + MAX_TIMESTAMP_AT, 8)
            if not self.alone and (attributes & CONTROL_BIT or (self.from_time and most < self.since)):
                continue
            self.start = header + HEADER_BYTES
            self.end = self.behind
            self.data = self.run
            if attributes & CODEC_MASK:
                self.over = True  # as a generator that has raised
                self.data = decompress(codec_of(attributes), self.payload(), max_bytes=MAX_DECOMPRESSED_BYTES)
                self.over = False
                self.start = <const unsigned char*>PyBytes_AS_STRING(self.data)
                self.end = self.start + PyBytes_GET_SIZE(<PyObject*>self.data)
            self.at = self.start
            self.count = get_fixed(header + COUNT_AT, 4)
            self.base_offset = get_fixed(header, 8)
            self.base_timestamp = get_fixed(header + BASE_TIMESTAMP_AT, 8)
            self.stamped = attributes & LOG_APPEND_TIME_BIT != 0
            self.stamp = most
            if self.origin is not None and not self.alone:
                self.come_from(attributes & LOG_APPEND_TIME_BIT != 0, get_fixed(header + LEADER_EPOCH_AT, 4))
            self.begin()
            return True
        return False

    cdef int come_from(self, bint appended, int64_t epoch) except -1:
        """Set the fields that all records of the batch share. Batches with equal fields share one ``Origin``."""
        cdef Origin origin
        if self.origin.epoch == epoch and self.origin.kind == appended:
            return 0
        origin = Origin.__new__(Origin)
        origin.topic, origin.partition, origin.tier = self.origin.topic, self.origin.partition, self.origin.tier
        origin.kind, origin.epoch = int(appended), epoch
        self.origin = origin
        return 0

    cdef int finish(self) except -1:
        """End the iteration."""
        cdef Decoded last = self.last, before = self.before
        self.over = True
        self.last = self.before = None
        if last is not None:
            last.detach()
        if before is not None:
            before.detach()
        return 0

    cdef bytes payload(self):
        return PyBytes_FromStringAndSize(<const char*>self.start, self.end - self.start)

    cdef Decoded blank(self):
        """Return a record object to fill: a remembered one without other references, or a new one."""
        cdef Decoded made = self.before
        self.before = self.last
        if made is None or Py_REFCNT(made) != 1:
            if made is not None:
                made.detach()
            if self.origin is None:
                made = Record.__new__(Record)
            else:
                made = ConsumerRecord.__new__(ConsumerRecord)
        if self.origin is not None and (<ConsumerRecord>made).origin is not self.origin:
            (<ConsumerRecord>made).origin = self.origin
        self.last = made
        return made

    cdef Decoded odd_record(self):
        """Return the next record as the pure twin decodes it. None: it is outside the reader's bounds.

        Raises CorruptionError for a damaged record.
        """
        cdef Decoded made
        self.over = True
        offset, timestamp, key, value, headers, position = pure_kernels.decode_record(
            self.payload(), self.at - self.start, self.base_offset, self.base_timestamp
        )
        self.over = False
        self.at = self.start + <Py_ssize_t>position
        if self.stamped:
            timestamp = self.stamp
        if self.origin is not None:
            if (
                offset < self.first
                or (self.from_time and timestamp < self.since)
                or (self.to_time and timestamp >= self.until)
            ):
                return None
            if self.bounded and offset >= self.beyond:
                self.over = True
                return None
        made = self.blank()
        made.give(offset, timestamp, key, value, headers)
        return made


cdef bint hold(Records records, object data, object begin, object end):
    """Store ``data[begin:end]`` in ``records``, copied if the bytes may change. Return False if an argument is odd."""
    cdef Py_buffer* view
    cdef int64_t first, behind
    cdef Py_ssize_t size
    cdef const unsigned char* at
    if PyBytes_CheckExact(<PyObject*>data):
        records.data = data
        at = <const unsigned char*>PyBytes_AS_STRING(data)
        size = PyBytes_GET_SIZE(<PyObject*>data)
    elif PyMemoryView_Check(data):
        view = PyMemoryView_GET_BUFFER(data)
        if <PyObject*>view.obj == NULL or view.itemsize != 1 or view.ndim != 1:
            return False
        if view.strides != NULL and view.strides[0] != 1:
            return False
        if not PyBytes_CheckExact(<PyObject*>view.obj) and type_of(<PyObject*>view.obj) != BLOCK:
            return hold(records, PyBytes_FromStringAndSize(<char*>view.buf, view.len), begin, end)
        records.data = data  # a view of a block keeps its size as it is
        at = <const unsigned char*>view.buf
        size = view.len
    elif type_of(<PyObject*>data) == <PyObject*>bytearray:
        return hold(records, bytes(data), begin, end)
    else:
        return False
    if end is None:
        end = size
    if not whole(<PyObject*>begin, 0, size, &first) or not whole(<PyObject*>end, first, size, &behind):
        return False
    records.start = records.at = at + first
    records.end = at + behind
    return True


cdef Records opened(data, count, base_offset, base_timestamp, append_time, begin, end):
    """Return an iterator over records, None if an argument is odd."""
    cdef Records records = Records.__new__(Records)
    if (
        not hold(records, data, begin, end)
        or not whole(<PyObject*>count, INT64_MIN, INT64_MAX, &records.count)
        or not whole(<PyObject*>base_offset, INT64_MIN, INT64_MAX, &records.base_offset)
        or not whole(<PyObject*>base_timestamp, INT64_MIN, INT64_MAX, &records.base_timestamp)
        or (append_time is not None and not whole(<PyObject*>append_time, INT64_MIN, INT64_MAX, &records.stamp))
    ):
        return None
    records.stamped = append_time is not None
    return records


def decode_records(data, count, base_offset, base_timestamp, append_time, begin=0, end=None):
    cdef Records records = opened(data, count, base_offset, base_timestamp, append_time, begin, end)
    if records is None:
        return map(Record._make, pure_kernels.decode_records(data, count, base_offset, base_timestamp, append_time, begin, end))
    return records


cdef bint show(Records records, shown):
    """Set the bounds of ``records`` from a ``Shown``. Return False if a value is odd."""
    cdef Origin origin = Origin.__new__(Origin)
    origin.topic, origin.partition, origin.kind, origin.epoch, origin.tier, first, beyond, since_ms, until_ms = shown
    records.bounded, records.from_time, records.to_time = beyond is not None, since_ms is not None, until_ms is not None
    records.origin = origin
    return (
        whole(<PyObject*>first, INT64_MIN, INT64_MAX, &records.first)
        and (beyond is None or whole(<PyObject*>beyond, INT64_MIN, INT64_MAX, &records.beyond))
        and (since_ms is None or whole(<PyObject*>since_ms, INT64_MIN, INT64_MAX, &records.since))
        and (until_ms is None or whole(<PyObject*>until_ms, INT64_MIN, INT64_MAX, &records.until))
    )


def consumer_records(data, count, base_offset, base_timestamp, append_time, shown, begin=0, end=None):
    cdef Records records = opened(data, count, base_offset, base_timestamp, append_time, begin, end)
    if records is None or not show(records, shown):
        found = pure_kernels.consumer_records(data, count, base_offset, base_timestamp, append_time, shown, begin, end)
        return map(ConsumerRecord._make, found)
    return records


cdef Py_ssize_t batch_size(const unsigned char* at, const unsigned char* end) noexcept nogil:
    """Return the size of the plain v2 batch that begins at ``at`` and ends before ``end``; ODD if there is none."""
    cdef int64_t length, base, delta
    if end - at < HEADER_BYTES or at[MAGIC_AT] != 2:
        return ODD
    length = get_fixed(at + LENGTH_AT, 4)
    base = get_fixed(at, 8)
    delta = get_fixed(at + LAST_DELTA_AT, 4)
    if length < HEADER_BYTES - LOG_OVERHEAD_BYTES or length > end - at - LOG_OVERHEAD_BYTES:
        return ODD
    if base < 0 or delta < 0 or base >= INT64_MAX - delta or get_fixed(at + COUNT_AT, 4) < 0:
        return ODD
    return LOG_OVERHEAD_BYTES + length


def batch_records(batch, shown):
    cdef Records records = Records.__new__(Records)
    if not hold(records, batch, 0, None) or batch_size(records.at, records.end) != records.end - records.at:
        return None
    if get_fixed(records.at + ATTRIBUTES_AT, 2) & CODEC_MASK or (shown is not None and not show(records, shown)):
        return None
    records.alone = records.begun = True
    as_run(records)
    return records


def run_records(batches, shown):
    cdef Records records = Records.__new__(Records)
    cdef const unsigned char* at
    cdef Py_ssize_t size
    if not hold(records, batches, 0, None) or not show(records, shown):
        return None
    at = records.at
    while at != records.end:
        size = batch_size(at, records.end)
        if size == ODD:
            return None
        at += size
    records.begun = True
    as_run(records)
    return records


def scan(data, expected, limit, exact, bint dense, most_bytes, stop, latest, total):
    cdef int64_t at = 0, reached, beyond, gapless, most, last, base, end, newest, summed
    cdef int64_t first = -1
    cdef Py_ssize_t size
    cdef const unsigned char* start
    cdef uint32_t crc
    cdef Py_buffer view
    if not (
        whole(<PyObject*>expected, INT64_MIN, INT64_MAX, &reached)
        and whole(<PyObject*>limit, INT64_MIN, INT64_MAX, &beyond)
        and whole(<PyObject*>exact, INT64_MIN, INT64_MAX, &gapless)
        and whole(<PyObject*>most_bytes, INT64_MIN, INT64_MAX, &most)
        and whole(<PyObject*>stop, INT64_MIN, INT64_MAX, &end)
        and whole(<PyObject*>latest, INT64_MIN, INT64_MAX, &newest)
        and whole(<PyObject*>total, -1, UINT32_MAX, &summed)
    ):
        return pure_kernels.scan(data, expected, limit, exact, dense, most_bytes, stop, latest, total)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const unsigned char*>view.buf
        while reached < end:
            size = batch_size(start + at, start + view.len)
            if size == ODD or size > most:
                break
            base = get_fixed(start + at, 8)
            last = base + get_fixed(start + at + LAST_DELTA_AT, 4)
            if (
                base < reached
                or base >= end
                or last >= beyond
                or base > gapless >= 0
                or get_fixed(start + at + COUNT_AT, 4) > last - base + 1
                or get_fixed(start + at + MAX_TIMESTAMP_AT, 8) > newest
            ):
                break
            crc = crc_of_batch(start + at, size)
            if crc != <uint32_t>get_fixed(start + at + CRC_AT, 4):
                break
            if summed >= 0:
                summed = joined_crc(crc_of(<uint32_t>summed, start + at, CRC_START), crc, size - CRC_START)
            if first < 0:
                first = base
            reached = last + 1
            if dense:
                gapless = reached
            at += size
    finally:
        PyBuffer_Release(&view)
    return at, first, reached, summed


@cython.final
cdef class RunBatches:
    """Iterator over the batches of a run, for ``run_batches``."""

    cdef object batches, kind, header, first
    cdef const unsigned char* bytes
    cdef Py_ssize_t at, end
    cdef int64_t start

    def __iter__(self):
        return self

    def __next__(self):
        cdef const unsigned char* head
        cdef Py_ssize_t begin
        cdef object fields, made
        while self.at < self.end:
            begin, head = self.at, self.bytes + self.at
            self.at += LOG_OVERHEAD_BYTES + get_fixed(head + LENGTH_AT, 4)
            if get_fixed(head, 8) + get_fixed(head + LAST_DELTA_AT, 4) < self.start:
                continue
            fields = bare_tuple(self.header, HEADER_FIELDS)
            fill_header(fields, head)
            made = bare_tuple(self.kind, 3)
            set_field(made, 0, self.first)
            set_field(made, 1, fields)
            set_field(made, 2, self.batches[begin:self.at])
            return made
        raise StopIteration


cdef void fill_header(object fields, const unsigned char* head):
    set_field(fields, 0, get_fixed(head, 8))
    set_field(fields, 1, get_fixed(head + LENGTH_AT, 4))
    set_field(fields, 2, get_fixed(head + LEADER_EPOCH_AT, 4))
    set_field(fields, 3, get_fixed(head + MAGIC_AT, 1))
    set_field(fields, 4, <uint32_t>get_fixed(head + CRC_AT, 4))
    set_field(fields, 5, get_fixed(head + ATTRIBUTES_AT, 2))
    set_field(fields, 6, get_fixed(head + LAST_DELTA_AT, 4))
    set_field(fields, 7, get_fixed(head + BASE_TIMESTAMP_AT, 8))
    set_field(fields, 8, get_fixed(head + MAX_TIMESTAMP_AT, 8))
    set_field(fields, 9, get_fixed(head + PRODUCER_ID_AT, 8))
    set_field(fields, 10, get_fixed(head + PRODUCER_EPOCH_AT, 2))
    set_field(fields, 11, get_fixed(head + SEQUENCE_AT, 4))
    set_field(fields, 12, get_fixed(head + COUNT_AT, 4))


def intact_header(batch, header):
    cdef Py_buffer view
    cdef const unsigned char* head
    cdef object fields
    try:
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    except BufferError:
        return None
    try:
        head = <const unsigned char*>view.buf
        if (
            batch_size(head, head + view.len) != view.len
            or get_fixed(head + COUNT_AT, 4) > get_fixed(head + LAST_DELTA_AT, 4) + 1
            or crc_beside(head, view.len) != <uint32_t>get_fixed(head + CRC_AT, 4)
        ):
            return None
        fields = bare_tuple(header, HEADER_FIELDS)
        fill_header(fields, head)
        return fields
    finally:
        PyBuffer_Release(&view)


def records_extent(data, int64_t count, int64_t base_offset, int64_t base_timestamp, int64_t begin):
    cdef Py_buffer view
    cdef const unsigned char* at
    cdef const unsigned char* end
    cdef Parsed r
    cdef int64_t left, least = -1, lowest = INT64_MAX, highest = INT64_MIN
    try:
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    except BufferError:
        return None
    try:
        if not 0 <= begin <= view.len or count < 1:
            return None
        at, end = <const unsigned char*>view.buf + begin, <const unsigned char*>view.buf + view.len
        for left in range(count):
            if not parse(at, end, base_offset, base_timestamp, &r):
                return None
            at = r.end
            lowest, highest = min(lowest, r.offset), max(highest, r.offset)
            if r.timestamp >= 0 and (least < 0 or r.timestamp < least):
                least = r.timestamp
        return (lowest, highest, least) if at == end else None
    finally:
        PyBuffer_Release(&view)


def run_batches(batches, kind, header, first, start):
    cdef RunBatches made = RunBatches.__new__(RunBatches)
    cdef Py_buffer* view
    cdef Py_ssize_t at = 0, size
    if not PyMemoryView_Check(batches) or not whole(<PyObject*>start, INT64_MIN, INT64_MAX, &made.start):
        return pure_kernels.run_batches(batches, kind, header, first, start)
    view = PyMemoryView_GET_BUFFER(batches)
    if view.itemsize != 1 or view.ndim != 1 or (view.strides != NULL and view.strides[0] != 1):
        return pure_kernels.run_batches(batches, kind, header, first, start)
    made.batches, made.kind, made.header, made.first = batches, kind, header, first
    made.bytes, made.end = <const unsigned char*>view.buf, view.len
    while at != made.end:
        size = batch_size(made.bytes + at, made.bytes + made.end)
        if size == ODD:
            return None
        at += size
    return made


cdef void as_run(Records records):
    """Make ``records`` iterate over all batches in its bytes, from the first one on."""
    records.run = records.data
    records.behind, records.run_end = records.at, records.end
    records.start = records.at = records.end


cdef uint32_t hash_of_key(const unsigned char* data, Py_ssize_t length) noexcept nogil:
    """Return ``tiered.format.partitioner.murmur2`` of a key."""
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>length
    cdef uint32_t k
    cdef Py_ssize_t at = 0
    while length - at >= 4:
        k = data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        k *= <uint32_t>0x5BD1E995
        k ^= k >> 24
        k *= <uint32_t>0x5BD1E995
        h = h * <uint32_t>0x5BD1E995 ^ k
        at += 4
    if at < length:
        if length - at == 3:
            h ^= <uint32_t>data[at + 2] << 16
        if length - at >= 2:
            h ^= <uint32_t>data[at + 1] << 8
        h ^= data[at]
        h *= <uint32_t>0x5BD1E995
    h ^= h >> 13
    h *= <uint32_t>0x5BD1E995
    return h ^ h >> 15


def murmur2(data):
    cdef PyObject* held = <PyObject*>data
    if PyBytes_CheckExact(held):
        return hash_of_key(<unsigned char*>bytes_data(held), PyBytes_GET_SIZE(held))
    return pure_kernels.murmur2(data)


cdef inline bint is_field(PyObject* field) noexcept:
    return field == NONE or PyBytes_CheckExact(field)


def group(records, int partitions, int fixed, int keyless):
    cdef Fields f
    cdef Py_ssize_t i
    cdef int32_t chosen
    cdef tuple held
    cdef list groups
    cdef PyObject* record
    if not (PyList_CheckExact(<PyObject*>records) or PyTuple_CheckExact(<PyObject*>records)) or partitions < 1:
        return None
    held = tuple(records)  # a copy, as other code may change the list meanwhile
    groups = [None] * partitions if fixed < 0 and partitions > 1 else None
    for i in range(PyTuple_GET_SIZE(<PyObject*>held)):
        record = PyTuple_GET_ITEM(<PyObject*>held, i)
        if not fields_of(record, True, &f) or not is_field(f.value) or not is_field(f.key):
            return None
        if not is_given_time(f.timestamp) or (f.headers != NONE and headers_size(f.headers) == ODD):
            return None
        if groups is None:
            continue
        chosen = keyless
        if f.key != NONE:
            chosen = (hash_of_key(<unsigned char*>bytes_data(f.key), PyBytes_GET_SIZE(f.key)) & 0x7FFFFFFF) % partitions
        found = groups[chosen]
        if found is None:
            groups[chosen] = [<object>record]
        else:
            (<list>found).append(<object>record)
    if not held:
        return held, []
    if groups is None:
        return held, [(fixed if fixed >= 0 else keyless, held)]
    return held, [(i, found) for i, found in enumerate(groups) if found is not None]


include "_arrow_kernels.pxi"
include "_arrow_encoder.pxi"
include "_lock_kernels.pxi"
include "_accumulator.pxi"
include "_crc_kernels.pxi"
include "_survey_kernels.pxi"
include "_key_kernels.pxi"
