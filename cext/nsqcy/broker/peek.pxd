# Peek: view messages in a channel, or messages in a topic: all, or those not fanned out yet.
#
#   channel   its entries: queued again, in flight, deferred     ──► entries ┐
#   window    ──cursor──────────────fan-out position──►          ──► records ┴─► joined by caller
#
# Neither part changes anything: blocks are pinned, and blocks that are only on disk are read into
# the peek's own memory.

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.channels.consumer cimport Waiter
from nsqcy.broker.log_fetch cimport LogRead
from nsqcy.storage.block cimport Block
from nsqcy.storage.entry cimport Deferred
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport Hole


cdef enum:
    LARGEST_PEEK = 1048576          # bytes of JSON, unless a single message is larger
    MAX_LOOKED = 65536             # records; a response ends early at this limit
    MAX_TAKEN = 16777216           # or at this one, in bytes of blocks
    MAX_PASSED = 65536             # queued messages; no more pages after these


# A message in one of the channel's lists.
cdef struct Held:
    Block *block                    # pinned
    uint64_t seq
    uint64_t id                     # 0: unknown
    int64_t place                   # due time, monotonic; queued: its gate
    int64_t timestamp               # 0: see its record
    uint32_t offset
    uint16_t attempts


cdef class PeekedMessage:
    cdef readonly uint64_t seq
    cdef readonly uint64_t id           # 0: unknown
    cdef readonly int64_t timestamp     # wall clock, ns; 0: unknown
    cdef readonly int64_t place         # as in Held
    cdef readonly int64_t time          # due time, wall clock, ns; 0: never
    cdef readonly uint32_t attempts
    cdef readonly int64_t size          # of the body; -1: unreadable record
    cdef readonly bytes body            # up to the requested size
    cdef readonly bytes headers
    cdef readonly tuple client          # (client id, address); None: not in flight


cdef class PeekWaiter(Waiter):
    cdef object done


cdef class Peek(LogRead):
    cdef Channel channel                # None: the topic itself
    cdef Held *held_messages
    cdef uint32_t held_count
    cdef uint32_t read_count            # messages already read
    cdef uint32_t wanted                # messages to read
    cdef list clients                   # their clients; empty: not in flight
    cdef readonly list entries          # PeekedMessage objects read so far
    cdef readonly list records          # PeekedMessage objects of the window
    cdef readonly bint more_held        # the channel has more entries
    cdef bint has_times                 # entries are ordered by time
    cdef int64_t ahead                  # wall clock minus monotonic clock
    cdef int limit                      # maximum messages of each kind
    cdef uint32_t max_body
    cdef uint64_t bytes                 # of the response, for the current kind
    cdef uint64_t looked                # records
    cdef uint64_t taken                 # bytes of blocks
    cdef uint32_t offset                # offset in the block
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
