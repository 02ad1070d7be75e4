"""The index of a channel whose policy has rules for keys: its waiting messages by key, the keys
that may be served, and the order in which they are served.

Owns the flows (the waiting messages of one key and level), the turns of the keys, the counts for
their limits, and the records that left the channel out of log order. Independent of consumers, and
of why a message waits. docs/internals/keys.md describes the rules.

Two kinds of message wait: records that were never delivered (items), and messages that were
delivered or deferred before (entries). A place orders both: the sequence number of the record that
follows, and a number among the messages that arrived before the same record.
"""

# The index of a channel.
#
#   window ──cursor────────────────scan────────fan-out position
#               │  bits: which of these   │
#               │  records still wait     │
#               ▼                         ▼
#            items ──► flows, by key ──► ring or heap of a level ──► served next
#          entries ──►
#
# The cursor stays at the oldest record that waits. `cursor.skipped` counts the bits that are set.

cdef extern from *:
    int count_trailing_zeros "__builtin_ctzll"(unsigned long long) noexcept nogil
    int count_leading_zeros "__builtin_clz"(unsigned int) noexcept nogil
    int count_ones "__builtin_popcountll"(unsigned long long) noexcept nogil
    void prefetch "__builtin_prefetch"(const void *at) noexcept nogil

cdef enum:
    BEYOND_A_PAGE = 256
    CACHE_LINE = 64
    FETCHED = 4                     # how many records before its delivery a record is loaded
    MIN_LATER = 64                  # slots of `later`
    MAX_LATER = 1048576
    ARRIVAL_BITS = 20               # of a place: the number among arrivals before the same record
    ARRIVAL_MASK = 0xFFFFF
    LAST_ARRIVAL = 0xFFFFE          # the place of the record itself is the last
    SEEN_HEADS = 1024               # keys whose next messages are requested together ...
    SEEN_BLOCKS = 32                # ... if they are in at most this number of blocks ...
    LOADED_PART = 8                 # ... and this part of the memory for messages
    SETTLED_LOADS = 32              # blocks that are requested to find the keys of held messages
    ENDED_AT_ONCE = 4096            # rates forgotten per turn
    FLOW_BYTES = sizeof(Flow) + sizeof(uint32_t)
    RATE_BYTES = sizeof(KeyNode) + sizeof(HeapSlot) + sizeof(uint32_t)

cdef int64_t ONE_DELIVERY = 1000000000      # a level's debt of one delivery
cdef int64_t KEY_BURST = 10000000           # ns of unused credit that a key's rate keeps
cdef int64_t SIZE_PLACE = 0xFFFFFFFFF     # the part of a place that `sizes` compares


cdef inline uint64_t place_of(const Entry *entry) noexcept nogil:
    """Return the place of a queued message."""
    return <uint64_t>entry.in_flight_list


cdef inline bint is_without_key(const Flow *flow) noexcept nogil:
    return flow.node.high == 0 and flow.node.low == 0


cdef inline uint32_t since_of(const Flow *flow) noexcept nogil:
    """Return the time since when a flow is blocked, in seconds."""
    return <uint32_t><size_t>flow.prev


cdef inline void fetch_flow(const Flow *flow) noexcept nogil:
    """Load a flow into the processor's cache."""
    prefetch(flow)
    prefetch(<const uint8_t *>flow + CACHE_LINE)


cdef inline bint counts(uint32_t flow) noexcept nogil:
    return flow != NO_FLOW and flow < UNRESOLVED


cdef enum:
    MAX_NOTE_WORDS = 0x10000000     # 2 GiB


cdef void clear_passed(const Position *saved, const Position *to) noexcept:
    """Clear the words of bits that the cursor has passed since the position `saved`."""
    cdef uint64_t *words = <uint64_t *>note_bytes(to.bits)
    cdef uint64_t at = saved.seq >> 6
    cdef uint64_t end = min(to.seq >> 6, at + to.words)
    while at < end:
        words[at & (to.words - 1)] = 0
        at += 1


