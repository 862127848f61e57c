# Part of _kernels.pyx: locks that know their holders. The twin is ``tiered.format.locks``.

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int CLOCK_REALTIME
    int clock_gettime(int, timespec*)

cdef extern from "pythread.h":
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long, int) nogil

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from "Python.h":
    PyObject* PyEval_GetFrame()  # borrowed

cdef double MOST_SECONDS = 9e9
cdef int64_t LOOK_EVERY_US = 1_000_000  # a waiting thread looks this often for a holder that has ended


cdef int64_t monotonic_us() noexcept nogil:
    cdef timespec time
    clock_gettime(CLOCK_MONOTONIC, &time)
    return <int64_t>time.tv_sec * 1000000 + time.tv_nsec // 1000


cdef int check_patience(bint blocking, double timeout) except -1:
    """Check arguments like ``threading.Lock``."""
    if timeout != -1 and not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if timeout < 0 and timeout != -1:
        raise ValueError("timeout value must be a non-negative number")
    if timeout > MOST_SECONDS:
        raise OverflowError("timeout value is too large")
    return 0


cdef int is_abandoned(object frame, unsigned long holder) except -1:
    """Return True if the frame that took a lock has ended. Raises ReentrantCallError in the thread of ``holder``."""
    if has_ended(frame):
        return True
    if holder == <unsigned long>PyThread_get_thread_ident():
        raise reentrant_call()
    return False


cdef inline object frame_of_caller():
    """Return the Python frame that called compiled code, None if there is none."""
    cdef PyObject* frame = PyEval_GetFrame()
    return None if frame == NULL else <object>frame


cdef inline int64_t look_within(int64_t left_us) noexcept:
    """Return the microseconds to wait before the owner is checked again: ``left_us``, or less if that is long or -1."""
    return left_us if 0 <= left_us < LOOK_EVERY_US else LOOK_EVERY_US


@cython.final
cdef class PlainLock:
    """Twin of ``tiered.format.locks.PlainLock``: compiled code takes it without a call. Signals reach waiting threads.

    ``frame`` is that of the Python block which took it; None: ``acquire`` took it, or compiled code, which always
    releases it.
    """

    cdef PyThread_type_lock lock
    cdef bint is_held
    cdef unsigned long holder
    cdef object frame

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.lock != NULL:
            if self.is_held:
                PyThread_release_lock(self.lock)
            PyThread_free_lock(self.lock)

    cdef inline bint take(self) noexcept:
        """Take the lock if it is free."""
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            return False
        self.is_held = True
        self.holder = <unsigned long>PyThread_get_thread_ident()
        return True

    cdef int take_over(self, bint raises) except -1:
        """Take the lock over if its holder has ended without releasing it. Return True if so."""
        frame = self.frame
        if not (is_abandoned(frame, self.holder) if raises else has_ended(frame)) or self.frame is not frame:
            return False
        self.holder, self.frame = <unsigned long>PyThread_get_thread_ident(), None
        return True

    cdef int wait(self, int64_t most_us, bint raises) except -1:
        """Wait for the lock for ``most_us`` at most (-1: for ever). Return True if it was taken."""
        cdef PyLockStatus status
        cdef int64_t deadline = monotonic_us() + most_us if most_us >= 0 else 0
        cdef int64_t left = most_us
        cdef int64_t piece
        while True:
            if self.take_over(raises):
                return True
            piece = look_within(left)
            with nogil:
                status = PyThread_acquire_lock_timed(self.lock, piece, 1)
            if status == PY_LOCK_ACQUIRED:
                self.is_held = True
                self.holder = <unsigned long>PyThread_get_thread_ident()
                return True
            PyErr_CheckSignals()
            if most_us >= 0:
                left = deadline - monotonic_us()
                if left < 0 or (status == PY_LOCK_FAILURE and left == 0):
                    return False

    cdef inline int drop(self) except -1:
        if not self.is_held:
            raise RuntimeError("release unlocked lock")
        self.is_held, self.holder, self.frame = False, 0, None
        PyThread_release_lock(self.lock)
        return 0

    def acquire(self, bint blocking=True, double timeout=-1):
        check_patience(blocking, timeout)
        if self.take():
            return True
        if not blocking:
            return bool(self.take_over(False))
        return bool(self.wait(-1, True) if timeout == -1 else self.wait(<int64_t>(timeout * 1e6), False))

    def hold(self, double seconds):
        if not self.take() and not self.wait(<int64_t>(seconds * 1e6), True):
            return False
        self.frame = frame_of_caller()
        return True

    def check_caller(self):
        if self.is_held and self.take_over(True):
            self.drop()

    def release(self):
        self.drop()

    def locked(self):
        return bool(self.is_held)

    def __enter__(self):
        if not self.take():
            self.wait(-1, True)
        self.frame = frame_of_caller()
        return True

    def __exit__(self, kind, error, trace):
        self.drop()


