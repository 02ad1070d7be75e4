# Declarations of nsqcy.storage for other packages.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free

from nsqcy.base.core cimport HeapNode, Histogram, KeyHash

# -- io --


cdef extern from "iocalls.h" nogil:
    const char *io_call_verbs[15]

    struct stat_t "stat":
        pass

    struct IoCalls:
        int (*open)(IoCalls *self, int at, const char *path, int flags, int mode)
        int (*close)(IoCalls *self, int fd)
        ssize_t (*pread)(IoCalls *self, int fd, void *ptr, size_t n, int64_t offset)
        int (*fstat)(IoCalls *self, int fd, void *into)
        int (*forget)(IoCalls *self, int fd, int64_t offset, int64_t n)

    IoCalls io_calls_real
    IoCalls io_calls_read_only


cdef extern from "segment.h" nogil:
    struct Damage:
        uint64_t offset
        uint64_t bytes
        uint32_t kind

    struct Damages:
        Damage *at
        uint32_t kept
        uint32_t found

    struct RunFacts:
        uint64_t max_id
        int64_t first_time
        int64_t last_time
        uint32_t count
        uint32_t flags

    void damages_free(Damages *d)


# A completion callback: called on the hub with 0 or the errno.
ctypedef int (*io_done)(void *arg, int error) except -1


cdef extern from "iothread.h" nogil:
    enum:
        FILE_CREATE
        FILE_REPLACE
        FILE_PARENT

    enum IoKind:
        IO_WRITE
        IO_WRITE_RECORDS
        IO_READ
        IO_READ_RECORDS
        IO_PICK
        IO_SYNC
        IO_FSYNC
        IO_TRUNCATE
        IO_CLOSE
        IO_RENAME
        IO_LINK
        IO_UNLINK_FILE
        IO_MKDIR
        IO_UNLINK
        IO_RMDIR
        IO_SYNC_DIR
        IO_FREE
        IO_MARK

    enum IoLane:
        LANE_WRITES
        LANE_AWAITED
        LANE_BACKGROUND
        LANES

    struct File:
        int refs
        int failed

    struct IoHold:
        pass

    struct IoChain:
        int doomed
        IoHold *hold

    struct IoResult:
        IoChain *chain
        RunFacts facts
        Damages damages
        int call
        int removes
        int needed

    struct IoPick:
        void *block
        void *segment
        uint64_t seq
        uint64_t offset
        uint32_t maximum
        uint32_t guess
        uint32_t at

    const uint32_t NOT_PICKED
    const uint32_t NOT_SOUND

    struct IoPicked:
        uint8_t *memory
        uint32_t size
        uint32_t used

    struct IoList:
        IoOp *head

    struct IoOp:
        io_done done
        void *arg
        File *file
        char *path
        IoResult *result
        uint8_t *ptr
        IoPicked *picked
        uint64_t n
        uint64_t offset
        uint64_t first_seq
        uint32_t count
        int dense
        int quiet
        int kind
        int lane
        int error
        int64_t took

    struct Lane:
        pass

    IoOp *lane_running(Lane *lane, uint64_t *begun)
    const char *op_path(const IoOp *op)

    struct IoEngine:
        Lane lanes[3]
        IoCalls *calls
        int file_system
        IoList ready
        IoList submitted
        int event
        int started
        int stepped
        int open_files
        uint64_t wakeups
        uint64_t outstanding
        int64_t live_ops
        int64_t live_files

    int engine_start(IoEngine *engine, IoCalls *calls, int open_limit, int first_reserved,
                     int stepped)
    IoOp *op_new(IoEngine *engine, int kind)
    void op_free(IoEngine *engine, IoOp *op)
    void engine_submit(IoEngine *engine, IoOp *op)
    void engine_release(IoEngine *engine, IoHold *hold)
    int engine_open_file_system(IoEngine *engine, const char *path)
    void engine_share_syncs(IoEngine *engine, uint32_t count)
    void engine_kick(IoEngine *engine)
    void engine_collect(IoEngine *engine)
    void engine_collect_early(IoEngine *engine)
    void engine_listen(IoEngine *engine)
    void engine_wait(IoEngine *engine)
    int lane_step(Lane *lane)
    int engine_step(IoEngine *engine)
    IoOp *engine_next_ready(IoEngine *engine)
    void engine_stop(IoEngine *engine)
    File *file_new(IoEngine *engine, int at, const char *path, int flags)
    void file_delete(IoEngine *engine, File *file)
    int file_drop(IoEngine *engine, File *file)


# Operations of the logs in a directory, which wait until the files of an earlier log are removed.
@cython.final
cdef class Hold:
    cdef bytes directory
    cdef IoHold operations


# The calls with which a log changes its files. Only the hub's thread makes these calls, and none of
# them blocks. ptr (and result) must stay valid until done() is called; done and result may be NULL.
cdef class FileCalls:
    cdef readonly bint mirrors     # every change is also made on other machines
    cdef IoCalls *calls            # for the few calls made on the hub before serving
    # Called as repairer(path, offset, length, error, answer) before a range of a file is treated as
    # lost. error is 0 if the checksum failed twice; otherwise, it is the errno of the read. The
    # repairer must call answer() once with True (read the range again), False (it cannot be
    # repaired) or None (not now: the reader retries later). If None, there is no repairer.
    cdef public object repairer

    cdef File *file(self, const char *path, int flags) except NULL
    cdef int drop(self, File *file) except -1
    cdef int write(self, IoLane lane, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                   io_done done, void *arg, IoResult *result) except -1
    cdef int write_records(self, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                           io_done done, void *arg, IoResult *result) except -1
    cdef int read(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                  io_done done, void *arg, IoResult *result) except -1
    cdef int read_records(self, File *file, uint8_t *ptr, size_t n, uint64_t offset,
                          uint64_t first_seq, uint32_t count, bint dense,
                          io_done done, void *arg, IoResult *result) except -1
    # Read records in one file, one by one.
    cdef int pick(self, File *file, IoPick *picks, uint32_t count, IoPicked *into,
                  io_done done, void *arg, IoResult *result) except -1
    # kind: IO_SYNC IO_FSYNC IO_CLOSE IO_UNLINK_FILE; IO_TRUNCATE to n bytes
    cdef int on_file(self, IoLane lane, IoKind kind, File *file, size_t n,
                     io_done done, void *arg, IoResult *result) except -1
    cdef int rename(self, IoLane lane, File *file, const char *to,
                    io_done done, void *arg, IoResult *result) except -1
    # Give the file a second name, in a directory that need not exist. An existing name is kept.
    cdef int link(self, IoLane lane, File *file, const char *to,
                  io_done done, void *arg, IoResult *result) except -1
    # kind: IO_MKDIR IO_UNLINK IO_RMDIR IO_SYNC_DIR
    cdef int on_path(self, IoLane lane, IoKind kind, const char *path,
                     io_done done, void *arg, IoResult *result) except -1
    # Call done() once all operations submitted to that lane so far have finished here.
    cdef int mark(self, IoLane lane, io_done done, void *arg, IoResult *result) except -1
    # Hold the operations of logs that are created in this directory from now on.
    cdef Hold begin_hold(self, bytes directory)
    cdef int end_hold(self, Hold hold) except -1
    # Return what holds the operations in this directory, or None.
    cdef Hold find_hold(self, bytes directory)