@cython.final
@cython.no_gc_clear     # otherwise, the index could not return its part of the room
cdef class KeyIndex:
    def __cinit__(self):
        cdef int i
        for i in range(LEVELS):
            heap_init(&self.turns[i])
        heap_init(&self.timers)
        heap_init(&self.sizes)
        heap_init(&self.hungry)
        heap_init(&self.rate_ends)
        nodes_init(&self.flow_nodes, sizeof(Flow))
        nodes_init(&self.rates, sizeof(KeyNode))
        self.alarm.node.index = HEAP_NOWHERE

    def __dealloc__(self):
        if self.room is not None:
            self.room.remove(<void *>self)
            # Other channels may be garbage, too: do not wake them.
            self.room.short = False
            self.free_all()
            self.forget_rates()
            self.give(self.used)
        free(self.bits)
        free(self.overfull)

    @property
    def flows(self):
        """Return the number of flows."""
        return self.flow_nodes.count

    @property
    def remembered(self):
        """Return the number of keys without a flow that are remembered for their rate."""
        return self.rates.count

    @property
    def scanned(self):
        """Return the record at the scan position."""
        return self.at.seq

    cdef int start(self) except -1:
        """Begin to index records, from the cursor on."""
        self.started = True
        self.window.watch(&self.at)
        self.window.move_cursor(&self.at, &self.cursor.at)
        if self.bits == NULL:
            self.bits_base = self.cursor.at.seq & ~<uint64_t>63
        return 0

    cdef void stop(self) noexcept:
        """Forget all messages; the entries in flows are owned elsewhere."""
        self.end_pass()
        self.free_all()
        free(self.bits)
        self.give(self.bits_room * sizeof(uint64_t))
        self.bits = NULL
        self.bits_room = self.passed = 0
        self.bits_end = 0
        self.bits_lost = True
        self.forget_rates()
        self.last_block = NULL
        heap_remove(&self.scheduler.channel_timers, &self.alarm.node)
        if self.started:
            self.started = False
            self.window.unwatch(&self.at)

    cdef int reset(self) except -1:
        """Begin again at the cursor, for other rules; all entries have been taken. Records that
        left the channel stay marked."""
        self.save_rates()
        self.end_pass()
        self.free_all()
        self.last_block = NULL
        heap_remove(&self.scheduler.channel_timers, &self.alarm.node)
        if self.started:
            self.window.move_cursor(&self.at, &self.cursor.at)
        return 0

    cdef void free_all(self) noexcept:
        """Free all flows and items."""
        cdef KeyRoom room = self.room
        cdef Flow *flow
        cdef uint32_t i
        if room.cut_index == <void *>self:
            room.cut_index = NULL
        for i in range(1, self.flow_end):
            flow = self.flow_at(i)
            if flow.used and flow.items:
                room.free_items(flow.first, flow.last, flow.items)
        nodes_free(&self.flow_nodes)
        for i in range(self.beyond_room):
            free(self.beyond_pages[i])
        free(self.beyond_pages)
        free(self.held)
        free(self.later)
        for i in range(LEVELS):
            heap_free(&self.turns[i])
            self.rings[i] = NULL
            self.debts[i] = 0
        heap_free(&self.timers)
        heap_free(&self.sizes)
        heap_free(&self.hungry)
        self.beyond_pages = NULL
        self.held = NULL
        self.later = NULL
        self.later_count = self.later_mask = 0
        self.horizon = 0
        self.beyond_room = self.flow_end = self.beyond_end = self.free_beyond = 0
        self.held_mask = self.held_count = self.waiting_levels = 0
        self.items = self.entries = self.bytes = self.beyond = 0
        self.short = False
        self.give(self.used - self.bits_room * sizeof(uint64_t) - self.rates.count * RATE_BYTES)
        self.walked_flow = self.unpacked_flow = 0
        self.walked = self.unpacked = NULL
        self.overfull_count = 0

    # -- flows --

    cdef Flow *find(self, const MessageKey *key) noexcept:
        cdef uint32_t number = first_in_bucket(&self.flow_nodes, key.low)
        cdef Flow *flow
        while number:
            flow = self.flow_at(number)
            if flow.node.low == key.low and flow.node.high == key.high \
                    and flow.level == key.level:
                return flow
            number = flow.node.heap.tag
        return NULL

    cdef Flow *find_or_make(self, const MessageKey *key) except NULL:
        cdef Flow *flow = self.find(key)
        return self.new_flow(key) if flow == NULL else flow

    cdef Flow *new_flow(self, const MessageKey *key) except NULL:
        cdef Flow *first = self.any_flow(key) if self.urgent_first else NULL
        cdef uint32_t number
        cdef Flow *flow = <Flow *>nodes_add(&self.flow_nodes, key.high, key.low, &number)
        if flow == NULL:
            raise MemoryError()
        flow.size.index = HEAP_NOWHERE
        flow.number = flow.key = number
        flow.level = <uint8_t>key.level
        flow.used = True
        self.flow_end = max(self.flow_end, number + 1)
        self.take(FLOW_BYTES)
        if first != NULL:
            flow.key = first.number
            flow.sibling = first.sibling
            first.sibling = number
        elif self.rates.count and self.gap != 0:
            self.recall_rate(flow)
        return flow

    cdef Flow *any_flow(self, const MessageKey *key) noexcept:
        """Return the first flow of a key in any level; NULL if the key has none."""
        cdef uint32_t number = first_in_bucket(&self.flow_nodes, key.low)
        cdef Flow *flow
        while number:
            flow = self.flow_at(number)
            if flow.node.low == key.low and flow.node.high == key.high:
                return self.flow_at(flow.key)
            number = flow.node.heap.tag
        return NULL

    cdef void update_hash(self, const KeyHash *hash) noexcept:
        """Handle a change of the rules for one key."""
        cdef MessageKey key
        cdef Flow *flow
        key.high = hash.high
        key.low = hash.low
        key.level = 0
        flow = self.any_flow(&key)
        if flow != NULL:
            self.update_key(flow)

    cdef void free_if_unused(self, Flow *flow) noexcept:
        """Forget a flow without messages, and its key if that has no other flow."""
        cdef Flow *first = self.flow_at(flow.key)
        cdef Flow *before
        if flow.size.tag or flow.held or flow.beyond:
            return
        if first != flow:
            before = first
            while before.sibling != flow.number:
                before = self.flow_at(before.sibling)
            before.sibling = flow.sibling
            self.free_flow(flow)
            flow = first
        if flow.size.tag == 0 and flow.held == 0 and flow.sibling == 0 and flow.beyond == 0 \
                and self.save_rate(flow):
            self.free_flow(flow)

    cdef void free_flow(self, Flow *flow) noexcept:
        cdef uint32_t number = flow.number
        heap_remove(&self.sizes, &flow.size)
        flow.used = False
        nodes_remove(&self.flow_nodes, &flow.node)
        self.give(FLOW_BYTES)
        if self.room.cut_flow == number and self.room.cut_index == <void *>self:
            self.room.cut_index = NULL

    cdef uint64_t head_place(self, const Flow *flow) noexcept:
        """Return the place of a flow's next message; the flow has one. If it is beyond the index,
        it may have a later place."""
        cdef uint64_t place
        if self.is_hungry(flow):
            return place_of_record(self.beyond_at(flow.beyond).seq)
        if flow.first == 0:
            return place_of(flow.first_entry)
        place = place_of_record(self.item_at(flow.first).seq)
        if flow.first_entry != NULL:
            return min(place, place_of(flow.first_entry))
        return place

    cdef void count_waiting(self, Flow *flow, int change) noexcept:
        cdef Flow *key = self.flow_at(flow.key)
        flow.size.tag += change
        key.total += change
        self.total_changed(key, change)

    cdef inline void total_changed(self, Flow *key, int change) noexcept:
        if self.sized:
            self.update_size(key)
        if self.depth_per_key and change > 0 and key.total == self.depth_per_key + 1 \
                and not is_without_key(key):
            self.note_overfull(key)

    cdef void note_overfull(self, const Flow *key) noexcept:
        """Remember that a key has more messages than the limit; see drop_overfull()."""
        cdef uint32_t *grown
        if self.overfull_count == self.overfull_room:
            grown = <uint32_t *>realloc(
                self.overfull, (2 * self.overfull_room + 64) * sizeof(uint32_t))
            if grown == NULL:
                return          # out of memory: until the key exceeds the limit again
            self.overfull = grown
            self.overfull_room = 2 * self.overfull_room + 64
        self.overfull[self.overfull_count] = key.number
        self.overfull_count += 1

    cdef Flow *oldest_of_key(self, Flow *key) noexcept:
        """Return the flow with the oldest message of a key; NULL if the key has no message, or if
        that message is not in the index."""
        cdef Flow *found = self.first_to_drop(key)
        return NULL if found == NULL or self.is_hungry(found) else found

    cdef Flow *first_before(self, Flow *key, uint64_t place) noexcept:
        """Return a flow of a key whose next message may be before a place, preferably one that has
        this message in the index; NULL if there is none."""
        cdef Flow *flow = key
        cdef Flow *found = NULL
        while True:
            if (flow.size.tag or flow.beyond) and self.head_place(flow) < place:
                if not self.is_hungry(flow):
                    return flow
                found = flow
            if flow.sibling == 0:
                return found
            flow = self.flow_at(flow.sibling)

    cdef Flow *first_to_drop(self, Flow *key) noexcept:
        cdef Flow *flow = key
        cdef Flow *found = NULL
        while True:
            if (flow.size.tag or flow.beyond) and (
                    found == NULL or self.head_place(flow) < self.head_place(found)):
                found = flow
            if flow.sibling == 0:
                return found
            flow = self.flow_at(flow.sibling)

    cdef void update_size(self, Flow *key) noexcept:
        cdef int64_t due
        if key.total == 0:
            heap_remove(&self.sizes, &key.size)
            return
        due = <int64_t>self.head_place(self.first_to_drop(key))
        if self.fair or self.order:
            due = (due & SIZE_PLACE) - (<int64_t>key.total << 36)
        if key.size.index == HEAP_NOWHERE:
            if heap_push(&self.sizes, &key.size, due) < 0:
                return          # out of memory: the key is not the first to lose messages
        else:
            heap_update(&self.sizes, &key.size, due)

    cdef int set_sized(self, bint sized) except -1:
        """Begin or end to keep `sizes`."""
        cdef uint32_t number
        cdef Flow *flow
        self.sized = sized
        for number in range(1, self.flow_end):
            flow = self.flow_at(number)
            if flow.used and sized and flow.key == number:
                self.update_size(flow)
            elif flow.used:
                heap_remove(&self.sizes, &flow.size)
        return 0

    # -- turns --

    cdef bint is_blocked(self, const Flow *key) noexcept:
        """Return whether a rule forbids each message of a key. `key`: the key's first flow."""
        if is_without_key(key):
            return False
        if self.pauses is not None and self.pauses.seq_of(key.node.high, key.node.low):
            return True
        if key.held and (self.order or self.in_flight_per_key
                         and key.held >= self.in_flight_per_key):
            return True
        # As long as `turn` is in `timers`, it must be in no other heap.
        return self.gap != 0 and (key.timed or key.next_send > self.scheduler.now)

    cdef void enter_turn(self, Flow *flow) noexcept:
        """Let a flow be served, after all that are waiting."""
        cdef uint32_t level = flow.level
        cdef Flow *first = self.rings[level]
        cdef uint64_t place
        if not self.fair:
            place = self.head_place(flow)
            if not self.enter_later(flow, place) \
                    and heap_push(&self.turns[level], &flow.node.heap, <int64_t>place) < 0:
                return          # out of memory: try again at the flow's next change
        elif first == NULL:
            self.rings[level] = flow.prev = flow.next = flow
        else:
            flow.prev = first.prev
            flow.next = first
            first.prev.next = flow
            first.prev = flow
        flow.state = IN_TURN
        self.waiting_levels |= <uint32_t>1 << level

    cdef void leave_turn(self, Flow *flow) noexcept:
        cdef uint32_t level = flow.level
        cdef bint is_last
        flow.state = IDLE
        if not self.fair:
            if flow.node.heap.index == HEAP_NOWHERE:
                self.leave_later(flow)
            else:
                heap_remove(&self.turns[level], &flow.node.heap)
            is_last = self.turns[level].size == 0 and self.later_count == 0
        else:
            is_last = flow.next == flow
            if is_last:
                self.rings[level] = NULL
            else:
                flow.prev.next = flow.next
                flow.next.prev = flow.prev
                if self.rings[level] == flow:
                    self.rings[level] = flow.next
        if is_last:
            self.waiting_levels &= ~(<uint32_t>1 << level)
            self.debts[level] = 0

    cdef void move_turn(self, Flow *flow) noexcept:
        """Handle another next message of a flow in a heap or in `later`."""
        cdef uint64_t place = self.head_place(flow)
        cdef Heap *heap = &self.turns[flow.level]
        if flow.node.heap.index != HEAP_NOWHERE:
            if heap_due(heap, &flow.node.heap) != <int64_t>place:
                heap_update(heap, &flow.node.heap, <int64_t>place)
        elif flow.later != <uint32_t>(place >> ARRIVAL_BITS):
            self.leave_turn(flow)
            self.enter_turn(flow)

    # A heap of all keys would be slow, because it does not fit into the processor's caches. Most
    # flows are in `later` instead, if their next message is a record from the horizon on. The
    # horizon only moves forward, so each record is passed once.

    cdef bint enter_later(self, Flow *flow, uint64_t place) noexcept:
        """Add a flow to `later`; return False if it must enter the heap, as those of levels do."""
        cdef uint64_t seq = place >> ARRIVAL_BITS
        cdef uint32_t *slot
        if self.urgent_first or seq < self.horizon or place != place_of_record(seq):
            return False
        if seq - self.horizon >= MAX_LATER and self.later_count == 0:
            self.horizon = seq
        if (seq - self.horizon > self.later_mask or self.later == NULL) \
                and not self.grow_later(seq):
            return False
        slot = &self.later[seq & self.later_mask]
        if slot[0]:
            return False
        slot[0] = flow.number
        flow.later = <uint32_t>seq
        self.later_count += 1
        return True

    cdef void leave_later(self, const Flow *flow) noexcept:
        self.later[flow.later & self.later_mask] = 0
        self.later_count -= 1

    cdef bint grow_later(self, uint64_t seq) noexcept:
        """Make room for a slot of this record; return False if there is none."""
        cdef uint64_t count = MIN_LATER
        cdef uint64_t before = 0 if self.later == NULL else <uint64_t>self.later_mask + 1
        cdef uint32_t *grown
        cdef uint64_t i
        if seq - self.horizon >= MAX_LATER:
            return False
        while count <= seq - self.horizon:
            count *= 2
        # The other half of the room is for what has no substitute.
        if self.room.used + (count - before) * sizeof(uint32_t) > self.room.limit >> 1:
            return False
        grown = <uint32_t *>calloc(count, sizeof(uint32_t))
        if grown == NULL:
            return False
        for i in range(self.horizon, self.horizon + before):
            grown[i & (count - 1)] = self.later[i & self.later_mask]
        free(self.later)
        self.take((count - before) * sizeof(uint32_t))
        self.later = grown
        self.later_mask = <uint32_t>(count - 1)
        return True

    cdef inline Flow *oldest_in_turn(self, uint32_t level) noexcept:
        """Return the flow in turn whose next message is the oldest; there is one."""
        cdef Heap *heap = &self.turns[level]
        if self.later_count \
                and heap_first_due(heap) > <int64_t>place_of_record(self.horizon):
            while self.later[self.horizon & self.later_mask] == 0:
                self.horizon += 1
            if heap_first_due(heap) > <int64_t>place_of_record(self.horizon):
                return self.flow_at(self.later[self.horizon & self.later_mask])
        return <Flow *>heap_peek(heap)

    cdef void update_flow(self, Flow *flow) noexcept:
        """Let a flow be served if it has a message and no rule forbids it."""
        if flow.beyond:
            self.update_hunger(flow)
        if self.has_head(flow) and not self.is_blocked(self.flow_at(flow.key)):
            if flow.state != IN_TURN:
                self.enter_turn(flow)
            elif not self.fair:
                self.move_turn(flow)
            return
        if flow.state == IN_TURN:
            self.leave_turn(flow)
        if flow.size.tag == 0 and flow.beyond == 0 or not self.is_blocked(self.flow_at(flow.key)):
            flow.state = IDLE
        elif flow.state != BLOCKED:
            flow.state = BLOCKED
            flow.prev = <Flow *><size_t>self.seconds()

    cdef void update_key(self, Flow *key) noexcept:
        """Update all flows of a key after its counts have changed; forget what is not needed."""
        cdef Flow *flow = key
        cdef uint32_t following
        while True:
            following = flow.sibling
            self.update_flow(flow)
            if flow != key:
                self.free_if_unused(flow)
            if following == 0:
                break
            flow = self.flow_at(following)
        if key.used:
            self.free_if_unused(key)

    cdef Flow *next_flow(self) noexcept:
        """Return the flow that is served next; NULL if none may be served."""
        cdef uint32_t levels = self.waiting_levels
        cdef int level
        cdef int first
        if levels == 0:
            return NULL
        first = 31 - count_leading_zeros(levels)
        if self.urgent_first:
            level = first
            while levels:
                level = 31 - count_leading_zeros(levels)
                levels &= ~(<uint32_t>1 << level)
                if self.debts[level] > self.debts[first]:
                    first = level
            if self.debts[first] + self.share < ONE_DELIVERY:
                first = 31 - count_leading_zeros(self.waiting_levels)
        if self.fair:
            return self.rings[first]
        return self.oldest_in_turn(first)

    cdef void serve(self, Flow *flow, Entry *entry) noexcept:
        """Handle the delivery of a message that was popped from the flow which is served next."""
        cdef Flow *key = self.flow_at(flow.key)
        cdef uint32_t levels = self.waiting_levels
        cdef int level
        if self.urgent_first:
            while levels:
                level = 31 - count_leading_zeros(levels)
                levels &= ~(<uint32_t>1 << level)
                self.debts[level] += self.share
            self.debts[flow.level] = max(
                <int64_t>0, self.debts[flow.level] - ONE_DELIVERY)
        if self.fair:
            self.rings[flow.level] = flow.next      # a served key is the last
        if self.gap != 0 and not is_without_key(key):
            key.next_send = max(key.next_send, self.scheduler.now - KEY_BURST) + self.gap
        self.hold(flow, entry)
        if self.gap != 0:
            self.remember_rate(key)

    cdef inline void fetch_head(self, const Flow *flow) noexcept:
        if flow.first:
            prefetch(self.item_at(flow.first))

    cdef inline void fetch_record(self, const Flow *flow) noexcept:
        """Load the next message of a flow, if it is in the same block as the latest one."""
        cdef const Block *block = self.last_block
        cdef const Item *item
        cdef const uint8_t *at
        if flow.first == 0 or block == NULL or block.data == NULL:
            return
        item = self.item_at(flow.first)
        if block.first_seq <= item.seq <= block.last_seq:
            at = block.data + item.offset
            prefetch(at)
            prefetch(at + CACHE_LINE)
            prefetch(at + 2 * CACHE_LINE)
            prefetch(at + 3 * CACHE_LINE)

    cdef void fetch_next(self) noexcept:
        """Load what the next deliveries use into the processor's cache: a flow first, and the
        record that it refers to some deliveries later."""
        cdef const Flow *flow
        cdef uint32_t number
        if self.fair:
            if self.waiting_levels == 1:
                flow = self.rings[0].next
                self.fetch_record(flow)
                fetch_flow(flow.next.next)
        elif self.later_count:
            number = self.later[(self.horizon + FETCHED) & self.later_mask]
            if number:
                self.fetch_record(self.flow_at(number))
            number = self.later[(self.horizon + 2 * FETCHED) & self.later_mask]
            if number:
                fetch_flow(self.flow_at(number))

    cdef void hold(self, Flow *flow, Entry *entry) noexcept:
        """Count a message, popped from this flow, for the limits of its key until release()."""
        cdef Flow *key = self.flow_at(flow.key)
        entry.node.index = flow.number
        key.held += 1
        if key != flow:
            flow.held += 1
        key.place = place_of(entry) if key.held == 1 else 0
        self.update_key(key)

    cdef void release(self, Entry *entry) noexcept:
        """Handle a message that no longer counts for its key."""
        cdef uint32_t number = entry.node.index
        entry.node.index = NO_FLOW
        if counts(number):
            self.release_flow(number)

    cdef void release_flow(self, uint32_t number) noexcept:
        cdef Flow *flow = self.flow_at(number)
        cdef Flow *key = self.flow_at(flow.key)
        key.held -= 1
        if key != flow:
            flow.held -= 1
        self.update_key(key)

    cdef int wake(self) except -1:
        """Handle the keys whose rate allows the next message; set the alarm for the others."""
        cdef int64_t now = self.scheduler.now
        cdef int left = ENDED_AT_ONCE
        cdef Flow *key
        while heap_first_due(&self.timers) <= now:
            key = <Flow *>heap_peek(&self.timers)
            heap_remove(&self.timers, &key.node.heap)
            key.timed = False
            self.update_key(key)
        while left and heap_first_due(&self.rate_ends) <= now - KEY_BURST:
            left -= 1
            self.forget_rate(<KeyNode *>heap_peek(&self.rate_ends))
        return self.set_alarm()

    cdef void remember_rate(self, Flow *key) noexcept:
        """Keep a key until its rate allows the next message."""
        if key.next_send > self.scheduler.now and not key.timed and heap_push(
                &self.timers, &key.node.heap, <int64_t>ceil(key.next_send)) == 0:
            key.timed = True

    # A key that is remembered only for its rate has no flow, but a node in `rates`.

    cdef bint save_rate(self, Flow *key) noexcept:
        """Remember the rate of a key without its flow; return False if out of memory."""
        cdef KeyNode *rate
        cdef uint32_t number
        if self.gap != 0 and key.next_send > self.scheduler.now - KEY_BURST:
            rate = nodes_add(&self.rates, key.node.high, key.node.low, &number)
            if rate == NULL:
                return False
            if heap_push(&self.rate_ends, &rate.heap, <int64_t>ceil(key.next_send)) < 0:
                nodes_remove(&self.rates, rate)
                return False
            self.take(RATE_BYTES)
        if key.timed:
            heap_remove(&self.timers, &key.node.heap)
            key.timed = False
        return True

    cdef void recall_rate(self, Flow *key) noexcept:
        """Give a new flow the rate of its key, if that is remembered."""
        cdef uint32_t number = first_in_bucket(&self.rates, key.node.low)
        cdef KeyNode *rate
        while number:
            rate = node_at(&self.rates, number)
            if rate.low == key.node.low and rate.high == key.node.high:
                key.next_send = <double>heap_due(&self.rate_ends, &rate.heap)
                self.remember_rate(key)
                self.forget_rate(rate)
                return
            number = rate.heap.tag

    cdef void forget_rate(self, KeyNode *rate) noexcept:
        heap_remove(&self.rate_ends, &rate.heap)
        nodes_remove(&self.rates, rate)
        self.give(RATE_BYTES)

    cdef void forget_rates(self) noexcept:
        cdef uint32_t count = self.rates.count
        heap_free(&self.rate_ends)
        nodes_free(&self.rates)
        self.give(count * RATE_BYTES)

    cdef int save_rates(self) except -1:
        """Remember the rates of all keys, before their flows are freed."""
        while self.timers.size:
            if not self.save_rate(<Flow *>heap_peek(&self.timers)):
                raise MemoryError()
        return 0

    cdef int set_alarm(self) except -1:
        cdef int64_t due = heap_first_due(&self.timers)
        if self.rate_ends.size:
            due = min(due, heap_first_due(&self.rate_ends) + KEY_BURST)
        if self.timers.size == 0 and self.rate_ends.size == 0:
            heap_remove(&self.scheduler.channel_timers, &self.alarm.node)
        elif self.alarm.node.index == HEAP_NOWHERE:
            heap_check(heap_push(&self.scheduler.channel_timers, &self.alarm.node, due))
        elif heap_due(&self.scheduler.channel_timers, &self.alarm.node) != due:
            heap_update(&self.scheduler.channel_timers, &self.alarm.node, due)
        return 0

    # -- records --

    cdef int key_of(self, const Record *record, MessageKey *into) except -1:
        """Take the key and the level of a message; `record` may be NULL (damaged)."""
        cdef KeyHash hash
        into.high = into.low = 0
        into.level = 0
        if self.single or record == NULL:
            return 0
        hash = record_key_hash(record, self.window.key_secret())
        into.high = hash.high
        into.low = hash.low
        if self.urgent_first:
            into.level = record_priority(record)
        return 0

    cdef int scan(self, int budget) except -1:
        """Add records up to the fan-out position; return the unused budget, which is 0 if records
        are left that are in memory."""
        cdef RecordWindow window = self.window
        cdef ChannelCursor *cursor = self.cursor
        cdef Cursor *at = &self.at
        cdef Record *record
        cdef Block *block
        cdef uint64_t seq
        cdef uint64_t known
        cdef RoomMade made = MADE_ROOM
        while budget > 0:
            if window.hole_count or cursor.finished_count:
                self.pass_ranges()
            seq = at.seq
            if not window.settle(at) or at.seq >= window.fanout.seq:
                if at.seq != seq:
                    self.pass_missing(seq, at.seq)
                known = self.passed + cursor_ahead(cursor)
                if at.seq >= window.fanout.seq and cursor.skipped > known:
                    # Some of the records to skip are missing on disk.
                    cursor.carried += cursor.skipped - known
                    cursor.skipped = known
                break
            if at.seq != seq:
                self.pass_missing(seq, at.seq)
                continue
            block = at.block
            if block.data == NULL or block.flags & LOADING:
                window.load(block)
                break
            if at.offset == 0 and block.next != NULL and block.next.data == NULL \
                    and window.pool.resident_bytes < window.pool.budget:
                window.load(block.next)
            record = <Record *>(block.data + at.offset)
            if record.seq < seq:
                at.offset += record.length
                continue
            if record.seq > seq:
                self.pass_missing(seq, record.seq)
                at.seq = record.seq
                continue
            budget -= 1
            if self.passed and self.has_bit(seq):
                pass
            elif record.attributes and cursor_passes(cursor, record):
                if not (record.attributes & RECORD_DELAYED and record.seq >= cursor.replay_end
                        and cursor.skipped > self.passed):
                    cursor.skipped += 1
                self.set_bits(seq, seq + 1)
            elif self.emptied is not None and self.was_emptied(record):
                self.set_bits(seq, seq + 1)
                cursor.skipped += 1
                self.emptied_items += 1
            else:
                made = self.add_record(record, at.offset, &budget)
                if made == MAKING_ROOM:
                    budget = 0
                if made != MADE_ROOM:
                    break
            at.offset += record.length
            at.seq = seq + 1
        self.advance()
        return budget if made == MADE_ROOM else budget + (made == NO_ROOM)

    cdef bint was_emptied(self, const Record *record) except -1:
        """Return whether a record waited when its key was emptied."""
        cdef KeyHash hash = record_key_hash(record, self.window.key_secret())
        return record.seq < self.emptied.seq_of(hash.high, hash.low)

    cdef RoomMade add_record(self, Record *record, uint32_t offset, int *budget) except *:
        """Add the record at the scan position; return MADE_ROOM if it was added."""
        cdef MessageKey key
        cdef Flow *flow
        cdef RoomMade made
        self.key_of(record, &key)
        flow = self.find(&key)
        if flow == NULL or flow.beyond == 0:
            made = self.room_for(
                flow, sizeof(Item) + (FLOW_BYTES if flow == NULL else 0), budget)
            if made == NO_ROOM and flow != NULL and flow.size.tag:
                self.new_beyond(flow, record.seq)
                self.update_flow(flow)
            elif made != MADE_ROOM:
                if made == NO_ROOM:
                    self.short = self.room.short = True
                return made
        if flow != NULL and flow.beyond:
            self.beyond_at(flow.beyond).count += 1
            self.beyond += 1
            self.bytes += record.length
            self.count_beyond(flow, 1)
            return MADE_ROOM
        if flow == NULL:
            flow = self.new_flow(&key)
        self.append_item(flow, record.seq, offset)
        self.bytes += record.length
        self.count_waiting(flow, 1)
        if flow.state == IDLE:
            self.update_flow(flow)
        return MADE_ROOM

    cdef int append_item(self, Flow *flow, uint64_t seq, uint32_t offset) except -1:
        cdef KeyRoom room = self.room
        cdef uint32_t number = room.new_item()
        cdef Item *item = self.item_at(number)
        item.seq = seq
        item.offset = offset
        item.next = 0
        if flow.first == 0:
            flow.first = number
        else:
            self.item_at(flow.last).next = number
        flow.last = number
        flow.items += 1
        if flow.items > room.seen:
            room.seen = flow.items
            room.top = max(room.top, room.seen)
        self.items += 1
        self.take(sizeof(Item))
        return 0

    cdef uint64_t unlink_item(self, Flow *flow) noexcept:
        """Remove a flow's first item; return its seq."""
        cdef uint32_t number = flow.first
        cdef Item *item = self.item_at(number)
        cdef uint64_t seq = item.seq
        flow.first = item.next
        if flow.first == 0:
            flow.last = 0
        flow.items -= 1
        self.items -= 1
        if self.items == 0:
            self.last_block = NULL      # an idle topic may release it
        self.room.free_items(number, number, 1)
        self.give(sizeof(Item))
        return seq

    # -- records beyond the index --
    #
    # If there is no room for a record, the flow with the most items in the worker gives up half of
    # them. From the first of these records on, the flow is beyond the index: the scan only counts
    # its records. When such a flow has no message before that record, it is hungry. Then a pass
    # reads the log again, from there to the scan position, and adds records of all flows whose
    # records beyond the index are ahead of it.

    cdef uint64_t unreached(self) noexcept:
        """Return the number of waiting records that are not in the index for lack of room."""
        return self.beyond + (self.window.fanout.seq - self.at.seq if self.short else 0)

    cdef bint has_room(self, uint64_t bytes) noexcept:
        return (self.room.used + bytes <= self.room.limit
                or self.used + bytes <= self.room.minimum or self.items == 0)

    cdef RoomMade room_for(self, Flow *flow, uint64_t bytes, int *budget) except *:
        """Make room for a record of this flow (NULL: a new one), which may go beyond the index
        itself."""
        cdef RoomMade made
        if self.has_room(bytes) and not self.is_cut(flow):
            return MADE_ROOM
        made = self.room.make_room(budget)
        while made == MADE_ROOM and (flow == NULL or flow.beyond == 0) \
                and not self.has_room(bytes):
            made = self.room.make_room(budget)
        return made

    cdef bint is_cut(self, const Flow *flow) noexcept:
        """Return whether a flow is giving up items: meanwhile, it gets no more."""
        return (self.room.cut_index == <void *>self and flow != NULL
                and self.room.cut_flow == flow.number)

    cdef void count_beyond(self, Flow *flow, int change) noexcept:
        cdef Flow *key = self.flow_at(flow.key)
        key.total += change
        self.total_changed(key, change)

    cdef Beyond *new_beyond(self, Flow *flow, uint64_t seq) except NULL:
        """Let a flow's records from `seq` on be beyond the index."""
        cdef uint32_t number = self.free_beyond
        cdef Beyond *beyond
        cdef Beyond **grown
        if number:
            beyond = self.beyond_at(number)
            self.free_beyond = beyond.flow
        else:
            number = max(<uint32_t>1, self.beyond_end)
            if number >> 8 >= self.beyond_room:
                grown = <Beyond **>realloc(
                    self.beyond_pages, (self.beyond_room + 1) * sizeof(Beyond *))
                if grown == NULL:
                    raise MemoryError()
                self.beyond_pages = grown
                grown[self.beyond_room] = <Beyond *>malloc(BEYOND_A_PAGE * sizeof(Beyond))
                if grown[self.beyond_room] == NULL:
                    raise MemoryError()
                self.beyond_room += 1
            self.beyond_end = number + 1
            beyond = self.beyond_at(number)
        beyond.node.index = HEAP_NOWHERE
        beyond.node.tag = flow.number
        beyond.seq = seq
        beyond.count = 0
        beyond.flow = flow.number
        beyond.skipped = 0
        flow.beyond = number
        self.take(sizeof(Beyond))
        return beyond

    cdef void free_beyond_of(self, Flow *flow) noexcept:
        cdef Beyond *beyond = self.beyond_at(flow.beyond)
        heap_remove(&self.hungry, &beyond.node)
        beyond.flow = self.free_beyond
        self.free_beyond = flow.beyond
        flow.beyond = 0
        self.give(sizeof(Beyond))

    cdef void update_hunger(self, Flow *flow) noexcept:
        cdef Beyond *beyond = self.beyond_at(flow.beyond)
        if not self.is_hungry(flow):
            heap_remove(&self.hungry, &beyond.node)
        elif beyond.node.index == HEAP_NOWHERE:
            heap_push(&self.hungry, &beyond.node, <int64_t>beyond.seq)
        elif heap_due(&self.hungry, &beyond.node) != <int64_t>beyond.seq:
            heap_update(&self.hungry, &beyond.node, <int64_t>beyond.seq)

    cdef int give_up(self, Flow *flow, uint32_t last, uint32_t count) except -1:
        """Remove the items after item `last` of a flow from the index."""
        cdef uint32_t first = self.item_at(last).next
        cdef uint64_t seq = self.item_at(first).seq
        cdef Beyond *beyond
        if flow.beyond == 0:
            self.new_beyond(flow, seq)
        beyond = self.beyond_at(flow.beyond)
        beyond.seq = seq
        beyond.count += count
        if self.reading_again and seq < self.again.seq:
            beyond.skipped = self.again_pass
        self.room.free_items(first, flow.last, count)
        self.item_at(last).next = 0
        flow.last = last
        flow.items -= count
        flow.size.tag -= count
        self.items -= count
        self.beyond += count
        self.give(count * sizeof(Item))
        return 0

    cdef int read_again(self, int budget) except -1:
        """Add records beyond the index, for the flows that have no others; return the unused
        budget, which is 0 if more can be done now."""
        cdef RecordWindow window = self.window
        cdef Cursor *at = &self.again
        cdef Record *record
        cdef Block *block
        cdef RoomMade made
        cdef uint64_t seq
        if not self.reading_again:
            self.begin_pass()
        while budget > 0:
            seq = at.seq
            if not window.settle(at) or at.seq >= self.at.seq:
                if at.seq != seq:
                    self.pass_missing(seq, min(<uint64_t>at.seq, <uint64_t>self.at.seq))
                self.end_of_log()
                break
            if at.seq != seq:
                self.pass_missing(seq, at.seq)
                continue
            block = at.block
            if block.data == NULL or block.flags & LOADING:
                window.load(block)
                self.again_waits = True
                return budget
            if at.offset == 0 and block.next != NULL and block.next.data == NULL \
                    and window.pool.resident_bytes < window.pool.budget:
                window.load(block.next)
            record = <Record *>(block.data + at.offset)
            if record.seq < seq:
                at.offset += record.length
                continue
            if record.seq > seq:
                self.pass_missing(seq, record.seq)
                at.seq = record.seq
                continue
            budget -= 1
            if not self.has_left(seq):
                made = self.add_again(record, at.offset, &budget)
                if made == MAKING_ROOM:
                    return 0
                if made == NO_ROOM:
                    self.short = self.room.short = self.again_waits = True
                    return max(1, budget)
                if not self.reading_again:
                    break
            at.offset += record.length
            at.seq = seq + 1
        self.advance()
        return 0 if self.hungry.size else 1

    cdef RoomMade add_again(self, Record *record, uint32_t offset, int *budget) except *:
        """Add a record if it is beyond the index and its flow gets records in this pass. Return
        MADE_ROOM if the pass may continue."""
        cdef MessageKey key
        cdef Flow *flow
        cdef Beyond *beyond
        cdef RoomMade made
        if record.attributes & RECORD_DAMAGED:
            self.leave_log(record.seq)
            return MADE_ROOM
        self.key_of(record, &key)
        flow = self.find(&key)
        if flow == NULL or flow.beyond == 0:
            return MADE_ROOM
        beyond = self.beyond_at(flow.beyond)
        if record.seq < beyond.seq:
            return MADE_ROOM
        if self.emptied is not None and self.was_emptied(record):
            self.leave_log(record.seq)
            self.emptied_items += 1
            self.bytes -= min(self.bytes, <uint64_t>record.length)
            self.count_beyond(flow, -1)
            self.found_again(flow)
            return MADE_ROOM
        if beyond.seq < self.again_start or beyond.skipped == self.again_pass:
            return MADE_ROOM
        made = self.room_again(flow, record.seq, budget)
        if made == MADE_ROOM:
            self.append_item(flow, record.seq, offset)
            flow.size.tag += 1
            beyond.seq = record.seq + 1
            self.found_again(flow)
        elif made == NO_ROOM and beyond.node.index == HEAP_NOWHERE:
            beyond.skipped = self.again_pass
            if self.hungry.size == 0:
                self.end_pass()
            return MADE_ROOM
        return made

    cdef void found_again(self, Flow *flow) noexcept:
        """Count a record that is no longer beyond the index."""
        cdef Beyond *beyond = self.beyond_at(flow.beyond)
        self.beyond -= 1
        beyond.count -= 1
        if beyond.count == 0:
            self.free_beyond_of(flow)
        self.update_flow(flow)
        self.free_if_unused(flow)

    cdef RoomMade room_again(self, Flow *flow, uint64_t seq, int *budget) except *:
        """Make room for a flow's first record beyond the index. A flow takes no room from others
        unless they have many more items."""
        cdef Beyond *beyond = self.beyond_at(flow.beyond)
        cdef RoomMade made
        # Now that the record is known to be a later one, an entry may be the flow's next message.
        beyond.seq = seq
        self.update_flow(flow)
        if not self.is_cut(flow):
            if self.has_room(sizeof(Item)):
                return MADE_ROOM
            if flow.items and flow.items >= self.room.top >> 2:
                return NO_ROOM
        made = self.room.make_room(budget)
        while made == MADE_ROOM and beyond.seq == seq and not self.has_room(sizeof(Item)):
            made = self.room.make_room(budget)
        if beyond.seq != seq:
            return MAKING_ROOM      # it has given up items itself: look again
        return made

    cdef int begin_pass(self) except -1:
        """Begin at the first record that a hungry flow may need."""
        cdef Cursor to
        self.window.watch(&self.again)
        self.again_start = <uint64_t>heap_first_due(&self.hungry)
        to.block = self.window.block_of(max(self.again_start, <uint64_t>self.cursor.at.seq))
        to.offset = 0
        to.seq = max(self.again_start, <uint64_t>self.cursor.at.seq)
        if to.block == NULL:
            to = self.at
        elif to.block.first_seq > to.seq:
            to.seq = to.block.first_seq
        self.window.move_cursor(&self.again, &to)
        self.reading_again = True
        self.again_pass += 1
        return 0

    cdef void end_pass(self) noexcept:
        if self.reading_again:
            self.reading_again = False
            self.window.unwatch(&self.again)

    cdef int end_of_log(self) except -1:
        """End a pass at the scan position. A hungry flow that found nothing has lost its
        records."""
        cdef Flow *flow
        cdef Beyond *beyond
        cdef uint32_t i = 0
        while i < self.hungry.size:
            beyond = <Beyond *>self.hungry.slots[i].node
            flow = self.flow_at(beyond.flow)
            if beyond.seq < self.again_start or beyond.skipped == self.again_pass:
                i += 1
                continue
            self.beyond -= beyond.count
            self.count_beyond(flow, -<int>beyond.count)
            self.free_beyond_of(flow)
            self.update_flow(flow)
            self.free_if_unused(flow)
            i = 0
        self.end_pass()
        return 0

    # -- records that do not wait --

    cdef int pass_ranges(self) except -1:
        """Pass the holes and finished ranges at the scan position."""
        cdef ChannelCursor *cursor = self.cursor
        cdef uint64_t before = 0
        while before != self.at.seq:
            before = self.at.seq
            self.pass_each(cursor.finished, cursor.finished_count)
            self.pass_each(self.window.holes, self.window.hole_count)
        if cursor.finished_count and \
                cursor.finished[cursor.finished_count - 1].end <= cursor.at.seq:
            cursor.finished_count = 0
        return 0

    cdef int pass_each(self, const Hole *ranges, uint32_t count) except -1:
        cdef uint32_t i
        for i in range(count):
            if ranges[i].start <= self.at.seq < ranges[i].end:
                self.set_bits(self.at.seq, ranges[i].end)
                self.at.seq = ranges[i].end
        return 0

    cdef int pass_missing(self, uint64_t start, uint64_t end) except -1:
        """Pass records that are in no block; those in ranges are already counted."""
        cdef uint64_t fresh = self.set_bits(start, end)
        cdef uint64_t known = (overlap(self.window.holes, self.window.hole_count, start, end)
                               + overlap(self.cursor.finished, self.cursor.finished_count,
                                         start, end))
        self.cursor.skipped += fresh - min(fresh, known)
        return 0

    cdef uint64_t set_bits(self, uint64_t start, uint64_t end) except? 0:
        """Mark records as not waiting; return how many were not marked yet."""
        cdef uint64_t fresh = 0
        cdef uint64_t mask
        cdef uint64_t seq
        cdef uint64_t count
        cdef uint64_t *word
        start = max(start, <uint64_t>self.cursor.at.seq)
        if start >= end:
            return 0
        self.room_for_bits(end)
        seq = start
        while seq < end:
            word = &self.bits[(seq - self.bits_base) >> 6]
            count = min(<uint64_t>64 - (seq & 63), end - seq)
            mask = (<uint64_t>-1 if count == 64 else (<uint64_t>1 << count) - 1) << (seq & 63)
            fresh += count_ones(mask & ~word[0])
            word[0] |= mask
            self.bit_changed(seq >> 6)
            seq += count
        self.passed += fresh
        return fresh

    cdef bint has_bit(self, uint64_t seq) noexcept:
        cdef uint64_t word = (seq - self.bits_base) >> 6
        return word < self.bits_room and (self.bits[word] >> (seq & 63)) & 1

    cdef int room_for_bits(self, uint64_t end) except -1:
        """Make room for the bits before record `end`; release those before the cursor."""
        cdef uint64_t words = (end - self.bits_base + 63) >> 6
        cdef uint64_t past
        cdef uint64_t room
        cdef uint64_t *grown
        if words <= self.bits_room:
            return 0
        past = min((self.cursor.at.seq - self.bits_base) >> 6, self.bits_room)
        if past and (past >= self.bits_room >> 1 or self.passed == 0):
            memmove(self.bits, self.bits + past, (self.bits_room - past) * sizeof(uint64_t))
            memset(self.bits + self.bits_room - past, 0, past * sizeof(uint64_t))
            self.bits_base += past << 6
            words -= past
        elif self.bits_room == 0:
            past = (self.cursor.at.seq - self.bits_base) >> 6
            self.bits_base += past << 6
            words -= past
        if words > self.bits_room:
            room = max(2 * self.bits_room, words + 16)
            grown = <uint64_t *>realloc(self.bits, room * sizeof(uint64_t))
            if grown == NULL:
                raise MemoryError()
            memset(grown + self.bits_room, 0, (room - self.bits_room) * sizeof(uint64_t))
            self.take((room - self.bits_room) * sizeof(uint64_t))
            self.bits = grown
            self.bits_room = room
        return 0

    cdef uint64_t first_clear(self, uint64_t seq) noexcept:
        """Return the first record from `seq` on that waits, or the scan position."""
        cdef uint64_t word
        cdef uint64_t clear
        while seq < self.at.seq:
            word = (seq - self.bits_base) >> 6
            if word >= self.bits_room:
                break
            clear = ~self.bits[word] & (<uint64_t>-1 << (seq & 63))
            if clear:
                seq = (seq & ~<uint64_t>63) + count_trailing_zeros(clear)
                break
            seq = (seq & ~<uint64_t>63) + 64
        return min(seq, <uint64_t>self.at.seq)

    cdef int advance(self) except -1:
        """Move the channel's cursor to the oldest record that waits."""
        cdef ChannelCursor *cursor = self.cursor
        cdef uint64_t seq = cursor.at.seq
        cdef uint64_t end = self.first_clear(seq) if self.passed else seq
        cdef Block *before = cursor.at.block
        cdef Cursor to
        if end != seq:
            cursor.skipped -= end - seq
            self.passed -= end - seq
        if end == self.at.seq:
            self.window.move_cursor(&cursor.at, &self.at)
        else:
            to.block = before
            to.offset = cursor.at.offset
            to.seq = end
            while to.block != NULL and to.block.last_seq < end and to.block.next != NULL:
                to.block = to.block.next
                to.offset = 0
            self.window.move_cursor(&cursor.at, &to)
        if cursor.at.block != before:
            self.last_block = NULL
            if before != NULL and before.cursors == 0:
                self.window.trim()
        return 0

    cdef bint save_bits(self, Owners owners, const Position *saved, Position *to) noexcept:
        """Copy the bits that have changed since the last call for the next process. Return False if
        there is no memory.

        A copied bit is valid only from the new position's cursor on, and before `bits_end`. Words
        before the cursor are cleared once the new position is valid: see clear_passed().
        """
        cdef uint64_t base = self.bits_base >> 6
        cdef uint64_t first = self.cursor.at.seq >> 6
        cdef uint64_t end = self.bits_end >> 6
        cdef uint64_t at = max(first, self.changed_from)
        cdef uint64_t words
        cdef uint64_t *into
        to.bits = NULL if self.bits_lost else saved.bits
        to.words = saved.words
        to.bits_end = self.bits_end
        if end > first and (to.bits == NULL or end - min(first, saved.seq >> 6) > to.words):
            words = 16
            while words < 2 * (end - first):
                words *= 2
            if words > MAX_NOTE_WORDS:
                return False
            to.bits = owners.new_note(<uint32_t>(words * sizeof(uint64_t)))
            if to.bits == NULL:
                return False
            to.words = words
            memset(note_bytes(to.bits), 0, words * sizeof(uint64_t))
            at = first
            self.changed_to = end
        if to.bits != NULL:
            into = <uint64_t *>note_bytes(to.bits)
            end = min(end, self.changed_to, base + self.bits_room)
            while at < end:
                into[at & (to.words - 1)] = self.bits[at - base]
                at += 1
        self.bits_lost = False
        self.changed_from = <uint64_t>-1
        self.changed_to = 0
        return True

    cdef bytes packed_bits(self):
        """Return the bits from the cursor on, for the journal; empty if no bit is set."""
        cdef uint64_t first
        cdef uint64_t words
        if self.passed == 0:
            return b""
        first = (self.cursor.at.seq - self.bits_base) >> 6
        words = self.bits_room
        while words > first and self.bits[words - 1] == 0:
            words -= 1
        return (<const char *>(self.bits + first))[:(words - first) * sizeof(uint64_t)]

    cdef int restore_bits(self, uint64_t first, bytes packed) except -1:
        """Restore the result of packed_bits(); `first`: the cursor at that time. Bits before the
        cursor are ignored."""
        cdef uint64_t base = first & ~<uint64_t>63
        cdef const uint64_t *words = <const uint64_t *><const char *>packed
        cdef uint64_t count = len(packed) // sizeof(uint64_t)
        cdef uint64_t seq = self.cursor.at.seq
        if count == 0:
            return 0
        self.bits_base = seq & ~<uint64_t>63
        while seq < base + (count << 6):
            if seq >= first and (words[(seq - base) >> 6] >> (seq & 63)) & 1:
                self.set_bits(seq, seq + 1)
            seq += 1
        return 0

    # -- messages --

    cdef Block *block_of(self, uint64_t seq) except? NULL:
        cdef Block *block = self.last_block
        if block == NULL or not block.first_seq <= seq <= block.last_seq:
            block = self.window.block_of(seq)
            if block != NULL and block.first_seq > seq:
                block = NULL
            self.last_block = block
        return block

    cdef Entry *head_entry(self, Flow *flow) noexcept:
        """Return a flow's next message if it is an entry; NULL if it is a record."""
        if flow.first_entry == NULL or flow.first != 0 and \
                place_of(flow.first_entry) > place_of_record(self.item_at(flow.first).seq):
            return NULL
        return flow.first_entry

    cdef void unlink_entry(self, Flow *flow) noexcept:
        """Remove a flow's first entry."""
        cdef Entry *entry = flow.first_entry
        flow.first_entry = entry.next
        if flow.first_entry == NULL:
            flow.last_entry = NULL
        if self.walked == entry:
            self.walked = entry.next
        if self.unpacked == entry:
            self.unpacked = entry.next
        self.entries -= 1

    cdef Entry *pop(self, Flow *flow, uint8_t round) except? NULL:
        """Remove a flow's next message, with its record in memory. Return NULL if the record must
        be read first, or if there is no such record any more.

        The flow stays where it is: serve() or update_flow() must follow."""
        cdef Entry *entry = self.head_entry(flow)
        cdef Block *block
        cdef Item *item
        cdef uint32_t offset
        cdef uint64_t seq
        if entry != NULL:
            block = entry.block
            if block.data == NULL or block.flags & LOADING:
                self.load_heads(flow)
                return NULL
            self.unlink_entry(flow)
            self.count_waiting(flow, -1)
            return entry
        item = self.item_at(flow.first)
        seq = item.seq
        block = self.block_of(seq)
        if block == NULL:
            self.lost = True
            self.drop_head(flow, &entry)
            self.update_key(self.flow_at(flow.key))
            return NULL
        if block.data == NULL or block.flags & LOADING:
            self.load_heads(flow)
            return NULL
        offset = item.offset
        if offset >= block.size or (<const Record *>(block.data + offset)).seq != seq:
            offset = offset_of(block, seq)
            if offset >= block.size:
                offset = 0      # the record is lost: another one is there
        entry = self.window.pool.new_entry()
        entry.block = block
        entry.offset = offset
        entry.seq = seq
        entry.id = (<const Record *>(block.data + offset)).id
        entry.attempts = 0
        entry.round = round
        entry.node.index = NO_FLOW
        entry.in_flight_list = <void *>place_of_record(seq)
        self.window.ref(block)
        self.bytes -= min(self.bytes, <uint64_t>(<const Record *>(block.data + offset)).length)
        self.unlink_item(flow)
        self.count_waiting(flow, -1)
        self.leave_log(seq)
        return entry

    cdef int leave_log(self, uint64_t seq) except -1:
        """Mark a record, which waited, as taken."""
        cdef uint64_t word = (seq - self.bits_base) >> 6
        if seq >= self.cursor.at.seq and word < self.bits_room and not self.has_bit(seq):
            self.bits[word] |= <uint64_t>1 << (seq & 63)
            self.bit_changed(seq >> 6)
            self.passed += 1
            self.cursor.skipped += 1
        else:
            self.cursor.skipped += self.set_bits(seq, seq + 1)
        if seq == self.cursor.at.seq:
            self.advance()
        return 0

    cdef int load_heads(self, Flow *flow) except -1:
        """Request the records of the next messages of this flow and those served after it."""
        cdef size_t room = self.window.pool.budget // LOADED_PART
        cdef size_t size = 0
        cdef int left = SEEN_HEADS
        cdef int blocks = 0
        cdef Flow *first = flow
        cdef Entry *entry
        cdef Block *block
        cdef Block *last = NULL
        while left:
            left -= 1
            entry = self.head_entry(flow)
            block = self.block_of(self.item_at(flow.first).seq) if entry == NULL else entry.block
            if block != NULL and block != last:
                last = block
                blocks += 1
                size += block.size
                if flow != first and (size > room or blocks > SEEN_BLOCKS):
                    break
                if block.data == NULL:
                    self.window.load(block)
                elif flow == first:
                    break       # it is being read: the others were requested with it
            if not self.fair or flow.state != IN_TURN:
                break
            flow = flow.next
            if flow == first:
                break
        return 0

    cdef int drop_head(self, Flow *flow, Entry **entry) except -1:
        """Remove a flow's next message without reading it; output its entry, or NULL."""
        cdef uint64_t seq
        entry[0] = self.head_entry(flow)
        if entry[0] != NULL:
            self.unlink_entry(flow)
            self.count_waiting(flow, -1)
            return 0
        self.bytes -= min(self.bytes, self.bytes // (self.items + self.beyond))
        seq = self.unlink_item(flow)
        self.count_waiting(flow, -1)
        return self.leave_log(seq)

    # -- entries --

    cdef uint64_t arrive(self) noexcept:
        """Return the place of a message that arrives now: after all records fanned out so far."""
        cdef uint64_t gate = self.window.fanout.seq
        if gate != self.gate:
            self.gate = gate
            self.arrivals = 0
        elif self.arrivals < LAST_ARRIVAL:
            self.arrivals += 1
        return gate << ARRIVAL_BITS | self.arrivals

    cdef uint64_t restore_place(self, const Entry *entry, uint64_t place) noexcept:
        """Return the place of a message that is restored; later arrivals come after it. `place`:
        the place that it had, perhaps with other rules; 0: unknown, it takes that of its record."""
        cdef uint64_t gate = self.window.fanout.seq
        self.unsorted = True
        if place == 0 or self.order and entry.attempts:
            return place_of_record(entry.seq)
        place = min(place, gate << ARRIVAL_BITS | LAST_ARRIVAL)
        if place >> ARRIVAL_BITS == gate:
            if self.gate != gate:
                self.gate = gate
                self.arrivals = 0
            self.arrivals = max(self.arrivals, place & ARRIVAL_MASK)
        return place

    cdef int join(self, Entry *entry) except -1:
        """Let a message wait that was held. Return 0, with its place set, if its key is not known:
        resolve() must follow once its record is in memory."""
        cdef uint32_t number = entry.node.index
        cdef Flow *flow
        cdef Flow *key
        cdef uint64_t place
        entry.node.index = NO_FLOW
        if not counts(number):
            place = self.arrive()
            if self.order and (number == UNRESOLVED or entry.attempts):
                # It was held before its key was known.
                place = place_of_record(entry.seq)
                self.unsorted = True
            entry.in_flight_list = <void *>place
            return 0
        flow = self.flow_at(number)
        key = self.flow_at(flow.key)
        if self.order and not is_without_key(flow):
            place = key.place if key.place else place_of_record(entry.seq)
        else:
            place = self.arrive()
        key.place = 0
        entry.in_flight_list = <void *>place
        self.join_flow(flow, entry)
        self.release_flow(number)
        return 1

    cdef int join_flow(self, Flow *flow, Entry *entry) except -1:
        """Insert a message into its flow, by place."""
        cdef Entry *before
        cdef uint64_t place = place_of(entry)
        entry.next = NULL
        if flow.last_entry == NULL:
            flow.first_entry = flow.last_entry = entry
        elif place_of(flow.last_entry) <= place:
            flow.last_entry.next = entry
            flow.last_entry = entry
        elif place < place_of(flow.first_entry):
            entry.next = flow.first_entry
            flow.first_entry = entry
        else:
            before = flow.first_entry
            while place_of(before.next) <= place:
                before = before.next
            entry.next = before.next
            before.next = entry
        self.entries += 1
        self.count_waiting(flow, 1)
        return 0

    cdef int resolve(self, Entry *entry, const Record *record) except -1:
        """Let a message wait whose key was not known."""
        cdef MessageKey key
        cdef Flow *flow
        self.key_of(record, &key)
        flow = self.find_or_make(&key)
        if self.order and entry.attempts and not is_without_key(flow):
            entry.in_flight_list = <void *>place_of_record(entry.seq)
        self.join_flow(flow, entry)
        self.update_flow(flow)
        return 0

    cdef Entry *take_all_entries(self) noexcept:
        """Remove all entries from all flows; return them, linked by `next`. The index must be
        stopped or reset afterwards."""
        cdef Entry *found = NULL
        cdef Flow *flow
        cdef uint32_t number
        for number in range(1, self.flow_end):
            flow = self.flow_at(number)
            if flow.used and flow.first_entry != NULL:
                flow.last_entry.next = found
                found = flow.first_entry
                flow.first_entry = flow.last_entry = NULL
        self.entries = 0
        self.walked = self.unpacked = NULL
        return found

    # -- walks over all entries; see UnfinishedMessages --

    cdef void begin_walk(self) noexcept:
        self.walked_flow = self.flow_end
        self.walked = NULL

    cdef bint walk(self, Deferred **entry) noexcept:
        """Take one step of a walk; output the entry there, or NULL. Return False at the end."""
        cdef Flow *flow
        if self.walked != NULL:
            entry[0] = <Deferred *>self.walked
            self.walked = self.walked.next
            return True
        if self.walked_flow <= 1:
            return False
        self.walked_flow -= 1
        flow = self.flow_at(self.walked_flow)
        self.walked = flow.first_entry if flow.used else NULL
        return True

    cdef void begin_packing(self) noexcept:
        self.unpacked_flow = self.flow_end
        self.unpacked = NULL

    cdef bint is_packed(self) noexcept:
        return self.unpacked == NULL and self.unpacked_flow <= 1

    cdef Entry *next_to_pack(self) noexcept:
        """Return the next entry that a checkpoint visits; NULL if this step finds none."""
        cdef Entry *entry = self.unpacked
        cdef Flow *flow
        if entry != NULL:
            self.unpacked = entry.next
            return entry
        self.unpacked_flow -= 1
        flow = self.flow_at(self.unpacked_flow)
        self.unpacked = flow.first_entry if flow.used else NULL
        return NULL

    cdef bint has_left(self, uint64_t seq) noexcept:
        """Return whether a record has left the channel, or never waits in it."""
        return seq < self.cursor.at.seq or self.passed != 0 and self.has_bit(seq)

    cdef const Entry *next_listed(self, uint32_t *flow, const Entry *entry) noexcept:
        """Return the entry after this one, or the first at or after a flow; NULL at the end."""
        if entry != NULL and entry.next != NULL:
            return entry.next
        flow[0] += entry != NULL
        while flow[0] < self.flow_end:
            if self.flow_at(flow[0]).used and self.flow_at(flow[0]).first_entry != NULL:
                return self.flow_at(flow[0]).first_entry
            flow[0] += 1
        return NULL

    # -- lists of keys; see key_listing --

    cdef bint list_flow(self, uint32_t number, ListedKey *into) noexcept:
        """Describe the key whose first flow has this number; return False if there is none."""
        cdef const Flow *key = self.flow_at(number)
        cdef const Flow *flow = key
        if not key.used or key.key != number:
            return False
        into.high = key.node.high
        into.low = key.node.low
        into.waiting = key.total
        into.held = key.held
        into.blocked = key.total != 0 and self.is_blocked(key)
        into.paused = self.pauses is not None and self.pauses.seq_of(into.high, into.low) != 0
        into.since = self.seconds()
        while into.blocked:
            if flow.state == BLOCKED:
                into.since = min(into.since, since_of(flow))
            if flow.sibling == 0:
                break
            flow = self.flow_at(flow.sibling)
        return True

    cdef bytes text_of(self, const ListedKey *listed):
        """Return the text of a key, from its next message: None if the message must be read from
        disk, which is requested; empty if there is no message or no text."""
        cdef MessageKey key
        cdef Flow *flow
        cdef const Entry *entry
        cdef Block *block
        cdef const Record *record
        cdef uint64_t seq
        cdef uint32_t offset
        cdef uint16_t length = 0
        cdef const uint8_t *text
        key.high = listed.high
        key.low = listed.low
        key.level = 0
        flow = self.any_flow(&key)
        flow = NULL if flow == NULL else self.oldest_of_key(flow)
        if flow == NULL:
            return b""
        entry = self.head_entry(flow)
        if entry != NULL:
            block, seq, offset = entry.block, entry.seq, entry.offset
        else:
            seq, offset = self.item_at(flow.first).seq, self.item_at(flow.first).offset
            block = self.block_of(seq)
        if block == NULL:
            return b""
        if block.data == NULL or block.flags & LOADING:
            self.window.load(block)
            return None
        record = <const Record *>(block.data + offset)
        if offset >= block.size or is_spoiled(record, seq):
            return b""
        text = record_key(record, &length)
        return (<const char *>text)[:length] if length else b""

    # -- deferred messages that hold their key --

    cdef uint32_t held_slot(self, uint64_t seq) noexcept:
        cdef uint32_t slot = <uint32_t>((seq * 0x9E3779B97F4A7C15u) >> 32) & self.held_mask
        while self.held[slot].seq != 0 and self.held[slot].seq != seq:
            slot = (slot + 1) & self.held_mask
        return slot

    cdef int hold_deferred(self, const Deferred *deferred, uint32_t flow) except -1:
        """Remember the flow that a deferred message holds until it is due."""
        cdef HeldSlot *before = self.held
        cdef uint32_t count = 0 if before == NULL else self.held_mask + 1
        cdef uint32_t i
        cdef uint32_t slot
        if before == NULL or 2 * self.held_count > self.held_mask:
            self.held = <HeldSlot *>calloc(max(<uint32_t>16, 2 * count), sizeof(HeldSlot))
            if self.held == NULL:
                self.held = before
                raise MemoryError()
            self.held_mask = max(<uint32_t>16, 2 * count) - 1
            for i in range(count):
                if before[i].seq:
                    self.held[self.held_slot(before[i].seq)] = before[i]
            free(before)
        slot = self.held_slot(deferred.seq)
        if self.held[slot].seq == 0:
            self.held_count += 1
        self.held[slot].seq = deferred.seq
        self.held[slot].flow = flow
        return 0

    cdef uint32_t forget_deferred(self, uint64_t seq) noexcept:
        """Return the flow that a deferred message holds, or NO_FLOW; the caller counts for it."""
        cdef uint32_t hole
        cdef uint32_t slot
        cdef uint32_t home
        cdef uint32_t flow
        if self.held == NULL:
            return NO_FLOW
        hole = self.held_slot(seq)
        if self.held[hole].seq == 0:
            return NO_FLOW
        flow = self.held[hole].flow
        self.held_count -= 1
        slot = hole
        while True:
            slot = (slot + 1) & self.held_mask
            if self.held[slot].seq == 0:
                break
            home = <uint32_t>((self.held[slot].seq * 0x9E3779B97F4A7C15u) >> 32) & self.held_mask
            if ((slot - home) & self.held_mask) >= ((slot - hole) & self.held_mask):
                self.held[hole] = self.held[slot]
                hole = slot
        self.held[hole].seq = 0
        return flow

    # -- held messages whose key is not known --

    cdef bint settle(self) except -1:
        """Find the keys of messages in flight, and with `order` those of messages requeued with a
        delay. Return whether all are known; if not, request their records."""
        cdef bint loads
        cdef bint known = True
        cdef int left
        cdef uint32_t i
        cdef InFlightList *in_flight_list
        cdef Entry *entry
        cdef Deferred *message
        for loads in (False, True):
            known = True
            left = SETTLED_LOADS
            in_flight_list = self.in_flight_lists[0]
            while in_flight_list != NULL and left:
                entry = in_flight_list.first
                while entry != NULL and left:
                    if entry.node.index == UNRESOLVED \
                            and not self.settle_message(<Deferred *>entry, loads):
                        known = False
                        left -= loads
                    entry = entry.next
                in_flight_list = in_flight_list.next
            i = 0
            while self.order and i < self.deferred.size and left:
                message = <Deferred *>self.deferred.slots[i].node
                i += 1
                if not message.node.tag & IN_FLIGHT_TIMER and message.attempts \
                        and (self.held == NULL
                             or self.held[self.held_slot(message.seq)].seq == 0) \
                        and not self.settle_message(message, loads):
                    known = False
                    left -= loads
            if known:
                break
        self.unsettled = not known
        return known

    cdef bint settle_message(self, Deferred *message, bint loads) except -1:
        """Find the key of a held message; return False if its record must be read first."""
        cdef Block *block = message.block
        cdef const Record *record
        cdef MessageKey key
        cdef Flow *flow
        cdef Flow *first
        if block.data == NULL or block.flags & LOADING:
            if loads:
                self.window.load(block)
            return False
        record = <const Record *>(block.data + message.offset)
        self.key_of(NULL if is_spoiled(record, message.seq) else record, &key)
        flow = self.find_or_make(&key)
        first = self.flow_at(flow.key)
        if message.state == TRANSFERRING and not self.order:
            (<Entry *>message).node.index = NO_FLOW
            self.free_if_unused(flow)
            return True
        if message.state == DEFERRED:
            self.hold_deferred(message, flow.number)
        else:
            message.node.index = flow.number
        first.held += 1
        if first != flow:
            flow.held += 1
        first.place = place_of_record(message.seq) if first.held == 1 else 0
        self.update_key(first)
        return True


cdef uint64_t overlap(const Hole *ranges, uint32_t count, uint64_t start, uint64_t end) noexcept:
    """Return the number of records in start .. end - 1 that are in ranges."""
    cdef uint64_t found = 0
    cdef uint32_t i
    for i in range(count):
        if max(ranges[i].start, start) < min(ranges[i].end, end):
            found += min(ranges[i].end, end) - max(ranges[i].start, start)
    return found
