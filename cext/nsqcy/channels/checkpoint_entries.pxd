# The entries of one channel, as in a journal snapshot.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.storage.entry cimport Deferred


# The format in a journal; see docs/DISKFORMAT.md.
cdef packed struct PackedEntry:
    uint64_t seq
    uint64_t segment
    uint64_t offset
    int64_t due                 # wall clock, ns; not fanned out: delay; transferred: number
    uint16_t attempts
    uint8_t state
    uint8_t reason              # moving: MoveReason
    uint32_t size               # size of the body; 0: unknown


cdef class Packing:
    cdef PackedEntry *entries
    cdef uint64_t *ids              # of them
    cdef uint32_t count
    cdef uint32_t room
    cdef bint failed                # out of memory, so it is incomplete

    # Add an entry in any state; omit it if its record is only in memory.
    cdef void add(self, const Deferred *entry, int64_t due) noexcept
    # Return the entries added since the last call, as two arrays.
    cdef tuple take(self)
    cdef bint grow(self) noexcept
