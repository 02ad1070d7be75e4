"""Peek: view messages in a channel, records that its cursor has not reached, or any records of a
topic, without consuming them.

Decides which messages are viewed, and how much of each. The caller orders the two kinds and formats
the response. Rules:

1. Viewing does not change any state, count or order, and moves no block into or out of memory.
2. The messages of a channel are selected immediately and read in steps, like logs
   (log_fetch.pyx). A message that is finished in the meantime is still shown.
3. A peek that would read too much ends early and reports where to continue.
"""

# Peek: view messages in a channel, or messages in a topic: all, or those not fanned out yet.
#
#   channel   its entries: queued again, in flight, deferred     ──► entries ┐
#   window    ──cursor──────────────fan-out position──►          ──► records ┴─► joined by caller
#
# Neither part changes anything: blocks are pinned, and blocks that are only on disk are read into
# the peek's own memory.


cdef enum:
    LARGEST_PEEK = 1048576          # bytes of JSON in a response, unless one message is larger
    MAX_LOOKED = 65536             # maximum records examined; a response ends early at this limit
    MAX_TAKEN = 16777216           # maximum bytes of blocks; a response also ends early there
    MAX_PASSED = 65536             # maximum queued messages on all pages together


# A message in one of the channel's lists.
cdef struct Held:
    Block *block                    # pinned
    uint64_t seq
    uint64_t id                     # 0: unknown
    int64_t place                   # due time, monotonic; queued: its gate
    int64_t timestamp               # 0: see its record
    uint32_t offset
    uint16_t attempts


cdef enum:
    RANGES_A_STEP = 64
    MESSAGE_COST = 400              # bytes of JSON in addition to headers and body


@cython.final
cdef class PeekWaiter(Waiter):
    """Call done(None) or done(reason)."""

    cdef object done

    def __cinit__(self, done):
        self.done = done

    cdef int log_answered(self, uint64_t ticket, bytes answer, bytes error) except -1:
        self.done(None if error is None else error.decode("utf-8", "replace"))
        return 0


@cython.final
cdef class PeekedMessage:
    """A message, in the state that it had when the peek selected it."""
    cdef readonly uint64_t seq
    cdef readonly uint64_t id           # 0: unknown
    cdef readonly int64_t timestamp     # wall clock, ns; 0: unknown
    cdef readonly int64_t place         # due time, monotonic; queued: its gate, as in Held
    cdef readonly int64_t time          # due time, wall clock, ns; 0: never
    cdef readonly uint32_t attempts
    cdef readonly int64_t size          # bytes of the body; -1: unreadable record
    cdef readonly bytes body            # the body, up to the requested size
    cdef readonly bytes headers
    cdef readonly bytes key             # empty: no key
    cdef readonly tuple client          # (client id, address); None: not in flight