# The threads that run the file operations. Only drain() and close() block.
cdef class IoThread(FileCalls):
    cdef readonly bint read_only
    cdef dict _holds               # the latest hold by directory
    cdef IoEngine engine
    cdef Histogram syncs[<int>LANES]     # durations of syncs, by lane

    cdef int kick(self) except -1
    cdef int poll(self) except -1
    cdef int poll_early(self) except -1
    cdef int listen(self) except -1
    cdef int drain(self) except -1
    cdef int write_quietly(self, File *file, const uint8_t *ptr, size_t n, uint64_t offset,
                           io_done done, void *arg, IoResult *result) except -1
    cdef int _run_ready(self) except -1
    # Let one sync of the file system replace at least this number of queued syncs; 0: never.
    cdef void share_syncs(self, uint32_t count) noexcept

    cdef IoOp *_new(self, IoLane lane, IoKind kind, File *file, io_done done, void *arg,
                    IoResult *result) except NULL
    cdef int _rename(self, IoLane lane, IoKind kind, File *file, const char *to, io_done done,
                     void *arg, IoResult *result) except -1
    cdef int _complete(self, IoOp *op) except -1
    cdef void _stop(self) noexcept

# -- record --

# The layout of a record, in memory and on disk (cext/include/record.h; normative in
# docs/DISKFORMAT.md). Independent of blocks and files.


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
    const uint32_t MIN_RECORD
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
    const uint16_t RECORD_TAKEN
    const uint16_t RECORD_ONCE
    const uint16_t RECORD_EXT_TAKEN
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


cdef extern from "record_keys.h" nogil:
    # These read what was taken when the message was published. A damaged record has no key.
    const uint8_t *record_taken(const Record *r)
    const uint8_t *record_key(const Record *r, uint16_t *length)
    const uint8_t *record_dedup_id(const Record *r, uint16_t *length)
    uint8_t record_priority(const Record *r)
    # Both words are 0 if the record has no key.
    KeyHash record_key_hash(const Record *r, const uint64_t *secret)


cdef inline bint is_spoiled(const Record *record, uint64_t seq) noexcept:
    """Return whether a message's record, in its loaded block, is damaged. If record lengths were
    lost as well, the record no longer begins at its old offset."""
    return record.seq != seq or record.attributes & RECORD_DAMAGED

# -- segment --

# A segment of a log, and the location of runs in it. A Segment lives from its creation (or
# recovery) until its file is unlinked or its Log is freed. States: OPEN -> CLOSING -> CLOSED ->
# DOOMED -> GONE; OPEN -> FAILED -> CLOSED (without a footer).


cdef extern from "segment.h" nogil:
    enum:
        RUN_SURVIVORS
        RUN_HAS_DELAYED
        RUN_HAS_PRODUCED
        RUN_HAS_ONCE

    struct SegmentRun:
        uint64_t first_seq
        uint64_t last_seq
        uint64_t offset
        uint64_t bytes
        uint32_t count
        uint32_t flags
        int64_t first_time
        int64_t last_time

    struct SegmentFooter:
        uint64_t records
        uint64_t first_seq
        uint64_t last_seq
        int64_t first_time
        int64_t last_time
        uint64_t max_id
        uint64_t data_end
        uint64_t runs


cdef enum SegmentState:
    SEGMENT_OPEN
    SEGMENT_CLOSING      # no more runs; its footer is written after the last write
    SEGMENT_FAILED       # a write or a sync failed; truncated after the last write
    SEGMENT_CLOSED
    SEGMENT_DOOMED       # not needed; its file is deleted once no journal write is pending
    SEGMENT_GONE         # the unlink is in progress or done


cdef struct Segment:
    Segment *previous
    Segment *next
    File *file
    char *path
    uint64_t number      # number in the file name: greater than all earlier numbers
    uint64_t end         # space is assigned up to here
    uint64_t good        # runs up to here are known to be written
    uint64_t synced      # runs up to here are known to survive a power loss
    uint64_t live        # bytes of extents not released
    uint32_t pending     # operations that refer to the segment
    uint8_t log_id[16]   # log_id from the segment's header; zeros: unknown
    SegmentState state
    bint is_aside        # the bytes are kept on deletion, because some are damaged
    int error            # errno of the first failed run: later runs also fail
    SegmentRun *runs     # entries of the future index, while the segment is open
    uint32_t run_count
    uint32_t run_capacity
    SegmentFooter facts


# The location of a run; all zeros if empty. The log owns further pieces, which release() frees.
cdef struct Extent:
    Segment *segment
    uint64_t number      # of the segment, for a reader of a dead process's memory
    uint64_t offset
    uint64_t first_seq
    uint64_t last_seq
    uint32_t bytes
    uint32_t count
    Extent *next

# -- block --

# A block: consecutive records of one topic, in memory, on disk or both. A block records where its
# bytes are, but block_pool decides when they are dropped, and record_window reads them. Blocks,
# entries and deferred messages lie in the pool's state memory, where the next process finds them:
# see owners.pyx for the rules.


cdef enum:
    MIN_BLOCK = 4096              # bytes; initial size of an open block ...
    LARGEST_BLOCK = 262144        # ... and each following block doubles up to this size


