"""Read-ahead: records in a channel's queue that are read one by one, because their blocks are not
in memory.

Owns the copies, and decides which records are worth reading one by one: a block is loaded if a
large part of it is needed. Independent of channels and consumers. Skips damaged and unreadable
records: their reader loads the block, which reports the error.
"""

# Records that a channel needs next, read one by one if their blocks are not in memory.
#
#   queue    ┌───┐ ┌───┐ ┌───┐ ┌───┐ ┌───┐
#            │ a │►│ b │►│ c │►│ d │►│ e │►
#            └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘ └─┬─┘
#              │   in memory │     │     └──┐
#   disk     ──▼─────────────▼─────▼────────▼──     in order of location
#   prefetch     a             c     d        e
#
# Due messages may be anywhere on disk: reading a whole block for each message would read a thousand
# times more bytes than needed.


cdef enum:
    UNKNOWN_SIZE = 1024             # bytes read for a record of unknown size
    ROOM_FOR_HEADERS = 256          # bytes reserved per record, which may be larger than expected
    WORTH_A_LOAD = 8                # load a block of at most this multiple of the bytes needed
    FEW_LOADS = 4                   # maximum blocks that are loaded for later records


cdef int by_place(const void *a, const void *b) noexcept nogil:
    cdef const IoPick *one = <const IoPick *>a
    cdef const IoPick *other = <const IoPick *>b
    cdef uint64_t segment = (<const Segment *>one.segment).number
    cdef uint64_t other_segment = (<const Segment *>other.segment).number
    if segment != other_segment:
        return -1 if segment < other_segment else 1
    return (one.offset > other.offset) - (one.offset < other.offset)


cdef int by_seq(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<const IoPick *>a).seq
    cdef uint64_t other = (<const IoPick *>b).seq
    return (one > other) - (one < other)


cdef int excerpt_read(void *arg, int error) except -1:
    cdef ReadAhead prefetch = <ReadAhead>arg
    Py_DECREF(prefetch)
    return prefetch.on_read()


@cython.final
@cython.no_gc_clear      # __dealloc__ needs the window
cdef class ReadAhead:
    def __cinit__(self, RecordWindow window not None, uint64_t first_seq):
        self.window = window
        self.first_seq = first_seq

    def __dealloc__(self):
        if self.block != NULL:
            self.window.unref(self.block)
        free(self.picks)

    cdef bint add(self, const Entry *entry) except -1:
        cdef Block *block = entry.block
        cdef Extent *extent = &block.extent
        cdef uint32_t offset = entry.offset
        cdef uint64_t size = UNKNOWN_SIZE
        cdef IoPick *pick
        cdef void *grown
        if block.data != NULL:
            return True
        if entry.node.tag >> 1:
            size = record_size(entry.node.tag >> 1, RECORD_EXT_DELAY_SIZE)
        if self.count and self.bytes + size + ROOM_FOR_HEADERS > LARGEST_BLOCK:
            return False
        if self.count == self.room:
            grown = realloc(self.picks, (2 * self.room + 16) * sizeof(IoPick))
            if grown == NULL:
                raise MemoryError()
            self.picks = <IoPick *>grown
            self.room = 2 * self.room + 16
        while offset >= extent.bytes:
            offset -= extent.bytes
            extent = extent.next
        pick = &self.picks[self.count]
        self.count += 1
        pick.block = block
        pick.segment = extent.segment
        pick.seq = entry.seq
        pick.offset = extent.offset + offset
        pick.maximum = extent.bytes - offset
        pick.guess = <uint32_t>min(size, <uint64_t>pick.maximum)
        self.bytes += pick.guess + ROOM_FOR_HEADERS
        return True

    cdef bint read(self) except -1:
        cdef RecordWindow window = self.window
        cdef uint32_t i
        qsort(self.picks, self.count, sizeof(IoPick), by_place)
        self.load_whole()
        if self.count == 0:
            return False
        window.pool.keep_budget()
        self.block = window.pool.new_block(<uint32_t>min(<uint64_t>LARGEST_BLOCK, self.bytes))
        # The block forms its own ring: it is not a straggler, but is dropped from memory like one.
        self.block.prev = self.block.next = self.block
        window.ref(self.block)
        self.picked.memory = self.block.data
        self.picked.size = self.block.capacity
        window.log.pick(self.picks, self.count, &self.picked, excerpt_read, <void *>self)
        Py_INCREF(self)
        for i in range(self.count):
            window.pin(<Block *>self.picks[i].block)
        self.reading = True
        return True

    cdef int load_whole(self) except -1:
        """While there is space, load the blocks that are mostly needed, and a few more with each
        prefetch. Read the other blocks record by record."""
        cdef BlockPool pool = self.window.pool
        cdef uint32_t begin = 0
        cdef uint32_t end = 0
        cdef uint32_t kept = 0
        cdef uint32_t few = FEW_LOADS
        cdef uint64_t needed
        cdef Block *block
        while begin < self.count:
            block = <Block *>self.picks[begin].block
            needed = 0
            while end < self.count and self.picks[end].block == block:
                needed += self.picks[end].guess
                end += 1
            if pool.resident_bytes + block.size <= pool.budget \
                    and (few or needed * WORTH_A_LOAD >= block.size):
                self.window.load(block)
                few -= few > 0
                begin = end
            while begin < end:
                self.picks[kept] = self.picks[begin]
                kept += 1
                begin += 1
        self.count = kept
        return 0

    cdef int on_read(self) except -1:
        cdef uint32_t i
        self.reading = False
        for i in range(self.count):
            self.window.unpin(<Block *>self.picks[i].block)
        qsort(self.picks, self.count, sizeof(IoPick), by_seq)
        return self.window.on_loaded(self.block)

    cdef Record *find(self, uint64_t seq) noexcept:
        cdef uint32_t low = 0
        cdef uint32_t high = self.count
        cdef uint32_t middle
        if self.reading:
            return NULL
        while low < high:
            middle = (low + high) // 2
            if self.picks[middle].seq < seq:
                low = middle + 1
            else:
                high = middle
        if low == self.count or self.picks[low].seq != seq or self.picks[low].at >= NOT_SOUND:
            return NULL
        return <Record *>(self.block.data + self.picks[low].at)
