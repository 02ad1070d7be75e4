# The queue of a topic: from a publish to the channels.
#
#   PUB, DPUB ────────────────────────────┐
#   MPUB, LOG_PUB, /mpub ──► Batch ──► slices ──► records ──► visible ──► fanned out
#
# A publish that must wait for the log has a pending acknowledgement.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter
from nsqcy.channels.channel cimport OnFull
from nsqcy.channels.scheduler_state cimport SchedulerState
from nsqcy.broker.topic_host cimport TopicHost
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport RECORD_EXT_DELAY_SIZE, Produced, Record
from nsqcy.storage.record_window cimport Cursor, RecordWindow


# Durability class: what must happen to a record before its publish is acknowledged.
cdef enum Durability:
    MEMORY = 0                  # nothing
    OS = 1                      # written: it survives the end of any process
    FSYNC = 2                   # written and synced: it survives a power loss

cdef Durability durability_of(str name) except *


cdef enum:
    AT_ONCE = 4096              # messages that a publish may append in the turn that receives it


ctypedef struct PendingAck:
    uint64_t seq                # acknowledged when records up to this one are visible
    uint64_t ticket
    void *waiter                # owned reference


cdef class PendingAcks:
    """Publishes to answer when their records are in the log."""
    cdef PendingAck *ring       # ordered by seq
    cdef uint32_t first
    cdef uint32_t count
    cdef uint32_t room

    cdef int add(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1
    cdef int answer(self, uint64_t seq, str error) except -1
    cdef uint64_t oldest(self) noexcept
    cdef bint publish_goes_on(self, uint64_t seq) noexcept


cdef class Batch:
    """The checked messages of one publish."""
    cdef readonly bytes source          # owns the messages
    cdef const uint8_t *at              # the next message
    cdef uint32_t left                  # messages not appended yet
    cdef uint64_t left_bytes            # their bodies, or a little more
    cdef Durability minimum             # required by the publisher
    cdef Waiter waiter                  # receives the outcome; None: already answered
    cdef uint64_t ticket

    cdef int begin(self, TopicQueue topic) except -1
    cdef uint64_t append(self, TopicQueue topic, uint32_t count) except? 0
    cdef int complete(self, TopicQueue topic) except -1
    cdef int abandon(self, TopicQueue topic) except -1
    cdef int release(self) except -1


cdef class SizedBatch(Batch):
    """Messages as in an MPUB: each follows its length."""
    cdef bint headers                   # headers precede the bodies


cdef class ChunkBatch(Batch):
    """A producer's chunk, laid out as an MPUB. Only its missing messages are appended."""
    cdef object name                    # producers.ChunkName
    cdef uint32_t count                 # messages in the chunk
    cdef bint headers
    cdef bint moved                     # the messages come from another topic ...
    cdef bytes address                  # ... and are for this channel only, unless None
    cdef uint64_t size                  # bytes of the chunk
    cdef list wanted                    # [first, end) of the messages to append
    cdef uint32_t index                 # of the message at `at`
    cdef list pieces                    # (first_seq, ranges) of what was appended

    cdef uint32_t append_range(self, TopicQueue topic, Produced *produced, uint32_t count,
                               list taken, uint64_t *bodies) except? 0


cdef class TopicQueue(RecordWindow):
    cdef readonly str name
    cdef readonly bytes key
    cdef readonly bint ephemeral
    cdef readonly bint paused
    cdef readonly bint gone
    cdef readonly bint started
    cdef int64_t held_until             # fan-out is held until end_hold() or this time; 0: not held
    cdef bint unannounced               # publishes are answered by announced()
    cdef bint dirty
    cdef TopicHost host
    cdef SchedulerState scheduler
    cdef readonly dict channels
    cdef Entry *delayed_first           # delayed records at or after the fan-out position
    cdef Entry *delayed_last
    cdef readonly uint64_t delayed_count
    # Limits.
    cdef uint64_t mem_queue_size        # messages
    cdef bint limited                   # a policy limits message sizes or delays
    cdef int32_t min_msg_size           # bytes
    cdef int32_t max_msg_size           # bytes
    cdef int64_t max_defer_timeout      # ns
    cdef int64_t ttl                    # ns from publish to expiry; 0: no expiry
    cdef uint64_t max_bytes             # 0: no limit
    cdef uint64_t max_depth             # messages; 0: no limit
    cdef OnFull on_full
    cdef bint bounded                   # the topic or one of its channels limits depth or bytes
    cdef bint may_drop                  # the topic drops messages when it is full
    cdef uint64_t full_count            # messages dropped because the topic was full
    cdef readonly uint64_t dropped_count    # overflow of an ephemeral topic
    cdef uint64_t expired_count         # messages that expired in the topic
    # Conditions that a publish waits for.
    cdef Durability gate                # current class; a publisher may require a stronger one
    cdef bint overflowing               # records wait for the log before they are visible
    cdef bint journal_due               # the journal must be written before further records
    cdef uint64_t minimum               # min_seq at the end of the last turn
    cdef public str refused             # why publishes to this topic are refused, or None
    cdef bint failing                   # a write failed; waiting records are being undone
    cdef str error
    cdef uint64_t pending_messages      # appended, not visible yet
    cdef PendingAcks acks               # publishes waiting to become visible
    # Publishes.
    cdef object producers               # broker.producers.Producers; None: no chunks yet
    cdef object named                   # nsqcy.broker.named_cursors.NamedCursors
    cdef bint has_unjournaled       # chunks are missing from the journal: `unjournaled` is watched
    cdef bytes address                  # the only channel that receives the current publish
    cdef list batches                   # the first one is being appended if the topic is gathering
    cdef bint gathering                 # a large batch is being appended: nothing becomes visible
    cdef uint64_t gathered_from         # its first record
    cdef uint64_t coming            # messages of accepted batches that are not appended yet
    cdef uint64_t coming_bytes
    cdef readonly uint64_t message_count
    cdef readonly uint64_t message_bytes
    cdef int64_t last_publish

    # -- messages to records --

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
    cdef int unpublish(self) except -1
    cdef void forget_counts(self) noexcept

    # -- accepting a publish --

    cdef inline bint must_overflow(self) noexcept:
        return (self.gate != MEMORY
                or self.next_seq - self.minimum >= self.mem_queue_size
                or self.pool.resident_bytes > self.pool.budget)

    cdef inline bint may_refuse(self) noexcept:
        """Return whether refusal() must be called; an ordinary topic never refuses a publish."""
        return (self.bounded or self.failing or self.gone or self.refused is not None
                or self.host.shut is not None or self.host.refused is not None)

    cdef void demand(self, Durability minimum) noexcept
    cdef bint is_kept(self) noexcept
    cdef str refusal(self, Durability minimum, uint64_t count, uint64_t body_bytes)
    cdef str obstacle(self, Durability minimum, uint64_t count, uint64_t body_bytes)
    cdef bint takes_at_once(self) except -1
    cdef bint needs_disk(self, Durability minimum) noexcept

    # -- producers' chunks --

    cdef bint add_produced(self, const Produced *produced, const uint8_t *message, bint headers,
                           uint64_t *bodies) except -1
    cdef int add_chunk(self, ChunkBatch chunk, uint32_t *added, uint64_t *bodies) except -1
    cdef int open_chunk(self, ChunkBatch chunk) except -1
    cdef int keep_untold(self) except -1
    cdef int journal_told(self) except -1

    # -- limits --

    cdef int set_limits(self, policy) except -1
    cdef bint fits(self, int64_t size) noexcept
    cdef int32_t invalid_length(self, const uint8_t *batch, uint32_t count, bint headers) noexcept
    cdef bytes delay_error(self, int64_t delay)
    cdef bytes size_error(self, const char *command, int64_t size)
    cdef bint drops(self, uint32_t body_bytes) noexcept
    cdef str fullness(self, uint64_t count, uint64_t body_bytes)
    cdef bint exceeds_bytes(self, uint64_t count, uint64_t body_bytes) noexcept
    cdef bint exceeds_depth(self, uint64_t count) noexcept
    cdef int set_bounds(self) except -1
    cdef int keep_bounds(self) except -1
    cdef int drop_expired(self) except -1
    cdef uint64_t first_fresh(self, int *budget) noexcept

    # -- batches --

    cdef int add_batch(self, Batch batch) except -1
    cdef int append_batches(self, int budget) except -1
    cdef int complete_batch(self, Batch batch) except -1
    cdef int end_batch(self, str error) except -1
    cdef int fail_batches(self, str error) except -1
    cdef int leave_queue(self) except -1
    cdef int leave_batches(self, str error) except -1
    cdef int answer_batch(self, Batch batch, str error) except -1
    cdef int break_batch(self, str error) except -1

    # -- fan-out --

    cdef void become_dirty(self) noexcept

    cdef inline void touch_dirty(self) noexcept:
        """Schedule settle_turn for the end of the turn."""
        if not self.dirty:
            self.become_dirty()

    cdef inline bint flowing(self) noexcept:
        if not self.channels:
            return False
        return self.started and not self.paused and self.held_until == 0

    cdef inline int fan_out(self) except -1:
        """Fan out all visible records; return whether some are left for the next turn.

        Each delayed record costs an entry per channel, so the number of delayed records per turn is
        limited.
        """
        if not self.flowing():
            return 0
        if self.delayed_first != NULL and self.fan_out_delayed():
            return 1
        self.move_cursor(&self.fanout, &self.visible)
        self.touch_dirty()
        return 0

    cdef uint64_t depth(self) noexcept
    cdef void wake_channels(self) noexcept
    cdef void place_cursor(self, Cursor *cursor, uint64_t seq) noexcept
    cdef bint fan_out_delayed(self) except -1
    cdef void add_delayed(self, Entry *entry) noexcept
    cdef int drop_delayed(self, uint64_t seq) except -1
    cdef int drop_front(self, uint64_t seq) except -1
