"""The messages of a channel that must no longer be delivered.

Owns the limits: the age of a message, its attempts, and the number of waiting messages. Decides the
destination of messages that are too old, out of attempts, rejected or redriven, and owns the
channel's counters for these messages. A Transfer sends the message to its dead-letter topic, and
back (implemented by broker/dead_letter_transfer.pyx). Independent of the order of delivery, and of
the timeouts of messages in flight (channel).
"""

# The messages of a channel that are too old, too numerous or out of attempts, and the messages
# transferred to another topic or back.


cdef class Undeliverable(UnfinishedMessages):
    cdef void set_ttl(self, int64_t ttl) noexcept:
        self.ttl = ttl
        self.sifts = ttl != 0 or self.max_attempts != 0 or self.keys is not None

    cdef void keep_at_most(self, uint64_t messages, uint64_t bytes) noexcept:
        """Limit the number of waiting messages by dropping the oldest; 0: no limit."""
        if messages != self.max_messages or bytes != self.max_bytes:
            self.max_messages = messages
            self.max_bytes = bytes
            self.touch_dirty()

    cdef bint is_over(self) noexcept:
        return (self.max_messages and self.depth() > self.max_messages
                or self.max_bytes and self.waiting_bytes() > self.max_bytes)

    cdef uint64_t waiting_bytes(self) noexcept:
        """Return the bytes of the log that the channel needs; with an index, the bytes of the
        records that wait."""
        if self.keys is not None and self.keys.started:
            return self.keys.bytes + self.window.bytes_from(&self.keys.at)
        return self.window.bytes_from(&self.cursor.at)

    cdef bint is_expired(self, const Record *record) noexcept:
        """Return whether a message is too old to be delivered."""
        return (self.ttl and record.timestamp + self.ttl <= self.scheduler.wall
                or record_expiry(record) <= self.scheduler.wall)

    # -- dropping --

    cdef bint drop_queued(self) except -1:
        """Drop the first message in the queue if it is too old, or was out of attempts when it was
        restored."""
        cdef Entry *entry = self.queue_first
        cdef const Record *record = self.record_of(entry)
        if record == NULL:
            return False
        if self.is_exhausted(entry):
            self.unqueue_first()
            entry.id = record.id
            entry.timestamp = record.timestamp
            self.dead_letter(entry, OUT_OF_ATTEMPTS, "")
            return True
        if self.is_expired(record):
            self.unqueue_first()
            self.dead_letter_expired(entry, record)
            return True
        return False

    cdef bint drop_spoiled(self, Entry *entry) except -1:
        """Drop a message if it is damaged or too old; return whether it was dropped."""
        cdef const Record *record = self.record_of(entry)
        if record == NULL:
            self.drop_entry(entry)
            return True
        if not self.is_expired(record):
            return False
        self.dead_letter_expired(entry, record)
        return True

    cdef int dead_letter_expired(self, Entry *entry, const Record *record) except -1:
        """Expire a message that is not in flight."""
        if self.dead_letter_topic:
            entry.id = record.id
            entry.timestamp = record.timestamp
            return self.dead_letter(entry, TOO_OLD, "")
        self.report_expired(record, entry.attempts)
        self.drop_entry(entry)
        return 0

    cdef void report_expired(self, const Record *record, uint16_t attempts) noexcept:
        """Count a message that leaves because it is too old."""
        self.expired_count += 1
        if self.events is not None:
            self.events.add(EXPIRED, record.id, attempts, self.scheduler.wall, 0,
                            self.scheduler.wall - record.timestamp, self.event_names, "")

    cdef bint leaves_out(self, Record *record) except -1:
        """Skip the record at the cursor if it must not be delivered there."""
        cdef Entry *entry
        if not record.attributes and not self.ttl:
            return False
        if record.attributes and cursor_passes(&self.cursor, record):
            cursor_step_over(&self.cursor, record)
            return True
        if self.is_expired(record):
            entry = self.entry_at_cursor(record)
            # Do this first: publishing a dead letter may evict the record's block from memory.
            cursor_step(&self.cursor, record)
            self.dead_letter_expired(entry, record)
            return True
        return False

    cdef int drop_expired(self, int budget) except -1:
        """Drop expired messages at the head of the channel, even if it has no
        consumers."""
        cdef Entry *entry
        cdef Record *record
        while budget > self.stepped:
            entry = self.queue_first
            if self.queue_is_next(entry):
                if not self.drop_queued():
                    break
            else:
                record = cursor_record(&self.cursor)
                if record == NULL or not self.leaves_out(record):
                    break
            self.stepped += 1
        return 0

    # -- dead letters --

    cdef int dead_letter(self, Entry *entry, TransferReason reason, str client,
                         str text="") except -1:
        """Transfer a message that no consumer holds to the dead-letter topic; drop the message if
        there is no such topic."""
        if self.dead_letter_topic:
            return self.make_transfer().take_over(entry, reason, client, text)
        self.exhausted_count += 1
        self.drop_entry(entry)
        return 0

    cdef int dead_letter_timed_out(self, Entry *entry) except -1:
        cdef InFlightList *in_flight_list = <InFlightList *>entry.in_flight_list
        cdef str client = ""
        if in_flight_list.consumer != NULL:
            client = (<Consumer>in_flight_list.consumer).client_id
        self.no_longer_in_flight(entry)
        return self.dead_letter(entry, OUT_OF_ATTEMPTS, client)

    cdef Transfer make_transfer(self):
        if self.transfer is None:
            self.transfer = self.new_transfer(self.window, self)
            self.transfer.channel = self
            self.transfer.in_flight_list = self.new_in_flight_list(<void *>self.transfer)
        return self.transfer

    # -- messages in transfer --

    cdef int add_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1:
        """Add a message to the transfer, after those with smaller numbers."""
        if self.keys is not None and not self.keys.order:
            self.keys.release(entry)
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.list_add_uninlined(self.transfer.in_flight_list, entry, <int64_t>(NEVER + number))
        entry.state = TRANSFERRING
        entry.node.tag = reason
        table_add(&self.table, entry, self.in_flight_count)
        self.in_flight_count += 1
        self.transfer.in_flight += 1
        self.touch_dirty()
        return 0

    cdef int return_transfer(self, Entry *entry) except -1:
        """Return a message in transfer to the channel's queue."""
        table_clear(&self.table, table_find(&self.table, entry.id))
        self.no_longer_in_flight(entry)
        self.queue_entry(entry, 0)
        return 0

    cdef int drop_transfer(self, Entry *entry) except -1:
        """Drop a message in transfer whose record is damaged."""
        table_clear(&self.table, table_find(&self.table, entry.id))
        self.no_longer_in_flight(entry)
        self.drop_entry(entry)
        return 0

    cdef int transferred(self, Entry *entry, str client) except -1:
        """Drop a message that the target topic has accepted, and count it."""
        if self.events is not None and entry.node.tag != REDRIVEN:
            self.events.add(DEAD_LETTER, entry.id, entry.attempts, self.scheduler.wall, 0,
                            self.scheduler.wall - entry.timestamp, self.event_names, client)
        if entry.node.tag == REDRIVEN:
            self.redriven_count += 1
        else:
            self.dead_lettered_count += 1
        table_clear(&self.table, table_find(&self.table, entry.id))
        self.no_longer_in_flight(entry)
        self.drop_entry(entry)
        return 0
