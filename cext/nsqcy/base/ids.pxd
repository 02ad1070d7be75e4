# Message ids.
#
#   62                         22 21       12 11           0
#  +-----------------------------+-----------+--------------+
#  | tick since the epoch        | node id   | sequence     |
#  +-----------------------------+-----------+--------------+
#
# A tick is 2**20 ns.  A source leases whole ticks from one shared word, which contains the first
# unleased tick (since the epoch).
cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    ID_SEQUENCE_BITS = 12
    ID_NODE_BITS = 10
    ID_TICK_SHIFT = 22
    ID_TICK_NS_BITS = 20


@cython.final
cdef class IdSource:
    cdef:
        uint64_t *_word       # shared: the first tick that is not leased
        uint64_t _node        # already shifted into place
        uint64_t _next        # the id to return next
        uint64_t _end         # one past the last id of the lease; == _next if used up
        int64_t _lease_until  # wall clock, ns: from then on the lease is out of date
        Py_buffer _view

    cdef void _lease(self, int64_t wall_ns) noexcept nogil
    cdef void lift(self, uint64_t id) noexcept nogil

    cdef inline uint64_t next(self, int64_t wall_ns) noexcept nogil:
        """Return the next id: greater than every earlier id of this source, and unique across all
        sources."""
        if self._next == self._end or wall_ns >= self._lease_until:
            self._lease(wall_ns)
        self._next += 1
        return self._next - 1
