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
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.base.histogram cimport FIRST_OF_AGES, Histogram, histogram_add
from nsqcy.base.quantile cimport Latency
from nsqcy.channels.checkpoint_entries cimport Packing
from nsqcy.channels.counters cimport Series
from nsqcy.channels.events cimport EventKind, Events
from nsqcy.channels.inflight cimport Holding, InFlight
from nsqcy.channels.ready_ring cimport ReadyRing, RingPlace
from nsqcy.channels.scheduler_state cimport SchedulerState, Timer
from nsqcy.storage.block cimport Block
from nsqcy.storage.entry cimport Deferred, Entry, Pages
from nsqcy.storage.readahead cimport Excerpt
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow


cdef enum Outcome:
    DONE = 0
    NOT_IN_FLIGHT = 1
    NOT_OWNER = 2


# What happens when something is full.
cdef enum OnFull:
    REJECT = 0                  # publishes are refused
    DROP_OLDEST = 1             # what waits longest goes
    DROP_NEWEST = 2             # what comes goes

cdef OnFull on_full_of(str name) except *


# Why a message moves to another topic.
cdef enum MoveReason:
    OUT_OF_ATTEMPTS = 0         # it was delivered as often as may be
    TOO_OLD = 1
    REDRIVEN = 2                # back to where it came from


# A place in a walk over a channel's entries that takes many turns. Entries come and go meanwhile:
# one that moves may be missed, or met twice.
ctypedef struct Walk:
    uint8_t part            # WalkPart
    uint32_t left           # of the timers or of the table: slots before this one are to be visited
    Entry *queued           # of the queue: the next one


cdef enum WalkPart:
    WALK_TIMERS = 0
    WALK_QUEUE = 1
    WALK_TABLE = 2


@cython.final
cdef class Discarded:
    """What a channel has dropped, to be freed bit by bit."""
    cdef RecordWindow window
    cdef Entry *entries         # linked by `next`
    cdef Pages pages

    cdef int free_some(self, int budget) noexcept


cdef class Waiter:
    """Whoever waits for a publish to be accepted, or for an answer about a log."""
    cdef int publish_done(self, uint64_t ticket, str error) except -1
    cdef int log_answered(self, uint64_t ticket, bytes answer, bytes error) except -1


cdef class Consumer(Waiter):
    """A client as its channel sees it: a ready count, and a place to send messages to."""
    cdef Channel channel
    cdef Holding *holding
    cdef RingPlace ring_place
    cdef bint waiting               # in the ring of ready consumers
    cdef readonly uint32_t ready_count
    cdef readonly int64_t in_flight
    cdef readonly int64_t msg_timeout       # ns
    cdef readonly bint asked_timeout        # it is what the client asked for
    cdef readonly uint32_t sample_rate
    cdef readonly uint8_t locality
    cdef readonly uint64_t message_count
    cdef readonly uint64_t finish_count
    cdef readonly uint64_t requeue_count
    cdef readonly str client_id

    cdef bint has_room(self) noexcept
    cdef int64_t usual_timeout(self) noexcept
    cdef bint send_message(self, RecordWindow window, Block *block, Record *record,
                           uint16_t attempts) except -1
    cdef int on_channel_gone(self) except -1


cdef class Mover(Consumer):
    """Holds the messages that move from its channel to other topics, until they are there."""
    cdef int take_over(self, Entry *entry, MoveReason reason, str client) except -1
    cdef bint send_back(self, Entry *entry, const Record *record) except -1
    cdef int restore_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1
    cdef int go_on(self) except -1


