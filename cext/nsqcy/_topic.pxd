# Topics: publishing, the fan-out position, overflow to the log; and the topics of one worker.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy._channel cimport Agenda, Channel, Waiter
from nsqcy._ids cimport IdSource
from nsqcy._io cimport IoThread
from nsqcy._log cimport Extent, Log
from nsqcy._store cimport Block, Cursor, Entry, Record, Store, Window


ctypedef struct Promise:
    uint64_t seq                # accepted when records up to this one are visible
    uint64_t ticket
    void *waiter                # owned reference


cdef class Topic(Window):
    cdef readonly str name
    cdef readonly bytes key
    cdef readonly bint ephemeral
    cdef readonly bint paused
    cdef readonly bint gone
    cdef readonly bint started
    cdef bint dirty
    cdef bint overflowing               # records wait for the log before they are visible
    cdef bint failing                   # a write failed; what waits for the log is being undone
    cdef bint spilling                  # memory is short: blocks in memory are being written
    cdef bint journal_stale             # what the journal says is no longer so
    cdef str error
    cdef Shard shard
    cdef Agenda agenda
    cdef readonly dict channels
    cdef uint64_t least                 # least_seq as of the last turn
    cdef uint64_t pending_writes
    cdef uint64_t pending_messages      # appended, not visible yet
    cdef uint64_t pending_bytes
    cdef Entry *delayed_first           # records with a delay at or after the fan-out position
    cdef Entry *delayed_last
    cdef readonly uint64_t delayed_count
    cdef Promise *promises              # ring buffer, in the order of seq
    cdef uint32_t promise_first
    cdef uint32_t promise_count
    cdef uint32_t promise_room
    cdef Block *survivor                # open block for copies of stragglers' records
    cdef readonly uint64_t message_count
    cdef readonly uint64_t message_bytes
    cdef readonly uint64_t dropped_count    # an ephemeral topic's overflow
    cdef int64_t last_publish

    cdef Record *new_record(self, uint32_t body_length, int64_t delay) except? NULL
    cdef int published(self, uint32_t count, uint64_t body_bytes) except -1
    cdef int promise(self, Waiter waiter, uint64_t ticket) except -1
    cdef int fan_out(self) except -1
    cdef int settle_turn(self) except -1
    cdef uint64_t depth(self) noexcept
    cdef Channel find_channel(self, str name)
    cdef int consumer_left(self, Channel channel) except -1
    cdef void add_delayed(self, Entry *entry) noexcept
    cdef bint must_overflow(self) noexcept
    cdef bint flowing(self) noexcept
    cdef int keep_promises(self, uint64_t seq, str error) except -1
    cdef void touch_dirty(self) noexcept
    cdef int write_overflow(self) except -1
    cdef int spill(self) except -1
    cdef int write_run(self, Block *block, bint gated) except -1
    cdef int on_written(self, Write *write, int error) except -1
    cdef int undo_pending(self) except -1
    cdef void check_droppable(self, Block *block) noexcept
    cdef int on_loaded(self, Block *block) except -1
    cdef int compact(self) except -1
    cdef int evacuate_all(self) except -1
    cdef int evacuate_channel(self, Channel channel) except -1
    cdef int evacuate(self, Entry *entry) except -1
    cdef Block *survivor_block(self, uint32_t length) except NULL
    cdef void add_straggler_empty(self, Block *block) noexcept
    cdef void unpin_survivor(self) noexcept
    cdef void drop_delayed(self) noexcept


cdef class Shard:
    """The topics of one worker."""
    cdef readonly dict topics               # bytes name -> Topic
    cdef readonly Agenda agenda
    cdef readonly Store store
    cdef readonly IdSource ids
    cdef readonly IoThread io
    cdef readonly str data_path
    cdef dict log_options
    cdef object on_event                    # called as on_event(kind, topic name, channel name)
    cdef object log                         # for operators
    cdef list dirty_topics
    cdef int64_t next_tick
    cdef readonly bint closing
    cdef readonly str health                # "OK" or "NOK - reason"

    cdef Topic find(self, bytes key)
    cdef Topic find_or_create(self, bytes key)
    cdef int64_t turn(self) except? -1
    cdef Topic make_topic(self, bytes key)
    cdef int tick(self) except -1