cdef struct Turn:  # of a thread that waits for a TurnLock
    PyThread_type_lock come
    Turn* following
    bint is_its


@cython.final
cdef class TurnLock:
    """Lock like ``PlainLock`` that waiting threads get in the order of their requests.

    A thread that has just released the lock gets it again only after all threads that waited. A signal moves a waiting
    thread to the end of the queue.
    """

    cdef bint is_held
    cdef unsigned long holder  # 0: handed to the first in line, who has not come yet
    cdef object frame
    cdef Turn* first
    cdef Turn* last

    cdef inline bint take(self) noexcept:
        """Take the lock if it is free: then no thread waits."""
        if self.is_held:
            return False
        self.is_held = True
        self.holder = <unsigned long>PyThread_get_thread_ident()
        return True

    cdef int take_over(self, bint raises) except -1:
        """Take the lock over like :meth:`PlainLock.take_over`."""
        frame = self.frame
        if not (is_abandoned(frame, self.holder) if raises else has_ended(frame)) or self.frame is not frame:
            return False
        self.holder, self.frame = <unsigned long>PyThread_get_thread_ident(), None
        return True

    cdef int wait(self, int64_t most_us, bint raises) except -1:
        """Wait for the lock like :meth:`PlainLock.wait`."""
        cdef PyLockStatus status
        cdef int64_t deadline = monotonic_us() + most_us if most_us >= 0 else 0
        cdef int64_t left = most_us
        while not self.take() and not self.take_over(raises):
            status = self.stand_in_line(look_within(left))
            if status == PY_LOCK_ACQUIRED:
                self.holder = <unsigned long>PyThread_get_thread_ident()
                return True
            PyErr_CheckSignals()  # outside the line: the handler may ask for this very lock
            if most_us >= 0:
                left = deadline - monotonic_us()
                if left < 0 or (status == PY_LOCK_FAILURE and left == 0):
                    return False
        return True

    cdef PyLockStatus stand_in_line(self, int64_t most_us) except *:
        """Wait in the queue until this thread gets the lock, the time is over, or a signal arrives."""
        cdef PyLockStatus status
        cdef Turn* turn = <Turn*>PyMem_Malloc(sizeof(Turn))  # not on the stack: a thread may end here with the process
        if turn == NULL:
            raise MemoryError
        turn.come = PyThread_allocate_lock()
        if turn.come == NULL:
            PyMem_Free(turn)
            raise MemoryError
        PyThread_acquire_lock(turn.come, NOWAIT_LOCK)
        turn.following, turn.is_its = NULL, False
        if self.first == NULL:
            self.first = turn
        else:
            self.last.following = turn
        self.last = turn
        with nogil:
            status = PyThread_acquire_lock_timed(turn.come, most_us, 1)
        if turn.is_its:  # whatever the status: it may have come just after the time was over
            status = PY_LOCK_ACQUIRED
        else:
            self.leave_line(turn)
        PyThread_acquire_lock(turn.come, NOWAIT_LOCK)
        PyThread_release_lock(turn.come)  # as the interpreter does before it frees one
        PyThread_free_lock(turn.come)
        PyMem_Free(turn)
        return status

    cdef void leave_line(self, Turn* turn) noexcept:
        cdef Turn* before = NULL
        cdef Turn* at = self.first
        while at != turn:
            before, at = at, at.following
        if before == NULL:
            self.first = turn.following
        else:
            before.following = turn.following
        if self.last == turn:
            self.last = before

    cdef inline int drop(self) except -1:
        cdef Turn* turn = self.first
        if not self.is_held:
            raise RuntimeError("release unlocked lock")
        self.holder, self.frame = 0, None
        if turn == NULL:
            self.is_held = False
            return 0
        self.first = turn.following  # the lock stays held, for the thread that gets it
        if self.first == NULL:
            self.last = NULL
        turn.is_its = True
        PyThread_release_lock(turn.come)
        return 0

    @property
    def waiting(self):
        """Number of threads in the queue."""
        cdef Turn* at = self.first
        cdef Py_ssize_t count = 0
        while at != NULL:
            count += 1
            at = at.following
        return count

    def acquire(self, bint blocking=True, double timeout=-1):
        check_patience(blocking, timeout)
        if self.take():
            return True
        if not blocking:
            return bool(self.take_over(False))
        return bool(self.wait(-1, True) if timeout == -1 else self.wait(<int64_t>(timeout * 1e6), False))

    def hold(self, double seconds):
        if not self.take() and not self.wait(<int64_t>(seconds * 1e6), True):
            return False
        self.frame = frame_of_caller()
        return True

    def check_caller(self):
        if self.is_held and self.take_over(True):
            self.drop()

    def release(self):
        self.drop()

    def locked(self):
        return bool(self.is_held)

    def __enter__(self):
        if not self.take():
            self.wait(-1, True)
        self.frame = frame_of_caller()
        return True

    def __exit__(self, kind, error, trace):
        self.drop()
