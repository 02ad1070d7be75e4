# Publishing messages to a topic.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter
from nsqcy.broker.durability cimport Durability
from nsqcy.broker.log_access cimport LogAccess
from nsqcy.storage.record cimport RECORD_EXT_DELAY_SIZE, Produced, Record


cdef class Publishing(LogAccess):
    cdef object producers               # broker.producers.Producers; None: no chunks yet
    cdef bint has_unjournaled       # chunks are missing from the journal: `unjournaled` is watched
    cdef bytes address                  # the only channel that receives the current publish
    cdef uint64_t coming            # messages of accepted batches that are not appended yet
    cdef uint64_t coming_bytes
    cdef readonly uint64_t message_count
    cdef readonly uint64_t message_bytes
    cdef int64_t last_publish

    cdef inline Record *new_record(self, uint32_t body_length, int64_t delay) except? NULL:
        """Append a record without its body.

        The caller copies the body into it and then calls published() once for all of the command's
        records. Returns NULL if the topic is full and drops the message, which counts as published.
        """
        cdef Record *record = self.add_record(body_length, RECORD_EXT_DELAY_SIZE if delay else 0)
        if delay and record != NULL:
            self.set_delay(record, delay)
        return record

    cdef Record *new_headered(self, uint32_t body_length, int64_t delay, const uint8_t *headers,
                              uint16_t length) except? NULL
    cdef uint32_t headers_room(self, uint16_t length, int64_t ttl) noexcept
    cdef void put_headers(self, Record *record, uint8_t *at, const uint8_t *headers,
                          uint16_t length, int64_t ttl) noexcept
    cdef size_t new_batch(self, const uint8_t *batch, uint32_t count) except? 0
    cdef uint32_t add_headered(self, const uint8_t *message, uint32_t length,
                               int64_t delay) except? 0
    cdef uint64_t add_headered_batch(self, const uint8_t *batch, uint32_t count) except? 0
    cdef Record *add_record(self, uint32_t body_length, uint32_t ext_length) except? NULL
    cdef int set_delay(self, Record *record, int64_t delay) except -1
    cdef int published(self, uint32_t count, uint64_t body_bytes) except -1
    cdef int acknowledge_later(self, Waiter waiter, uint64_t ticket) except -1
    cdef void forget_counts(self) noexcept
    cdef void demand(self, Durability minimum) noexcept
    cdef str refusal(self, Durability minimum, uint64_t count, uint64_t body_bytes)
    cdef str obstacle(self, Durability minimum, uint64_t count, uint64_t body_bytes)
    cdef bint takes_at_once(self) except -1
    cdef bint needs_disk(self, Durability minimum) noexcept
    cdef bint add_produced(self, const Produced *produced, const uint8_t *message, bint headers,
                           uint64_t *bodies) except -1
    cdef int keep_untold(self) except -1
    cdef int journal_told(self) except -1

    cdef inline bint may_refuse(self) noexcept:
        """Return whether refusal() must be called; an ordinary topic never refuses a publish."""
        return (self.bounded or self.failing or self.gone or self.refused is not None
                or self.host.shut is not None or self.host.refused is not None)