cdef enum BlockFlag:
    SEALED = 1          # the block accepts no more records
    IN_WINDOW = 2       # linked in its topic's window
    LOADING = 4         # a read-back is in progress
    SURVIVORS = 8       # copies of other blocks' records: sequence numbers have gaps


ctypedef struct Arena:
    uint8_t *base
    void *free              # free blocks of this arena, linked through their first bytes
    uint64_t *adopted       # a bit for each block in use, until the adoption ends; otherwise NULL
    uint32_t used           # blocks in use
    uint32_t kind           # block class
    int64_t idle_since      # time when a block was last freed
    int64_t thinned         # `idle_since` when pages of free blocks were returned; 0: never
    Arena *prev
    Arena *next


ctypedef struct Block:
    uint8_t *data           # NULL: the bytes are on disk only
    uint32_t size           # bytes of records
    uint32_t capacity       # bytes allocated for `data`
    uint32_t written        # bytes submitted to the log, or already on disk
    uint32_t stored         # bytes known to be on disk
    uint32_t count          # records
    uint32_t cursors        # number of cursors in the block
    uint32_t refs           # number of entries that refer to the block's records
    uint32_t pins           # sends, writes and reads in progress: the bytes must be kept
    uint32_t flags
    uint32_t owner          # number of the topic; 0: another process must ignore the block
    uint64_t first_seq
    uint64_t last_seq
    int64_t first_time      # time of the first record (wall clock, ns); 0: not known yet
    int64_t last_time       # maximum time of the records; 0: not known yet
    uint64_t position       # bytes of the window before the block, since the first block
    Extent extent           # location on disk; extent.bytes == 0: not on disk
    Arena *arena            # NULL: a separate block, with units of its own
    void *relocations       # copies of records (struct Relocations) during a compaction
    Block *prev             # in the window, or among the stragglers
    Block *next
    Block *newer            # list of blocks that could be dropped from memory
    Block *older


cdef inline uint32_t offset_of(const Block *block, uint64_t seq) noexcept:
    """Return the offset of the first record at or after `seq` in a block in memory; the block's
    size if there is none."""
    cdef uint32_t at = 0
    while at < block.size and (<const Record *>(block.data + at)).seq < seq:
        at += (<const Record *>(block.data + at)).length
    return at

# -- entry --

# Entries: a channel's record of a message that it has delivered, queued or deferred. The block pool
# owns their cells, the channel their state.


cdef enum:
    PAGE_SIZE = 2048
    PAGE_ROOM = 41                # deferred messages


# A deferred message in one channel. Entries in all other states begin with the same fields, so the
# location of the record can be read and changed in any state.
ctypedef struct Deferred:
    HeapNode node           # in the channel's timers; tag: the size of the body, see size_tag
    uint64_t seq
    uint64_t id             # 0: unknown, because the record has not been read since the start
    Block *block            # NULL: free; written last
    uint32_t offset
    uint16_t attempts
    uint8_t state           # EntryState
    uint8_t round           # number of the latest checkpoint that contains or may omit the entry
    int64_t due             # as in the channel's timers


# A message in one channel that was delivered but not finished, or a record in a topic's backlog
# that has a delay.
ctypedef struct Entry:
    # Tag: in flight: time of delivery; queued or in a backlog: as above.
    HeapNode node
    uint64_t seq
    uint64_t id
    Block *block
    uint32_t offset
    uint16_t attempts
    uint8_t state
    uint8_t round
    # In flight: deadline; transferred: NEVER + number; queued: number of the arrival in the queue;
    # in a backlog: delay.
    int64_t due
    Entry *prev             # in flight: neighbours in deadline order
    Entry *next             # queued: the next message
    void *in_flight_list    # in flight: the consumer's list; queued: the gate position
    int64_t timestamp       # in flight: timestamp of the record, which may not be in memory
    # Number of the channel; 0: another process must ignore the entry. Written last, cleared first.
    uint32_t owner


cdef inline uint32_t size_tag(uint64_t body_length) noexcept:
    """Combine a body's size with a timer's kind (the lowest bit); 0 if the size is too large to
    store."""
    return <uint32_t>body_length << 1 if body_length < 0x80000000u else 0


cdef enum:
    # A transferred message has a deadline that never comes; it sorts transfers by number.
    NEVER = 0x4000000000000000


cdef inline uint64_t transfer_number(const Entry *entry) noexcept:
    return <uint64_t>(entry.due - <int64_t>NEVER)


cdef enum EntryState:
    QUEUED = 0              # waiting for redelivery at the tail
    DEFERRED = 1            # waiting for its due time
    TRANSFERRING = 2        # being transferred to another topic
    IN_FLIGHT = 3           # in flight to a consumer


# Deferred messages in PAGE_SIZE bytes; the free list is at the start.
ctypedef struct Page:
    Deferred *free          # free list; it excludes messages that were never used
    Page *prev              # in order of creation
    Page *next
    Page *prev_with_room
    Page *next_with_room
    uint64_t min_id       # minimum id of the page's messages so far ...
    uint64_t max_id        # ... to this
    uint32_t used
    uint32_t made           # number of messages used so far; the others were never used
    uint32_t owner          # as in an entry


# One channel's deferred messages; each stays in place until it is freed.
ctypedef struct Pages:
    Page *first             # the latest
    Page *with_room
    Page *walked            # next page of a walk; new pages are inserted before it
    uint32_t owner          # number of the channel


cdef inline Page *page_of(const Deferred *deferred) noexcept:
    return <Page *>(<size_t>deferred & ~<size_t>(PAGE_SIZE - 1))


cdef inline Deferred *deferred_of(Page *page) noexcept:
    """Return the page's `made` deferred messages, in use or free."""
    return <Deferred *>(page + 1)

# -- memory_range --


