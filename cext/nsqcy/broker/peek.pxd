# A look at the messages of a channel, or of a topic that has given them to no channel yet.
#
#   channel   what it holds: queued again, in flight, deferred   ──► entries ┐
#   window    ──cursor──────────────fan-out position──►          ──► records ┴─► joined by who asked
#
# Neither changes anything: blocks are pinned, and what is on disk only is read into memory of the
# look.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.channels.consumer cimport Waiter
from nsqcy.broker.log_reader cimport LogRead
from nsqcy.storage.block cimport Block
from nsqcy.storage.entry cimport Deferred
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport Hole


cdef enum:
    LARGEST_PEEK = 1048576          # bytes of JSON, or one message
    MAX_LOOKED = 65536             # records; an answer may have fewer messages for it ...
    MAX_TAKEN = 16777216           # ... and bytes of blocks
    MAX_PASSED = 65536             # of the queue: nobody pages beyond


# A message that its channel holds.
cdef struct Held:
    Block *block                    # pinned
    uint64_t seq
    uint64_t id                     # 0: not known
    int64_t place                   # when it is due, monotonic; queued: its gate
    int64_t timestamp               # 0: its record has it
    uint32_t offset
    uint16_t attempts


cdef class PeekedMessage:
    cdef readonly uint64_t seq
    cdef readonly uint64_t id           # 0: not known
    cdef readonly int64_t timestamp     # wall clock, ns; 0: not known
    cdef readonly int64_t place         # as in Held
    cdef readonly int64_t time          # when it is due, wall clock, ns; 0: never
    cdef readonly uint32_t attempts
    cdef readonly int64_t size          # of the body; -1: its record cannot be read
    cdef readonly bytes body            # as much of it as was wanted
    cdef readonly bytes headers
    cdef readonly tuple client          # (client id, address); None: nobody has it


cdef class PeekWaiter(Waiter):
    cdef object done


cdef class Peek(LogRead):
    cdef Channel channel                # None: what the topic itself holds
    cdef Held *held_messages
    cdef uint32_t held_count
    cdef uint32_t read_count            # of which were read
    cdef uint32_t wanted                # of which will be
    cdef list clients                   # who has them; empty: nobody
    cdef readonly list entries          # of PeekedMessage, what was read of them
    cdef readonly list records          # and of the window
    cdef readonly bint more_held        # there are more than these
    cdef bint has_times                 # they are in the order of them
    cdef int64_t ahead                  # of the wall clock before the monotonic one
    cdef int limit                      # messages of either kind
    cdef uint32_t max_body
    cdef uint64_t bytes                 # of the answer that either kind makes
    cdef uint64_t looked                # records
    cdef uint64_t taken                 # bytes of blocks
    cdef uint32_t offset                # in the block
    cdef uint64_t clear_to              # there is no hole before it

    cdef int hold_queued(self, uint64_t passed) except -1
    cdef int hold_in_flight(self, after) except -1
    cdef int hold_deferred(self, after) except -1
    cdef int add_held(self, const Deferred *message, int64_t place, int64_t timestamp) except -1
    cdef int begin_records(self, uint64_t first, uint64_t end) noexcept
    cdef int read_held(self) except? -1
    cdef bint wants_records(self) noexcept
    cdef int read_record(self) except? -1
    cdef int find_block(self) except -1
    cdef bint skip_ranges(self, const Hole *ranges, uint32_t count) noexcept
    cdef int skip_holes(self) noexcept
    cdef PeekedMessage seen(self, const Record *record)
