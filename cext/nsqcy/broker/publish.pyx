"""Publishing: turns messages into records and makes them visible, immediately or once the log has
them.

Owns the layout of a message in a record, and the reasons for refusing a publish.
"""

cimport cython
from libc.string cimport memcpy

from nsqcy.base.bytes cimport load_be16, load_be32
from nsqcy.base.headers cimport HEADERS_SIZE, headers_ttl
from nsqcy.broker.durability cimport MEMORY
from nsqcy.storage.record cimport (
    RECORD_ADDRESSED,
    RECORD_DELAYED,
    RECORD_EXPIRES,
    RECORD_EXT_CHANNEL,
    RECORD_EXT_DELAY,
    RECORD_EXT_DELAY_SIZE,
    RECORD_EXT_EXPIRES,
    RECORD_EXT_EXPIRES_SIZE,
    RECORD_EXT_HEADERS,
    RECORD_EXT_PRODUCED,
    RECORD_EXT_PRODUCED_SIZE,
    RECORD_HEADERS,
    RECORD_PRODUCED,
    record_address_of,
    record_body,
    record_extend,
    record_extension_size,
)
from nsqcy.storage.block cimport Block
from nsqcy.storage.record_window cimport Cursor, append_record
from nsqcy.storage.entry cimport Entry, size_tag

from nsqcy.broker.topic_host import EXITING as _EXITING


cdef enum:
    ADDRESS_HEADER = 16             # size of an address header, excluding its value

cdef int64_t MILLISECOND = 1000000


@cython.no_gc_clear      # as RecordWindow requires
cdef class Publishing(LogAccess):
    def __cinit__(self):
        self.last_publish = self.scheduler.now

    # -- records --

    cdef Record *new_headered(self, uint32_t body_length, int64_t delay, const uint8_t *headers,
                              uint16_t length) except? NULL:
        """Append a record with headers, which have been checked and are `length` bytes long."""
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
        """Write the headers of the newest record, and the expiry that they define."""
        at = record_extend(at, RECORD_EXT_HEADERS, headers, length)
        record.attributes |= RECORD_HEADERS
        if ttl:
            ttl = self.scheduler.wall + ttl * MILLISECOND
            record_extend(at, RECORD_EXT_EXPIRES, &ttl, sizeof(ttl))
            record.attributes |= RECORD_EXPIRES
            self.perishable = True

    cdef size_t new_batch(self, const uint8_t *batch, uint32_t count) except? 0:
        """Append `count` records without a delay, with their bodies; return the bytes used.

        Each message follows its length, as in an MPUB; the lengths have been checked.
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
        """Append a checked message with headers: their length, the headers, the body.

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
        """Set the delay of the newest record, which has room for it."""
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
        """Publish `count` records with complete bodies; return whether their answer must
        wait: for the log, or for a new topic's registration."""
        self.message_count += count
        self.message_bytes += body_bytes
        self.last_publish = self.scheduler.now
        self.touch_dirty()
        if self.gathering or self.overflowing and self.visible.seq != self.next_seq:
            self.pending_messages += count      # some were not dropped
            return 1
        self.cursor_to_end(&self.visible)
        self.fan_out()
        return self.unannounced

    cdef int acknowledge_later(self, Waiter waiter, uint64_t ticket) except -1:
        """Answer `waiter` when everything appended so far is visible, in a topic that is announced,
        or has failed."""
        return self.acks.add(self.next_seq - 1, waiter, ticket)

    cdef int unpublish(self) except -1:
        self.forget_counts()
        if self.producers is not None:
            self.producers.undo(self.visible.seq)
        return 0

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
        """Require at least this durability for a publisher's records; call it right before
        appending them.

        Until the publisher is answered, records appended later have the same class.
        """
        if self.log is not None and self.gate < minimum:
            if not self.is_kept():
                # Until now, a restart would have recovered nothing: write the channels first.
                self.journal_due = True
            self.gate = minimum

    cdef str refusal(self, Durability minimum, uint64_t count, uint64_t body_bytes):
        """Return why a publish of this size and durability is refused now; None if it is not."""
        if self.host.shut is not None and not self.gone:
            return self.host.shut
        return self.obstacle(minimum, count, body_bytes)

    cdef str obstacle(self, Durability minimum, uint64_t count, uint64_t body_bytes):
        """Return the reason as refusal() does, but accept publishes while draining."""
        if self.gone:
            return _EXITING
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

    cdef bint add_produced(self, const Produced *produced, const uint8_t *message, bint headers,
                           uint64_t *bodies) except -1:
        """Append a message from a chunk, preceded by its length; return whether it was accepted."""
        cdef uint32_t body = load_be32(message)
        cdef uint16_t length = 0
        cdef uint32_t ext = RECORD_EXT_PRODUCED_SIZE
        cdef uint16_t address = 0
        cdef int64_t ttl = 0
        cdef Record *record
        cdef uint8_t *at
        message += 4
        if headers:
            length = load_be16(message)
            message += HEADERS_SIZE
            body -= HEADERS_SIZE + length
        if self.address is not None:
            address = len(self.address)
            ext += RECORD_EXT_DELAY_SIZE + record_extension_size(address)
            # Skip the address header: the record stores the address as an extension.
            message += ADDRESS_HEADER + address
            length -= <uint16_t>(ADDRESS_HEADER + address)
        if length:
            ttl = headers_ttl(message, length)
            ext += self.headers_room(length, ttl)
        bodies[0] += body
        record = self.add_record(body, ext)
        if record == NULL:
            return False
        at = <uint8_t *>record + sizeof(Record)
        if address:
            # A delay of zero makes the message an entry of that channel only.
            self.set_delay(record, 0)
            self.delayed_last.timestamp = <int64_t>record_address_of(self.address, address)
            record.attributes |= RECORD_ADDRESSED
            at = record_extend(at + RECORD_EXT_DELAY_SIZE, RECORD_EXT_CHANNEL,
                               <const uint8_t *>self.address, address)
        record.attributes |= RECORD_PRODUCED
        at = record_extend(at, RECORD_EXT_PRODUCED, produced, sizeof(Produced))
        if length:
            self.put_headers(record, at, message, length, ttl)
        memcpy(record_body(record), message + length, body)
        return True

    cdef int keep_untold(self) except -1:
        """Keep the records of the next chunk until the journal covers the chunk.

        Otherwise a crash could erase every trace of the chunk, which would then be published again.
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
        seq = self.producers.unspoken(self.visible.seq)
        while to.block != NULL and to.block.first_seq > seq and to.block.prev != NULL:
            to.block = to.block.prev
            to.offset = 0
            to.seq = to.block.first_seq
        self.move_cursor(&self.unjournaled, &to)
        if self.visible.seq == self.next_seq:
            self.has_unjournaled = False
            self.unwatch(&self.unjournaled)
        return 0
