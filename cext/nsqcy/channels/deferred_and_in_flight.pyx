"""The unfinished messages of a channel, and the consumers that hold some of them.

Owns the location of each message: at the channel's cursor (channel_cursor), deferred, in the queue
for redelivery, or in flight (inflight_table). Also owns the times when the channel wakes up, the
ring of consumers that can accept messages, the reports about messages in flight, and the walks over
all entries. Independent of why a message changes its state, and of a consumer's input and output.
"""

cdef enum WalkPart:
    WALK_TIMERS = 0
    WALK_QUEUE = 1
    WALK_TABLE = 2


cdef enum:
    READ_AHEAD = 1024               # maximum number of queued messages read concurrently

# Live objects, counted in the debug build.
cdef Py_ssize_t live_in_flight_lists = 0


cdef Py_ssize_t in_flight_lists_alive() noexcept:
    """Return the number of lists in all channels; zero in a release build."""
    return live_in_flight_lists


cdef inline void append(UnfinishedMessages messages, Entry *entry) noexcept:
    """Add a message to the end of the queue."""
    entry.next = NULL
    entry.due = <int64_t>messages.arrivals
    messages.arrivals += 1
    if messages.queue_last == NULL:
        messages.queue_first = entry
    else:
        messages.queue_last.next = entry
    messages.queue_last = entry


