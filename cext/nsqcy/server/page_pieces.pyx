"""Pieces of a page in a shared buffer: merging the pieces of several workers, and reading them.

A plan lists the pieces in the order of the page: u64 offset in the buffer, u64 length. An index
lists adjacent pieces of one worker, in the order of their names: u32 length of the piece, u16
length of the name, and the name.
"""

cdef enum:
    INDEX_HEADER = 6


ctypedef struct PlannedPiece:
    uint64_t offset
    uint64_t length


# The next piece of a worker.
ctypedef struct IndexPlace:
    const char *at              # in the index
    const char *end
    uint64_t offset             # in the buffer
    uint32_t length
    uint16_t name_length


cdef void load_entry(IndexPlace *place) noexcept:
    if place.at < place.end:
        memcpy(&place.length, place.at, 4)
        memcpy(&place.name_length, place.at + 4, 2)


cdef bint precedes(const IndexPlace *one, const IndexPlace *other) noexcept:
    cdef size_t common = min(one.name_length, other.name_length)
    cdef int order = memcmp(one.at + INDEX_HEADER, other.at + INDEX_HEADER, common)
    return order < 0 or (order == 0 and one.name_length < other.name_length)


@cython.final
cdef class PieceMerge:
    """One merge in progress. Call `go_on` until it returns False."""

    cdef list indexes           # keeps the memory that the places point to
    cdef IndexPlace *places
    cdef Py_ssize_t count
    cdef Text plan

    def __cinit__(self, list indexes not None, list offsets not None):
        """offsets: for each index, the position of its first piece in the buffer"""
        cdef Py_ssize_t i
        cdef bytes index
        self.indexes = indexes
        self.count = len(indexes)
        self.places = <IndexPlace *>calloc(max(1, self.count), sizeof(IndexPlace))
        if self.places == NULL:
            raise MemoryError()
        for i in range(self.count):
            index = indexes[i]
            self.places[i].at = PyBytes_AS_STRING(index)
            self.places[i].end = self.places[i].at + len(index)
            self.places[i].offset = offsets[i]
            load_entry(&self.places[i])

    def __dealloc__(self):
        free(self.places)
        free(self.plan.data)

    def go_on(self, int maximum):
        """Merge up to `maximum` more pieces; return whether there may be more."""
        cdef IndexPlace *first
        cdef IndexPlace *place
        cdef Py_ssize_t i
        while maximum > 0:
            first = NULL
            for i in range(self.count):
                place = &self.places[i]
                if place.at < place.end and (first == NULL or precedes(place, first)):
                    first = place
            if first == NULL:
                return False
            self.add(first.offset, first.length)
            first.offset += first.length
            first.at += INDEX_HEADER + first.name_length
            load_entry(first)
            maximum -= 1
        return True

    cdef int add(self, uint64_t offset, uint64_t length) except -1:
        """Add a piece, together with the previous one if they are adjacent."""
        cdef PlannedPiece *piece
        if self.plan.used:
            piece = <PlannedPiece *>(self.plan.data + self.plan.used) - 1
            if piece.offset + piece.length == offset:
                piece.length += length
                return 0
        piece = <PlannedPiece *>room_for(&self.plan, sizeof(PlannedPiece))
        piece.offset = offset
        piece.length = length
        self.plan.used += sizeof(PlannedPiece)
        return 0

    def result(self, uint64_t cut):
        """Return the plan, without the last `cut` bytes of the last piece."""
        if self.plan.used:
            (<PlannedPiece *>(self.plan.data + self.plan.used) - 1).length -= cut
        return PyBytes_FromStringAndSize(self.plan.data, self.plan.used)


@cython.final
cdef class PageReader:
    """Reads a page. Call `go_on` until it returns False."""

    cdef int fd
    cdef bytes plan
    cdef Py_ssize_t next_piece
    cdef PlannedPiece piece     # the rest of the current piece
    cdef Py_buffer page
    cdef size_t used            # bytes of the page

    def __cinit__(self, int fd, bytes plan not None, page not None):
        """page: writable memory of the page's size"""
        self.fd = fd
        self.plan = plan
        PyObject_GetBuffer(page, &self.page, PyBUF_WRITABLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.page)

    def go_on(self, size_t size):
        """Read up to `size` more bytes; return whether there may be more."""
        cdef const PlannedPiece *pieces = <const PlannedPiece *>PyBytes_AS_STRING(self.plan)
        cdef Py_ssize_t count = len(self.plan) // <Py_ssize_t>sizeof(PlannedPiece)
        cdef ssize_t got
        cdef size_t n
        while size:
            if self.piece.length == 0:
                if self.next_piece == count:
                    return False
                self.piece = pieces[self.next_piece]
                self.next_piece += 1
                continue
            n = min(size, self.piece.length)
            if n > <size_t>self.page.len - self.used:
                raise ValueError("the page is longer than its memory")
            got = pread(self.fd, <char *>self.page.buf + self.used, n, self.piece.offset)
            if got <= 0:
                raise OSError(errno if got else 0, "cannot read the page")
            self.piece.offset += got
            self.piece.length -= got
            self.used += got
            size -= got
        return True
