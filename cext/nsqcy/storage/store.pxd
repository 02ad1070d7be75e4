# Records in memory: arenas, blocks, the window of a topic, entries.
#
#   window of a topic (blocks in order of their sequence numbers)
#
#      oldest                                                newest
#     ┌────────┐   ┌────────┐   ┌────────┐   ┌────────┐   ┌────────┐
#     │ sealed │──►│ sealed │──►│ sealed │──►│ sealed │──►│  open  │
#     └────────┘   └────────┘   └────────┘   └────────┘   └────────┘
#          ▲ a cursor                ▲ another               ▲ fan-out position
#
# A block leaves the window when no cursor stands in it or before it; it stays alive as a
# straggler while entries (handed-out messages that are not finished) refer to its records.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.base.heap cimport HeapNode
from nsqcy.storage.log cimport Extent, Log


cdef extern from "record.h" nogil:
    ctypedef struct Record:
        uint32_t length
        uint32_t crc
        uint64_t seq
        uint64_t id
        int64_t timestamp
        uint32_t body_length
        uint16_t ext_length
        uint16_t attributes
    const uint32_t RECORD_HEADER
    const uint32_t RECORD_SMALLEST
    const uint16_t RECORD_DELAYED
    const uint16_t RECORD_COPY
    ctypedef struct Produced:
        uint64_t producer
        uint64_t epoch
        uint64_t chunk
        uint32_t part
        uint32_t index
        uint32_t count
        uint32_t reserved
    const uint16_t RECORD_HEADERS
    const uint16_t RECORD_PRODUCED
    const uint16_t RECORD_EXPIRES
    const uint16_t RECORD_ADDRESSED
    const uint16_t RECORD_EXT_CHANNEL
    const uint16_t RECORD_DAMAGED
    const uint16_t RECORD_EXT_DELAY
    const uint16_t RECORD_EXT_DELAY_SIZE
    const uint16_t RECORD_EXT_HEADERS
    const uint16_t RECORD_EXT_PRODUCED
    const uint16_t RECORD_EXT_PRODUCED_SIZE
    const uint16_t RECORD_EXT_EXPIRES
    const uint16_t RECORD_EXT_EXPIRES_SIZE
    uint64_t record_size(uint64_t body, uint32_t ext)
    uint8_t *record_body(const Record *r)
    uint32_t record_extension_size(uint32_t length)
    uint8_t *record_extend(uint8_t *at, uint16_t type, const void *value, uint16_t length)
    int64_t record_delay(const Record *r)
    bint record_produced(const Record *r, Produced *into)
    int64_t record_expiry(const Record *r)
    uint64_t record_address_of(const uint8_t *name, size_t length)
    uint64_t record_address(const Record *r)
    const uint8_t *record_headers(const Record *r, uint16_t *length)


cdef enum:
    SMALLEST_BLOCK = 4096         # bytes; an open block starts here ...
    LARGEST_BLOCK = 262144        # ... and each next one doubles to here
    BLOCK_CLASSES = 7             # 4 KiB << 0 .. 6
    ARENA_SIZE = 2097152          # bytes; a huge page
    SLAB_SIZE = 65536
    PAGE_SIZE = 2048
    PAGE_ROOM = 49                # deferred messages


cdef enum BlockFlag:
    SEALED = 1          # nothing more is appended
    IN_WINDOW = 2       # linked in its topic's window
    LOADING = 4         # a read-back is under way
    SURVIVORS = 8       # copies of records of other blocks: sequence numbers have gaps
    UNREADABLE = 16     # a read-back failed; its records are lost


ctypedef struct Arena:
    uint8_t *base
    void *free              # free blocks of this arena, linked through their first bytes
    uint32_t used           # blocks handed out
    uint32_t kind           # block class
    int64_t idle_since      # when a block was last given back
    int64_t thinned         # `idle_since` when pages of free blocks were given back; 0: not yet
    Arena *prev
    Arena *next


