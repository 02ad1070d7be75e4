"""The range of addresses that holds a worker's blocks and entries: a memfd, or anonymous memory.

Owns the mapping, and decides which addresses a piece gets and when its pages go back to the kernel
(cext/src/memrange.c). Independent of the contents: the block pool divides pieces into blocks and
cells.
"""


def create_memory(uint64_t size=0):
    """Create a sealed sparse memfd for a MemoryRange of any process; return its descriptor.

    size: bytes, a multiple of 2 MiB; 0: more than the machine can ever use. Raises OSError.
    """
    cdef int fd = range_create(&range_calls_real, size)
    if fd < 0:
        raise memory_error(errno)
    return fd


cdef object memory_error(int error):
    return OSError(error, f"cannot reserve addresses for messages: {os.strerror(error)}")


cdef class MemoryRange:
    """Addresses for one block pool; open() reserves them."""

    def __cinit__(self, uint64_t size=0, *, bint memfd=False, int fd=-1):
        """size: bytes, a multiple of 2 MiB; 0: more than the machine can ever use.

        memfd: the memory is a sealed memfd, which another process can map; otherwise, it is
        anonymous memory.

        fd: a descriptor from create_memory, which belongs to the range as soon as it is open. If a
        process has used the memfd before, it must be dead. Its pieces are adopted: they are in use
        until they are released.
        """
        self.range.calls = &range_calls_real
        self.range.fd = -1
        self.memfd = memfd or fd >= 0
        self._wanted = size
        self._fd = fd

    def __dealloc__(self):
        if self.range.calls != NULL:        # otherwise, the arguments were wrong
            range_close(&self.range)

    def open(self):
        """Reserve the addresses, unless this is done already. Raises OSError."""
        cdef int fd = self._fd
        cdef int error
        if self.range.base != NULL:
            return
        if self.memfd and fd < 0:
            fd = range_create(self.range.calls, self._wanted)
            if fd < 0:
                raise memory_error(errno)
        if range_open(&self.range, self._wanted, fd) < 0:
            error = errno
            if fd != self._fd:
                self.range.calls.close(self.range.calls, fd)
            raise memory_error(error)

    def pieces(self):
        """Yield the kind (enum UnitKind), offset and number of units of each piece, in the order of
        offsets. The first one is the table."""
        cdef RangePiece piece
        cdef uint64_t offset = 0
        while self.next_piece(offset, &piece):
            yield piece.kind, piece.offset, piece.units
            offset = piece.offset + piece.units * RANGE_UNIT

    def fileno(self):
        """Return the descriptor of the memfd, or -1."""
        return self.range.fd

    @property
    def tight(self):
        """Whether memory is short: then pieces of a memfd get only huge pages, or are refused."""
        return self.range.tight != 0

    @tight.setter
    def tight(self, bint value):
        self.range.tight = value

    def usage(self):
        """Return the bytes of the range, of its pieces and of its pages, how chunks were filled,
        and the number of damaged entries that were found in the table."""
        return {
            "size": self.range.size,
            "used": self.range.used_units * RANGE_UNIT,
            "backed": self.range.backed_units * RANGE_UNIT,
            "idle": self.range.idle_units * RANGE_UNIT,
            "collapsed": self.range.collapsed,
            "populated": self.range.populated,
            "kept": self.range.kept,
            "damaged": self.range.damaged,
        }

    cdef bint next_piece(self, uint64_t offset, RangePiece *piece) noexcept:
        return range_next(&self.range, offset, piece)

    cdef uint8_t *take(self, uint64_t size, int kind, bint huge) noexcept:
        return range_take(&self.range, size, kind, huge)

    cdef void set_kind(self, void *piece, int kind) noexcept:
        """Change what the table states about a piece of one unit."""
        keep_store_order()
        self.range.base[(<uint8_t *>piece - self.range.base) // RANGE_UNIT] = <uint8_t>kind

    cdef void release(self, void *piece, uint32_t units, bint keep) noexcept:
        range_release(&self.range, piece, units, keep)

    cdef void split_huge(self, void *chunk) noexcept:
        range_split_huge(&self.range, chunk)

    cdef int thin(self, void *at, size_t n) noexcept:
        return range_thin(&self.range, at, n)

    cdef int refill(self, void *at, size_t n) noexcept:
        return range_refill(&self.range, at, n)

    cdef void purge(self, int64_t now, int64_t before) noexcept:
        range_purge(&self.range, now, before)