cdef extern from "memrange.h" nogil:
    const uint32_t RANGE_UNIT
    const uint32_t CHUNK_UNITS

    enum UnitKind:
        UNIT_FREE
        UNIT_TABLE
        UNIT_MORE
        UNIT_NEW
        UNIT_ENTRIES
        UNIT_PAGES
        UNIT_BLOCKS
        UNIT_OWNERS
        UNIT_NOTES
        UNIT_HEAD
        UNIT_LARGE
        UNIT_LONG_NOTE
        UNIT_IDS
        UNIT_ARENA

    struct RangeCalls:
        int (*create)(RangeCalls *self, const char *name, unsigned flags) noexcept nogil
        int (*resize)(RangeCalls *self, int fd, int64_t size) noexcept nogil
        int (*seal)(RangeCalls *self, int fd, int seals) noexcept nogil
        int (*close)(RangeCalls *self, int fd) noexcept nogil
        void *(*map)(RangeCalls *self, void *at, size_t n, int protection, int flags,
                     int fd) noexcept nogil
        int (*unmap)(RangeCalls *self, void *at, size_t n) noexcept nogil
        int (*protect)(RangeCalls *self, void *at, size_t n, int protection) noexcept nogil
        int (*advise)(RangeCalls *self, void *at, size_t n, int advice) noexcept nogil
        int (*punch)(RangeCalls *self, int fd, int64_t offset, int64_t n) noexcept nogil
        int64_t (*seek)(RangeCalls *self, int fd, int64_t offset, int whence) noexcept nogil

    RangeCalls range_calls_real

    struct Range:
        RangeCalls *calls
        uint8_t *base
        uint64_t size
        int fd
        int tight
        uint64_t used_units
        uint64_t backed_units
        uint64_t idle_units
        uint64_t collapsed
        uint64_t populated
        uint64_t kept
        uint64_t damaged

    struct RangePiece:
        uint64_t offset
        uint32_t units
        int kind

    # Keep the compiler from moving stores across this point: another process may find the memory as
    # it is at any instruction.
    void keep_store_order()

    int range_create(RangeCalls *calls, uint64_t size)
    int range_open(Range *range, uint64_t size, int fd)
    void range_close(Range *range)
    uint8_t *range_take(Range *range, uint64_t size, int kind, int huge)
    void range_release(Range *range, void *piece, uint32_t units, int keep)
    void range_split_huge(Range *range, void *chunk)
    int range_next(Range *range, uint64_t offset, RangePiece *piece)
    int range_thin(Range *range, void *at, size_t n)
    int range_refill(Range *range, void *at, size_t n)
    void range_purge(Range *range, int64_t now, int64_t before)


# The addresses that a block pool takes its memory from; memrange.h states the rules.
cdef class MemoryRange:
    cdef Range range
    cdef readonly bint memfd
    cdef uint64_t _wanted
    cdef int _fd            # given by the caller; -1: none

    cdef bint next_piece(self, uint64_t offset, RangePiece *piece) noexcept
    cdef uint8_t *take(self, uint64_t size, int kind, bint huge) noexcept
    cdef void set_kind(self, void *piece, int kind) noexcept
    cdef void release(self, void *piece, uint32_t units, bint keep) noexcept
    cdef void split_huge(self, void *chunk) noexcept
    cdef int thin(self, void *at, size_t n) noexcept
    cdef int refill(self, void *at, size_t n) noexcept
    cdef void purge(self, int64_t now, int64_t before) noexcept

# -- cells --


cdef enum:
    BLOCK_CLASSES = 7             # 4 KiB << 0 .. 6
    ARENA_SIZE = 2097152          # bytes; a huge page
    SLAB_SIZE = 65536


# Cells of one size in SLAB_SIZE bytes; the free list is at the start.
ctypedef struct Slab:
    void *free
    Slab *prev
    Slab *next
    uint32_t used
    uint32_t listed


# The slabs with cells of one size.
ctypedef struct Slabs:
    uint32_t cell
    uint32_t first          # offset of the first cell in a slab
    uint32_t spare_count
    uint32_t kind           # UnitKind
    Slab *listed            # slabs with a free cell
    Slab *spare             # slabs without a used cell, kept for reuse

# -- owners --


cdef enum:
    NAME_ROOM = 72              # bytes
    NOTE_CLASSES = 3


# The begin of a state memory.
ctypedef struct StateHead:
    uint64_t magic              # written last
    uint32_t format
    uint32_t block_size         # bytes of each struct, which belong to the format
    uint32_t entry_size
    uint32_t deferred_size
    uint32_t owner_size
    uint64_t state_base         # addresses at which the pointers in this memory are valid
    uint64_t records_base

cdef void write_head(StateHead *head, const void *state, const void *records) noexcept
cdef bint is_head(const StateHead *head) noexcept


# Bytes of a variable length; they follow this header.
ctypedef struct Note:
    void *link                  # free list
    uint32_t size
    uint32_t crc


cdef inline uint8_t *note_bytes(Note *note) noexcept:
    return <uint8_t *>(note + 1)


# Where a topic or a channel is, as of the end of a turn.
ctypedef struct Position:
    uint64_t seq                # fan-out position of a topic; cursor of a channel
    uint64_t skipped            # channel: as in ChannelCursor, and the following
    uint64_t replay_end
    Note *note                  # what else a journal would contain; NULL: nothing
    # Channel with an index: which records at or after the cursor do not wait. The bit of a record
    # is at (seq / 64) % words. NULL: there are none.
    Note *bits
    uint64_t words              # a power of two
    uint64_t bits_end           # no record from here on has a bit


# A topic or a channel whose messages another process can find.
ctypedef struct Owner:
    void *link                  # free list
    uint32_t number             # of its blocks or entries; 0: free. Written last, cleared first
    uint32_t topic              # number of a channel's topic; 0: this is a topic
    uint32_t current            # which position is valid
    uint32_t name_length
    uint64_t visible            # topic: records before it are visible; written at any time
    uint64_t log_first
    uint8_t log_id[16]
    char name[NAME_ROOM]
    Position positions[2]


cdef inline Position *next_position(Owner *owner) noexcept:
    """Return the position to write before turn_position()."""
    return &owner.positions[1 - owner.current]


cdef inline void turn_position(Owner *owner) noexcept:
    keep_store_order()
    owner.current = 1 - owner.current
    keep_store_order()


cdef enum:
    CELL_IDS = 504              # four cells in a slab


# A deduplication id of a topic.
ctypedef struct KnownId:
    KeyHash hash
    int64_t time                # of its record, wall clock; INT64_MIN or 0: no id. Written last