ctypedef struct Block:
    uint8_t *data           # NULL: the bytes are on disk only
    uint32_t size           # bytes of records
    uint32_t capacity       # bytes behind `data`
    uint32_t written        # bytes given to the log, or already on disk
    uint32_t stored         # bytes known to be on disk
    uint32_t count          # records
    uint32_t cursors        # cursors that stand in it
    uint32_t refs           # entries that refer to its records
    uint32_t pins           # sends, writes and reads under way: the bytes must stay
    uint32_t flags
    uint64_t first_seq
    uint64_t last_seq
    int64_t first_time      # of its first record (wall clock, ns); 0: not known yet
    int64_t last_time       # its records are not younger; 0: not known yet
    uint64_t position       # bytes of the window before it, since the first block there was
    Extent extent           # where it lies on disk; extent.bytes == 0: nowhere
    Arena *arena            # NULL: a block of its own, from malloc
    void *moves             # while it is compacted: struct Moves, what is copied of it
    Block *prev             # in the window, or among the stragglers
    Block *next
    Block *newer            # residency order of what could be dropped from memory
    Block *older


# Records of a topic that were dropped before any channel got them, with channels still behind.
ctypedef struct Hole:
    uint64_t start
    uint64_t end            # exclusive


ctypedef struct Cursor:
    Block *block            # NULL: the window is empty
    uint32_t offset         # of the next record in the block
    uint64_t seq            # of the next record


cdef inline uint32_t offset_of(const Block *block, uint64_t seq) noexcept:
    """Where the first record from `seq` on begins in a block that is in memory; its size: none."""
    cdef uint32_t at = 0
    while at < block.size and (<const Record *>(block.data + at)).seq < seq:
        at += (<const Record *>(block.data + at)).length
    return at


cdef inline bint at_record(const Cursor *cursor) noexcept:
    """Whether the block of the cursor has a record there, or behind a gap."""
    return (cursor.offset < cursor.block.size and cursor.seq <= cursor.block.last_seq
            and not cursor.block.flags & UNREADABLE)


# A message of one channel that is for later. An entry in every other state begins alike, so that
# where its record lies can be read and changed without a look at which of them it is.
ctypedef struct Deferred:
    HeapNode node           # in the channel's timers; tag: the size of the body, see size_tag
    uint64_t seq
    uint64_t id             # 0: not known, its record has not been read since the start
    Block *block            # NULL: this one is free
    uint32_t offset
    uint16_t attempts
    uint8_t state           # EntryState
    uint8_t round           # of the journal: the latest that has it, or need not


# One handed-out message of one channel that is not finished; or a record of a topic's backlog that
# has a delay.
ctypedef struct Entry:
    # Tag: in flight: when it was delivered; queued, of a backlog: as above.
    HeapNode node
    uint64_t seq
    uint64_t id
    Block *block
    uint32_t offset
    uint16_t attempts
    uint8_t state
    uint8_t round
    int64_t due             # in flight: the deadline; moving: see below; of a backlog: the delay
    Entry *prev             # in flight: neighbours in deadline order
    Entry *next             # queued: the one behind
    void *holding           # in flight: struct Holding of the consumer; queued: the gate position
    int64_t timestamp       # in flight: of its record, which need not be in memory any more


cdef inline bint is_spoiled(const Record *record, uint64_t seq) noexcept:
    """Whether the record of a message, as its block was read, is damaged. Where lengths were lost
    too, it does not begin any more where it did."""
    return record.seq != seq or record.attributes & RECORD_DAMAGED


cdef inline uint32_t size_tag(uint64_t body_length) noexcept:
    """A body's size beside the lowest bit, which is a timer's kind; 0: too large to tell."""
    return <uint32_t>body_length << 1 if body_length < 0x80000000u else 0


cdef enum:
    # What moves has no deadline: one that never comes, by which moves are in the order of numbers.
    NEVER = 0x4000000000000000


cdef inline uint64_t move_number(const Entry *entry) noexcept:
    return <uint64_t>(entry.due - <int64_t>NEVER)


cdef enum EntryState:
    QUEUED = 0              # waits for redelivery at the tail
    DEFERRED = 1            # waits for its due time
    MOVING = 2              # held by who moves it to another topic
    IN_FLIGHT = 3           # with a consumer


# Cells of one size in SLAB_SIZE bytes, and at the start of these what is free among them.
ctypedef struct Slab:
    void *free
    Slab *prev
    Slab *next
    uint32_t used
    uint32_t listed


