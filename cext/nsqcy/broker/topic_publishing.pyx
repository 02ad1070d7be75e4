"""Topic queue: from a publish to the channels. Turns messages into records, and makes the records
visible: immediately, or once the log has them. Passes visible records to the channels; until then,
the topic keeps them.

Owns the layout of a message in a record, the reasons for refusing or dropping a message, the
pending acknowledgements, the fan-out position and the delayed records at or after it. Sees the log
only as a condition: `gate` and `overflowing` determine which records wait for the log.

A large publish is a batch, which is appended over several turns. No record appended since the batch
began is visible or written, so a batch is accepted or rejected as a whole. Other publishes to the
topic are appended in between and wait for the batch. The creator of a batch has checked its
messages. A producer's chunk is published once, even if it is resent after a failure.
"""

# The queue of a topic: from a publish to the channels.
#
#   PUB, DPUB ────────────────────────────┐
#   MPUB, LOG_PUB, /mpub ──► Batch ──► slices ──► records ──► visible ──► fanned out
#
# A publish that must wait for the log has a pending acknowledgement.


cdef enum:
    FAN_OUT_BUDGET = 4096           # delayed records fanned out per step
    DROP_AT_ONCE = 4096             # maximum delayed records freed immediately, not in steps
    TICK_EXPIRES = 4096             # maximum messages in a topic's own backlog that expire per tick
    ADDRESS_HEADER = 16             # size of an address header, excluding its value
    TAKEN_HEADER = 14               # size of the header before it, excluding its value

cdef int32_t NO_LIMIT = 0x7fffffff  # the largest message size on the wire, in bytes
cdef int64_t ANY_DELAY = 0x7fffffffffffffff
cdef int64_t MILLISECOND = 1000000
cdef int64_t MINUTE = 60000000000


cdef Durability durability_of(str name) except *:
    if name == "memory":        # the common case
        return MEMORY
    return <Durability><int>_DURABILITIES.index(name)