# Consecutive ids of a topic, in the order of their records. The next process finds them here, with
# those of records that no longer exist.
ctypedef struct IdCell:
    void *link                  # free list
    uint64_t first              # number of the first id
    uint32_t owner              # number of the topic. Written last, cleared first
    uint32_t unused
    uint64_t seqs[CELL_IDS]     # of their records; 0: the id is in a file
    KnownId ids[CELL_IDS]


cdef class Owners:
    cdef BlockPool pool
    cdef Slabs owner_slabs
    cdef Slabs note_slabs[NOTE_CLASSES]
    cdef uint32_t last_number
    cdef readonly uint64_t count
    cdef readonly uint64_t notes

    cdef Owner *add(self, bytes name, uint32_t topic) except NULL
    cdef void remove(self, Owner *owner) noexcept
    cdef uint32_t renumber(self, Owner *owner) noexcept
    cdef uint32_t new_number(self) noexcept
    cdef Note *new_note(self, uint32_t size) noexcept
    cdef void free_note(self, Note *note) noexcept

# -- block_pool --


@cython.final
cdef class BlockPool:
    """The memory of one worker: arenas, blocks and entries, and their usage."""
    cdef readonly MemoryRange records       # for the bytes of blocks
    cdef readonly MemoryRange state         # for everything that describes them
    cdef Arena *partial[BLOCK_CLASSES]      # arenas with a free block, by class
    cdef Slabs block_slabs
    cdef Slabs entry_slabs
    cdef Slabs page_slabs
    cdef Slabs id_slabs
    cdef Block *newest                      # droppable blocks, in order of last use
    cdef Block *oldest
    cdef public uint64_t resident_bytes     # capacity of all blocks in bytes
    cdef public uint64_t budget             # resident bytes above which blocks are dropped
    cdef public uint64_t arenas
    cdef public uint64_t blocks             # live Block structs
    cdef public uint64_t entries            # live Entry structs
    cdef public uint64_t deferred           # live Deferred structs
    cdef int64_t now
    # Adoption of what a dead process has left in `records`.
    cdef set left_pieces                    # (kind, offset, units); None: nothing, or it has ended
    cdef dict adopted_arenas                # offset -> address of the Arena
    cdef set adopted_pieces                 # offsets of large blocks in use

    cdef Block *new_block(self, uint32_t capacity) except NULL
    cdef bint adopt_memory(self, Block *block, uint64_t offset, uint32_t capacity) except -1
    cdef Arena *adopted_arena(self, uint64_t offset) except? NULL
    cdef void link_free(self, Arena *arena) noexcept
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
        """Return an entry without an owner; the caller sets the owner last."""
        cdef Entry *entry = <Entry *>self.new_cell(&self.entry_slabs)
        self.entries += 1
        return entry

    cdef inline void free_entry(self, Entry *entry) noexcept:
        entry.owner = 0
        keep_store_order()
        self.free_cell(&self.entry_slabs, entry)
        self.entries -= 1

    cdef Deferred *new_deferred(self, Pages *pages, uint64_t id) except NULL

    cdef inline void free_deferred(self, Pages *pages, Deferred *deferred) noexcept:
        cdef Page *page = page_of(deferred)
        deferred.block = NULL
        keep_store_order()
        (<Deferred **>deferred)[0] = page.free
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
    cdef int refill_arena(self, Arena *arena) except -1
    cdef void list_arena(self, Arena *arena) noexcept
    cdef void unlist_arena(self, Arena *arena) noexcept
    cdef void keep_longer(self, Block *block) noexcept
    cdef void keep_budget(self) noexcept
    cdef void set_cells(self, Slabs *slabs, uint32_t cell, uint32_t kind) noexcept
    cdef Slab *new_slab(self, Slabs *slabs) except NULL
    cdef void relist_slab(self, Slabs *slabs, Slab *slab) noexcept
    cdef void put_aside(self, Slabs *slabs, Slab *slab) noexcept
    cdef void free_spare(self, Slabs *slabs) noexcept
    cdef void free_slabs(self, Slabs *slabs) noexcept
    cdef void list_slab(self, Slabs *slabs, Slab *slab) noexcept
    cdef void unlist_slab(self, Slabs *slabs, Slab *slab) noexcept

# -- left_memory --


cdef class LeftChannel:
    cdef readonly str name
    cdef readonly uint64_t seq          # position
    cdef readonly uint64_t skipped
    cdef readonly uint64_t replay_end
    cdef readonly bytes note            # None: there is none
    cdef readonly bytes bits            # from the position's multiple of 64 on; b"": none
    cdef Entry **entries                # in the left memory, in any order
    cdef size_t entry_count
    cdef Deferred **deferred
    cdef size_t deferred_count


cdef class LeftTopic:
    cdef readonly LeftMemory memory
    cdef readonly bytes key
    cdef uint32_t number
    cdef readonly uint64_t visible
    cdef readonly uint64_t seq          # fan-out position
    cdef readonly uint64_t log_first
    cdef readonly bytes log_id
    cdef readonly bytes note            # None: there is none
    cdef readonly dict channels         # name -> LeftChannel
    cdef Block **blocks                 # in the left memory, in any order
    cdef size_t block_count
    cdef IdCell **id_cells              # in the left memory, in the order of their ids
    cdef size_t id_cell_count
    cdef Block **held                   # after hold(): a block that owns the bytes of each, or NULL
    cdef BlockPool pool                 # of `held`

    cdef int hold(self, BlockPool pool) except -1
    cdef uint64_t memory_records(self) noexcept
    cdef void let_go(self) noexcept
    cdef bint adopt(self, size_t number, Block *into, BlockPool pool) except -1


cdef class LeftMemory:
    cdef readonly MemoryRange state
    cdef readonly dict topics           # key -> LeftTopic
    cdef public uint64_t damaged        # parts that were left out, because they are not sound
    cdef readonly str refusal           # why nothing can be read; None: it can
    cdef uint64_t state_base            # addresses at which the dead process used the memory
    cdef uint64_t records_base
    cdef dict _numbers                  # number -> LeftTopic or LeftChannel

    cdef void *local(self, const void *address, int kind, size_t cell, size_t first) noexcept
    cdef inline Block *block(self, const Block *address) noexcept:
        """Return a block that an entry refers to; NULL if there is no such block."""
        return <Block *>self.local(address, UNIT_BLOCKS, sizeof(Block), sizeof(Slab))

    cdef Note *note(self, const Note *address) noexcept
    cdef bytes note_content(self, const Note *address)
    cdef bytes bits_of(self, const Position *position)
    cdef int leave_out_ephemerals(self) except -1
    cdef void forget(self) noexcept
    cdef list slabs(self, int kind)
    cdef int read_owners(self) except -1
    cdef int add_owner(self, const Owner *owner) except -1
    cdef int read_blocks(self) except -1
    cdef int read_entries(self) except -1
    cdef int read_pages(self) except -1
    cdef int read_ids(self) except -1

