"""A channel's messages that must no longer be delivered.

Owns the limits: the age of a message, its attempts, and the number of waiting messages. Knows
nothing about consumers or the order of delivery.
"""

from nsqcy.channels.dead_lettering cimport OUT_OF_ATTEMPTS, TOO_OLD
from nsqcy.channels.events cimport EXPIRED
from nsqcy.storage.record cimport record_expiry


cdef class Expiry(DeadLettering):
    cdef void set_ttl(self, int64_t ttl) noexcept:
        self.ttl = ttl
        self.sifts = ttl != 0 or self.max_attempts != 0

    cdef void keep_at_most(self, uint64_t messages, uint64_t bytes) noexcept:
        """Limit the number of waiting messages by dropping the oldest; 0: no limit."""
        if messages != self.max_messages or bytes != self.max_bytes:
            self.max_messages = messages
            self.max_bytes = bytes
            self.touch_dirty()

    cdef bint is_over(self) noexcept:
        return (self.max_messages and self.depth() > self.max_messages
                or self.max_bytes and self.window.bytes_from(&self.cursor) > self.max_bytes)

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
        """Drop a message that is damaged or too old; return whether it was."""
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
        """Skip the record at the cursor if it must not be delivered from there."""
        cdef Entry *entry
        if not record.attributes and not self.ttl:
            return False
        if record.attributes and self.passes(record):
            self.step_over(record)
            return True
        if self.is_expired(record):
            entry = self.entry_at_cursor(record)
            # This comes first: publishing a dead letter may push the record's block out of memory.
            self.window_step(record)
            self.dead_letter_expired(entry, record)
            return True
        return False

    cdef int drop_expired(self, int budget) except -1:
        """Drop expired messages from where the next message would be taken, even if there are no
        consumers."""
        cdef Entry *entry
        cdef Record *record
        while budget > self.stepped:
            entry = self.queue_first
            if self.queue_is_next(entry):
                if not self.drop_queued():
                    break
            else:
                record = self.record_at_cursor()
                if record == NULL or not self.leaves_out(record):
                    break
            self.stepped += 1
        return 0
