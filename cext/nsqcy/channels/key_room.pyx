"""The memory that the indexes of a worker's channels may use.

Owns the items of all indexes, the sum of what the indexes use, and the search for the flow with the
most items, which gives up half of them when the indexes are full. Independent of the rules for
keys.
"""

# An item belongs to the worker, not to an index: what one channel frees, another one may use.
#
# The search for the largest flow goes round all flows, and takes the next one with at least half as
# many items as the largest can have (`top`). If it finds none in one round, `top` falls to what it
# has seen. So it visits each flow only a few times between two times when all flows give up half.

cdef enum:
    ITEMS_A_PAGE = 2048
    KEPT_PAGES = 64                 # of items, while no item is in use
    FLOWS_A_STEP = 16               # visited for each unit of a budget
    ITEMS_A_STEP = 4                # walked over for each unit of a budget
    MIN_SHARE = 8                   # bits: each index may use limit >> 8, even if there is no room


@cython.final
cdef class KeyRoom:
    def __cinit__(self, uint64_t limit):
        self.limit = limit
        self.minimum = limit >> MIN_SHARE

    def __dealloc__(self):
        self.free_pages()
        free(self.indexes)

    cdef int add(self, KeyIndex index) except -1:
        """Register an index; it is removed before it is freed."""
        cdef void **grown = <void **>realloc(
            self.indexes, (self.index_count + 1) * sizeof(void *))
        if grown == NULL:
            raise MemoryError()
        self.indexes = grown
        grown[self.index_count] = <void *>index
        self.index_count += 1
        return 0

    cdef void remove(self, void *index) noexcept:
        cdef uint32_t i
        for i in range(self.index_count):
            if self.indexes[i] == index:
                self.index_count -= 1
                self.indexes[i] = self.indexes[self.index_count]
                self.hand_flow = 0
                return

    # -- items --

    cdef uint32_t new_item(self) except 0:
        cdef uint32_t number = self.free_item
        cdef Item **grown
        if number:
            self.free_item = self.item_at(number).next
            self.items += 1
            return number
        number = max(<uint32_t>1, self.item_end)
        if number >> 11 >= self.page_count:
            grown = <Item **>realloc(self.pages, (self.page_count + 1) * sizeof(Item *))
            if grown == NULL:
                raise MemoryError()
            self.pages = grown
            grown[self.page_count] = <Item *>map_memory(ITEMS_A_PAGE * sizeof(Item))
            if grown[self.page_count] == NULL:
                raise MemoryError()
            self.page_count += 1
        self.item_end = number + 1
        self.items += 1
        return number

    cdef void free_items(self, uint32_t first, uint32_t last, uint32_t count) noexcept:
        """Free items that are linked by `next`."""
        self.item_at(last).next = self.free_item
        self.free_item = first
        self.items -= count
        if self.items == 0 and self.page_count > KEPT_PAGES:
            self.free_pages()

    cdef void free_pages(self) noexcept:
        cdef uint32_t i
        for i in range(self.page_count):
            munmap(self.pages[i], ITEMS_A_PAGE * sizeof(Item))
        free(self.pages)
        self.pages = NULL
        self.page_count = self.item_end = self.free_item = 0

    # -- room --

    cdef void wake(self) noexcept:
        """Let the indexes that wait for room try again."""
        cdef KeyIndex index
        cdef uint32_t i
        self.short = False
        for i in range(self.index_count):
            index = <KeyIndex>self.indexes[i]
            if index.short:
                index.short = False
                (<UnfinishedMessages>index.alarm.owner).touch_dirty()

    cdef RoomMade make_room(self, int *budget) except *:
        """Let the flow with the most items give up half of them, the newest. May stop when the
        budget is used up, and continue with the next call."""
        cdef KeyIndex index
        cdef Flow *flow
        cdef uint32_t steps
        cdef uint32_t popped
        while True:
            if self.cut_index == NULL and not self.find_largest(budget):
                return NO_ROOM if self.top < 2 else MAKING_ROOM
            index = <KeyIndex>self.cut_index
            flow = index.flow_at(self.cut_flow)
            popped = self.cut_items - flow.items
            while self.cut_left and budget[0] > 0 and popped < self.cut_kept:
                steps = min(self.cut_left, <uint32_t>ITEMS_A_STEP)
                self.cut_left -= steps
                self.cut_kept += steps
                budget[0] -= 1
                while steps:
                    steps -= 1
                    self.cut_item = self.item_at(self.cut_item).next
            if self.cut_left and popped < self.cut_kept:
                return MAKING_ROOM
            self.cut_index = NULL
            # If the messages that would stay have been delivered meanwhile, search again.
            if popped < self.cut_kept < self.cut_items:
                index.give_up(flow, self.cut_item, flow.items + popped - self.cut_kept)
                return MADE_ROOM

    cdef bint find_largest(self, int *budget) noexcept:
        """Find a flow with at least half as many items as any other; return False if there is none
        with two, or if the budget is used up."""
        cdef KeyIndex index
        cdef Flow *flow
        cdef uint32_t left
        while budget[0] > 0 and self.top >= 2:
            budget[0] -= 1
            left = FLOWS_A_STEP
            while left:
                left -= 1
                if self.hand_index >= self.index_count:
                    self.hand_index = self.hand_flow = 0
                    self.top = self.seen
                    self.seen = 0
                    break
                index = <KeyIndex>self.indexes[self.hand_index]
                self.hand_flow += 1
                if self.hand_flow >= index.flow_end:
                    self.hand_index += 1
                    self.hand_flow = 0
                    continue
                flow = index.flow_at(self.hand_flow)
                if not flow.used or flow.items == 0:
                    continue
                if flow.items < 2 or 2 * <uint64_t>flow.items < self.top:
                    self.seen = max(self.seen, flow.items)
                    continue
                self.seen = max(self.seen, (flow.items + 1) >> 1)
                self.cut_index = self.indexes[self.hand_index]
                self.cut_flow = self.hand_flow
                self.cut_item = flow.first
                self.cut_items = flow.items
                self.cut_kept = 1
                self.cut_left = ((flow.items + 1) >> 1) - 1
                return True
        return False
