# File operations that are also performed on other machines: see mirrored_io.pyx.
from libc.stdint cimport uint64_t

from nsqcy.storage.io cimport FileCalls, IoThread, io_done


# The completion of an operation, until it may be reported.
cdef struct Relay:
    void *mirrored
    io_done done
    void *arg
    int error
    uint64_t position
    bint may_fail
    Relay *next


cdef class MirroredIo(FileCalls):
    cdef readonly IoThread io
    cdef object _mirror
    cdef bytes _root
    cdef dict _paths               # path below the root, by the File's address
    cdef readonly uint64_t position
    cdef uint64_t _committed
    cdef readonly bint waits
    cdef readonly bint stopped
    cdef readonly int error
    cdef readonly uint64_t pending
    cdef Relay *_first             # performed here, but not yet reported
    cdef Relay *_last
    cdef bint _is_reporting

    cdef str _below(self, const char *path)
    cdef int _refuse(self, Relay *relay) except -1
    cdef Relay *_relay(self, io_done done, void *arg) except NULL
    cdef int _made(self, Relay *relay, int error) except -1
    cdef int _report(self) except -1
