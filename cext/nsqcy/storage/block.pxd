# A block: consecutive records of one topic, in memory, on disk or both. Knows where its bytes are,
# but not when they are dropped (block_pool) or what reads them (record_window).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.storage.record cimport Record
from nsqcy.storage.segment cimport Extent


cdef enum:
    MIN_BLOCK = 4096              # bytes; an open block starts here ...
    LARGEST_BLOCK = 262144        # ... and each following block doubles up to this size


cdef enum BlockFlag:
    SEALED = 1          # nothing more is appended
    IN_WINDOW = 2       # linked in its topic's window
    LOADING = 4         # a read-back is in progress
    SURVIVORS = 8       # copies of other blocks' records: sequence numbers have gaps


ctypedef struct Arena:
    uint8_t *base
    void *free              # free blocks of this arena, linked through their first bytes
    uint32_t used           # blocks in use
    uint32_t kind           # block class
    int64_t idle_since      # time when a block was last freed
    int64_t thinned         # `idle_since` when pages of free blocks were returned; 0: never
    Arena *prev
    Arena *next


ctypedef struct Block:
    uint8_t *data           # NULL: the bytes are on disk only
    uint32_t size           # bytes of records
    uint32_t capacity       # used bytes of `data`
    uint32_t written        # bytes submitted to the log, or already on disk
    uint32_t stored         # bytes known to be on disk
    uint32_t count          # records
    uint32_t cursors        # number of cursors in the block
    uint32_t refs           # number of entries that refer to its records
    uint32_t pins           # sends, writes and reads in progress: the bytes must be kept
    uint32_t flags
    uint64_t first_seq
    uint64_t last_seq
    int64_t first_time      # time of its first record (wall clock, ns); 0: not known yet
    int64_t last_time       # maximum time of its records; 0: not known yet
    uint64_t position       # bytes of the window before it, since the first block
    Extent extent           # location on disk; extent.bytes == 0: not on disk
    Arena *arena            # NULL: a separate block, from malloc
    void *relocations       # copies of its records (struct Relocations) during a compaction
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