# -- segment_files --


ctypedef int (*log_done)(void *arg, int error) except -1

# Handles the end of a task's operation; returns the error to report.
ctypedef int (*task_end)(Task *task, int error) except -1


cdef struct Task:
    Task *next
    void *log
    Segment *segment
    File *file           # the journal, in a journal write
    Task *whole          # task that reports the common result of several operations
    task_end ended       # may be NULL in a `whole`
    int error
    int refused          # why a written run does not count as written
    uint32_t parts
    uint32_t count
    uint32_t flags
    uint64_t offset
    uint64_t bytes
    uint64_t first_seq
    uint64_t last_seq
    bint follows         # the operation must follow the log's other operations in their lane
    bint tells           # runs wait for this delta, which follows a snapshot
    bint durable         # the run is done when a sync covers it
    bint goes_on         # the run is done, or rejected, together with the next run
    bint asked           # the repairer has answered this read
    bint failed          # the read has been counted as failed
    uint64_t commit      # number of the commit that covers a durable run
    uint64_t journal_writes        # journal writes that must be done before the run
    uint8_t *into        # destination of a read
    uint8_t *owned       # freed with the task
    log_done done
    void *arg
    IoResult result


cdef class SegmentFiles:
    cdef readonly FileCalls io
    cdef readonly str topic
    cdef readonly str directory
    cdef readonly str last_error_text
    # Called as on_failure(topic, verb, path, errno) for each failed write. If it returns true,
    # on_recovery(topic) is called once writes succeed again.
    cdef public object on_failure
    cdef public object on_recovery
    cdef bint _recovery_due
    cdef bytes _data_path
    cdef bytes _directory
    cdef IoChain _chain               # the log's operations, for the I/O threads
    cdef Hold _hold                   # holds the log's operations, or has held them
    cdef Hold _removal                # holds those of later logs, during the removal of the files
    cdef uint64_t _tasks
    cdef uint64_t _following          # number of consecutive tasks, and their lane
    cdef IoLane _lane
    cdef bint _awaited                # the latest run is durable: publishers are waiting for syncs
    cdef bint _error_is_sync
    cdef bint _ending                 # _end_done(_end_arg, _end_error) follows the last task
    cdef int _end_error
    cdef log_done _end_done
    cdef void *_end_arg
    cdef public bytes log_id
    cdef readonly uint64_t disk_bytes
    cdef Segment *_first
    cdef Segment *_last
    cdef Segment *_current
    cdef uint64_t last_number         # largest segment number, here or in a journal
    cdef bint _frozen                 # close() was called: files are kept even if runs are released
    cdef uint64_t _unsynced           # records written since the last sync
    cdef int _sync_error              # error of a failed sync, until a sync() has reported it
    cdef uint64_t _sync_error_number  # the segment of _sync_error
    cdef bint _directory_there
    cdef bint _directory_known        # the directory's name is durable: the parent needs no sync
    cdef bint _directory_dirty
    cdef uint32_t _journal_pending    # journal writes in progress that may stop naming a segment

    cdef Task *_task(self, task_end ended, Segment *segment, Task *whole) except NULL
    cdef Task *_follower(self, task_end ended, Segment *segment, Task *whole) except NULL
    cdef int _task_end(self, Task *task) except -1
    cdef int _finish(self, Task *task, int error) except -1
    cdef int _part_end(self, Task *whole, int error) except -1
    cdef int _end_check(self) except -1
    cdef int _note_error(self, str path, int call, int error) except -1
    cdef int _write_failed(self, str path, int call, int error) except -1
    cdef int _write_succeeded(self) except -1
    cdef int _change_failed(self, Task *task, int error) except -1
    cdef Segment *_segment_new(self, uint64_t number, int flags) except NULL
    cdef int _segment_free(self, Segment *segment) except -1
    cdef int _segment_open(self, uint64_t first_seq) except -1
    cdef int _segment_retire(self, Segment *segment) except -1
    cdef int _segment_fail(self, Segment *segment) except -1
    cdef int _settle(self, Segment *segment) except -1
    cdef int _cut(self, Segment *segment) except -1
    cdef int _write_footer(self, Segment *segment) except -1
    cdef int _doom(self, Segment *segment) except -1
    cdef int _unlink_doomed(self) except -1
    cdef int _unlink(self, Segment *segment, Task *task, IoLane lane) except -1
    cdef int _place(self, Segment *segment, Task *task, Extent *into) except -1
    cdef int _index(self, Task *task) except -1
    # Remove a failed run of n bytes that begins with first_seq from an extent.
    cdef int retract(self, Extent *into, size_t n, uint64_t first_seq, uint32_t count) except -1
    # Release runs that are no longer needed.
    cdef int release(self, Extent *extent) except -1
    # Free an extent's further pieces and zero it; the runs are not released.
    cdef int forget(self, Extent *extent) except -1
    cdef int _sync_files(self, Task *whole) except -1
    # Sync the recovered files, because a killed process may not have synced them.
    cdef int sync_found(self, log_done done, void *arg) except -1
    cdef bint has_files(self) noexcept
    cdef void name_synced(self) noexcept
    cdef int _sync_file(self, Segment *segment, Task *whole, bint is_ours) except -1
    cdef int _sync_done(self, Task *task, int error) except -1
    cdef int _sync_directory(self, Task *whole) except -1
    cdef void _names_synced(self, uint32_t which) noexcept

# -- log_writer --


