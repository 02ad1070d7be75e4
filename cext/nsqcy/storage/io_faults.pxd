# I/O threads whose file operations fail on request: for tests. See iofaults.h.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from nsqcy.storage.io cimport IoCalls, IoThread


cdef extern from "iofaults.h" nogil:
    const char *io_call_names[15]
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


cdef class FaultyIoThread(IoThread):
    cdef IoFaults *faults