cdef class UnfinishedMessages:
    """One channel's messages."""

    def __cinit__(self):
        heap_init(&self.timers)
        self.alarm.node.index = HEAP_NOWHERE
        self.alarm.owner = <void *>self
        table_init(&self.table)
        self.consumers = []
        init_ring(&self.ready)

    def __dealloc__(self):
        while self.in_flight_lists != NULL:
            # The heap also contains entries, which may have been freed together with their pool.
            self.in_flight_lists.timer.index = HEAP_NOWHERE
            self.free_in_flight_list(self.in_flight_lists)
        table_free(&self.table)
        heap_free(&self.timers)
        free(self.cursor.finished)

    # -- for the next process --

    cdef void save_position(self, Note *note) noexcept:
        """State where the channel is, at the end of a turn. `note`: what else a journal would
        contain; it may be the previous note."""
        cdef Owners owners = self.scheduler.owners
        cdef Position *saved = &self.owner.positions[self.owner.current]
        cdef Position *to = next_position(self.owner)
        to.seq = self.cursor.at.seq
        to.skipped = self.cursor.skipped
        to.replay_end = self.cursor.replay_end
        to.note = note
        to.bits = NULL
        if self.keys is not None and not self.keys.save_bits(owners, saved, to):
            return                  # no memory: the previous position stays valid
        turn_position(self.owner)
        if saved.note != NULL and saved.note != note:
            owners.free_note(saved.note)
        if saved.bits != NULL and saved.bits != to.bits:
            owners.free_note(saved.bits)
        elif to.bits != NULL:
            clear_passed(saved, to)
        saved.note = to.note
        saved.bits = to.bits

    # -- the scheduler --

    cdef void become_dirty(self) noexcept:
        self.dirty = True
        self.scheduler.dirty_channels.append(self)

    cdef void set_alarm(self) noexcept:
        """Set the scheduler's timer for this channel to the channel's earliest due time."""
        cdef int64_t due = heap_first_due(&self.timers)
        if self.timers.size == 0:
            self.drop_alarm()
        elif self.alarm.node.index == HEAP_NOWHERE:
            heap_push(&self.scheduler.channel_timers, &self.alarm.node, due)
        elif heap_due(&self.scheduler.channel_timers, &self.alarm.node) != due:
            heap_update(&self.scheduler.channel_timers, &self.alarm.node, due)

    cdef void drop_alarm(self) noexcept:
        if self.alarm.node.index != HEAP_NOWHERE:
            heap_remove(&self.scheduler.channel_timers, &self.alarm.node)

    # -- numbers --

    cdef uint64_t depth(self) noexcept:
        """Return the number of messages that are waiting for a consumer, neither in flight nor
        deferred."""
        cdef uint64_t end = self.window.fanout.seq
        cdef uint64_t waiting = 0
        if end > self.cursor.at.seq + self.cursor.skipped:
            waiting = end - self.cursor.at.seq - self.cursor.skipped
        return waiting + self.queued

    cdef uint64_t held(self) noexcept:
        """Return the number of unfinished messages."""
        return self.depth() + self.in_flight_count + self.deferred_count

    # -- deferring --

    cdef int defer_record(self, const Entry *delayed, int64_t due) except -1:
        """Handle the fan-out of a record with a delay: defer it here until `due`."""
        cdef Deferred *deferred
        if delayed.seq < self.cursor.at.seq:
            # Recovery found that the record was fanned out before the channel was created.
            return 0
        if self.cancelled is not None and self.was_cancelled(delayed.seq):
            return 0
        deferred = self.defer(<const Deferred *>delayed, due)
        deferred.round = self.round
        self.window.ref(delayed.block)
        self.cursor.skipped += 1
        return 0

    cdef bint was_cancelled(self, uint64_t seq) except -1:
        if seq not in self.cancelled:
            return False
        self.cancelled.remove(seq)
        self.cancelled_count += 1
        self.cursor.skipped += 1
        return True

    cdef Deferred *defer(self, const Deferred *message, int64_t due) except NULL:
        """Defer a message until `due`; copy its fields."""
        cdef Deferred *deferred = self.pool.new_deferred(&self.pages, message.id)
        cdef Deferred copy = message[0]
        copy.block = NULL
        copy.state = DEFERRED
        copy.due = due
        copy.node.index = HEAP_NOWHERE
        deferred[0] = copy
        if heap_push(&self.timers, &deferred.node, due) < 0:
            self.pool.free_deferred(&self.pages, deferred)
            raise MemoryError()
        keep_store_order()
        deferred.block = message.block
        self.deferred_count += 1
        self.touch_dirty()
        return deferred

    cdef int defer_entry(self, Entry *entry, int64_t due) except -1:
        """Defer a message that was delivered, by converting it to a smaller object."""
        cdef Deferred *deferred = self.defer(<const Deferred *>entry, due)
        cdef Block *block = entry.block
        deferred.node.tag = ENTRY_TIMER
        if block.data != NULL and not block.flags & LOADING:
            deferred.node.tag = size_tag((<Record *>(block.data + entry.offset)).body_length)
        if self.keys is not None:
            self.defer_key(entry, deferred)
        self.pool.free_entry(entry)
        if deferred.round != self.round:
            self.pack(deferred)
        return 0

    cdef int defer_key(self, Entry *entry, const Deferred *deferred) except -1:
        """Handle the key of a message that was requeued with a delay: with `order`, the message
        holds its key until it is due."""
        cdef uint32_t flow = entry.node.index
        if not self.keys.order:
            self.keys.release(entry)
        elif flow == UNRESOLVED:
            self.keys.unsettled = True
        elif flow != NO_FLOW:
            self.keys.hold_deferred(deferred, flow)
        return 0

    # -- deferred messages, one by one --

    cdef Deferred *find_deferred(self, uint64_t id) noexcept:
        """Return the deferred message with this id; NULL if there is none."""
        cdef Page *page = self.pages.first
        cdef Deferred *deferred
        cdef uint32_t i
        while page != NULL:
            if page.min_id <= id <= page.max_id:
                deferred = deferred_of(page)
                for i in range(page.made):
                    if deferred[i].block != NULL and deferred[i].id == id:
                        return &deferred[i]
            page = page.next
        return NULL

    cdef uint64_t cancel(self, uint64_t id) noexcept:
        """Drop a deferred message; return its seq, or 0 if there is none."""
        cdef Deferred *deferred = self.find_deferred(id)
        cdef uint64_t seq
        if deferred == NULL:
            return 0
        seq = deferred.seq
        if self.keys is not None:
            self.forget_key(seq)
        heap_remove(&self.timers, &deferred.node)
        self.deferred_count -= 1
        self.cancelled_count += 1
        self.window.unref(deferred.block)
        self.pool.free_deferred(&self.pages, deferred)
        self.touch_dirty()
        return seq

    cdef uint64_t gate_of(self, const Entry *entry) noexcept:
        """Return the record that follows a queued message in log order."""
        cdef uint64_t gate = <uint64_t>entry.in_flight_list
        return gate if self.keys is None else gate >> ARRIVAL_BITS

    cdef void release_key(self, Entry *entry) noexcept:
        """Handle a message that leaves the channel: its key may have a message to deliver."""
        self.keys.release(entry)
        if self.keys.waiting_levels:
            self.touch_dirty()

    cdef void forget_key(self, uint64_t seq) noexcept:
        """Handle the end of a deferred message."""
        cdef uint32_t flow = self.keys.forget_deferred(seq)
        if flow != NO_FLOW:
            self.keys.release_flow(flow)

    def upcoming(self, int limit, after):
        """Return up to `limit` deferred messages in order of due time, each as (place, seq, due,
        id, attempts, size). `due` is on the wall clock. `after`: return messages after this place;
        None: start from the beginning."""
        cdef Listing listing = Listing(limit, after, IN_FLIGHT_TIMER)
        cdef int64_t ahead = self.scheduler.wall - self.scheduler.now
        cdef const Deferred *deferred
        cdef uint32_t i
        for i in range(self.timers.size):
            listing.offer(&self.timers.slots[i])
        found = []
        for slot in listing.sorted_indices():
            i = slot
            deferred = <const Deferred *>listing.slots[i].node
            found.append(((listing.slots[i].due, deferred.seq), deferred.seq,
                          listing.slots[i].due + ahead, deferred.id, deferred.attempts,
                          deferred.node.tag >> 1))
        return found

    # -- queueing --

    cdef int queue_record(self, const Entry *addressed) except -1:
        """Handle the fan-out of a record that is only for this channel."""
        cdef Entry *entry
        if self.cancelled is not None and self.was_cancelled(addressed.seq):
            return 0
        entry = self.pool.new_entry()
        entry.seq = addressed.seq
        entry.id = addressed.id
        entry.block = addressed.block
        entry.offset = addressed.offset
        entry.attempts = 0
        entry.round = self.round
        entry.node.index = NO_FLOW
        self.window.ref(entry.block)
        self.own(entry)
        self.cursor.skipped += 1
        self.queue_entry(entry, addressed.node.tag)
        return 0

    cdef void queue_entry(self, Entry *entry, uint32_t size) noexcept:
        """Queue a message at the tail, after all messages fanned out so far. A full ephemeral
        channel drops the message. `size`: the body's size, in the form of size_tag."""
        if self.ephemeral and self.queued >= self.mem_queue_size:
            self.dropped_count += 1
            self.drop_entry(entry)
            return
        entry.state = QUEUED
        entry.node.tag = size
        self.queued += 1
        if self.keys is None:
            entry.in_flight_list = <void *><size_t>self.window.fanout.seq
            append(self, entry)
        elif not self.keys.join(entry):
            self.append_to_queue(entry)
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.touch_dirty()

    cdef int restore_queued(self, Entry *entry, uint64_t place) except -1:
        """Queue a message from a journal, which contains its place in the index; 0: unknown."""
        entry.state = QUEUED
        entry.in_flight_list = NULL
        if self.keyed:
            entry.in_flight_list = <void *>self.keys.restore_place(entry, place)
        self.own(entry)
        self.queued += 1
        self.append_to_queue(entry)
        self.touch_dirty()
        return 0

    cdef void append_to_queue(self, Entry *entry) noexcept:
        """Add a message to the queue itself; in a channel with an index, this is the queue of
        messages whose keys are not known yet."""
        append(self, entry)

    cdef void unqueue_first(self) noexcept:
        cdef Entry *entry = self.queue_first
        self.queue_first = entry.next
        if self.queue_first == NULL:
            self.queue_last = NULL
        if self.place.queued == entry:
            self.place.queued = entry.next
        if self.unpacked == entry:
            self.unpacked = entry.next
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.queued -= 1

    # -- records that are not in memory --

    cdef bint at_hand(self, const Entry *entry) except -1:
        """Return whether the first message in the queue, whose block is not in memory, can be
        delivered. If not, request its record."""
        cdef Block *block = entry.block
        if block.flags & LOADING:
            return False
        if self.prefetch is None:
            self.read_ahead()
        elif self.prefetch.reading:
            return False
        elif self.prefetch.find(entry.seq) != NULL:
            return True
        elif self.prefetch.first_seq == entry.seq:
            # The record is damaged or could not be read; loading its block determines which.
            self.window.load(block)
        else:
            self.read_ahead()
        return False

    cdef int read_ahead(self) except -1:
        """Read the next messages in the queue that are not in memory."""
        cdef const Entry *entry = self.queue_first
        cdef ReadAhead prefetch = ReadAhead(self.window, entry.seq)
        cdef int left = READ_AHEAD
        self.prefetch = None
        if self.window.stalled:
            return 0
        while entry != NULL and left and prefetch.add(entry):
            entry = entry.next
            left -= 1
        if prefetch.read():
            self.prefetch = prefetch
        return 0

    cdef Record *record_of(self, const Entry *entry) noexcept:
        """Return the record of a message that is queued or has just left the queue; NULL if the
        record is damaged or not in memory."""
        cdef Block *block = entry.block
        cdef Record *record
        if block.data != NULL and not block.flags & LOADING:
            record = <Record *>(block.data + entry.offset)
            return NULL if is_spoiled(record, entry.seq) else record
        return NULL if self.prefetch is None else self.prefetch.find(entry.seq)

    # -- in flight --

    cdef int list_add_uninlined(
            self, InFlightList *in_flight_list, Entry *entry, int64_t deadline) except -1:
        """Like list_add(), for infrequent callers. Compilers do not inline a function that has many
        callers, and delivery needs list_add() inlined."""
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
        """Continue packing in-flight messages with this list; NULL ends the iteration."""
        self.unpacked_in_flight_list = in_flight_list
        self.unpacked_in_flight = NULL if in_flight_list == NULL else in_flight_list.first

    cdef int64_t age_of(self, uint64_t id) noexcept:
        """Return the time since the publish of an in-flight message, in ns; 0 if the message is not
        in flight."""
        cdef const Entry *entry = self.table.slots[table_find(&self.table, id)]
        return 0 if entry == NULL else self.scheduler.wall - entry.timestamp

    # -- in flight, for the next process --

    cdef list in_flight_to(self, Consumer consumer):
        """Return the messages in flight to a consumer, in order of deadline: (id, deadline)."""
        cdef const Entry *entry = consumer.in_flight_list.first
        cdef uint8_t id[16]
        found = []
        while entry != NULL:
            hex16_format(id, entry.id)
            found.append([id[:16].decode("ascii"), entry.due])
            entry = entry.next
        return found

    cdef int restore_in_flight(
            self, InFlightList *in_flight_list, Entry *entry, int64_t deadline,
            uint32_t delivered) except -1:
        """Restore a message that another process has delivered. `in_flight_list`: a list without a
        consumer, until claim() follows. Call this in order of deadline."""
        entry.node.index = NO_FLOW
        if self.keys is not None and (self.keys.order or self.keys.in_flight_per_key):
            entry.node.index = UNRESOLVED
            self.keys.unsettled = True
        self.list_add_uninlined(in_flight_list, entry, deadline)
        entry.node.tag = delivered
        table_add(&self.table, entry, self.in_flight_count)
        self.in_flight_count += 1
        self.own(entry)
        return 0

    cdef bint claim(self, Consumer consumer, uint64_t id, int64_t deadline) except -1:
        """Give a restored message to its consumer. Return False if no message without a consumer
        has this id."""
        cdef Entry *entry = self.table.slots[table_find(&self.table, id)]
        cdef uint32_t delivered
        if entry == NULL or (<InFlightList *>entry.in_flight_list).consumer != NULL:
            return False
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        delivered = entry.node.tag
        self.list_remove(entry)
        self.list_add_uninlined(consumer.in_flight_list, entry, deadline)
        entry.node.tag = delivered
        consumer.in_flight += 1
        return True

    # -- consumers --

    cdef int add_consumer(self, Consumer consumer) except -1:
        consumer.in_flight_list = self.new_in_flight_list(<void *>consumer)
        consumer.channel = self
        self.give_timeout(consumer)
        init_place(&consumer.ring_place, <void *>consumer)
        consumer.index = len(self.consumers)
        self.consumers.append(consumer)
        return 0

    cdef void remove_consumer(self, Consumer consumer) noexcept:
        """Handle the departure of a client; its messages stay in flight until their deadlines."""
        cdef InFlightList *in_flight_list = consumer.in_flight_list
        if consumer.waiting:
            consumer.waiting = False
            leave_ring(&consumer.ring_place)
        consumer.in_flight_list = NULL
        consumer.channel = None
        if in_flight_list != NULL:
            in_flight_list.consumer = NULL
            if in_flight_list.count == 0:
                self.free_in_flight_list(in_flight_list)
            elif self.returns:
                self.return_messages(in_flight_list, consumer.client_id)
        self.drop_consumer(consumer)
        self.touch_dirty()

    cdef void drop_consumer(self, Consumer consumer) noexcept:
        """Remove a consumer from the list, and put the last one in its place. A search would take
        seconds if thousands of consumers leave in one turn."""
        cdef list consumers = self.consumers
        cdef Consumer last
        if consumer.index < len(consumers) and consumers[consumer.index] is consumer:
            last = consumers[len(consumers) - 1]
            consumers[consumer.index] = last
            last.index = consumer.index
            del consumers[len(consumers) - 1]

    cdef int return_messages(self, InFlightList *in_flight_list, str client) except -1:
        """Requeue the messages of a client that has left; see Channel."""
        return 0

    cdef void give_timeout(self, Consumer consumer) noexcept:
        if not consumer.asked_timeout:
            consumer.msg_timeout = self.msg_timeout or consumer.usual_timeout()

    cdef void check_ready(self, Consumer consumer) noexcept:
        """Add the consumer to its ring or remove it, depending on its ready count."""
        cdef bint ready = (
            consumer.channel is self and consumer.in_flight < consumer.ready_count
            and consumer.has_room())
        if ready == consumer.waiting:
            return
        consumer.waiting = ready
        if ready:
            enter_ring(&self.ready, consumer.locality, &consumer.ring_place)
            self.touch_dirty()
        else:
            leave_ring(&consumer.ring_place)

    # -- reports --

    cdef void report_to(self, Events events, bytes names) noexcept:
        """Start to report message events."""
        self.events = events
        self.event_names = names
        self.watched = True

    cdef void report(self, EventKind kind, const Entry *entry) noexcept:
        """Report an event for a message that is still in flight. Only for watched channels."""
        cdef InFlightList *in_flight_list = <InFlightList *>entry.in_flight_list
        # Milliseconds modulo 2^32, as in touch().
        cdef int64_t held = <int32_t>(
            <uint32_t>(self.scheduler.now // 1000000) - <uint32_t>entry.node.tag)
        cdef str client = ""
        if self.events is None:
            return
        if in_flight_list.consumer != NULL:
            client = (<Consumer>in_flight_list.consumer).client_id
        self.events.add(kind, entry.id, entry.attempts, self.scheduler.wall, held * 1000000,
                        self.scheduler.wall - entry.timestamp, self.event_names, client)

    cdef void report_finish(self, Entry *entry) noexcept:
        if self.keys is not None:
            self.fetch_held(entry.next)
            self.release_key(entry)
        if self.latency is not None:
            # The clock may have been set back since the publish.
            self.latency.add(max(<int64_t>0, self.scheduler.wall - entry.timestamp),
                             self.scheduler.now)
        self.report(FINISH, entry)

    cdef void fetch_held(self, const Entry *entry) noexcept:
        """Load what the ends of the next messages in flight use into the processor's cache, one
        step for each message. Most consumers finish messages in the order of their delivery."""
        if entry == NULL:
            return
        prefetch(&self.table.slots[home_slot(self.table.mask, entry.id)])
        if counts(entry.node.index):
            self.keys.fetch_head(self.keys.flow_at(entry.node.index))
        entry = entry.next
        if entry == NULL:
            return
        if counts(entry.node.index):
            fetch_flow(self.keys.flow_at(entry.node.index))
        prefetch(entry.next)
        prefetch(<const uint8_t *>entry.next + CACHE_LINE)

    # -- walks --

    cdef void begin_walk(self) noexcept:
        """Restart the walk."""
        self.place.part = WALK_TIMERS
        self.place.left = self.timers.size
        self.place.queued = NULL
        if self.keys is not None:
            self.keys.begin_walk()

    cdef bint walk(self, Deferred **entry) noexcept:
        """Take one step of a walk; output the entry there, or NULL. Return False at the end.

        The walk visits arrays backwards: the heap and the table fill gaps from the end, so deferred
        messages move in the same direction.
        """
        cdef Walk *place = &self.place
        cdef HeapNode *node
        entry[0] = NULL
        if place.part == WALK_TIMERS:
            place.left = min(place.left, self.timers.size)
            if place.left:
                place.left -= 1
                node = self.timers.slots[place.left].node
                if not node.tag & IN_FLIGHT_TIMER:
                    entry[0] = <Deferred *>node
                return True
            place.part = WALK_QUEUE
            place.queued = self.queue_first
        if place.part == WALK_QUEUE:
            if place.queued != NULL:
                entry[0] = <Deferred *>place.queued
                place.queued = place.queued.next
                return True
            if self.keys is not None and self.keys.walk(entry):
                return True
            place.part = WALK_TABLE
            place.left = self.table.mask + 1
        if self.table.outgrown != NULL:
            table_move_some(&self.table, MOVED_SLOTS)
            return True
        place.left = min(place.left, self.table.mask + 1)
        if place.left:
            place.left -= 1
            entry[0] = <Deferred *>self.table.slots[place.left]
            return True
        return False

    # -- journal snapshots --
    #
    # A snapshot contains every message that the channel had when the snapshot began and that is not
    # finished when the snapshot visits it. It visits messages in flight, the queue and deferred
    # messages, a few at a time; messages that move in the meantime are packed as they move. A
    # message has the channel's `round` once it no longer needs to be packed: either it was packed,
    # or it arrived after the snapshot began, and the snapshot records that the message is after the
    # cursor.

    cdef void begin_packing(self, Packing packing) noexcept:
        self.packing = packing
        self.round += 1
        self.visit_in_flight_list(self.in_flight_lists)
        self.unpacked = self.queue_first
        if self.keys is not None:
            self.keys.begin_packing()
        self.pages.walked = self.pages.first

    cdef int pack_more(self, int budget) noexcept:
        """Pack up to this many more entries; return the unused budget."""
        cdef Entry *entry
        cdef Page *page
        cdef Deferred *deferred
        cdef uint32_t i
        while self.unpacked_in_flight_list != NULL and budget > 0:
            entry = self.unpacked_in_flight
            budget -= 1
            if entry == NULL:
                self.visit_in_flight_list(self.unpacked_in_flight_list.next)
                continue
            self.unpacked_in_flight = entry.next
            if entry.round != self.round:
                self.pack(<Deferred *>entry)
        while self.unpacked != NULL and budget > 0:
            entry = self.unpacked
            self.unpacked = entry.next
            budget -= 1
            if entry.round != self.round:
                self.pack(<Deferred *>entry)
        while self.keys is not None and budget > 0 and not self.keys.is_packed():
            entry = self.keys.next_to_pack()
            budget -= 1
            if entry != NULL and entry.round != self.round:
                self.pack(<Deferred *>entry)
        while self.pages.walked != NULL and budget > 0:
            page = self.pages.walked
            self.pages.walked = page.next
            deferred = deferred_of(page)
            budget -= page.made
            for i in range(page.made):
                if deferred[i].block != NULL and deferred[i].round != self.round:
                    self.pack(&deferred[i])
        return max(0, budget)

    cdef bint is_packed(self) noexcept:
        return (self.unpacked_in_flight_list == NULL and self.unpacked == NULL
                and self.pages.walked == NULL
                and (self.keys is None or self.keys.is_packed()))

    cdef void pack(self, Deferred *entry) noexcept:
        """Include a message, in its current state, in a checkpoint in progress."""
        cdef int64_t due = 0
        if entry.state == DEFERRED:
            due = self.scheduler.wall - self.scheduler.now + heap_due(&self.timers, &entry.node)
        elif entry.state == QUEUED and self.keyed:
            due = <int64_t>place_of(<const Entry *>entry)
        entry.round = self.round
        if self.packing is not None:
            self.packing.add(entry, due)
