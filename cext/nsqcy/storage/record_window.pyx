"""The record window: the blocks of one topic that a cursor still needs, in order.

Owns the lifecycle of a block: in the window, straggling behind it, released. Reads blocks back from
the log. Independent of topics, channels, connections and the clock. Does no file I/O itself.

Rules of ownership:
1. The window keeps the blocks in it; entries keep the blocks outside it that they refer to
   (`refs`).
2. While `pins` is not zero (writes, read-backs and sends in progress), neither the block nor its
   bytes are freed.
3. Otherwise, the bytes of a block whose records are all on disk may be dropped at any time (see
   block_pool). A reader that finds `data == NULL` calls `load`, and retries after `on_loaded`.
"""

# The record window of a topic: its blocks in order, and the cursors over them.
#
#   window of a topic (blocks in order of their sequence numbers)
#
#      oldest                                                newest
#     ┌────────┐   ┌────────┐   ┌────────┐   ┌────────┐   ┌────────┐
#     │ sealed │──►│ sealed │──►│ sealed │──►│ sealed │──►│  open  │
#     └────────┘   └────────┘   └────────┘   └────────┘   └────────┘
#          ▲ a cursor                ▲ another               ▲ fan-out position
#
# A block leaves the window when no cursor is in it or before it. It remains as a straggler while
# entries (delivered, unfinished messages) refer to its records.


cdef enum:
    HUGE_RECORDS = 196608           # a larger record gets a separate block


cdef struct Read:
    void *window
    Block *block


cdef int read_done(void *arg, int error) except -1:
    cdef Read *read = <Read *>arg
    cdef RecordWindow window = <RecordWindow>read.window
    cdef Block *block = read.block
    free(read)
    if error:
        window.pool.take_memory(block)
    keep_store_order()
    block.flags &= ~LOADING
    if not error:
        window.pool.keep_longer(block)
        window.reseat(block)
    try:
        if error:
            window.read_failed()
        window.on_loaded(block)
    finally:
        window.unpin(block)         # may free the block
        Py_DECREF(window)
    return 0