cdef class LogWriter(SegmentFiles):
    cdef public uint64_t max_bytes_per_file
    cdef public uint64_t sync_every
    cdef public int64_t sync_timeout
    cdef int64_t _synced_at
    cdef Task *_written_first         # first of the written runs, in order, that wait ...
    cdef Task *_written_last          # ... for a sync or an earlier journal write; the last one
    cdef uint64_t _durable            # durable runs without a requested sync
    cdef bint _goes_on                # the latest run is continued by the next run
    cdef uint64_t _commits            # number of syncs begun
    cdef uint64_t _commits_done       # number of syncs completed
    cdef readonly bint closed
    cdef readonly uint64_t journal_bytes
    cdef bint journal_lost            # a write failed: no run is done until the next snapshot
    cdef File *_journal
    cdef bint _journal_dirty
    cdef File *_snapshot              # the next journal file
    cdef uint64_t _snapshot_bytes
    cdef uint32_t _snapshot_crc
    cdef uint64_t _journal_writes     # number of journal writes begun
    cdef uint64_t _journal_done       # number of journal writes completed
    cdef uint64_t _required               # the journal write that later runs must wait for
    cdef uint64_t _required_done          # the latest journal write that succeeded
    cdef readonly set ids_files       # numbers of the files of deduplication ids
    cdef File *_ids                   # the latest of them, while it accepts more
    cdef uint64_t _ids_number
    cdef uint64_t _ids_bytes
    cdef bint _ids_dirty              # since the last snapshot
    cdef bint _ids_created

    # Append a run. It must stay valid and unchanged (except for its crc fields) until done. The
    # location of a failed run is still in `into`: retract() it. A durable run is done when a sync
    # covers it; see commit(). A continued run is part of the next run, which must be appended right
    # after it: both are in one segment, and fail together. No run is done before the deltas and
    # leading snapshots that were requested before it.
    cdef int append(self, const uint8_t *run, size_t n, uint64_t first_seq, uint64_t last_seq,
                    uint32_t count, int flags, bint durable, bint goes_on, Extent *into,
                    log_done done, void *arg) except -1
    # Sync the durable runs appended so far. Only one sync is in progress at a time; all syncs
    # requested in the meantime share the next one.
    cdef bint is_synced(self) noexcept
    cdef int commit(self) except -1
    # Return whether a run of n bytes would begin a new segment: it may then be written even if an
    # earlier run fails.
    cdef bint rolls(self, size_t n) noexcept
    # Return the space for records, in bytes, in the segment of the next run.
    cdef uint64_t room(self) noexcept
    cdef int sync(self, log_done done, void *arg) except -1
    # Return the monotonic time of the next sync, or 0 if no run is waiting for a sync.
    cdef int64_t tick(self, int64_t now) except -1
    # Return whether a journal write is in progress.
    cdef bint is_telling(self) noexcept
    # leads: operations appended from now on are not done until the journal is in place.
    cdef int write_snapshot(self, bytes snapshot, bint leads, log_done done, void *arg) except -1
    # Replace the journal in steps: begin, add any number of pieces, then end or abandon. Deltas
    # appended in the meantime go to the existing journal; the end receives the deltas that must be
    # kept.
    cdef int begin_snapshot(self) except -1
    cdef int add_to_snapshot(self, bytes piece) except -1
    cdef int end_snapshot(self, deltas, bint leads, log_done done, void *arg) except -1
    cdef int give_up_snapshot(self) except -1
    # Append to the file of ids with this number. The next snapshot becomes the journal only if the
    # file is on disk.
    cdef int append_ids(self, uint64_t number, bytes batch) except -1
    cdef int remove_ids(self, uint64_t number) except -1
    cdef int _close_ids(self) except -1
    cdef int _sync_ids(self, Task *whole) except -1
    cdef int _ids_failed(self, Task *task, int error) except -1
    cdef bytes _ids_path(self, uint64_t number)
    # Return 1 if appended; 0 if the journal has failed: write a snapshot first. done is called once
    # the delta has been written.
    cdef int append_delta(self, bytes delta, log_done done, void *arg) except -1
    cdef int _run_written(self, Task *task, int error) except -1
    cdef int _finish_run(self, Task *task) except -1
    cdef bint _is_journaled(self, const Task *task) noexcept
    cdef int _wait(self, Task *task, int error) except -1
    cdef int _release_written(self) except -1
    cdef bint _first_is_settled(self) noexcept
    cdef int _commit_done(self, int error) except -1
    cdef int _run_done(self, Task *task, int error) except -1
    cdef Task *_journal_task(self, Task *whole) except NULL
    cdef int _journal_written(self, int error) except -1
    cdef int _snapshot_done(self, Task *whole, int error) except -1
    cdef int _journal_failed(self, Task *task, int error) except -1
    cdef int _lose_journal(self, File *file) except -1

# -- log --


cdef class Log(LogWriter):
    # Called as on_damage(path, offset, text), once for each damaged range.
    cdef public object on_damage
    # Called without arguments when the range in `unreadable` has been read.
    cdef public object on_readable
    # The first range that could not be read (UnreadableRange), until it can be read; or None.
    cdef readonly object unreadable
    cdef readonly str read_error_text    # describes the latest failed read
    cdef bytes _aside                 # directory for damaged files; None: they are not kept
    cdef set _damaged                 # reported damage: (segment number, offset)
    cdef uint32_t _failed_reads       # number of consecutive failed reads
    cdef bint _is_probing

    # Read all pieces of a run; see docs/DISKFORMAT.md for the form of damaged records.
    cdef int read(self, const Extent *extent, uint8_t *into, log_done done, void *arg) except -1
    # Read records one by one, in the given order: records in the same segment should be adjacent.
    # Failures and damage are not reported.
    cdef int pick(self, IoPick *picks, uint32_t count, IoPicked *into, log_done done,
                  void *arg) except -1
    # Read the range in `unreadable` again, then call on_readable.
    cdef int probe(self) except -1
    cdef int set_aside(self, Segment *segment) except -1
    cdef int set_journal_aside(self, bytes data) except -1
    cdef int _link_aside(self, File *file, Segment *segment, str name) except -1
    cdef int _submit_read(self, Task *task) except -1
    cdef bint _asks_repairer(self, Task *task, int error) except -1
    cdef int _read_done(self, Task *task, int error) except -1
    cdef int _read_failed(self, Task *task, int error) except -1
    cdef int _read_worked(self, const Task *task) except -1
    cdef int _became_readable(self) except -1
    cdef int _report(self, str path, Segment *segment, const Damages *damages) except -1
    cdef bint _is_known(self, const Segment *segment, const Damages *damages) except -1
    cdef int _aside_done(self, int error) except -1
    cdef Segment *_find_segment(self, number) except? NULL

    cdef int close(self, log_done done, void *arg) except -1
    # syncs_name: make the deletion durable; otherwise, the caller syncs the data path afterwards.
    cdef int delete(self, bint syncs_name, log_done done, void *arg) except -1
    cdef int _remove_path(self, IoKind kind, bytes path) except -1

