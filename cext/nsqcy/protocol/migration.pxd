# Connection migration: sessions move to the worker of their topic, or away from a busy one.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.routing cimport Routing


cdef class Migration(Routing):
    """Decide whether a session migrates to another worker, and pack its state."""
    cdef bint migratable            # may migrate to another worker once
    cdef int forwards_to            # the owner of the last forwarded publishes
    cdef uint64_t forwards          # number of consecutive publishes, their bytes and start time
    cdef uint64_t forward_bytes
    cdef int64_t forwards_since

    cdef bint may_migrate(self, int owner) except *
    cdef bint is_faithful(self) noexcept
    cdef bint is_light(self, int owner) except *
    cdef bint is_small(self) except *
    cdef int give_away(self, size_t n) except -1
    cdef size_t auth_size(self) except? 0
    cdef Parsed migrate_to(self, int worker) except RAISED
