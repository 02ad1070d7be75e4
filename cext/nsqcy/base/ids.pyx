"""Message ids: 63 bits of time, node and sequence, unique across all workers of a node.

Generates ids and defines their format. Independent of messages, topics and the clock.
"""

# Message ids.
#
#   62                         22 21       12 11           0
#  +-----------------------------+-----------+--------------+
#  | tick since the epoch        | node id   | sequence     |
#  +-----------------------------+-----------+--------------+
#
# A tick is 2**20 ns.  A source leases whole ticks from one shared word, which contains the first
# unleased tick (since the epoch).

cdef enum:
    ID_SEQUENCE_BITS = 12
    ID_NODE_BITS = 10
    ID_TICK_SHIFT = 22
    ID_TICK_NS_BITS = 20

cdef int64_t EPOCH_TICKS = 1288834974288
cdef uint64_t SEQUENCES = 1 << ID_SEQUENCE_BITS


def format_id(uint64_t id):
    """Return the 16 hex digits that clients see."""
    cdef unsigned char text[16]
    hex16_format(text, id)
    return PyBytes_FromStringAndSize(<char *> text, 16)


def parse_id(text not None):
    """Parse `text`; return None if it is not 16 lower-case hex digits."""
    cdef Py_buffer view
    cdef uint64_t id = 0
    PyObject_GetBuffer(text, &view, PyBUF_SIMPLE)
    try:
        if view.len != 16 or hex16_parse(view.buf, &id) < 0:
            return None
    finally:
        PyBuffer_Release(&view)
    return id


@cython.final
cdef class IdSource:
    """Source of ids; it never sleeps and never fails, even if the clock jumps.

    All sources of a node share one 8-byte lease word (in shared memory, initially zero).
    """

    def __cinit__(self, lease_word, int node_id):
        if not 0 <= node_id < 1 << ID_NODE_BITS:
            raise ValueError(f"node id must be in [0,{1 << ID_NODE_BITS})")
        PyObject_GetBuffer(lease_word, &self._view, PyBUF_WRITABLE)
        if self._view.len != 8 or <size_t> self._view.buf % 8:
            raise ValueError("a lease word is 8 aligned bytes")
        self._word = <uint64_t *> self._view.buf
        self._node = <uint64_t> node_id << ID_SEQUENCE_BITS
        self._next = self._end = 0
        self._lease_until = 0

    def __dealloc__(self):
        PyBuffer_Release(&self._view)

    cdef void _lease(self, int64_t wall_ns) noexcept nogil:
        """Lease the clock's current tick, or the first free tick if that is later."""
        cdef:
            int64_t clock = (wall_ns >> ID_TICK_NS_BITS) - EPOCH_TICKS
            uint64_t free = load_acquire_u64(self._word)
            uint64_t tick
        while True:
            tick = free if clock < 0 or <uint64_t> clock < free else <uint64_t> clock
            if compare_exchange_u64(self._word, &free, tick + 1):
                break
        self._next = tick << ID_TICK_SHIFT | self._node
        self._end = self._next + SEQUENCES
        self._lease_until = <int64_t> (tick + 1 + EPOCH_TICKS) << ID_TICK_NS_BITS

    cdef void lift(self, uint64_t id) noexcept nogil:
        """Ensure that all later ids are greater than `id`, even from sources without a lease."""
        cdef:
            uint64_t after = (id >> ID_TICK_SHIFT) + 1
            uint64_t free = load_acquire_u64(self._word)
        while free < after and not compare_exchange_u64(self._word, &free, after):
            pass
        if self._next >> ID_TICK_SHIFT < after:
            self._end = self._next

    def raise_above(self, uint64_t id):
        """Start after `id`, which is the largest id on disk."""
        self.lift(id)

    def next_id(self, int64_t wall_ns):
        """Return the next id at this wall-clock time (ns since 1970)."""
        return self.next(wall_ns)
