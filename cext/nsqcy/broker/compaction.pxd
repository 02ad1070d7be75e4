# Compaction: copies still-needed records out of mostly dead blocks, over many turns.
#
#   IDLE ─► LOAD ─► GATHER ─► COPY ─► WRITE ─► AWAIT ─► REDIRECT ─► REDIRECTED ─► IDLE
#
#   LOAD        read back blocks that are only on disk
#   GATHER      visit every entry of the channels and note the records that are needed
#   COPY        copy these records to survivor blocks, block by block, in record order
#   WRITE       if any block was on disk: the owner writes the copies to the log (next_copies)
#   AWAIT       wait for these writes; if one fails, all records stay where they were
#   REDIRECT    visit every entry again and point it at its copy
#   REDIRECTED  if any block was on disk: the owner writes the journal, then releases the blocks
#
# Meanwhile, entries come and go. An entry that a walk missed keeps its block; the next compaction
# considers the block again.

from libc.stdint cimport uint32_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.storage.block cimport Block
from nsqcy.storage.entry cimport Deferred
from nsqcy.storage.record_window cimport RecordWindow


cdef enum Stage:
    IDLE = 0
    LOAD = 1
    GATHER = 2
    COPY = 3
    WRITE = 4
    AWAIT = 5
    REDIRECT = 6
    REDIRECTED = 7


# Location of a record in its block, and of its copy.
ctypedef struct Relocation:
    uint32_t source
    uint32_t copy


# The records copied from one block, after this header: unordered until COPY, then ordered by
# source.
ctypedef struct Relocations:
    Block *target           # NULL: nothing has been copied yet
    uint32_t count
    uint32_t room


cdef class Compaction:
    """The compactions of one window, one at a time."""
    cdef RecordWindow window
    cdef readonly Stage stage
    cdef Block **blocks             # blocks of this compaction; each is pinned
    cdef uint32_t count
    cdef uint32_t room
    cdef uint32_t at                # index of the next block in LOAD, COPY and WRITE
    cdef uint32_t loading           # blocks not read back yet
    cdef bint on_disk
    cdef list channels              # channels whose entries are visited
    cdef Py_ssize_t walked          # number of channels visited in this walk
    cdef Block *survivor            # open block for copies, pinned

    cdef int choose(self) except -1
    cdef int add(self, Block *block) except -1
    cdef bint begin(self, list channels) except -1
    cdef bint loaded(self) except -1
    cdef int load_more(self, uint32_t count) except -1
    cdef bint written(self) noexcept
    cdef bint waits(self) noexcept
    cdef int step(self, int budget) except? -1
    cdef void stop(self) noexcept
    cdef void close_survivor(self) noexcept
    cdef bint is_sparse(self, Block *block) noexcept
    cdef void enter(self, Stage stage) noexcept
    cdef int walk(self, int budget) except? -1
    cdef void gather(self, const Deferred *entry, Relocations *relocations) noexcept
    cdef void redirect(self, Deferred *entry, Relocations *relocations) noexcept
    cdef int copy(self, Block *block) except -1
    cdef Block *next_copies(self, int *budget) except? NULL
    cdef Block *survivor_block(self, uint32_t length, uint64_t seq) except NULL


cdef bint is_worthwhile(RecordWindow window) noexcept