# The slabs with cells of one size.
ctypedef struct Slabs:
    uint32_t cell
    uint32_t first          # where in a slab the first cell lies
    uint32_t spare_count
    Slab *listed            # with a free cell
    Slab *spare             # without any cell in use, put aside


# The deferred messages of PAGE_SIZE bytes, and at the start of these what is free among them.
ctypedef struct Page:
    Deferred *free          # of the first `made`; the others never were in use
    Page *prev              # in the order in which they were made
    Page *next
    Page *prev_with_room
    Page *next_with_room
    uint64_t least_id       # its messages have had ids from this ...
    uint64_t most_id        # ... to this
    uint32_t used
    uint32_t made


# The deferred messages of one channel: they stay where they are until they are freed.
ctypedef struct Pages:
    Page *first             # the latest
    Page *with_room
    Page *walked            # of a walk: the next one; pages that are made meanwhile are before it


cdef inline Page *page_of(const Deferred *deferred) noexcept:
    return <Page *>(<size_t>deferred & ~<size_t>(PAGE_SIZE - 1))


@cython.final
cdef class Store:
    """The memory of one worker: arenas, blocks and entries, and how much of it is in use."""
    cdef Arena *partial[BLOCK_CLASSES]      # arenas with a free block, by class
    cdef Slabs entry_slabs
    cdef Slabs page_slabs
    cdef Block *newest                      # droppable blocks, in order of last use
    cdef Block *oldest
    cdef public uint64_t resident_bytes     # bytes behind the data of all blocks
    cdef public uint64_t budget             # resident bytes above which blocks are dropped
    cdef public uint64_t arenas
    cdef public uint64_t blocks             # live Block structs
    cdef public uint64_t entries            # live Entry structs
    cdef public uint64_t deferred           # live Deferred structs
    cdef int64_t now

    cdef Block *new_block(self, uint32_t capacity) except NULL
    cdef int give_memory(self, Block *block, uint32_t capacity) except -1
    cdef void take_memory(self, Block *block) noexcept
    cdef void free_block(self, Block *block) noexcept
    cdef void droppable(self, Block *block) noexcept
    cdef void not_droppable(self, Block *block) noexcept

    cdef inline void *new_cell(self, Slabs *slabs) except NULL:
        cdef Slab *slab = slabs.listed
        cdef void *cell
        if slab == NULL:
            slab = self.new_slab(slabs)
        cell = slab.free
        slab.free = (<void **>cell)[0]
        slab.used += 1
        if slab.free == NULL:
            self.unlist_slab(slabs, slab)
        return cell

    cdef inline void free_cell(self, Slabs *slabs, void *cell) noexcept:
        cdef Slab *slab = <Slab *>(<size_t>cell & ~<size_t>(SLAB_SIZE - 1))
        (<void **>cell)[0] = slab.free
        slab.free = cell
        slab.used -= 1
        if slab.used == 0 or not slab.listed:
            self.relist_slab(slabs, slab)

    cdef inline Entry *new_entry(self) except NULL:
        cdef Entry *entry = <Entry *>self.new_cell(&self.entry_slabs)
        self.entries += 1
        return entry

    cdef inline void free_entry(self, Entry *entry) noexcept:
        self.free_cell(&self.entry_slabs, entry)
        self.entries -= 1

    cdef Deferred *new_deferred(self, Pages *pages, uint64_t id) except NULL

    cdef inline void free_deferred(self, Pages *pages, Deferred *deferred) noexcept:
        cdef Page *page = page_of(deferred)
        (<Deferred **>deferred)[0] = page.free
        deferred.block = NULL
        page.free = deferred
        page.used -= 1
        self.deferred -= 1
        if page.used == 0 or page.used == PAGE_ROOM - 1:
            self.relist_page(pages, page)

    cdef void relist_page(self, Pages *pages, Page *page) noexcept
    cdef Page *new_page(self, Pages *pages) except NULL
    cdef void free_page(self, Pages *pages, Page *page) noexcept
    cdef void trim(self, int64_t now) noexcept
    cdef Arena *new_arena(self, int kind) except NULL
    cdef void thin_arena(self, Arena *arena) noexcept
    cdef void list_arena(self, Arena *arena) noexcept
    cdef void unlist_arena(self, Arena *arena) noexcept
    cdef void keep_longer(self, Block *block) noexcept
    cdef void keep_budget(self) noexcept
    cdef Slab *new_slab(self, Slabs *slabs) except NULL
    cdef void relist_slab(self, Slabs *slabs, Slab *slab) noexcept
    cdef void put_aside(self, Slabs *slabs, Slab *slab) noexcept
    cdef void unmap_spare(self, Slabs *slabs) noexcept
    cdef void list_slab(self, Slabs *slabs, Slab *slab) noexcept
    cdef void unlist_slab(self, Slabs *slabs, Slab *slab) noexcept