# -- log_recovery --


cdef struct RecoveredRun:
    uint64_t first_seq
    uint64_t last_seq
    uint32_t count
    uint32_t flags
    int64_t first_time
    int64_t last_time
    Extent extent


cdef class Recovered:
    cdef readonly Log log
    cdef readonly list journal
    cdef readonly list damages
    cdef readonly bytes log_id
    cdef readonly uint64_t next_seq
    cdef readonly uint64_t max_id
    cdef readonly bint clean          # every segment had a footer
    cdef readonly list segments       # (number, bytes of the file, log_id or None, footer or None)
    # Dense runs that overlap a newer segment, as found on disk: (segment number, offset, bytes,
    # first_seq, last_seq)
    cdef readonly list overlaps
    cdef readonly bint open_end       # the newest segment had no footer: it was still being written
    cdef RecoveredRun *run_array      # the caller copies and releases the extents
    cdef size_t run_count
    cdef size_t run_capacity
    cdef list _covered                # (first, last) of the dense runs: ascending, disjoint
    cdef int add(self, const SegmentRun *run, Segment *segment, int fd) except -1
    cdef int _add_whole(self, const SegmentRun *run, Segment *segment) except -1
    cdef int _add_rest(self, const SegmentRun *run, Segment *segment, int fd,
                       list wanted) except -1
    cdef int _grow(self) except -1
    cdef list _uncovered(self, uint64_t first, uint64_t last)
    cdef int _cover(self, uint64_t first, uint64_t last) except -1


cpdef Recovered recover_log(Log log)

# Return the first bytes of a file of ids; None if it is missing or too short. `again`: from the
# disk. Raises Unreadable.
cdef bytes recover_ids(Log log, uint64_t number, uint64_t size, bint again)

# -- record_window --


# Records of a topic that were dropped before any channel received them. At least one cursor has not
# passed them yet.
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
    cdef readonly Log log                   # None: the records are never on disk
    cdef Block *oldest
    cdef Block *newest
    cdef Block *stragglers          # blocks outside the window that entries refer to
    cdef Cursor **cursors           # all cursors over this window
    cdef uint32_t cursor_count
    cdef uint32_t cursor_room
    cdef const Cursor *last         # the reader that is furthest behind; NULL: not known
    cdef uint64_t others_from       # no other reader is before this sequence number
    cdef readonly uint64_t searches     # number of searches for `last`
    cdef Cursor visible             # records before this cursor may be read
    cdef Cursor fanout              # records before this cursor belong to the channels
    # Cursors for retention: while they are watched, records after them are kept, with or without
    # readers.
    cdef Cursor kept                # first record kept by retention or for a named cursor
    cdef Cursor outdated            # retention would have released all records before this one
    cdef Cursor unjournaled         # records after this cursor are not yet in the journal
    cdef Hole *holes
    cdef uint32_t hole_count
    cdef readonly uint64_t next_seq     # sequence number of the next record
    cdef uint32_t next_capacity
    cdef bint perishable            # at least one record was published with a time to live
    cdef bint stalled               # a read failed: no block is loaded until the next attempt
    cdef Owner *owner               # NULL: no other process finds the topic
    cdef uint32_t number            # of the owner; 0 if there is none
    cdef bint note_due              # what the owner's note contains has changed
    cdef uint64_t secret[2]         # for the hashes of keys and ids; use key_secret()
    cdef bint has_secret
    cdef Block **index              # the blocks in the window; NULL: not built yet
    cdef size_t index_first
    cdef size_t index_count
    cdef size_t index_room

    # Return the topic's secret for record_key_hash(). The topic's journal keeps it.
    cdef const uint64_t *key_secret(self) except NULL
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
        if to.seq < cursor.seq and to.seq < self.others_from:
            self.others_from = to.seq
        cursor.offset = to.offset
        cursor.seq = to.seq

    cdef inline void cursor_to_end(self, Cursor *cursor) noexcept:
        cdef Cursor end
        end.block = self.newest
        end.offset = 0 if self.newest == NULL else self.newest.size
        end.seq = self.next_seq
        self.move_cursor(cursor, &end)

    cdef inline bint settle(self, Cursor *cursor) noexcept:
        """Move the cursor past block ends and gaps; return whether there is a record at the cursor,
        whose block may have to be loaded first."""
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
    cdef void own(self, Block *block) noexcept
    cdef void release(self, Block *block) noexcept
    cdef void truncate(self, uint64_t seq) noexcept
    cdef void rest(self) noexcept
    cdef void discard(self) noexcept
    cdef uint64_t min_seq(self) noexcept
    cdef uint64_t bytes_from(self, const Cursor *cursor) noexcept
    cdef const Cursor *last_reader(self) noexcept
    cdef void find_last_reader(self) noexcept
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

# -- readahead --


cdef class ReadAhead:
    cdef RecordWindow window
    cdef readonly uint64_t first_seq    # seq of the record that is needed first
    cdef readonly bint reading
    cdef Block *block               # the copies, not referenced elsewhere yet, or NULL
    cdef IoPick *picks              # in order of location; after the read, in order of seq
    cdef uint32_t count
    cdef uint32_t room
    cdef uint64_t bytes             # upper bound of the copies' memory, if sizes are as expected
    cdef IoPicked picked

    # Add an entry from the queue; return False if no more entries fit.
    cdef bint add(self, const Entry *entry) except -1
    # Start the read; the window's on_loaded follows. Return False if no record is left to read
    # here.
    cdef bint read(self) except -1
    # Return the copy of a record; NULL if there is none.
    cdef Record *find(self, uint64_t seq) noexcept
    cdef int on_read(self) except -1
    cdef int load_whole(self) except -1
