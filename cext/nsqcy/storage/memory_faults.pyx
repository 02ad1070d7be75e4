"""A MemoryRange whose system calls fail on request, and which tests can use without a block pool.
Only tests import this.
"""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from nsqcy.storage.core cimport (
    CHUNK_UNITS, RANGE_UNIT, UNIT_LARGE, UNIT_MORE, MemoryRange, RangeCalls, RangePiece,
)

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    #ifndef MADV_COLLAPSE
    #define MADV_COLLAPSE 25
    #endif
    static void set_errno(int error) { errno = error; }
    """
    void set_errno(int error) nogil
    const int MADV_COLLAPSE
    const int MADV_DONTDUMP
    const int MADV_DONTNEED
    const int MADV_HUGEPAGE
    const int MADV_NOHUGEPAGE
    const int MADV_POPULATE_WRITE
    const int MADV_REMOVE
    void *MAP_FAILED

cdef enum:
    CALL_NAMES = 15

_NAMES = (
    "create", "resize", "seal", "close", "map", "unmap", "protect", "punch",
    "collapse", "dontdump", "dontneed", "hugepage", "populate", "remove",
    "seek",
)


cdef enum MemoryCall:
    CALL_CREATE
    CALL_RESIZE
    CALL_SEAL
    CALL_CLOSE
    CALL_MAP
    CALL_UNMAP
    CALL_PROTECT
    CALL_PUNCH
    CALL_COLLAPSE
    CALL_DONTDUMP
    CALL_DONTNEED
    CALL_HUGEPAGE
    CALL_POPULATE
    CALL_REMOVE
    CALL_SEEK


cdef struct Faults:
    RangeCalls calls                # must be first: a pointer to it is a pointer to the faults
    RangeCalls *real
    int64_t nth[CALL_NAMES]         # calls until the fault occurs; 0: no fault
    int64_t times[CALL_NAMES]       # consecutive calls that fail from then on
    int error[CALL_NAMES]
    int64_t made[CALL_NAMES]
    int dry                         # advice does nothing, and succeeds
    size_t shift                    # bytes by which mappings miss the start of a chunk


cdef int strike(RangeCalls *calls, int call) noexcept nogil:
    """Count the call; set errno and return -1 if it has to fail."""
    cdef Faults *faults = <Faults *>calls
    faults.made[call] += 1
    if faults.nth[call] == 0:
        return 0
    if faults.nth[call] > 1:
        faults.nth[call] -= 1
        return 0
    faults.times[call] -= 1
    if faults.times[call] == 0:
        faults.nth[call] = 0
    set_errno(faults.error[call])
    return -1


cdef RangeCalls *real_of(RangeCalls *calls) noexcept nogil:
    return (<Faults *>calls).real


cdef int fault_create(RangeCalls *calls, const char *name, unsigned flags) noexcept nogil:
    if strike(calls, CALL_CREATE) < 0:
        return -1
    return real_of(calls).create(real_of(calls), name, flags)


cdef int fault_resize(RangeCalls *calls, int fd, int64_t size) noexcept nogil:
    if strike(calls, CALL_RESIZE) < 0:
        return -1
    return real_of(calls).resize(real_of(calls), fd, size)


cdef int fault_seal(RangeCalls *calls, int fd, int seals) noexcept nogil:
    if strike(calls, CALL_SEAL) < 0:
        return -1
    return real_of(calls).seal(real_of(calls), fd, seals)


cdef int fault_close(RangeCalls *calls, int fd) noexcept nogil:
    strike(calls, CALL_CLOSE)
    return real_of(calls).close(real_of(calls), fd)


cdef void *fault_map(RangeCalls *calls, void *at, size_t n, int protection, int flags,
                     int fd) noexcept nogil:
    cdef size_t shift = (<Faults *>calls).shift
    cdef uint8_t *found
    if strike(calls, CALL_MAP) < 0:
        return MAP_FAILED
    if shift == 0 or at != NULL:
        return real_of(calls).map(real_of(calls), at, n, protection, flags, fd)
    found = <uint8_t *>real_of(calls).map(
        real_of(calls), at, n + RANGE_UNIT * CHUNK_UNITS, protection, flags, fd)
    if found == <uint8_t *>MAP_FAILED:
        return MAP_FAILED
    # The rest stays mapped: the test process has enough addresses.
    return found + shift


cdef int fault_unmap(RangeCalls *calls, void *at, size_t n) noexcept nogil:
    strike(calls, CALL_UNMAP)
    return real_of(calls).unmap(real_of(calls), at, n)


cdef int fault_protect(RangeCalls *calls, void *at, size_t n, int protection) noexcept nogil:
    if strike(calls, CALL_PROTECT) < 0:
        return -1
    return real_of(calls).protect(real_of(calls), at, n, protection)


cdef int fault_advise(RangeCalls *calls, void *at, size_t n, int advice) noexcept nogil:
    cdef int call
    if advice == MADV_COLLAPSE:
        call = CALL_COLLAPSE
    elif advice == MADV_DONTDUMP:
        call = CALL_DONTDUMP
    elif advice == MADV_DONTNEED:
        call = CALL_DONTNEED
    elif advice == MADV_POPULATE_WRITE:
        call = CALL_POPULATE
    elif advice == MADV_REMOVE:
        call = CALL_REMOVE
    else:
        call = CALL_HUGEPAGE
    if strike(calls, call) < 0:
        return -1
    if (<Faults *>calls).dry:
        return 0
    return real_of(calls).advise(real_of(calls), at, n, advice)


cdef int fault_punch(RangeCalls *calls, int fd, int64_t offset, int64_t n) noexcept nogil:
    if strike(calls, CALL_PUNCH) < 0:
        return -1
    return real_of(calls).punch(real_of(calls), fd, offset, n)


cdef int64_t fault_seek(RangeCalls *calls, int fd, int64_t offset, int whence) noexcept nogil:
    if strike(calls, CALL_SEEK) < 0:
        return -1
    return real_of(calls).seek(real_of(calls), fd, offset, whence)


cdef class FaultyMemoryRange(MemoryRange):
    """A MemoryRange with faults; there are no faults until fault() is called.

    Tests name a piece by its offset in the range.
    """

    cdef Faults faults

    def __cinit__(self, *args, **options):
        """Same arguments as MemoryRange."""
        memset(&self.faults, 0, sizeof(self.faults))
        self.faults.real = self.range.calls
        self.faults.calls.create = fault_create
        self.faults.calls.resize = fault_resize
        self.faults.calls.seal = fault_seal
        self.faults.calls.close = fault_close
        self.faults.calls.map = fault_map
        self.faults.calls.unmap = fault_unmap
        self.faults.calls.protect = fault_protect
        self.faults.calls.advise = fault_advise
        self.faults.calls.punch = fault_punch
        self.faults.calls.seek = fault_seek
        self.range.calls = &self.faults.calls

    def fault(self, str call, int error, int64_t nth=1, int64_t times=1):
        """Fail the nth `call` from now, and `times` calls in a row, with an errno.

        close and unmap are only counted, because their callers cannot handle an error.
        """
        cdef int number = _NAMES.index(call)
        if nth < 1 or times < 1:
            raise ValueError("nth and times count from 1")
        self.faults.nth[number] = nth
        self.faults.times[number] = times
        self.faults.error[number] = error

    def skip_advice(self):
        """Skip all calls of madvise from now on, so that many allocations are quick."""
        self.faults.dry = 1

    def shift_mappings(self, size_t shift):
        """Add bytes to the address of each mapping: old kernels do not align them to chunks."""
        self.faults.shift = shift

    def clear_faults(self):
        """Remove all faults."""
        memset(self.faults.nth, 0, sizeof(self.faults.nth))

    def calls_made(self, str call):
        """Return the number of calls of a kind."""
        return self.faults.made[<int>_NAMES.index(call)]

    def take_now(self, uint32_t units, int kind=UNIT_LARGE, bint huge=False, uint32_t spare=0):
        """Take a piece whose last `spare` bytes are not needed; return its offset. Raises OSError
        if there is no memory."""
        cdef uint8_t *piece = self.take(<uint64_t>units * RANGE_UNIT - spare, kind, huge)
        if piece == NULL:
            raise OSError(errno, "no piece")
        return piece - self.range.base

    cdef uint8_t *at(self, int64_t offset, size_t n) except NULL:
        """Return the address of bytes of a piece, or of any bytes of a memfd."""
        cdef RangePiece piece
        cdef uint64_t start = 0
        if self.range.base == NULL or offset < 0 or n > self.range.size \
                or <uint64_t>offset > self.range.size - n:
            raise ValueError("beyond the range")
        while not self.memfd:
            if not self.next_piece(start, &piece) or piece.offset > <uint64_t>offset:
                raise ValueError("not in a piece")
            start = piece.offset + piece.units * <uint64_t>RANGE_UNIT
            if <uint64_t>offset + n <= start:
                break
        return self.range.base + offset

    def release_now(self, int64_t offset, uint32_t units, bint keep=False):
        """Release a piece."""
        cdef RangePiece piece
        if offset <= 0 or not self.next_piece(<uint64_t>offset, &piece) \
                or piece.offset != <uint64_t>offset or piece.units != units \
                or piece.kind == UNIT_MORE:
            raise ValueError("not a piece")
        self.release(self.range.base + offset, units, keep)

    def purge_now(self, int64_t now, int64_t before):
        """Give back pages that have been idle since `before`."""
        self.purge(now, before)

    def thin_now(self, int64_t offset, size_t n):
        """Give back the pages of part of a piece; return 0, or -1 on failure."""
        cdef int64_t chunk = RANGE_UNIT * CHUNK_UNITS
        cdef uint8_t *part = self.at(offset, n)
        self.split_huge(self.range.base + offset // chunk * chunk)
        return self.thin(part, n)

    def refill_now(self, int64_t offset, size_t n):
        """Prepare a thinned part for writes; return 1 or 0, or -1 on failure (memrange.h)."""
        return self.refill(self.at(offset, n), n)

    def bytes_at(self, int64_t offset, size_t n):
        """Return bytes of the range."""
        return self.at(offset, n)[:n]

    def write(self, int64_t offset, bytes data):
        """Change bytes of the range."""
        memcpy(self.at(offset, len(data)), <const uint8_t *>data, len(data))
