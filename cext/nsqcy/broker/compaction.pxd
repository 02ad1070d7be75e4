# Compaction: what entries still need of mostly dead blocks is copied, over many turns.
#
#   IDLE ──► LOAD ──► GATHER ──► COPY ──► WRITE ──► AWAIT ──► REDIRECT ──► IDLE
#
#   LOAD      blocks that are on disk only are read back
#   GATHER    every entry of the channels is visited; the blocks learn which records are needed
#   COPY      block by block, in the order of records: those are copied to survivor blocks
#   WRITE     if some of it was on disk: the copies are given to the log
#   AWAIT     until they are written; if one cannot be, everything stays where it was
#   REDIRECT  every entry is visited again and pointed at its copy
#
# Entries come and go meanwhile. One that a walk has missed goes on with its block, which stays for
# it and is looked at again the next time.

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


# Where a record lies in its block, and where its copy lies.
ctypedef struct Relocation:
    uint32_t source
    uint32_t copy


# What is copied of one block, behind this header: in no order until COPY, then by source.
ctypedef struct Relocations:
    Block *target           # NULL: nothing has been copied
    uint32_t count
    uint32_t room


cdef class Compaction:
    """The compactions of one window, one after the other."""
    cdef RecordWindow window
    cdef readonly Stage stage
    cdef Block **blocks             # those of this compaction; each is pinned
    cdef uint32_t count
    cdef uint32_t room
    cdef uint32_t at                # the next one, in LOAD, COPY and WRITE
    cdef uint32_t loading           # of which so many have not been read back yet
    cdef bint on_disk
    cdef list channels              # whose entries are visited
    cdef Py_ssize_t walked          # so many of them were, in this walk
    cdef Block *survivor            # open block for copies; the pin keeps it

    cdef int choose(self) except -1
    cdef int add(self, Block *block) except -1
    cdef bint begin(self, list channels) except -1
    cdef bint loaded(self) except -1
    cdef int load_more(self, uint32_t count) except -1
    cdef bint written(self) noexcept
    cdef bint waits(self) noexcept
    cdef int step(self, int budget) except? -1
    cdef int finish(self) except -1
    cdef void stop(self) noexcept
    cdef void close_survivor(self) noexcept
    cdef bint is_sparse(self, Block *block) noexcept
    cdef void enter(self, Stage stage) noexcept
    cdef int walk(self, int budget) except? -1
    cdef void gather(self, const Deferred *entry, Relocations *relocations) noexcept
    cdef void redirect(self, Deferred *entry, Relocations *relocations) noexcept
    cdef int copy(self, Block *block) except -1
    cdef int write(self, Block *block) except -1
    cdef Block *survivor_block(self, uint32_t length, uint64_t seq) except NULL


cdef bint is_worthwhile(RecordWindow window) noexcept