@cython.final
@cython.no_gc_clear      # __dealloc__ needs the window
cdef class Peek(LogRead):
    """View up to `limit` messages of each kind after the position `after`, then call `done`.

    Each body is truncated to `max_body` bytes. `key`: return only records with this key, but all
    entries.

    state       after                               entries, and records
    queued      (seq, messages passed)              its queue, and records from its cursor on
    in_flight   (deadline, seq) of the last, None   messages in flight
    deferred    (due, seq) of the last, None        deferred messages
    backlog     (seq, 0)                            none, and the topic's own backlog
    log         (seq, 0)                            none, and everything that the topic keeps
    """

    cdef Channel channel                # None: the topic itself
    cdef Held *held_messages
    cdef uint32_t held_count
    cdef uint32_t read_count            # messages already read
    cdef uint32_t wanted                # messages to read
    cdef list clients                   # clients of the messages; empty: not in flight
    cdef readonly list entries          # PeekedMessage objects read so far
    cdef readonly list records          # PeekedMessage objects of the window
    cdef readonly bint more_held        # the channel has more entries
    cdef bint has_times                 # entries are ordered by time
    cdef int64_t ahead                  # wall clock minus monotonic clock
    cdef int limit                      # maximum messages of each kind
    cdef uint32_t max_body
    cdef bytes key                      # only records with this key are read; empty: all
    cdef uint64_t bytes                 # JSON bytes in the response, for the current kind
    cdef uint64_t looked                # records examined
    cdef uint64_t taken                 # bytes of blocks
    cdef uint32_t offset                # offset in the block
    cdef uint64_t clear_to              # no hole precedes this record

    def __cinit__(self, RecordWindow window not None, Channel channel, str state, int limit, after,
                  uint32_t max_body, done, bytes key not None=b""):
        self.window = window
        self.channel = channel
        self.waiter = PeekWaiter(done)
        self.limit = limit
        self.max_body = max_body
        self.key = key
        self.clients = []
        self.entries = []
        self.records = []
        if state == "backlog":
            self.begin_records(max(<uint64_t>after[0], window.fanout.seq), window.visible.seq)
            return
        if state == "log":
            self.begin_records(after[0], window.visible.seq)
            return
        if state == "queued":
            self.begin_records(max(<uint64_t>after[0], channel.cursor.at.seq), window.fanout.seq)
            self.hold_queued(after[1])
            return
        self.has_times = True
        self.ahead = channel.scheduler.wall - channel.scheduler.now
        if state == "in_flight":
            self.hold_in_flight(after)
        else:
            self.hold_deferred(after)

    def __dealloc__(self):
        self.release()
        free(self.held_messages)
        self.held_messages = NULL

    @property
    def is_complete(self):
        """Return whether all records have been viewed."""
        return self.next_seq >= self.end

    def cancel(self):
        """Cancel the peek, because its caller has disconnected."""
        self.abandon(None)

    # -- selecting messages --

    cdef int hold_queued(self, uint64_t passed) except -1:
        cdef const Entry *entry = self.channel.queue_first
        if passed > MAX_PASSED:
            return 0
        while entry != NULL and passed:
            entry = entry.next
            passed -= 1
        while entry != NULL and self.held_count < <uint32_t>self.limit:
            # The place is the message's gate: see Channel.queue_is_next.
            self.add_held(<const Deferred *>entry, <int64_t>self.channel.gate_of(entry), 0)
            entry = entry.next
        self.more_held = entry != NULL
        if self.channel.keys is not None:
            self.hold_keyed(passed)
        return 0

    cdef int hold_keyed(self, uint64_t passed) except -1:
        """Select messages that wait in the index, key by key."""
        cdef uint32_t flow = 1
        cdef const Entry *entry = self.channel.keys.next_listed(&flow, NULL)
        while entry != NULL and passed:
            entry = self.channel.keys.next_listed(&flow, entry)
            passed -= 1
        while entry != NULL and self.held_count < <uint32_t>self.limit:
            self.add_held(<const Deferred *>entry, <int64_t>self.channel.gate_of(entry), 0)
            entry = self.channel.keys.next_listed(&flow, entry)
        self.more_held = self.more_held or entry != NULL
        return 0

    cdef int hold_in_flight(self, after) except -1:
        """Select in-flight messages. Each consumer's list is ordered by deadline."""
        cdef Listing listing = Listing(self.limit + 1, after, 0)
        cdef const InFlightList *in_flight_list = self.channel.in_flight_lists
        cdef Entry *entry
        cdef HeapSlot slot
        cdef int i
        while in_flight_list != NULL:
            entry = in_flight_list.first
            while entry != NULL and not listing.is_beyond(entry.due):
                slot.due = entry.due
                slot.node = &entry.node
                listing.offer(&slot)
                entry = entry.next
            in_flight_list = in_flight_list.next
        for i in listing.sorted_indices()[:self.limit]:
            entry = <Entry *>listing.slots[i].node
            self.add_held(<const Deferred *>entry, entry.due, entry.timestamp)
            self.clients.append(client_of(entry))
        self.more_held = listing.count > self.limit
        return 0

    cdef int hold_deferred(self, after) except -1:
        cdef Listing listing = Listing(self.limit + 1, after, IN_FLIGHT_TIMER)
        cdef uint32_t at
        cdef int i
        for at in range(self.channel.timers.size):
            listing.offer(&self.channel.timers.slots[at])
        for i in listing.sorted_indices()[:self.limit]:
            self.add_held(<const Deferred *>listing.slots[i].node, listing.slots[i].due, 0)
        self.more_held = listing.count > self.limit
        return 0

    cdef int add_held(self, const Deferred *message, int64_t place, int64_t timestamp) except -1:
        cdef Held *grown
        cdef Held *held
        if self.held_messages == NULL:
            grown = <Held *>realloc(NULL, self.limit * sizeof(Held))
            if grown == NULL:
                raise MemoryError()
            self.held_messages = grown
        held = &self.held_messages[self.held_count]
        held.block = message.block
        held.seq = message.seq
        held.id = message.id
        held.place = place
        held.timestamp = timestamp
        held.offset = message.offset
        held.attempts = message.attempts
        self.window.pin(held.block)
        self.held_count += 1
        self.wanted = self.held_count
        return 0

    cdef int begin_records(self, uint64_t first, uint64_t end) noexcept:
        self.next_seq = min(first, end)
        self.end = end
        return 0

    # -- reading messages --

    cdef int step(self, int budget) except? -1:
        # The window or its channel may have changed in the meantime.
        self.clear_to = 0
        while budget > 0 and self.stage != ENDED and not self.reading:
            if self.failed:
                self.answer(None, self.window.log.read_error_text.encode(
                    "utf-8", "surrogateescape"))
            elif self.read_count < self.wanted:
                budget -= self.read_held()
            elif self.wants_records():
                budget -= self.read_record()
            else:
                self.answer(b"", None)
        return budget

    cdef int read_held(self) except? -1:
        """Read the next selected entry of the channel; return the cost."""
        cdef const Held *held = &self.held_messages[self.read_count]
        cdef const Record *record
        cdef PeekedMessage seen
        if self.bytes >= LARGEST_PEEK:
            self.wanted = self.read_count
            self.more_held = True
            self.bytes = 0
            LogRead.release(self)
            return 1
        if self.count == 0 or self.pieces[0].block != held.block:
            LogRead.release(self)
            self.take(held.block)
            return BLOCK_COST
        record = <const Record *>(self.pieces[0].data + held.offset)
        if record.seq != held.seq or record.attributes & RECORD_DAMAGED:
            record = NULL
        seen = self.seen(record)
        seen.seq = held.seq
        seen.id = seen.id or held.id
        seen.timestamp = seen.timestamp or held.timestamp
        seen.place = held.place
        if self.has_times and held.place < <int64_t>NEVER:
            seen.time = held.place + self.ahead
        seen.attempts = held.attempts
        seen.client = self.clients[self.read_count] if self.clients else None
        self.entries.append(seen)
        self.read_count += 1
        if self.read_count == self.wanted:
            self.bytes = 0
            LogRead.release(self)
        return 1 + <int>(len(seen.body) // BYTES_A_STEP)

    cdef bint wants_records(self) noexcept:
        return (self.next_seq < self.end and len(self.records) < self.limit
                and self.bytes < LARGEST_PEEK and self.looked < MAX_LOOKED
                and (self.taken < MAX_TAKEN or self.count != 0))

    cdef int read_record(self) except? -1:
        """Read the next record in the window; return the cost."""
        cdef const Record *record
        cdef PeekedMessage seen
        if self.next_seq >= self.clear_to:
            return 1 + self.skip_holes()
        if self.count == 0 or self.pieces[0].block.last_seq < self.next_seq:
            self.find_block()
            return BLOCK_COST
        if self.offset >= self.pieces[0].block.size:
            self.next_seq = self.pieces[0].block.last_seq + 1
            return 1
        record = <const Record *>(self.pieces[0].data + self.offset)
        if record.seq > self.next_seq:
            # Some records are missing from all files.
            self.next_seq = record.seq
            return 1
        self.offset += record.length
        if record.seq < self.next_seq:
            return 1
        self.looked += 1
        self.next_seq += 1
        if record.attributes & RECORD_DAMAGED \
                or self.channel is not None and (
                    cursor_passes(&self.channel.cursor, record)
                    or self.channel.keys is not None
                    and self.channel.keys.has_left(record.seq)):
            return 1
        if self.key and key_text(record) != self.key:
            return 1
        seen = self.seen(record)
        self.records.append(seen)
        return 1 + <int>(len(seen.body) // BYTES_A_STEP)

    cdef int find_block(self) except -1:
        """Obtain the block of the next record, if it exists and the limits allow another read."""
        cdef Block *block = self.window.block_of(self.next_seq)
        LogRead.release(self)
        if block == NULL:
            self.next_seq = self.end
            return 0
        if not self.wants_records():
            return 0
        self.next_seq = max(self.next_seq, block.first_seq)
        self.offset = 0
        self.taken += block.size
        return self.take(block)

    cdef int skip_holes(self) noexcept:
        """Skip holes and records that the channel has finished; return the cost.

        Stores the start of the next hole or finished range in `clear_to`.
        """
        cdef uint32_t count = self.window.hole_count
        self.clear_to = <uint64_t>-1
        if self.channel is not None:
            count += self.channel.cursor.finished_count
        while (self.skip_ranges(self.window.holes, self.window.hole_count)
                or self.channel is not None
                and self.skip_ranges(self.channel.cursor.finished,
                                     self.channel.cursor.finished_count)):
            pass
        return <int>(count // RANGES_A_STEP)

    cdef bint skip_ranges(self, const Hole *ranges, uint32_t count) noexcept:
        """Skip the range at the current position; return whether there was one."""
        cdef uint64_t before = self.next_seq
        cdef uint32_t i
        for i in range(count):
            if ranges[i].start <= self.next_seq < ranges[i].end:
                self.next_seq = ranges[i].end
            elif ranges[i].start > self.next_seq:
                self.clear_to = min(self.clear_to, ranges[i].start)
        return self.next_seq != before

    cdef PeekedMessage seen(self, const Record *record):
        """Return the message in a record; NULL: the record is unreadable."""
        cdef PeekedMessage seen = PeekedMessage.__new__(PeekedMessage)
        cdef const uint8_t *headers
        cdef uint16_t length = 0
        seen.size = -1
        seen.body = seen.headers = seen.key = b""
        self.bytes += MESSAGE_COST
        if record == NULL:
            return seen
        headers = record_headers(record, &length)
        seen.seq = record.seq
        seen.id = record.id
        seen.timestamp = record.timestamp
        seen.size = record.body_length
        seen.body = PyBytes_FromStringAndSize(
            <const char *>record_body(record), min(record.body_length, self.max_body))
        seen.headers = PyBytes_FromStringAndSize(<const char *>headers, length)
        seen.key = key_text(record)
        # The maximum size after base64 encoding or escaping.
        self.bytes += 4 * <uint64_t>len(seen.body) // 3 + 6 * (length + len(seen.key))
        return seen

    cdef void release(self) noexcept:
        cdef uint32_t i
        LogRead.release(self)
        if self.reading:
            return
        for i in range(self.held_count):
            self.window.unpin(self.held_messages[i].block)
        self.held_count = 0


cdef bytes key_text(const Record *record):
    """Return the text of a message's key; empty if it has none."""
    cdef uint16_t length = 0
    cdef const uint8_t *key = record_key(record, &length)
    return PyBytes_FromStringAndSize(<const char *>key, length) if length else b""


cdef tuple client_of(const Entry *entry):
    """Return the client of a message in flight, or None.

    None means that the client has left or that the message is in a dead-letter transfer.
    """
    cdef const InFlightList *in_flight_list = <const InFlightList *>entry.in_flight_list
    if in_flight_list.consumer == NULL or entry.due >= <int64_t>NEVER:
        return None
    consumer = <Consumer>in_flight_list.consumer
    return consumer.client_id, getattr(consumer, "remote_address", "")