@cython.no_gc_clear      # outputs with the window's last blocks may be freed after the window
cdef class RecordWindow:
    def __cinit__(self):
        self.next_seq = 1
        self.visible.seq = 1
        self.fanout.seq = 1
        self.kept.seq = 1
        self.outdated.seq = 1
        self.unjournaled.seq = 1
        self.next_capacity = MIN_BLOCK

    def __dealloc__(self):
        free(self.cursors)
        free(self.holes)
        free(self.index)

    # -- the secret --

    cdef const uint64_t *key_secret(self) except NULL:
        if not self.has_secret:
            fresh = os.urandom(16)
            memcpy(self.secret, <const char *>fresh, 16)
            self.has_secret = self.note_due = True
        return self.secret

    # -- appending --

    cdef Block *open_block(self, uint64_t size) except NULL:
        cdef Block *block
        cdef uint32_t capacity = self.next_capacity
        if size > 0xfffffff0u:
            raise NsqError(f"a record of {size} bytes is larger than a block can be")
        if size > HUGE_RECORDS:
            capacity = <uint32_t>size
        else:
            while capacity < size:
                capacity <<= 1
            self.next_capacity = min(<uint32_t>LARGEST_BLOCK, capacity << 1)
        block = self.pool.new_block(capacity)
        block.first_seq = self.next_seq
        self.push_block(block)
        self.own(block)
        return block

    cdef void own(self, Block *block) noexcept:
        """State that the block, whose first_seq and flags are set, is the topic's."""
        keep_store_order()
        block.owner = self.number

    cdef void push_block(self, Block *block) noexcept:
        """Link a block after the newest one; cursors of an empty window move to its start."""
        cdef uint32_t i
        self.seal()
        block.flags |= IN_WINDOW
        block.prev = self.newest
        block.next = NULL
        if self.newest != NULL:
            block.position = self.newest.position + self.newest.size
            self.newest.next = block
            self.newest = block
            if self.index != NULL:
                self.index_newest()
            return
        self.oldest = self.newest = block
        if self.index != NULL:
            self.index_newest()
        for i in range(self.cursor_count):
            if self.cursors[i].block == NULL:
                self.cursors[i].block = block
                self.cursors[i].offset = 0
                block.cursors += 1

    cdef void seal(self) noexcept:
        """Seal the open block, which then accepts no more records."""
        cdef Block *block = self.newest
        if block == NULL or block.flags & SEALED:
            return
        block.flags |= SEALED
        if block.size and block.stored == block.size:
            # The entire block is already on disk, so no later write will report its end.
            self.pool.droppable(block)

    # -- finding blocks --

    cdef Block *block_of(self, uint64_t seq) except? NULL:
        """Return the first block of the window that ends at record `seq` or later; NULL if there is
        none."""
        cdef size_t low
        cdef size_t high
        cdef size_t middle
        if self.index == NULL:
            self.make_index()
        low = self.index_first
        high = low + self.index_count
        while low < high:
            middle = (low + high) // 2
            if self.index[middle].last_seq < seq:
                low = middle + 1
            else:
                high = middle
        return NULL if low == self.index_first + self.index_count else self.index[low]

    cdef int make_index(self) except -1:
        cdef Block *block = self.oldest
        cdef size_t count = 0
        while block != NULL:
            count += 1
            block = block.next
        self.index = <Block **>malloc((count + 16) * sizeof(Block *))
        if self.index == NULL:
            raise MemoryError()
        self.index_room = count + 16
        self.index_first = 0
        self.index_count = 0
        block = self.oldest
        while block != NULL:
            self.index[self.index_count] = block
            self.index_count += 1
            block = block.next
        return 0

    cdef void index_newest(self) noexcept:
        cdef Block **grown
        if self.index_first + self.index_count == self.index_room:
            if self.index_first > self.index_room // 2:
                memmove(self.index, self.index + self.index_first,
                        self.index_count * sizeof(Block *))
                self.index_first = 0
            else:
                grown = <Block **>realloc(self.index, 2 * self.index_room * sizeof(Block *))
                if grown == NULL:
                    # The index is rebuilt at the next lookup.
                    self.drop_index()
                    return
                self.index = grown
                self.index_room *= 2
        self.index[self.index_first + self.index_count] = self.newest
        self.index_count += 1

    cdef void drop_index(self) noexcept:
        free(self.index)
        self.index = NULL
        self.index_first = self.index_count = self.index_room = 0

    # -- cursors --

    cdef int watch(self, Cursor *cursor) except -1:
        """Register a cursor; it stays at the end of the window until moved."""
        cdef Cursor **grown
        if self.cursor_count == self.cursor_room:
            grown = <Cursor **>realloc(
                self.cursors, (2 * self.cursor_room + 4) * sizeof(Cursor *))
            if grown == NULL:
                raise MemoryError()
            self.cursors = grown
            self.cursor_room = 2 * self.cursor_room + 4
        self.cursors[self.cursor_count] = cursor
        self.cursor_count += 1
        cursor.block = NULL
        self.cursor_to_end(cursor)
        self.others_from = min(self.others_from, cursor.seq)
        return 0

    cdef void unwatch(self, Cursor *cursor) noexcept:
        cdef uint32_t i
        for i in range(self.cursor_count):
            if self.cursors[i] == cursor:
                self.cursor_count -= 1
                self.cursors[i] = self.cursors[self.cursor_count]
                if self.last == cursor:
                    self.last = NULL
                if cursor.block != NULL:
                    cursor.block.cursors -= 1
                    cursor.block = NULL
                self.trim()
                return

    cdef bint next_record(self, Cursor *cursor) noexcept:
        """Skip past block ends and gaps; return whether a record follows."""
        cdef Block *block = cursor.block
        cdef bint left = False
        if block == NULL:
            cursor.seq = self.next_seq
            return False
        while not at_record(cursor):
            if block.next == NULL:
                # Records lost in a crash may also be missing at the end.
                cursor.offset = block.size
                cursor.seq = self.next_seq
                break
            block.cursors -= 1
            left = left or block.cursors == 0
            block = block.next
            block.cursors += 1
            cursor.block = block
            cursor.offset = 0
            cursor.seq = max(cursor.seq, block.first_seq)
        if left:
            self.trim()
        return cursor.offset < block.size

    cdef int add_hole(self, uint64_t start, uint64_t end) except -1:
        """Add a hole: records start .. end - 1 are not delivered."""
        cdef Hole *grown
        self.note_due = True
        if self.hole_count and self.holes[self.hole_count - 1].end == start:
            self.holes[self.hole_count - 1].end = end
            return 0
        grown = <Hole *>realloc(self.holes, (self.hole_count + 1) * sizeof(Hole))
        if grown == NULL:
            raise MemoryError()
        self.holes = grown
        self.holes[self.hole_count].start = start
        self.holes[self.hole_count].end = end
        self.hole_count += 1
        return 0

    cdef void drop_holes(self, uint64_t minimum) noexcept:
        """Remove the holes that every cursor has passed."""
        cdef uint32_t kept = 0
        cdef uint32_t i
        for i in range(self.hole_count):
            if self.holes[i].end > minimum:
                self.holes[kept] = self.holes[i]
                kept += 1
        self.hole_count = kept

    cdef uint64_t bytes_from(self, const Cursor *cursor) noexcept:
        """Return the total size of the records from a cursor on, in memory or on disk, in bytes."""
        if cursor.block == NULL:
            return 0
        return (self.newest.position + self.newest.size
                - cursor.block.position - cursor.offset)

    cdef uint64_t min_seq(self) noexcept:
        """Return the sequence number of the reader that is furthest behind."""
        return self.last_reader().seq

    cdef const Cursor *last_reader(self) noexcept:
        """Return the cursor that is furthest behind, ignoring those for retention. Cursors usually
        move forward, so it remains the last one until it passes the position that the next one had
        when both were found."""
        if self.last == NULL or self.last.seq > self.others_from:
            self.find_last_reader()
        return self.last

    cdef void find_last_reader(self) noexcept:
        cdef const Cursor *cursor
        cdef uint32_t i
        self.searches += 1
        self.last = &self.visible
        self.others_from = <uint64_t>-1
        for i in range(self.cursor_count):
            cursor = self.cursors[i]
            if self.only_keeps(cursor) or cursor == &self.visible:
                continue
            if cursor.seq < self.last.seq:
                self.others_from = self.last.seq
                self.last = cursor
            elif cursor.seq < self.others_from:
                self.others_from = cursor.seq

    cdef bint only_keeps(self, const Cursor *cursor) noexcept:
        return cursor == &self.kept or cursor == &self.outdated or cursor == &self.unjournaled

    # -- lifecycle of blocks --

    cdef void pin(self, Block *block) noexcept:
        block.pins += 1

    cdef void unpin(self, Block *block) noexcept:
        block.pins -= 1
        if block.pins == 0 and block.refs == 0 and not block.flags & IN_WINDOW:
            self.forget_straggler(block)

    cdef void trim(self) noexcept:
        """Release the blocks that every cursor has passed."""
        cdef Block *block = self.oldest
        while block != NULL and block.cursors == 0 and block.flags & SEALED:
            self.oldest = block.next
            if self.oldest == NULL:
                self.newest = NULL
            else:
                self.oldest.prev = NULL
            if self.index != NULL:
                self.index_first += 1
                self.index_count -= 1
            self.leave_window(block)
            block = self.oldest

    cdef void leave_window(self, Block *block) noexcept:
        block.flags &= ~IN_WINDOW
        block.prev = block.next = NULL
        if block.refs == 0 and block.pins == 0:
            self.release(block)
            return
        self.add_straggler(block)

    cdef void add_straggler(self, Block *block) noexcept:
        block.next = self.stragglers
        if block.next != NULL:
            block.next.prev = block
        self.stragglers = block

    cdef void forget_straggler(self, Block *block) noexcept:
        if block.prev != NULL:
            block.prev.next = block.next
        else:
            self.stragglers = block.next
        if block.next != NULL:
            block.next.prev = block.prev
        self.release(block)

    cdef void release(self, Block *block) noexcept:
        """Release a block that is no longer needed, in memory or on disk."""
        if self.log is not None and block.extent.bytes:
            self.log.release(&block.extent)
        self.pool.free_block(block)

    cdef int load(self, Block *block) except -1:
        """Request the bytes of a block that is only on disk; on_loaded is called afterwards."""
        cdef Read *read
        if block.flags & LOADING or block.data != NULL or self.stalled:
            return 0
        self.pool.keep_budget()
        read = <Read *>malloc(sizeof(Read))
        if read == NULL:
            raise MemoryError()
        read.window = <void *>self
        read.block = block
        block.flags |= LOADING
        keep_store_order()
        try:
            self.pool.give_memory(block, block.size)
        except MemoryError:
            block.flags &= ~LOADING
            free(read)
            raise
        block.pins += 1
        Py_INCREF(self)
        self.log.read(&block.extent, block.data, read_done, read)
        return 0

    cdef void reseat(self, Block *block) noexcept:
        """Handle a block that was read: move the cursors in it to their records again. If lengths
        are damaged on disk, records may begin at different offsets."""
        cdef Cursor *cursor
        cdef uint32_t i
        for i in range(self.cursor_count):
            cursor = self.cursors[i]
            if cursor.block == block and cursor.offset:
                cursor.offset = offset_of(block, cursor.seq)

    cdef int on_loaded(self, Block *block) except -1:
        """Handle the end of a load, successful or not."""
        return 0

    cdef int read_failed(self) except -1:
        """Handle a read that failed: wait before the next attempt."""
        self.stalled = True
        return 0

    cdef void truncate(self, uint64_t seq) noexcept:
        """Discard the records from `seq` on: they were never visible, but cursors may be at the
        first of them."""
        cdef Block *block = self.newest
        cdef Record *record
        cdef Cursor *cursor
        cdef uint32_t at = 0
        cdef uint32_t count = 0
        while block != NULL and block.first_seq >= seq:
            self.newest = block.prev
            if self.newest == NULL:
                self.oldest = NULL
            else:
                self.newest.next = NULL
            for i in range(self.cursor_count):
                cursor = self.cursors[i]
                if cursor.block == block:
                    cursor.block = self.newest
                    if self.newest != NULL:
                        cursor.offset = self.newest.size
                        self.newest.cursors += 1
            if self.index != NULL:
                self.index_count -= 1
            self.leave_window(block)
            block = self.newest
        if block != NULL and block.last_seq >= seq:
            while at < block.size:
                record = <Record *>(block.data + at)
                if record.seq >= seq:
                    break
                at += record.length
                count += 1
            block.size = at
            block.count = count
            block.last_seq = seq - 1
            block.flags |= SEALED
        self.next_seq = seq

    cdef void rest(self) noexcept:
        """Free an open block that is not needed, after the topic has been idle for a while."""
        cdef Block *block = self.newest
        cdef uint32_t i
        if block == NULL or block != self.oldest or block.refs or block.pins:
            return
        for i in range(self.cursor_count):
            if self.cursors[i].seq != self.next_seq:
                return
        for i in range(self.cursor_count):
            self.cursors[i].block = NULL
        block.cursors = 0
        block.flags |= SEALED
        self.trim()
        self.next_capacity = MIN_BLOCK

    cdef void discard(self) noexcept:
        """Discard all blocks, because the topic is being deleted. Its entries are already freed."""
        cdef uint32_t i
        self.seal()
        for i in range(self.cursor_count):
            if self.cursors[i].block != NULL:
                self.cursors[i].block.cursors -= 1
                self.cursors[i].block = NULL
            self.cursors[i].seq = self.next_seq
        self.trim()