cdef inline Deferred *deferred_of(Page *page) noexcept:
    """Its `made` deferred messages, in use or free."""
    return <Deferred *>(page + 1)


cdef class Window:
    """The records of one topic that somebody still has to read, in order."""
    cdef Store store
    cdef readonly Log log                   # None: never on disk
    cdef Block *oldest
    cdef Block *newest
    cdef Block *stragglers          # out of the window, but entries refer to them
    cdef Cursor **cursors           # every cursor over this window
    cdef uint32_t cursor_count
    cdef uint32_t cursor_room
    cdef Cursor visible             # records before it may be read
    cdef Cursor fanout              # records before it belong to the channels
    # Cursors that only keep: from here on records stay, with or without readers; if watched.
    cdef Cursor kept                # by retention, or for a named cursor
    cdef Cursor outdated            # retention alone would have let go of what is before it
    cdef Cursor untold              # the journal does not know yet what is behind it
    cdef Hole *holes
    cdef uint32_t hole_count
    cdef readonly uint64_t next_seq     # of the next record
    cdef uint32_t next_capacity
    cdef bint perishable            # some record was published with a time to live
    cdef bint stalled               # a read failed that may succeed yet: none before the next tick
    cdef Block **index              # the blocks in the window; NULL: nobody has looked for one
    cdef size_t index_first
    cdef size_t index_count
    cdef size_t index_room

    cdef void seal(self) noexcept
    cdef int watch(self, Cursor *cursor) except -1
    cdef void unwatch(self, Cursor *cursor) noexcept

    cdef inline void move_cursor(self, Cursor *cursor, const Cursor *to) noexcept:
        """Put `cursor` where `to` stands. Does not trim: the caller does when it is done."""
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
        """Whether a record stands at the cursor (its block may have to be loaded first), once it
        has stepped over ends of blocks and gaps."""
        return cursor.block != NULL and at_record(cursor) or self.next_record(cursor)

    cdef bint next_record(self, Cursor *cursor) noexcept
    cdef int add_hole(self, uint64_t start, uint64_t end) except -1
    cdef void drop_holes(self, uint64_t least) noexcept

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
    cdef object new_mover(self, object channel)
    cdef int write_copies(self, Block *block) except -1
    cdef int copies_written(self) except -1
    cdef int on_read(self, read) except -1
    cdef Block *block_of(self, uint64_t seq) except? NULL
    cdef int make_index(self) except -1
    cdef void index_newest(self) noexcept
    cdef void drop_index(self) noexcept
    cdef void push_block(self, Block *block) noexcept
    cdef void release(self, Block *block) noexcept
    cdef void truncate(self, uint64_t seq) noexcept
    cdef void rest(self) noexcept
    cdef void discard(self) noexcept
    cdef uint64_t least_seq(self) noexcept
    cdef uint64_t bytes_from(self, const Cursor *cursor) noexcept
    cdef const Cursor *last_reader(self) noexcept
    cdef bint only_keeps(self, const Cursor *cursor) noexcept
    cdef Block *open_block(self, uint64_t size) except NULL
    cdef void leave_window(self, Block *block) noexcept
    cdef void add_straggler(self, Block *block) noexcept
    cdef void forget_straggler(self, Block *block) noexcept


cdef inline Record *append_record(
        Window window, uint64_t body_length, uint32_t ext_length) except NULL:
    """Room for one record in the open block, its lengths, sequence number and padding set."""
    cdef uint64_t size = record_size(body_length, ext_length)
    cdef Block *block = window.newest
    cdef Record *record
    if block == NULL or block.flags & SEALED or block.capacity - block.size < size:
        block = window.open_block(size)
    record = <Record *>(block.data + block.size)
    # The last word holds the padding, if there is any.
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
