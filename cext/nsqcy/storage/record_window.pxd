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
# A block leaves the window when no cursor stands in it or before it; it stays alive as a straggler
# while entries (messages that were handed out and are not finished) refer to its records.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.storage.block cimport IN_WINDOW, SEALED, Block
from nsqcy.storage.block_pool cimport BlockPool
from nsqcy.storage.log cimport Log
from nsqcy.storage.record cimport Record, record_size


# Records of a topic that were dropped before any channel received them, and that at least one
# cursor has not passed yet.
ctypedef struct Hole:
    uint64_t start
    uint64_t end            # exclusive


ctypedef struct Cursor:
    Block *block            # NULL: the window is empty
    uint32_t offset         # offset of the next record in the block
    uint64_t seq            # sequence number of the next record


cdef inline bint at_record(const Cursor *cursor) noexcept:
    """Return whether the cursor's block has a record there, or after a gap."""
    return cursor.offset < cursor.block.size and cursor.seq <= cursor.block.last_seq


cdef class RecordWindow:
    """Records of one topic that are still needed, in order."""
    cdef BlockPool pool
    cdef readonly Log log                   # None: never on disk
    cdef Block *oldest
    cdef Block *newest
    cdef Block *stragglers          # blocks outside the window that entries refer to
    cdef Cursor **cursors           # all cursors over this window
    cdef uint32_t cursor_count
    cdef uint32_t cursor_room
    cdef Cursor visible             # records before it may be read
    cdef Cursor fanout              # records before it belong to the channels
    # Cursors for retention: if watched, records after them are kept, with or without readers.
    cdef Cursor kept                # kept by retention, or for a named cursor
    cdef Cursor outdated            # retention would have released everything before it
    cdef Cursor unjournaled              # the journal does not record yet what follows it
    cdef Hole *holes
    cdef uint32_t hole_count
    cdef readonly uint64_t next_seq     # sequence number of the next record
    cdef uint32_t next_capacity
    cdef bint perishable            # at least one record was published with a time to live
    cdef bint stalled               # a read failed: no block is loaded until the next try
    cdef Block **index              # the blocks in the window; NULL: not built yet
    cdef size_t index_first
    cdef size_t index_count
    cdef size_t index_room

    cdef void seal(self) noexcept
    cdef int watch(self, Cursor *cursor) except -1
    cdef void unwatch(self, Cursor *cursor) noexcept

    cdef inline void move_cursor(self, Cursor *cursor, const Cursor *to) noexcept:
        """Move `cursor` to the position of `to`. The caller must trim afterwards."""
        if cursor.block != to.block:
            if to.block != NULL:
                to.block.cursors += 1
            if cursor.block != NULL:
                cursor.block.cursors -= 1
            cursor.block = to.block
        cursor.offset = to.offset
        cursor.seq = to.seq

    cdef inline void cursor_to_end(self, Cursor *cursor) noexcept:
        cdef Cursor end
        end.block = self.newest
        end.offset = 0 if self.newest == NULL else self.newest.size
        end.seq = self.next_seq
        self.move_cursor(cursor, &end)

    cdef inline bint settle(self, Cursor *cursor) noexcept:
        """Return whether there is a record at the cursor (its block may have to be loaded first),
        after moving the cursor past block ends and gaps."""
        return cursor.block != NULL and at_record(cursor) or self.next_record(cursor)

    cdef bint next_record(self, Cursor *cursor) noexcept
    cdef int add_hole(self, uint64_t start, uint64_t end) except -1
    cdef void drop_holes(self, uint64_t minimum) noexcept

    cdef inline void ref(self, Block *block) noexcept:
        block.refs += 1

    cdef inline void unref(self, Block *block) noexcept:
        block.refs -= 1
        if block.refs == 0 and block.pins == 0 and not block.flags & IN_WINDOW:
            self.forget_straggler(block)

    cdef void pin(self, Block *block) noexcept
    cdef void unpin(self, Block *block) noexcept
    cdef void trim(self) noexcept
    cdef int load(self, Block *block) except -1
    cdef void reseat(self, Block *block) noexcept
    cdef int on_loaded(self, Block *block) except -1
    cdef int read_failed(self) except -1
    cdef Block *block_of(self, uint64_t seq) except? NULL
    cdef int make_index(self) except -1
    cdef void index_newest(self) noexcept
    cdef void drop_index(self) noexcept
    cdef void push_block(self, Block *block) noexcept
    cdef void release(self, Block *block) noexcept
    cdef void truncate(self, uint64_t seq) noexcept
    cdef void rest(self) noexcept
    cdef void discard(self) noexcept
    cdef uint64_t min_seq(self) noexcept
    cdef uint64_t bytes_from(self, const Cursor *cursor) noexcept
    cdef const Cursor *last_reader(self) noexcept
    cdef bint only_keeps(self, const Cursor *cursor) noexcept
    cdef Block *open_block(self, uint64_t size) except NULL
    cdef void leave_window(self, Block *block) noexcept
    cdef void add_straggler(self, Block *block) noexcept
    cdef void forget_straggler(self, Block *block) noexcept


cdef inline Record *append_record(
        RecordWindow window, uint64_t body_length, uint32_t ext_length) except NULL:
    """Return space for one record in the open block, with its lengths, sequence number and padding
    set."""
    cdef uint64_t size = record_size(body_length, ext_length)
    cdef Block *block = window.newest
    cdef Record *record
    if block == NULL or block.flags & SEALED or block.capacity - block.size < size:
        block = window.open_block(size)
    record = <Record *>(block.data + block.size)
    # The last word contains the padding, if there is any.
    (<uint64_t *>(block.data + block.size + size - 8))[0] = 0
    record.length = <uint32_t>size
    record.crc = 0
    record.seq = window.next_seq
    record.body_length = <uint32_t>body_length
    record.ext_length = <uint16_t>ext_length
    record.attributes = 0
    block.size += <uint32_t>size
    block.count += 1
    block.last_seq = window.next_seq
    window.next_seq += 1
    return record
