"""In flight: what the consumers of a channel hold, until it is finished or its deadline comes.

Owns the table of messages by id, and for each consumer a list of them in the order of deadlines
(Holding), which outlives the consumer. Knows consumers as pointers only, and nothing of sending.
"""

from libc.stdlib cimport calloc, free

from nsqcy.base.debug cimport NSQCY_DEBUG
from nsqcy.base.heap cimport heap_remove
from nsqcy.channels.deferral cimport HOLDING_TIMER


cdef enum:
    SMALLEST_TABLE = 16

# Objects alive, counted in the debug build.
cdef Py_ssize_t live_holdings = 0


cdef Py_ssize_t holdings_alive() noexcept:
    """Holdings of all channels; zero in a release build."""
    return live_holdings


cdef class InFlight(Deferral):
    """What one channel has in flight."""

    def __cinit__(self):
        self.table = <Entry **>calloc(SMALLEST_TABLE, sizeof(Entry *))
        if self.table == NULL:
            raise MemoryError()
        self.table_mask = SMALLEST_TABLE - 1

    def __dealloc__(self):
        while self.holdings != NULL:
            # Beside it in the heap are entries, which may be gone with their store.
            self.holdings.timer.index = HEAP_NOWHERE
            self.free_holding(self.holdings)
        free(self.table)
        free(self.outgrown)

    # -- deadlines --

    cdef int hold_seldom(self, Holding *holding, Entry *entry, int64_t deadline) except -1:
        """The same for those who are not in a hurry: compilers make what is called from everywhere
        no part of a delivery."""
        return self.hold(holding, entry, deadline)

    cdef Holding *new_holding(self, void *consumer) except NULL:
        global live_holdings
        cdef Holding *holding = <Holding *>calloc(1, sizeof(Holding))
        if holding == NULL:
            raise MemoryError()
        holding.timer.index = HEAP_NOWHERE
        holding.timer.tag = HOLDING_TIMER
        holding.consumer = consumer
        holding.next = self.holdings
        if holding.next != NULL:
            holding.next.prev = holding
        self.holdings = holding
        if NSQCY_DEBUG:
            live_holdings += 1
        return holding

    cdef void free_holding(self, Holding *holding) noexcept:
        global live_holdings
        if NSQCY_DEBUG:
            live_holdings -= 1
        if self.unpacked_holding == holding:
            self.visit_holding(holding.next)
        if holding.timer.index != HEAP_NOWHERE:
            heap_remove(&self.timers, &holding.timer)
        if holding.prev != NULL:
            holding.prev.next = holding.next
        else:
            self.holdings = holding.next
        if holding.next != NULL:
            holding.next.prev = holding.prev
        free(holding)

    cdef void visit_holding(self, Holding *holding) noexcept:
        """What is visited next in flight; NULL: nothing."""
        self.unpacked_holding = holding
        self.unpacked_held = NULL if holding == NULL else holding.first

    # -- by id --

    cdef int grow_table(self) except -1:
        cdef size_t size = 4 * (<size_t>self.table_mask + 1)
        cdef Entry **table = <Entry **>calloc(size, sizeof(Entry *))
        if table == NULL:
            raise MemoryError()
        self.move_some(self.outgrown_left)
        self.outgrown = self.table
        self.outgrown_mask = self.table_mask
        self.outgrown_left = self.table_mask + 1
        self.table = table
        self.table_mask = <uint32_t>(size - 1)
        return 0

    cdef void move_some(self, uint32_t slots) noexcept:
        """Empty so many more slots of the outgrown table, from its end on: what a search passes on
        its way to an entry that stays has to stay as well."""
        while slots and self.outgrown_left:
            slots -= 1
            while self.outgrown[self.outgrown_left - 1] != NULL:
                self.move_one(self.outgrown_left - 1)
            self.outgrown_left -= 1
        if self.outgrown_left == 0:
            free(self.outgrown)
            self.outgrown = NULL

    cdef void move_one(self, uint32_t slot) noexcept:
        enter_slot(self.table, self.table_mask, self.outgrown[slot])
        clear_slot(self.outgrown, self.outgrown_mask, slot)

    cdef uint32_t find_outgrown(self, uint64_t id, uint32_t slot) noexcept:
        """The same for one that may be in the outgrown table; `slot` is where it belongs."""
        cdef uint32_t before = find_slot(self.outgrown, self.outgrown_mask, id)
        if self.outgrown[before] != NULL:
            self.move_one(before)
        return slot

    cdef int64_t age_of(self, uint64_t id) noexcept:
        """The time since the publish of a message in flight, ns; 0: it is not."""
        cdef const Entry *entry = self.table[self.table_find(id)]
        return 0 if entry == NULL else self.agenda.wall - entry.timestamp