@cython.final
cdef class Channel(InFlight):
    cdef readonly str name
    cdef readonly bint ephemeral
    cdef readonly bint paused
    cdef readonly bint gone                 # deleted or closed
    cdef int stepped                        # records it has stepped over in this dispatch
    cdef Entry *queue_first                 # redelivery, oldest first
    cdef Entry *queue_last
    cdef readonly uint64_t queued
    cdef Excerpt excerpt                    # records of the queue; None: its blocks are in memory
    cdef readonly double rate               # messages a second that may be sent; 0: any number
    cdef double next_send                   # when the rate lets the next one go; monotonic, ns
    cdef bint held_back                     # the last dispatch has sent all that it let go
    cdef Timer pacer                        # in the agenda, until it lets one go again
    cdef ReadyRing ready
    cdef uint64_t mem_queue_size            # messages: its policy, from here on
    cdef int64_t msg_timeout                # ns, for consumers that did not ask; 0: as they came
    cdef uint16_t max_attempts              # 0: any number
    cdef readonly str dead_letter_topic     # "": none
    cdef bint sifts                         # what is queued may be too old, or out of attempts
    cdef Mover mover                        # None: nothing has moved yet
    cdef readonly uint64_t dead_lettered_count
    cdef uint64_t redriving                 # so many of those that wait are to go back
    cdef uint64_t redriven_count
    cdef uint64_t exhausted_count           # out of attempts, and no topic for them
    cdef uint64_t max_depth                 # messages; 0: any number
    cdef OnFull on_full
    cdef int64_t prune_after                # ns; 0: never
    cdef bint prune_messages                # also if it has some
    cdef int64_t ttl                        # ns from the publish; 0: for ever
    cdef uint64_t most_messages             # that wait; the oldest beyond them go. 0: any number
    cdef uint64_t most_bytes
    cdef dict unusual                       # of its policy: what /stats shows
    cdef int64_t used_at                    # when it was last seen to be in use
    cdef readonly list consumers
    cdef uint64_t born_seq                  # fan-out position when it was created
    cdef readonly uint64_t emptied_count
    cdef readonly uint64_t requeue_count
    cdef readonly uint64_t timeout_count
    cdef readonly uint64_t dropped_count    # an ephemeral channel's overflow
    cdef uint64_t full_count                # the oldest, because there were too many
    cdef uint64_t expired_count             # too old to be delivered
    cdef readonly uint64_t sampled_count    # consumed without delivery
    cdef readonly uint64_t finish_count
    cdef uint64_t taken[3]                  # deliveries by locality
    cdef readonly Latency latency           # from publish to finish; None: not kept
    cdef Events events                      # None: nobody is told
    cdef bytes event_names
    cdef bint watched                       # there is a latency to be kept, or somebody to tell
    cdef Histogram *ages                    # of its topic, of finished messages; NULL: not kept
    cdef Series series                      # whose figures its are shown with
    cdef Walk place                         # of the compaction that is under way
    cdef Entry *unpacked                    # of the queue: the next one that it visits

    cdef void set_ttl(self, int64_t ttl) noexcept
    cdef void give_timeout(self, Consumer consumer) noexcept
    cdef bint is_forlorn(self) noexcept
    cdef uint64_t depth(self) noexcept
    cdef uint64_t held(self) noexcept
    cdef void carry(self, uint64_t ahead) noexcept
    cdef void replay(self, uint64_t skipped) noexcept
    cdef uint64_t activity(self) noexcept
    cdef int queue_record(self, const Entry *addressed) except -1
    cdef inline int queue_due(self, Deferred *deferred) except -1
    cdef void queue_entry(self, Entry *entry, uint32_t size) noexcept
    cdef int collect(self) except -1
    cdef int dispatch(self, int budget) except -1
    cdef int hand_out(self, int budget) except -1
    cdef int dispatch_at_rate(self, int budget) except -1
    cdef int clear_out(self, int budget) except -1
    cdef void keep_at_most(self, uint64_t messages, uint64_t bytes) noexcept
    cdef bint is_over(self) noexcept
    cdef int drop_oldest(self, int budget) except -1
    cdef bint is_expired(self, const Record *record) noexcept
    cdef void note_expired(self, const Record *record, uint16_t attempts) noexcept
    cdef bint drop_queued(self) except -1
    cdef bint drop_spoiled(self, Entry *entry) except -1
    cdef inline bint is_exhausted(self, const Entry *entry) noexcept
    cdef int bury(self, Entry *entry, MoveReason reason, str client) except -1
    cdef int bury_timed_out(self, Entry *entry) except -1
    cdef int bury_expired(self, Entry *entry, const Record *record) except -1
    cdef Mover make_mover(self)
    cdef int redrive_some(self, int budget) except -1
    cdef int give_back(self, Entry *entry) except -1
    cdef void pass_over(self) noexcept
    cdef int hold_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1
    cdef int lose_move(self, Entry *entry) except -1
    cdef int moved(self, Entry *entry, str client) except -1
    cdef inline bint leaves_out(self, Record *record) except -1
    cdef int drop_expired(self, int budget) except -1
    cdef void begin_walk(self) noexcept
    cdef bint walk(self, Deferred **entry) noexcept
    cdef void begin_packing(self, Packing packing) noexcept
    cdef int pack_more(self, int budget) noexcept
    cdef bint is_packed(self) noexcept
    cdef int expire(self, int budget) except -1
    cdef int add_consumer(self, Consumer consumer) except -1
    cdef void remove_consumer(self, Consumer consumer) noexcept
    cdef void check_ready(self, Consumer consumer) noexcept
    cdef void tell(self, Events events, bytes names) noexcept
    cdef void note(self, EventKind kind, const Entry *entry) noexcept
    cdef void note_finish(self, const Entry *entry) noexcept
    cdef Outcome finish(self, Consumer consumer, uint64_t id) noexcept

    cdef inline void note_ages(self, int64_t age, uint64_t count) noexcept:
        """So many messages were finished, of which the first was so old."""
        if self.ages != NULL:
            histogram_add(self.ages, FIRST_OF_AGES, age, count)

    cdef void add_figures(self, uint64_t *figures) noexcept
    cdef Outcome requeue(self, Consumer consumer, uint64_t id, int64_t delay) except *
    cdef Outcome touch(self, Consumer consumer, uint64_t id) noexcept
    cdef int drop_everything(self) except -1
    cdef Entry *drop_in_flight(self) noexcept
    cdef int close(self) except -1
    cdef inline bint queue_is_next(self, const Entry *first) noexcept
    cdef Entry *take(self, int most) except? NULL
    cdef Entry *take_sifted(self, int most) except? NULL
    cdef inline Entry *take_record(self, Record *record) except NULL
    cdef inline Entry *take_queued(self) except? NULL
    cdef void unqueue_first(self) noexcept
    cdef bint at_hand(self, const Entry *entry) except -1
    cdef int read_ahead(self) except -1
    cdef Record *record_of(self, const Entry *entry) noexcept
    cdef inline int deliver(self, RecordWindow window, Consumer consumer, Entry *entry) except -1
    cdef inline void drop_entry(self, Entry *entry) noexcept
    cdef inline Entry *held_by(self, Consumer consumer, uint64_t id, Outcome *outcome) noexcept
    cdef inline void no_longer_in_flight(self, Entry *entry) noexcept
    cdef int expire_holding(self, Holding *holding, int budget) except -1
