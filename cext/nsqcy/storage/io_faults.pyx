# distutils: sources = cext/src/iofaults.c
# distutils: depends = cext/include/iofaults.h cext/include/iocalls.h
"""I/O threads that fail, park and record their file calls on request. Only tests import this.

Owns the table of faulty calls (iofaults.h), which replaces the real table before the first
operation.
"""

import os

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from nsqcy.storage.core cimport IoCalls, IoThread

cdef extern from "iofaults.h" nogil:
    const char *io_call_names[18]
    int CALL_KINDS

    struct IoMade:
        IoMade *next
        int call
        int fd
        int flags
        int error
        int64_t offset
        size_t n
        char *path
        char *to
        uint8_t *data

    struct IoFaults:
        IoCalls calls
        int recording
        int record_failed
        IoMade *first

    void faults_init(IoFaults *f, IoCalls *real)
    int faults_add(IoFaults *f, int call, uint64_t nth, int error, uint64_t times, int64_t limit)
    void faults_clear(IoFaults *f)
    uint64_t faults_made(IoFaults *f, int call)
    uint64_t faults_bytes_read(IoFaults *f)
    void faults_hold(IoFaults *f, int call, uint64_t nth)
    int faults_wait_parked(IoFaults *f, int seconds)
    void faults_release(IoFaults *f)
    void faults_forget_record(IoFaults *f)


cdef int call_number(str name) except -1:
    cdef int i
    for i in range(CALL_KINDS):
        if io_call_names[i].decode() == name:
            return i
    raise ValueError(f"unknown call {name!r}")


cdef class FaultyIoThread(IoThread):
    """An IoThread with faults; there are no faults until fault() is called."""

    cdef IoFaults *faults

    def __cinit__(self, **options):
        """options: as for IoThread; read_only cannot be combined with faults."""
        if self.read_only:
            raise ValueError("only a thread that may write can have faults")
        self.faults = <IoFaults *>calloc(1, sizeof(IoFaults))
        if self.faults is NULL:
            raise MemoryError
        faults_init(self.faults, self.calls)
        # The threads read the table only when they run an operation, so it can still be replaced.
        self.calls = self.engine.calls = &self.faults.calls

    def __dealloc__(self):
        if self.faults is NULL:
            return
        faults_release(self.faults)
        self._stop()
        faults_forget_record(self.faults)
        free(self.faults)

    def fault(self, str call, Py_ssize_t nth=1, int error=0, uint64_t times=1,
              Py_ssize_t short=-1):
        """Fail the nth `call` from now ("any": of any kind), and `times` calls in a row.

        `error` is an errno; `short` limits the bytes that a pwrite or pread transfers.
        """
        if nth < 1:
            raise ValueError("nth counts from 1")
        if faults_add(self.faults, call_number(call), nth, error, times, short) < 0:
            raise ValueError("too many faults")

    def clear_faults(self):
        """Remove all faults."""
        faults_clear(self.faults)

    def calls_made(self, str call="any"):
        """Return the number of calls of a kind."""
        return faults_made(self.faults, call_number(call))

    def bytes_read(self):
        """Return the number of bytes read."""
        return faults_bytes_read(self.faults)

    def hold(self, str call, Py_ssize_t nth=1):
        """Park a thread before the nth `call` from now, until release()."""
        faults_hold(self.faults, call_number(call), nth)

    def wait_parked(self, int seconds=30):
        """Submit the queued operations and block until a thread is parked."""
        cdef int parked
        self.kick()
        with nogil:
            parked = faults_wait_parked(self.faults, seconds)
        if not parked:
            raise TimeoutError("no thread reached the held call")

    def release(self):
        """Resume a parked thread."""
        faults_release(self.faults)

    def record(self):
        """Record changes to the disk from now on, and skip real syncs."""
        self.faults.recording = 1

    def recorded(self):
        """Return the calls that may change data, since record() or the previous call to this
        method: (name, fd, path, to, data, offset, flags, error). The offset of an ftruncate is the
        new size."""
        cdef IoMade *made
        if self.engine.outstanding and not self.engine.stepped:
            raise ValueError("the threads are busy")
        if self.faults.record_failed:
            raise MemoryError
        calls = []
        made = self.faults.first
        while made is not NULL:
            calls.append((
                io_call_names[made.call].decode(), made.fd,
                None if made.path is NULL else os.fsdecode(made.path),
                None if made.to is NULL else os.fsdecode(made.to),
                <bytes>made.data[:made.n], made.offset, made.flags, made.error))
            made = made.next
        faults_forget_record(self.faults)
        return calls
