"""The range of addresses that holds a worker's blocks and entries: a memfd, or anonymous memory.

Owns the mapping, and decides which addresses a piece gets and when its pages go back to the kernel
(cext/src/memrange.c). Independent of the contents: the block pool divides pieces into blocks and
cells.
"""


cdef class MemoryRange:
    """Addresses for one block pool; open() reserves them."""

    def __cinit__(self, uint64_t size=0, *, bint memfd=False):
        """size: bytes, a multiple of 2 MiB; 0: more than the machine can ever use.

        memfd: the memory is a sealed memfd, which another process can map; otherwise, it is
        anonymous memory.
        """
        self.range.calls = &range_calls_real
        self.range.fd = -1
        self.memfd = memfd
        self._wanted = size

    def __dealloc__(self):
        range_close(&self.range)

    def open(self):
        """Reserve the addresses, unless this is done already. Raises OSError."""
        cdef int error
        if self.range.base == NULL and range_open(&self.range, self._wanted, self.memfd) < 0:
            error = errno
            raise OSError(error, f"cannot reserve addresses for messages: {os.strerror(error)}")

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
        """Return the bytes of the range, of its pieces and of its pages, and how chunks were
        filled."""
        return {
            "size": self.range.size,
            "used": self.range.used_units * RANGE_UNIT,
            "backed": self.range.backed_units * RANGE_UNIT,
            "idle": self.range.idle_units * RANGE_UNIT,
            "collapsed": self.range.collapsed,
            "populated": self.range.populated,
            "kept": self.range.kept,
        }

    cdef uint8_t *take(self, uint64_t size, int kind, bint huge) noexcept:
        return range_take(&self.range, size, kind, huge)

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
