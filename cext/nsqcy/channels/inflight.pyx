"""The in-flight table of a channel: messages with a consumer, until they are finished or time out.

Owns the table of messages by id, and for each consumer a list of them in order of deadline
(InFlightList), which outlives the consumer. Knows consumers only as pointers, and nothing about
sending.
"""

from libc.stdlib cimport calloc, free

from nsqcy.base.debug cimport NSQCY_DEBUG
from nsqcy.base.heap cimport heap_remove
from nsqcy.channels.deferral cimport IN_FLIGHT_TIMER


cdef enum:
    MIN_TABLE = 16

# Live objects, counted in the debug build.
cdef Py_ssize_t live_in_flight_lists = 0


cdef Py_ssize_t in_flight_lists_alive() noexcept:
    """Return the number of lists in all channels; zero in a release build."""
    return live_in_flight_lists


cdef class InFlight(Deferral):
    """One channel's in-flight messages."""

    def __cinit__(self):
        self.table = <Entry **>calloc(MIN_TABLE, sizeof(Entry *))
        if self.table == NULL:
            raise MemoryError()
        self.table_mask = MIN_TABLE - 1

    def __dealloc__(self):
        while self.in_flight_lists != NULL:
            # The heap also contains entries, which may be freed with their pool.
            self.in_flight_lists.timer.index = HEAP_NOWHERE
            self.free_in_flight_list(self.in_flight_lists)
        free(self.table)
        free(self.outgrown)

    # -- deadlines --

    cdef int list_add_uninlined(
            self, InFlightList *in_flight_list, Entry *entry, int64_t deadline) except -1:
        """Like list_add(), but for infrequent callers: compilers do not inline a function that has
        many callers, and delivery needs list_add() inlined."""
        return self.list_add(in_flight_list, entry, deadline)

    cdef InFlightList *new_in_flight_list(self, void *consumer) except NULL:
        global live_in_flight_lists
        cdef InFlightList *in_flight_list = <InFlightList *>calloc(1, sizeof(InFlightList))
        if in_flight_list == NULL:
            raise MemoryError()
        in_flight_list.timer.index = HEAP_NOWHERE
        in_flight_list.timer.tag = IN_FLIGHT_TIMER
        in_flight_list.consumer = consumer
        in_flight_list.next = self.in_flight_lists
        if in_flight_list.next != NULL:
            in_flight_list.next.prev = in_flight_list
        self.in_flight_lists = in_flight_list
        if NSQCY_DEBUG:
            live_in_flight_lists += 1
        return in_flight_list

    cdef void free_in_flight_list(self, InFlightList *in_flight_list) noexcept:
        global live_in_flight_lists
        if NSQCY_DEBUG:
            live_in_flight_lists -= 1
        if self.unpacked_in_flight_list == in_flight_list:
            self.visit_in_flight_list(in_flight_list.next)
        if in_flight_list.timer.index != HEAP_NOWHERE:
            heap_remove(&self.timers, &in_flight_list.timer)
        if in_flight_list.prev != NULL:
            in_flight_list.prev.next = in_flight_list.next
        else:
            self.in_flight_lists = in_flight_list.next
        if in_flight_list.next != NULL:
            in_flight_list.next.prev = in_flight_list.prev
        free(in_flight_list)

    cdef void visit_in_flight_list(self, InFlightList *in_flight_list) noexcept:
        """Continue visiting messages in flight with this list; NULL: none."""
        self.unpacked_in_flight_list = in_flight_list
        self.unpacked_in_flight = NULL if in_flight_list == NULL else in_flight_list.first

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
        """Empty this many more slots of the outgrown table, starting from its end: the entries that
        a search passes must stay while its target does."""
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
        """Return `slot` for an id that is not in the table, after moving its entry to that slot if
        the entry is in the outgrown table."""
        cdef uint32_t before = find_slot(self.outgrown, self.outgrown_mask, id)
        if self.outgrown[before] != NULL:
            self.move_one(before)
        return slot

    cdef int64_t age_of(self, uint64_t id) noexcept:
        """Return the time since the publish of a message in flight, in ns; 0 if it is not in
        flight."""
        cdef const Entry *entry = self.table[self.table_find(id)]
        return 0 if entry == NULL else self.scheduler.wall - entry.timestamp
