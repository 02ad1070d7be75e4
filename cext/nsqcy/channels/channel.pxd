# Channels: a cursor over the window of a topic, and the messages handed out to consumers.
#
#                       take                     deliver
#   window ──cursor──────────────► (entry) ────────────────► in flight ──finish──► gone
#                        ▲                                    │  │  │
#                        │ at the tail                requeue │  │  │ timeout
#                     queued ◄────────────────────────────────┘  │  │
#                        ▲  ▲────────────────────────────────────│──┘
#                        │ due                                   │ requeue with a delay
#                     deferred ◄─────────────────────────────────┘

cimport cython
from libc.stdint cimport int64_t, uint64_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.counters cimport Series
from nsqcy.channels.dispatch cimport Dispatch
from nsqcy.channels.inflight cimport InFlightList
from nsqcy.storage.entry cimport Entry


# Action of a full topic or channel when the next message arrives.
cdef enum OnFull:
    REJECT = 0                  # publishes are rejected
    DROP_OLDEST = 1             # the message that has waited longest is dropped
    DROP_NEWEST = 2             # the new message is dropped

cdef OnFull on_full_of(str name) except *


cdef enum Outcome:
    DONE = 0
    NOT_IN_FLIGHT = 1
    NOT_OWNER = 2
    NO_DEAD_LETTERS = 3


@cython.final
cdef class Channel(Dispatch):
    cdef readonly str name
    cdef readonly bint gone                 # deleted or closed
    cdef uint64_t max_depth                 # in messages; 0: no limit
    cdef OnFull on_full
    cdef int64_t prune_after                # ns; 0: never
    cdef bint prune_messages                # prune the channel even if it has messages
    cdef dict unusual                       # the part of its policy that /stats shows
    cdef int64_t used_at                    # time when it was last in use
    cdef uint64_t born_seq                  # fan-out position when it was created
    cdef readonly uint64_t emptied_count
    cdef readonly uint64_t requeue_count
    cdef readonly uint64_t timeout_count
    cdef readonly uint64_t finish_count
    cdef Series series                      # the metrics series that includes its counters

    cdef bint is_unused(self) noexcept
    cdef void carry(self, uint64_t ahead) noexcept
    cdef void replay(self, uint64_t skipped) noexcept
    cdef uint64_t activity(self) noexcept
    cdef void pass_over(self) noexcept
    cdef void add_figures(self, uint64_t *figures) noexcept
    cdef Outcome finish(self, Consumer consumer, uint64_t id) noexcept
    cdef Outcome requeue(self, Consumer consumer, uint64_t id, int64_t delay) except *
    cdef Outcome reject(self, Consumer consumer, uint64_t id, int64_t delay, str text) except *
    cdef Outcome touch(self, Consumer consumer, uint64_t id) noexcept
    cdef int expire(self, int budget) except -1
    cdef int expire_in_flight_list(self, InFlightList *in_flight_list, int budget) except -1
    cdef void set_cut_off(self, bint cut_off) noexcept
    cdef void move(self) noexcept
    cdef int drop_everything(self) except -1
    cdef Entry *drop_in_flight(self) noexcept
    cdef int close(self) except -1
    cdef inline Entry *held_by(self, Consumer consumer, uint64_t id, Outcome *outcome) noexcept