@cython.final
cdef class PendingAcks:
    def __dealloc__(self):
        free(self.ring)

    cdef int add(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1:
        """Answer `waiter` when all records up to `seq` are visible or have failed."""
        cdef PendingAck *grown
        cdef PendingAck *ack
        cdef uint32_t i
        if self.count == self.room:
            grown = <PendingAck *>malloc((2 * self.room + 16) * sizeof(PendingAck))
            if grown == NULL:
                raise MemoryError()
            for i in range(self.count):
                grown[i] = self.ring[(self.first + i) % self.room]
            free(self.ring)
            self.ring = grown
            self.first = 0
            self.room = 2 * self.room + 16
        ack = &self.ring[(self.first + self.count) % self.room]
        ack.seq = seq
        ack.ticket = ticket
        ack.waiter = <void *>waiter
        Py_INCREF(waiter)
        self.count += 1
        return 0

    cdef int insert(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1:
        """Answer `waiter` as add() does, even if other waiters wait for later records."""
        cdef PendingAck ack
        cdef uint32_t at
        self.add(seq, waiter, ticket)
        at = self.count - 1
        ack = self.ring[(self.first + at) % self.room]
        while at and self.ring[(self.first + at - 1) % self.room].seq > seq:
            self.ring[(self.first + at) % self.room] = self.ring[(self.first + at - 1) % self.room]
            at -= 1
        self.ring[(self.first + at) % self.room] = ack
        return 0

    cdef uint64_t end_of(self, uint64_t seq) noexcept:
        """Return the last record of the publish that a record belongs to; 0 if no publish waits for
        the record."""
        cdef uint32_t low = self.first_from(seq)
        return self.ring[(self.first + low) % self.room].seq if low < self.count else 0

    cdef int answer(self, uint64_t seq, str error) except -1:
        """Answer all waiters for records up to `seq`."""
        cdef PendingAck ack
        cdef Waiter waiter
        while self.count and self.ring[self.first].seq <= seq:
            ack = self.ring[self.first]
            self.first = (self.first + 1) % self.room
            self.count -= 1
            waiter = <Waiter>ack.waiter
            Py_DECREF(waiter)
            waiter.publish_done(ack.ticket, error)
        return 0

    cdef uint64_t oldest(self) noexcept:
        """Return the record for which the first waiter waits; 0 if there is no waiter."""
        return self.ring[self.first].seq if self.count else 0

    cdef bint publish_goes_on(self, uint64_t seq) noexcept:
        """Return whether the publish that an invisible record belongs to has more records after
        that one."""
        cdef uint32_t low = self.first_from(seq)
        return low < self.count and self.ring[(self.first + low) % self.room].seq != seq

    cdef uint32_t first_from(self, uint64_t seq) noexcept:
        """Return the index of the first waiter for record `seq` or a later one."""
        cdef uint32_t low = 0
        cdef uint32_t high = self.count
        cdef uint32_t middle
        while low < high:
            middle = (low + high) // 2
            if self.ring[(self.first + middle) % self.room].seq < seq:
                low = middle + 1
            else:
                high = middle
        return low


cdef inline uint32_t taken_room(const Taken *taken) noexcept:
    """Return the size of the extension that put_taken() writes."""
    cdef uint32_t size = TAKEN_HEAD
    if taken.given == 0:
        return 0
    if taken.given & TAKEN_KEY:
        size += taken.key_length
    if taken.given & TAKEN_ID:
        size += taken.id_length
    return record_extension_size(size)


cdef void put_taken(Record *record, uint8_t *at, const Taken *taken) noexcept:
    """Write what a record must store of its key, priority and id."""
    cdef uint8_t value[514]             # TAKEN_HEAD + 2 * MAX_KEY
    cdef uint16_t size = TAKEN_HEAD
    if taken.given == 0:
        return
    value[0] = taken.given
    value[1] = taken.priority if taken.given & TAKEN_PRIORITY else 0
    value[2] = value[3] = 0
    if taken.given & TAKEN_KEY:
        value[2] = taken.key_length
        memcpy(value + size, taken.key, taken.key_length)
        size += taken.key_length
    if taken.given & TAKEN_ID:
        value[3] = taken.id_length
        memcpy(value + size, taken.id, taken.id_length)
        size += taken.id_length
    record_extend(at, RECORD_EXT_TAKEN, value, size)
    record.attributes |= RECORD_TAKEN


cdef size_t taken_header(const uint8_t *at, size_t n) noexcept:
    """Return the size of the header that accompanies a message between topics; 0 if there is none.
    It contains the extension "taken", and is the first header."""
    if n < TAKEN_HEADER or memcmp(at, b"\x0bnsqcy-taken", 12) != 0:
        return 0
    return min(n, <size_t>TAKEN_HEADER + load_be16(at + 12))


cdef uint16_t read_taken(const uint8_t *at, uint16_t n, Taken *taken) noexcept:
    """Read that header; return its size."""
    cdef size_t size = taken_header(at, n)
    cdef const uint8_t *value = at + TAKEN_HEADER
    if size < TAKEN_HEADER + TAKEN_HEAD \
            or size != <size_t>TAKEN_HEADER + TAKEN_HEAD + value[2] + value[3]:
        return <uint16_t>size
    taken.given = value[0]
    taken.priority = value[1]
    taken.key_length = value[2]
    taken.id_length = value[3]
    taken.key = value + TAKEN_HEAD
    taken.id = taken.key + value[2]
    return <uint16_t>size


cdef class Batch:
    cdef int begin(self, TopicQueue topic) except -1:
        """Prepare the topic for the first message. Raises ChunkError if it does not accept the
        batch."""
        if self.minimum != MEMORY and self.left:
            topic.demand(self.minimum)
        return 0

    cdef uint64_t append(self, TopicQueue topic, uint32_t count) except? 0:
        """Append the next `count` messages; return the bytes of their bodies."""
        raise NotImplementedError

    cdef int complete(self, TopicQueue topic) except -1:
        """Handle the end of the batch: all messages are appended."""
        return 0

    cdef int abandon(self, TopicQueue topic) except -1:
        """Handle the end of a batch that began but whose appended messages no longer exist."""
        return 0

    cdef int release(self) except -1:
        """Handle the end of the topic's use of `source`."""
        return 0


cdef class SizedBatch(Batch):
    cdef uint64_t append(self, TopicQueue topic, uint32_t count) except? 0:
        cdef uint64_t bodies = 0
        cdef uint32_t length
        cdef uint32_t _i
        cdef size_t used
        cdef Publish publish
        if topic.takes:
            memset(&publish, 0, sizeof(publish))
            self.at += topic.add_messages(self.at, count, self.headers, 0, &publish)
            topic.repeats = count - publish.count
            return publish.bytes
        if not self.headers:
            used = topic.new_batch(self.at, count)
            self.at += used
            return used - 4 * <uint64_t>count
        for _i in range(count):
            length = load_be32(self.at)
            bodies += topic.add_headered(self.at + 4, length, 0)
            self.at += 4 + length
        return bodies


cdef class ChunkBatch(Batch):
    cdef int begin(self, TopicQueue topic) except -1:
        topic.open_chunk(self)
        return 0

    cdef uint64_t append(self, TopicQueue topic, uint32_t count) except? 0:
        cdef uint64_t first_seq = topic.next_seq
        cdef uint64_t bodies = 0
        cdef Produced produced
        produced.producer, produced.epoch, produced.part, produced.chunk = self.name
        produced.count = self.count
        produced.reserved = 0
        taken = []
        topic.address = self.address
        topic.moving = self.moved
        try:
            while count:
                count -= self.append_range(topic, &produced, count, taken, &bodies)
        finally:
            topic.address = None
            topic.moving = False
        self.pieces.append((first_seq, tuple(taken)))
        return bodies

    cdef uint32_t append_range(self, TopicQueue topic, Produced *produced, uint32_t count,
                               list taken, uint64_t *bodies) except? 0:
        """Append up to `count` messages of the first wanted range; return their number."""
        cdef uint32_t begun
        cdef uint32_t end
        cdef uint32_t number
        begun, end = self.wanted[0]
        if end - begun > count:
            end = begun + count
            self.wanted[0] = (end, self.wanted[0][1])
        else:
            del self.wanted[0]
        number = end - begun
        while self.index < begun:
            self.at += 4 + load_be32(self.at)
            self.index += 1
        while self.index < end:
            produced.index = self.index
            if not topic.add_produced(produced, self.at, self.headers, bodies):
                # The topic is full and dropped the message, which counts as published.
                if begun < self.index:
                    taken.append((begun, self.index))
                begun = self.index + 1
            self.at += 4 + load_be32(self.at)
            self.index += 1
        if begun < end:
            taken.append((begun, end))
        return number

    cdef int complete(self, TopicQueue topic) except -1:
        if self.pieces:
            topic.producers.published(self.name, tuple(self.pieces))
        return 0

    cdef int abandon(self, TopicQueue topic) except -1:
        topic.producers.abandoned(self.name)
        return 0


@cython.no_gc_clear      # as RecordWindow requires
cdef class TopicQueue(RecordWindow):
    def __cinit__(self, TopicHost host not None, bytes key not None):
        self.host = host
        self.scheduler = host.scheduler
        self.pool = host.pool
        self.key = key
        self.name = key.decode()
        self.ephemeral = is_ephemeral(self.name)
        self.channels = {}
        self.started = True
        self.may_drop = self.ephemeral
        self.mem_queue_size = self.scheduler.mem_queue_size
        self.max_msg_size = NO_LIMIT
        self.max_defer_timeout = ANY_DELAY
        self.last_publish = self.scheduler.now
        self.minimum = 1
        self.acks = PendingAcks()
        self.batches = []
        self.spans = []
        self.named = NamedCursors()
        self.watch(&self.visible)
        self.watch(&self.fanout)

    # -- records --

    cdef Record *new_headered(self, uint32_t body_length, int64_t delay, const uint8_t *headers,
                              uint16_t length) except? NULL:
        """Append a record with checked headers of `length` bytes."""
        cdef uint32_t before = RECORD_EXT_DELAY_SIZE if delay else 0
        cdef int64_t ttl = headers_ttl(headers, length)
        cdef Record *record
        if length == 0:
            return self.new_record(body_length, delay)
        record = self.add_record(body_length, before + self.headers_room(length, ttl))
        if record == NULL:
            return NULL
        if delay:
            self.set_delay(record, delay)
        self.put_headers(record, <uint8_t *>record + sizeof(Record) + before, headers, length, ttl)
        return record

    cdef inline uint32_t headers_room(self, uint16_t length, int64_t ttl) noexcept:
        """Return the size in bytes of the extensions that put_headers() writes."""
        return record_extension_size(length) + (RECORD_EXT_EXPIRES_SIZE if ttl else 0)

    cdef inline void put_headers(self, Record *record, uint8_t *at, const uint8_t *headers,
                                 uint16_t length, int64_t ttl) noexcept:
        """Write the headers of the newest record, and the expiry that the headers define."""
        at = record_extend(at, RECORD_EXT_HEADERS, headers, length)
        record.attributes |= RECORD_HEADERS
        if ttl:
            ttl = self.scheduler.wall + ttl * MILLISECOND
            record_extend(at, RECORD_EXT_EXPIRES, &ttl, sizeof(ttl))
            record.attributes |= RECORD_EXPIRES
            self.perishable = True

    cdef size_t new_batch(self, const uint8_t *batch, uint32_t count) except? 0:
        """Append `count` records without a delay, with their bodies; return the bytes used.

        A length precedes each message, as in an MPUB; the lengths have been checked.
        """
        cdef const uint8_t *start = batch
        cdef Record *record
        cdef size_t length
        cdef uint32_t _i
        for _i in range(count):
            length = load_be32(batch)
            batch += 4
            record = self.add_record(<uint32_t>length, 0)
            if record != NULL:
                memcpy(<uint8_t *>record + sizeof(Record), batch, length)
            batch += length
        return batch - start

    cdef uint32_t add_headered(self, const uint8_t *message, uint32_t length,
                               int64_t delay) except? 0:
        """Append a checked message: length of the headers, headers, body.

        Return the size of the body.
        """
        cdef uint16_t headers = load_be16(message)
        cdef uint32_t body = length - HEADERS_SIZE - headers
        cdef Record *record = self.new_headered(body, delay, message + HEADERS_SIZE, headers)
        if record != NULL:
            memcpy(record_body(record), message + HEADERS_SIZE + headers, body)
        return body

    cdef uint64_t add_headered_batch(self, const uint8_t *batch, uint32_t count) except? 0:
        """Append `count` messages with headers, each preceded by its length. Return the total size
        of their bodies."""
        cdef uint64_t total = 0
        cdef uint32_t length
        cdef uint32_t _i
        for _i in range(count):
            length = load_be32(batch)
            total += self.add_headered(batch + 4, length, 0)
            batch += 4 + length
        return total

    cdef int add_message(self, const uint8_t *headers, uint16_t length, const uint8_t *body,
                         uint32_t size, int64_t delay, Publish *publish) except -1:
        """Append a message, with what this topic takes from it: a topic that `takes` uses this for
        each message of a client."""
        cdef uint32_t ext = RECORD_EXT_DELAY_SIZE if delay else 0
        cdef int64_t ttl = headers_ttl(headers, length)
        cdef Record *record
        cdef uint8_t *at
        cdef Taken taken
        cdef KeyHash hash
        self.sources.take(headers, length, body, size, self.once is not None, &taken)
        if taken.id_length and self.repeats_id(&taken, &hash, publish):
            return 0
        self.keyless_count += taken.key_length == 0 and not self.sources.is_default[0]
        if publish.minimum != MEMORY:
            self.demand(publish.minimum)
            publish.minimum = MEMORY
        if taken.id_length:
            self.once.reserve(self.scheduler.wall)
            self.keep_untold()
        if length:
            ext += self.headers_room(length, ttl)
        publish.count += 1
        publish.bytes += size
        record = self.add_record(size, ext + taken_room(&taken))
        if record == NULL:
            return 0
        at = <uint8_t *>record + sizeof(Record)
        if delay:
            self.set_delay(record, delay)
            at += RECORD_EXT_DELAY_SIZE
        put_taken(record, at, &taken)
        at += taken_room(&taken)
        if length:
            self.put_headers(record, at, headers, length, ttl)
        memcpy(record_body(record), body, size)
        if taken.id_length:
            record.attributes |= RECORD_ONCE
            self.once.add(&hash, record.timestamp, record.seq)
        return 0

    cdef bint repeats_id(self, const Taken *taken, KeyHash *hash, Publish *publish) except -1:
        """Return whether a message's id was published within the window; if so, count the message.
        Output the hash of the id."""
        cdef uint64_t seq = 0
        hash[0] = key_hash(self.key_secret(), taken.id, taken.id_length)
        if not self.once.is_known(hash, self.scheduler.wall, &seq):
            return False
        self.duplicate_count += 1
        publish.repeated = max(publish.repeated, seq)
        return True

    cdef uint32_t fresh(self, const uint8_t *batch, uint32_t count, bint headers,
                        uint64_t *bodies) except? 0:
        """Return how many messages of a batch, as for add_messages(), repeat no id that counts
        already, and the bytes of their bodies."""
        cdef uint32_t found = 0
        cdef uint32_t length
        cdef uint16_t before
        cdef uint32_t _i
        for _i in range(count):
            length = load_be32(batch)
            batch += 4
            if headers:
                before = load_be16(batch)
                found += self.add_fresh(batch + HEADERS_SIZE, before, batch + HEADERS_SIZE + before,
                                        length - HEADERS_SIZE - before, bodies)
            else:
                found += self.add_fresh(NULL, 0, batch, length, bodies)
            batch += length
        return found

    cdef uint32_t add_fresh(self, const uint8_t *headers, uint16_t length, const uint8_t *body,
                            uint32_t size, uint64_t *bodies) except? 0:
        """Return 1, and add the size of the body, if a message repeats no id; otherwise 0."""
        cdef Taken taken
        cdef KeyHash hash
        cdef uint64_t seq = 0
        if self.once is not None or self.key_bounded:
            self.sources.take(headers, length, body, size, self.once is not None, &taken)
            if taken.id_length:
                hash = key_hash(self.key_secret(), taken.id, taken.id_length)
                if self.once.is_known(&hash, self.scheduler.wall, &seq):
                    return 0
            if self.key_bounded and taken.key_length:
                hash = key_hash(self.key_secret(), taken.key, taken.key_length)
                self.check_key(&hash)
        bodies[0] += size
        return 1

    cdef void forget_coming_keys(self) noexcept:
        self.full_key = None
        self.coming_keys = None

    cdef int check_key(self, const KeyHash *hash) except -1:
        """Note if a channel has too many messages of a key for one more: the next refusal() gives
        this as its reason."""
        cdef Channel channel
        cdef uint64_t coming
        if self.coming_keys is None:
            self.coming_keys = KeyTable()
        coming = 1 + self.coming_keys.seq_of(hash.high, hash.low)
        self.coming_keys.add(hash.high, hash.low, coming)
        for channel in self.channels.values():
            if channel.rejects_keys() and channel.key_is_full(hash, coming):
                self.full_key = (f"channel {self.name}/{channel.name} is full for a key "
                                 f"(depth-per-key {channel.depth_per_key})")
        return 0

    cdef size_t add_messages(self, const uint8_t *batch, uint32_t count, bint headers,
                             int64_t delay, Publish *publish) except? 0:
        """Append `count` messages, each preceded by its length, with add_message(); return the
        bytes used."""
        cdef const uint8_t *start = batch
        cdef uint32_t length
        cdef uint16_t before
        cdef uint32_t _i
        for _i in range(count):
            length = load_be32(batch)
            batch += 4
            if headers:
                before = load_be16(batch)
                self.add_message(batch + HEADERS_SIZE, before, batch + HEADERS_SIZE + before,
                                 length - HEADERS_SIZE - before, delay, publish)
            else:
                self.add_message(NULL, 0, batch, length, delay, publish)
            batch += length
        return batch - start

    cdef uint64_t end_publish(self, const Publish *publish) except? 0:
        """Complete a publish by add_message(); return the record that the response waits for, or
        0."""
        if publish.count:
            return self.next_seq - 1 if self.published(publish.count, publish.bytes) else 0
        self.last_publish = self.scheduler.now
        if self.unannounced:
            return self.next_seq - 1
        if publish.repeated < self.visible.seq:
            return 0
        return self.end_of_publish(publish.repeated)

    cdef uint64_t end_of_publish(self, uint64_t seq) noexcept:
        """Return the last record of the publish that a record belongs to, which is not visible."""
        cdef uint64_t end
        for first, last in self.spans:
            if first <= seq <= last:
                return last
        end = self.acks.end_of(seq)
        return end if end else self.next_seq - 1

    cdef int acknowledge_at(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1:
        """Answer `waiter` when record `seq` is visible, or when its publish has failed."""
        cdef Batch batch
        if self.gathering and seq < self.next_seq - 1 and seq >= self.gathered_from:
            # The record may belong to the batch that is being appended.
            batch = self.batches[0]
            if batch.followers is None:
                batch.followers = []
            batch.followers.append((waiter, ticket))
            return 0
        return self.acks.insert(seq, waiter, ticket)

    @cython.final
    cdef Record *add_record(self, uint32_t body_length, uint32_t ext_length) except? NULL:
        """Append a record without extensions or body; return NULL if it was dropped."""
        cdef Record *record
        if self.may_drop and self.drops(body_length):
            return NULL
        if self.log is not None and not self.overflowing and self.must_overflow():
            self.overflowing = True
            self.seal()
        record = append_record(self, body_length, ext_length)
        record.id = self.host.ids.next(self.scheduler.wall)
        record.timestamp = self.scheduler.wall
        return record

    cdef int set_delay(self, Record *record, int64_t delay) except -1:
        """Set the delay of the newest record, which has space for a delay."""
        cdef uint16_t *ext = <uint16_t *>(<uint8_t *>record + sizeof(Record))
        cdef Entry *entry
        record.attributes = RECORD_DELAYED
        ext[0] = RECORD_EXT_DELAY
        ext[1] = 8
        ext[2] = ext[3] = 0
        (<int64_t *>(ext + 4))[0] = delay
        entry = self.pool.new_entry()
        entry.seq = record.seq
        entry.id = record.id
        entry.block = self.newest
        entry.offset = <uint32_t>(<uint8_t *>record - self.newest.data)
        entry.node.tag = size_tag(record.body_length)
        entry.due = delay
        entry.timestamp = 0
        self.add_delayed(entry)
        return 0

    # -- a publish --

    cdef int published(self, uint32_t count, uint64_t body_bytes) except -1:
        """Publish `count` records with complete bodies; return whether the response must wait for
        the log or for the registration of a new topic."""
        self.message_count += count
        self.message_bytes += body_bytes
        self.last_publish = self.scheduler.now
        self.touch_dirty()
        if self.gathering or self.overflowing and self.visible.seq != self.next_seq:
            self.pending_messages += count      # some messages were not dropped
            return 1
        self.cursor_to_end(&self.visible)
        self.state_visible()
        self.fan_out()
        return self.unannounced

    cdef int acknowledge_later(self, Waiter waiter, uint64_t ticket) except -1:
        """Answer `waiter` when all records appended so far are visible and the topic is announced,
        or when they have failed."""
        return self.acks.add(self.next_seq - 1, waiter, ticket)

    @property
    def oldest_pending(self):
        """Return the record that the oldest unanswered publish waits for; 0 if there is none."""
        return self.acks.oldest()

    def announced(self):
        """Answer the publishes that waited until consumers can find this new topic."""
        self.unannounced = False
        if self.visible.seq:
            self.acks.answer(self.visible.seq - 1, None)

    cdef int unpublish(self) except -1:
        """Undo the publishes whose records are not visible."""
        self.forget_counts()
        if self.producers is not None:
            self.producers.undo(self.visible.seq)
        if self.once is not None:
            self.once.undo(self.visible.seq)
        return self.break_batch(self.error)

    cdef void forget_counts(self) noexcept:
        """Subtract records that never became visible from the counters of published messages."""
        cdef Block *block = self.newest
        cdef Record *record
        cdef uint32_t at
        while block != NULL and block.last_seq >= self.visible.seq:
            at = 0
            while at < block.size:
                record = <Record *>(block.data + at)
                if record.seq >= self.visible.seq:
                    self.message_count -= 1
                    self.message_bytes -= record.body_length
                at += record.length
            block = block.prev

    # -- accepting a publish --

    cdef void demand(self, Durability minimum) noexcept:
        """Require at least this durability for a publisher's records; call this immediately before
        appending them.

        Until the publisher is answered, records appended later have the same class.
        """
        if self.log is not None and self.gate < minimum:
            if not self.is_kept():
                # Until now, a restart would have recovered nothing, so write the channels first.
                self.journal_due = True
            self.gate = minimum

    cdef bint is_kept(self) noexcept:
        """Return whether a restart would recover more than the topic's name."""
        return (self.gate != MEMORY or self.log.disk_bytes != 0 or self.log.journal_lost
                or len(self.named) > 0)

    cdef str refusal(self, Durability minimum, uint64_t count, uint64_t body_bytes):
        """Return why a publish of this size and durability is refused now, or None."""
        full_key = self.full_key
        if self.key_bounded:
            self.forget_coming_keys()
        if self.host.shut is not None and not self.gone:
            return self.host.shut
        reason = self.obstacle(minimum, count, body_bytes)
        return full_key if reason is None else reason

    cdef str obstacle(self, Durability minimum, uint64_t count, uint64_t body_bytes):
        """Return the reason as refusal() does, but accept publishes while draining."""
        if self.gone:
            return EXITING
        if self.refused is not None:
            return self.refused
        if self.host.refused is not None and self.needs_disk(minimum):
            return self.host.refused
        if self.bounded:
            reason = self.fullness(count + self.coming, body_bytes + self.coming_bytes)
            if reason is not None:
                return reason
        return self.error if self.failing else None

    cdef bint takes_at_once(self) except -1:
        """Return whether a publish would neither be refused nor wait."""
        if self.gathering or self.overflowing or self.bounded or self.unannounced:
            return False
        if self.may_refuse() and self.refusal(MEMORY, 1, 0) is not None:
            return False
        return self.log is None or not self.must_overflow()

    cdef bint needs_disk(self, Durability minimum) noexcept:
        """Return whether a record with this durability must be written before it is visible."""
        if self.log is None:
            return False
        self.touch_dirty()      # finished messages may have ended an overflow
        return minimum != MEMORY or self.overflowing or self.must_overflow()

    # -- producers' chunks --

    cdef int add_chunk(self, ChunkBatch chunk, uint32_t *added, uint64_t *bodies) except -1:
        """Append the missing messages of a chunk at once.

        Outputs the number of appended messages and the bytes of their bodies. The caller passes
        these numbers to published(), even if they are 0: an earlier attempt may be pending, and its
        outcome decides. If the chunk cannot be accepted, appends nothing and raises ChunkError.
        """
        self.open_chunk(chunk)
        added[0] = chunk.left
        bodies[0] = 0
        if chunk.left:
            bodies[0] = chunk.append(self, chunk.left)
        return chunk.complete(self)

    def epochs(self, bytes producer not None):
        """Return the remembered epochs of a producer."""
        if self.producers is None:
            return []
        return self.producers.epochs(producer_id(producer), self.scheduler.wall)

    cdef int open_chunk(self, ChunkBatch chunk) except -1:
        """Find the missing messages of a chunk, and prepare the topic for them.

        `moved` messages come from another topic, which is allowed while draining.
        """
        if self.producers is None:
            self.producers = Producers()
        wanted = self.producers.wanted(
            chunk.name, chunk.count, self.visible.seq, self.scheduler.wall)
        chunk.wanted = list(wanted or ())
        chunk.pieces = []
        chunk.left = messages_in(chunk.wanted)
        if not chunk.left:
            return 0
        refusal = (self.obstacle(chunk.minimum, chunk.count, chunk.size)
                   if chunk.moved and self.host.shut is DRAINING
                   else self.refusal(chunk.minimum, chunk.count, chunk.size))
        if refusal is not None:
            raise ChunkError(refusal)
        if chunk.moved:
            address, _ = dead_letters.split_address(
                dead_letters.without_taken(chunk.at[6:6 + load_be16(chunk.at + 4)]))
            if address is not None and address not in self.channels:
                raise ChunkError(dead_letters.NO_CHANNEL)
            chunk.address = None if address is None else address.encode()
        if chunk.minimum != MEMORY:
            self.demand(chunk.minimum)
        self.keep_untold()
        self.producers.attempted(chunk.name)
        return 0

    cdef bint add_produced(self, const Produced *produced, const uint8_t *message, bint headers,
                           uint64_t *bodies) except -1:
        """Append a message of a chunk, given with its length; return whether it was accepted."""
        cdef uint32_t body = load_be32(message)
        cdef uint16_t length = 0
        cdef uint32_t ext = RECORD_EXT_PRODUCED_SIZE
        cdef uint16_t address = 0
        cdef int64_t ttl = 0
        cdef Record *record
        cdef uint8_t *at
        cdef Taken taken
        cdef uint16_t used
        message += 4
        taken.given = 0
        if headers:
            length = load_be16(message)
            message += HEADERS_SIZE
            body -= HEADERS_SIZE + length
        if self.moving:
            used = read_taken(message, length, &taken)
            message += used
            length -= used
        elif self.takes:
            self.sources.take(message, length, message + length, body, False, &taken)
            self.keyless_count += taken.key_length == 0 and not self.sources.is_default[0]
        if self.address is not None:
            address = len(self.address)
            ext += RECORD_EXT_DELAY_SIZE + record_extension_size(address)
            # Skip the address header: the record stores the address as an extension.
            message += ADDRESS_HEADER + address
            length -= <uint16_t>(ADDRESS_HEADER + address)
        ext += taken_room(&taken)
        if length:
            ttl = headers_ttl(message, length)
            ext += self.headers_room(length, ttl)
        bodies[0] += body
        record = self.add_record(body, ext)
        if record == NULL:
            return False
        at = <uint8_t *>record + sizeof(Record)
        if address:
            # With a delay of zero, the message becomes an entry of that channel only.
            self.set_delay(record, 0)
            self.delayed_last.timestamp = <int64_t>record_address_of(self.address, address)
            record.attributes |= RECORD_ADDRESSED
            at = record_extend(at + RECORD_EXT_DELAY_SIZE, RECORD_EXT_CHANNEL,
                               <const uint8_t *>self.address, address)
        record.attributes |= RECORD_PRODUCED
        at = record_extend(at, RECORD_EXT_PRODUCED, produced, sizeof(Produced))
        put_taken(record, at, &taken)
        at += taken_room(&taken)
        if length:
            self.put_headers(record, at, message, length, ttl)
        memcpy(record_body(record), message + length, body)
        return True

    cdef int keep_untold(self) except -1:
        """Keep the records of the next chunk until the journal covers the chunk.

        Otherwise, a crash could erase every trace of the chunk, which would then be published
        again.
        """
        if self.gate != MEMORY and not self.has_unjournaled:
            self.watch(&self.unjournaled)
            self.has_unjournaled = True
        return 0

    cdef int journal_told(self) except -1:
        """Handle a journal write that will cover all visible chunks."""
        cdef Cursor to = self.visible
        cdef uint64_t seq
        if not self.has_unjournaled:
            return 0
        seq = self.visible.seq
        if self.producers is not None:
            seq = self.producers.unspoken(seq)
        if self.once is not None:
            seq = min(seq, self.once.filed_seq)
        while to.block != NULL and to.block.first_seq > seq and to.block.prev != NULL:
            to.block = to.block.prev
            to.offset = 0
            to.seq = to.block.first_seq
        self.move_cursor(&self.unjournaled, &to)
        if seq == self.next_seq:
            self.has_unjournaled = False
            self.unwatch(&self.unjournaled)
        return 0

    # -- limits --

    cdef int set_limits(self, policy) except -1:
        self.mem_queue_size = self.scheduler.mem_queue_size
        if policy.mem_queue_size is not None:
            self.mem_queue_size = policy.mem_queue_size
        self.min_msg_size = min(policy.min_msg_size, NO_LIMIT)
        self.max_msg_size = NO_LIMIT if policy.max_msg_size is None else policy.max_msg_size
        self.max_defer_timeout = (
            ANY_DELAY if policy.max_defer_timeout is None else policy.max_defer_timeout)
        self.set_sources(policy)
        self.ttl = policy.ttl
        self.max_bytes = policy.max_bytes
        self.max_depth = policy.max_depth
        self.on_full = on_full_of(policy.on_full)
        return 0

    cdef int set_sources(self, policy) except -1:
        """Set where the keys and priorities of future publishes come from."""
        cdef tuple sources = (policy.key, policy.priority, policy.dedup_id)
        self.key_source = policy.key
        if not policy.dedup_window:
            sources = (policy.key, policy.priority, DEFAULT_SOURCES[2])
            if self.once is not None:
                self.early_count += self.once.early
                self.journal_window()
            self.once = None
        elif self.once is None:
            self.once = Once(policy.dedup_window, policy.dedup_ids, self.pool)
            self.once.belong(self.number)
            self.journal_window()
        else:
            self.once.window = policy.dedup_window
            self.once.maximum = policy.dedup_ids
        self.source_texts = sources
        return self.set_takes()

    cdef int set_takes(self) except -1:
        """Decide whether publishes need the values that are taken from messages."""
        self.takes = (self.once is not None or self.key_bounded
                      or self.source_texts != DEFAULT_SOURCES)
        self.sources = KeySources(*self.source_texts) if self.takes else None
        self.limited = (self.min_msg_size > 1 or self.max_msg_size != NO_LIMIT
                        or self.max_defer_timeout != ANY_DELAY or self.takes)
        return 0

    cdef void journal_window(self) noexcept:
        """Write the journal, because the ids of earlier records are forgotten: otherwise, a restart
        would find them in the log."""
        if self.next_seq > 1:
            self.journal_due = True
            self.touch_dirty()

    cdef int tell_keyless(self) except -1:
        """Log how many messages had no key, at most once a minute."""
        if self.scheduler.now < self.keyless_due:
            return 0
        self.keyless_due = self.scheduler.now + MINUTE
        messages = self.keyless_count - self.keyless_told
        self.keyless_told = self.keyless_count
        return self.host.report_keyless(
            self.name, messages, self.key_source)

    # -- message sizes and delays --

    cdef bint fits(self, int64_t size) noexcept:
        """Return whether a `limited` topic accepts a message of this size."""
        return self.min_msg_size <= size <= self.max_msg_size

    cdef int32_t invalid_length(self, const uint8_t *batch, uint32_t count,
                                bint headers) noexcept:
        """Return the size of the first message in an MPUB that the topic does not accept, or 0.

        headers: whether headers precede the bodies
        """
        cdef uint32_t length
        cdef int64_t body
        cdef uint32_t _i
        for _i in range(count):
            body = length = load_be32(batch)
            if headers:
                body -= HEADERS_SIZE + load_be16(batch + 4)
            if not self.fits(body):
                return <int32_t>body
            batch += 4 + length
        return 0

    cdef bytes delay_error(self, int64_t delay):
        """Return the error for a DPUB whose delay, in ns, is not accepted."""
        return b"E_INVALID DPUB timeout %d out of range 0-%d" % (
            delay // MILLISECOND, self.max_defer_timeout // MILLISECOND)

    cdef bytes size_error(self, const char *command, int64_t size):
        """Return the error for a message whose size is not accepted."""
        if size > self.max_msg_size:
            return b"E_BAD_MESSAGE %s message too big %d > %d" % (
                <bytes>command, size, self.max_msg_size)
        return b"E_BAD_MESSAGE %s message too small %d < %d" % (
            <bytes>command, size, self.min_msg_size)

    # -- depth and bytes --

    cdef bint drops(self, uint32_t body_bytes) noexcept:
        """Return whether the topic is full and drops the next message; if so, count the message."""
        if self.bounded and self.on_full == DROP_NEWEST and (
                self.exceeds_depth(1) or self.exceeds_bytes(1, body_bytes)):
            self.full_count += 1
            return True
        if self.ephemeral and not self.flowing() \
                and self.next_seq - self.fanout.seq >= self.mem_queue_size:
            self.dropped_count += 1
            return True
        return False

    cdef str fullness(self, uint64_t count, uint64_t body_bytes):
        """Return why the topic or a channel is too full for a publish, or None if there is room."""
        cdef Channel channel
        cdef uint64_t coming = self.next_seq - self.fanout.seq + count
        if self.on_full == REJECT:
            if self.exceeds_depth(count):
                return f"topic {self.name} is full (max-depth {self.max_depth})"
            if self.exceeds_bytes(count, body_bytes):
                return f"topic {self.name} is full (max-bytes {self.max_bytes})"
        if not self.flowing():
            return None
        for channel in self.channels.values():
            if channel.max_depth and channel.on_full == REJECT \
                    and channel.depth() + coming > channel.max_depth:
                return f"channel {self.name}/{channel.name} is full (max-depth {channel.max_depth})"
        return None

    cdef bint exceeds_bytes(self, uint64_t count, uint64_t body_bytes) noexcept:
        """Return whether a publish of this size would exceed max_bytes."""
        if self.max_bytes == 0:
            return False
        return (self.bytes_from(self.last_reader()) + count * sizeof(Record) + body_bytes
                > self.max_bytes)

    cdef bint exceeds_depth(self, uint64_t count) noexcept:
        """Return whether `count` more messages would exceed max_depth in the topic or in a
        channel."""
        cdef Channel channel
        cdef uint64_t coming = self.next_seq - self.fanout.seq + count
        if self.max_depth == 0:
            return False
        if not self.flowing():
            return coming > self.max_depth
        for channel in self.channels.values():
            if channel.depth() + coming > self.max_depth:
                return True
        return False

    cdef int set_bounds(self) except -1:
        """Apply the limits after a change to them."""
        cdef Channel channel
        self.bounded = self.max_depth != 0 or self.max_bytes != 0
        for channel in self.channels.values():
            self.limit_channel(channel)
        return self.apply_bounds()

    cdef int bound_channel(self, Channel channel) except -1:
        """Apply the limits to a new channel."""
        self.limit_channel(channel)
        return self.apply_bounds()

    cdef int unbound_channel(self, Channel channel) except -1:
        """Update the limits after a channel was removed. Those of other channels stay the same."""
        return self.set_bounds() if channel.rejects() or channel.rejects_keys() else 0

    cdef int limit_channel(self, Channel channel) except -1:
        cdef uint64_t messages = channel.max_depth
        cdef uint64_t size = 0
        channel.set_ttl(self.ttl)
        if channel.rejects():
            self.bounded = True
            messages = 0
        if self.on_full == DROP_OLDEST:
            size = self.max_bytes
            if self.max_depth and (messages == 0 or messages > self.max_depth):
                messages = self.max_depth
        channel.keep_at_most(messages, size)
        return 0

    cdef int apply_bounds(self) except -1:
        cdef Channel channel
        cdef bint bounded = False
        for channel in self.channels.values():
            bounded = bounded or channel.rejects_keys()
        if bounded != self.key_bounded:
            self.key_bounded = bounded
            self.set_takes()
        self.bounded = self.bounded or self.key_bounded
        self.may_drop = self.ephemeral or self.bounded and self.on_full == DROP_NEWEST
        if self.bounded:
            self.touch_dirty()
        return 0

    cdef int keep_bounds(self) except -1:
        """Drop the oldest messages that have not been fanned out, down to the limits."""
        cdef uint64_t depth = self.depth()
        cdef Cursor *front = &self.fanout
        if self.max_depth and depth > self.max_depth:
            self.full_count += depth - self.max_depth
            self.drop_front(self.visible.seq - self.max_depth)
        while self.max_bytes and front.seq < self.visible.seq \
                and self.bytes_from(front) > self.max_bytes:
            depth = self.depth()
            self.drop_front(min(self.visible.seq, front.block.last_seq + 1))
            self.full_count += depth - self.depth()
        return 0

    # -- expiry --

    cdef int drop_expired(self) except -1:
        """Drop expired messages, once a second. Channels drop their own expired messages at
        dispatch."""
        cdef Channel channel
        cdef uint64_t seq
        cdef int budget = TICK_EXPIRES
        for channel in self.channels.values():
            channel.touch_dirty()
        while self.ttl and budget > 0 and self.fanout.seq < self.visible.seq:
            seq = self.first_fresh(&budget)
            if seq == self.fanout.seq:
                break
            self.expired_count += seq - self.fanout.seq
            self.drop_front(seq)
        return 0

    cdef uint64_t first_fresh(self, int *budget) noexcept:
        """Return the first record in the topic's own backlog that has not expired.

        Searches only the block of the first record.
        """
        cdef int64_t born = self.scheduler.wall - self.ttl
        cdef uint64_t seq = self.fanout.seq
        cdef uint32_t at
        cdef Block *block
        cdef Record *record
        if not self.settle(&self.fanout):
            return seq
        block = self.fanout.block
        if block.data == NULL or block.flags & LOADING:
            budget[0] -= 1
            if block.last_time == 0 or block.last_time > born:
                return seq
            return min(block.last_seq + 1, self.visible.seq)
        at = self.fanout.offset
        while at < block.size and seq < self.visible.seq and budget[0] > 0:
            record = <Record *>(block.data + at)
            if record.seq >= seq:
                if record.timestamp > born:
                    break
                seq = record.seq + 1
                budget[0] -= 1
            at += record.length
        return seq

    # -- batches --

    cdef int add_batch(self, Batch batch) except -1:
        """Append a batch over the next turns, after earlier ones; its waiter receives the
        outcome."""
        self.batches.append(batch)
        self.coming += batch.left
        self.coming_bytes += batch.left_bytes
        if len(self.batches) == 1:
            self.host.gathering.append(self)
        return 0

    cdef int append_batches(self, int budget) except -1:
        """Append a slice of the first batch."""
        cdef Batch batch = self.batches[0]
        cdef uint32_t expected = batch.left
        cdef uint32_t count
        cdef uint64_t bodies = 0
        if not self.gathering:
            self.seal()         # the batch's records have separate blocks, written together
            self.gathered_from = self.next_seq
            try:
                batch.begin(self)
            except ChunkError as error:
                return self.end_batch(str(error))
            self.gathering = True
            self.coming += batch.left - expected
        count = min(batch.left, <uint32_t>budget)
        if count:
            bodies = batch.append(self, count)
        batch.left -= count
        self.coming -= count
        count -= self.repeats
        self.repeats = 0
        self.message_count += count
        self.message_bytes += bodies
        self.pending_messages += count
        if batch.left == 0:
            self.complete_batch(batch)
        return 0

    cdef int complete_batch(self, Batch batch) except -1:
        """Make the batch, and the records appended in between, visible now or once they are in the
        log."""
        cdef bint waits
        batch.complete(self)
        self.gathering = False
        waits = self.published(0, 0)
        if self.visible.seq == self.next_seq:
            self.pending_messages = 0
        if not waits:
            self.acks.answer(self.next_seq - 1, None)
        elif batch.waiter is not None:
            self.acknowledge_later(batch.waiter, batch.ticket)
            batch.waiter = None
            for waiter, ticket in batch.followers or ():
                self.acknowledge_later(waiter, ticket)
            batch.followers = None
            if self.once is not None:
                self.spans = [each for each in self.spans if each[1] >= self.visible.seq]
                self.spans.append((self.gathered_from, self.next_seq - 1))
        return self.end_batch(None)

    cdef int end_batch(self, str error) except -1:
        """Remove the first batch. Answer its waiter, unless the log will do so later."""
        cdef Batch batch = self.batches.pop(0)
        self.gathering = False
        self.coming -= batch.left
        self.coming_bytes -= batch.left_bytes
        batch.release()
        self.answer_batch(batch, error)
        return 0

    cdef int fail_batches(self, str error) except -1:
        """Reject all batches, because the topic has been deleted."""
        while self.batches:
            self.end_batch(error)
        return self.leave_queue()

    cdef int leave_queue(self) except -1:
        """Leave the scheduler's queue if no batch is left."""
        if not self.batches and self in self.host.gathering:
            self.host.gathering.remove(self)
        return 0

    cdef int leave_batches(self, str error) except -1:
        """Answer the waiters of all batches now; the batches may or may not be accepted later."""
        cdef Batch batch
        for batch in self.batches:
            self.answer_batch(batch, error)
        return 0

    cdef int answer_batch(self, Batch batch, str error) except -1:
        """Answer the waiter of a batch once, and release the waiter, because it may refer to the
        batch."""
        cdef Waiter waiter = batch.waiter
        batch.waiter = None
        if waiter is not None:
            waiter.publish_done(batch.ticket, error)
        followers, batch.followers = batch.followers or (), None
        for follower, ticket in followers:
            (<Waiter>follower).publish_done(ticket, error)
        return 0

    cdef int break_batch(self, str error) except -1:
        """Reject the partly appended batch, if there is one."""
        if self.gathering:
            (<Batch>self.batches[0]).abandon(self)
            self.end_batch(error)
        return self.leave_queue()

    # -- fan-out --

    cdef void become_dirty(self) noexcept:
        self.touch_to_trim()
        self.dirty = DIRTY

    cdef void touch_to_trim(self) noexcept:
        """Schedule settle_turn, but do not wake the channels: there may be thousands of them."""
        if self.dirty == CLEAN:
            self.dirty = TRIMS
            self.host.dirty_topics.append(self)

    cdef uint64_t depth(self) noexcept:
        """Return the number of messages that have not been fanned out yet."""
        return self.visible.seq - self.fanout.seq

    cdef void wake_channels(self) noexcept:
        """Wake the channels: records that channels are waiting for may now be in memory or may be
        requested again."""
        cdef Channel channel
        for channel in self.channels.values():
            if channel.ephemeral:
                self.touch_dirty()
            channel.touch_dirty()

    cdef void place_cursor(self, Cursor *cursor, uint64_t seq) noexcept:
        """Place a cursor before record `seq`, at the start of its block."""
        cdef Cursor to
        to.block = self.oldest
        to.offset = 0
        to.seq = seq
        while to.block != NULL and to.block.last_seq < seq and to.block.next != NULL:
            to.block = to.block.next
        if to.block != NULL and to.block.last_seq < seq:
            to.offset = to.block.size
        if to.block != NULL and to.seq < to.block.first_seq:
            # Earlier records were finished and dropped after the journal was written.
            to.seq = to.block.first_seq
        self.move_cursor(cursor, &to)

    @cython.final
    cdef bint fan_out_delayed(self) except -1:
        """Fan out delayed records, up to the budget; return whether any are left."""
        cdef Channel channel
        cdef Entry *entry = self.delayed_first
        cdef int64_t due
        cdef int budget = FAN_OUT_BUDGET
        cdef Cursor stop
        while entry != NULL and entry.seq < self.visible.seq:
            if budget == 0:
                stop.block = entry.block
                stop.offset = entry.offset
                stop.seq = entry.seq
                if stop.seq > self.fanout.seq:
                    self.move_cursor(&self.fanout, &stop)
                self.host.unsettled.append(self)
                return True
            budget -= 1
            due = self.scheduler.due_after(entry.due)
            for channel in self.channels.values():
                # A restored channel may be newer than the record.
                if channel.cursor.at.seq <= entry.seq:
                    if entry.timestamp == 0:
                        channel.defer_record(entry, due)
                    elif <uint64_t>entry.timestamp == channel.cursor.address:
                        channel.queue_record(entry)
                    else:
                        channel.pass_over()
            self.delayed_first = entry.next
            if entry.next == NULL:
                self.delayed_last = NULL
            self.delayed_count -= 1
            self.unref(entry.block)
            self.pool.free_entry(entry)
            entry = self.delayed_first
        return False

    def pass_on(self):
        """Fan out visible records now, up to a turn's share. Return whether records are left that
        the channels will receive without further action."""
        if self.fanout.seq == self.visible.seq or self.paused:
            return False
        return self.held_until != 0 or self.fan_out() != 0

    @property
    def held(self):
        """Return whether fan-out is held until the topic's known channels have been created."""
        return self.held_until != 0

    def end_hold(self):
        """Start fan-out: the expected channels have been created, or will not be."""
        self.held_until = 0
        self.fan_out()

    # -- delayed records --

    @cython.final
    cdef void add_delayed(self, Entry *entry) noexcept:
        """Keep a delayed record until it is fanned out.

        `due` is its delay. `timestamp` is the address of its only channel, or 0 for all channels.
        """
        entry.state = DEFERRED
        entry.attempts = 0
        entry.next = NULL
        self.ref(entry.block)
        if self.delayed_last == NULL:
            self.delayed_first = entry
        else:
            self.delayed_last.next = entry
        self.delayed_last = entry
        self.delayed_count += 1

    cdef int drop_delayed(self, uint64_t seq) except -1:
        """Drop the delayed entries of records before `seq`. If all entries are dropped, only a few
        are freed immediately."""
        cdef Entry *entry
        cdef Discarded discarded
        if self.delayed_last != NULL and self.delayed_last.seq < seq:
            discarded = Discarded()
            discarded.window = self
            discarded.entries = self.delayed_first
            self.delayed_first = self.delayed_last = NULL
            self.delayed_count = 0
            if discarded.free_some(DROP_AT_ONCE) == 0:
                self.scheduler.discarded.append(discarded)
            return 0
        while self.delayed_first != NULL and self.delayed_first.seq < seq:
            entry = self.delayed_first
            self.delayed_first = entry.next
            self.unref(entry.block)
            self.pool.free_entry(entry)
            self.delayed_count -= 1
        if self.delayed_first == NULL:
            self.delayed_last = NULL
        return 0

    # -- the topic's own backlog --

    cdef int drop_front(self, uint64_t seq) except -1:
        """Drop records before `seq` that have not been fanned out yet."""
        cdef Channel channel
        cdef uint64_t dropped = seq - self.fanout.seq
        cdef Cursor to = self.fanout
        self.drop_delayed(seq)
        if self.channels:
            self.add_hole(self.fanout.seq, seq)
            for channel in self.channels.values():
                channel.cursor.skipped += dropped
                channel.born_seq += dropped
        while to.block.next != NULL and to.block.last_seq < seq:
            to.block = to.block.next
            to.offset = 0
        to.seq = seq
        self.move_cursor(&self.fanout, &self.visible if seq == self.visible.seq else &to)
        self.trim()
        self.touch_dirty()
        return 0
