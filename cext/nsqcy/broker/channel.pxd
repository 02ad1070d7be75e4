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

from nsqcy.broker.events cimport EventKind, Events
from nsqcy.storage.readahead cimport Excerpt
from nsqcy.broker.counters cimport Series
from nsqcy.base.heap cimport Heap, HeapNode
from nsqcy.base.histogram cimport FIRST_OF_AGES, Histogram, histogram_add
from nsqcy.broker.checkpoint_entries cimport Packing
from nsqcy.base.quantile cimport Latency, Percentiles
from nsqcy.storage.block cimport Block
from nsqcy.storage.block_pool cimport BlockPool
from nsqcy.storage.entry cimport Deferred, Entry, Pages
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport Cursor, Hole, RecordWindow


cdef enum Locality:
    ZONE_LOCAL = 0
    REGION_LOCAL = 1
    ANYWHERE = 2
    LOCALITIES = 3


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


# The lowest bit of a timer's tag.
cdef enum TimerKind:
    ENTRY_TIMER = 0
    HOLDING_TIMER = 1


# A heap node that knows whose it is; `owner` is borrowed.
ctypedef struct Timer:
    HeapNode node
    void *owner


# The messages a consumer holds, in the order of their deadlines. It outlives the consumer: what a
# dead client held stays in flight until its deadline. `timer` is never later than the first one.
ctypedef struct Holding:
    HeapNode timer
    Entry *first
    Entry *last
    uint32_t count
    void *consumer              # borrowed; NULL after it left
    Holding *prev
    Holding *next


# A place in the ring of consumers that can take a message.
ctypedef struct Turnstile:
    Turnstile *prev
    Turnstile *next
    void *consumer              # borrowed


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


cdef class Agenda:
    """What a worker has to do this turn (dirty things) and when it must wake up (timers)."""
    cdef public int64_t now                 # monotonic, ns; read once a turn
    cdef public int64_t wall                # wall clock, ns
    cdef list dirty_channels
    cdef list discarded                     # what is still to be freed, see Discarded
    cdef Heap channel_timers
    cdef BlockPool store
    cdef public uint64_t mem_queue_size     # messages
    cdef public int64_t max_msg_timeout     # ns
    cdef public bint topology_aware
    cdef readonly Percentiles percentiles   # of the time from publish to finish
    cdef readonly Events events             # told of what happens to messages; None: nobody is
    cdef public object publish_once         # for movers: see nsqcy.broker.dead_letters
    cdef uint32_t random_state

    cdef uint32_t random_percent(self) noexcept


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
    cdef Turnstile turnstile
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
cdef class Channel:
    cdef readonly str name
    cdef readonly bint ephemeral
    cdef readonly bint paused
    cdef readonly bint gone                 # deleted or closed
    cdef Agenda agenda
    cdef RecordWindow window
    cdef BlockPool store
    cdef bint dirty
    cdef Cursor cursor
    cdef int stepped                        # records it has stepped over in this dispatch
    cdef uint64_t skipped                   # records at or after the cursor it will step over
    cdef Hole *finished                     # ranges at or after the cursor it need not see
    cdef uint32_t finished_count
    cdef Entry *queue_first                 # redelivery, oldest first
    cdef Entry *queue_last
    cdef readonly uint64_t queued
    cdef Excerpt excerpt                    # records of the queue; None: its blocks are in memory
    cdef Pages pages                        # deferred messages
    cdef Heap timers                        # of these, and of holdings
    cdef Timer alarm                        # this channel in the agenda
    cdef readonly double rate               # messages a second that may be sent; 0: any number
    cdef double next_send                   # when the rate lets the next one go; monotonic, ns
    cdef bint held_back                     # the last dispatch has sent all that it let go
    cdef Timer pacer                        # in the agenda, until it lets one go again
    cdef readonly uint64_t deferred_count
    cdef readonly uint64_t in_flight_count
    cdef Entry **table                      # in flight, by id: open addressing
    cdef uint32_t table_mask
    cdef Entry **outgrown                   # the table before, until all have moved; NULL: none
    cdef uint32_t outgrown_mask
    cdef uint32_t outgrown_left             # its slots from this one on are empty
    cdef Holding *holdings
    cdef Turnstile ready[3]                 # rings by locality
    cdef uint64_t mem_queue_size            # messages: its policy, from here on
    cdef int64_t msg_timeout                # ns, for consumers that did not ask; 0: as they came
    cdef uint16_t max_attempts              # 0: any number
    cdef readonly str dead_letter_topic     # "": none
    cdef bint sifts                         # what is queued may be too old, or out of attempts
    cdef Mover mover                        # None: nothing has moved yet
    cdef readonly uint64_t dead_lettered_count
    cdef uint64_t redriving                 # so many of those that wait are to go back
    cdef uint64_t redriven_count
    cdef uint64_t address                   # of records that are for this channel only
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
    cdef uint64_t replay_end                # before it, records with a delay are not deferred again
    cdef uint64_t born_seq                  # fan-out position when it was created
    cdef readonly uint64_t carried          # messages it had before: from a restart
    cdef readonly uint64_t emptied_count
    cdef readonly uint64_t requeue_count
    cdef readonly uint64_t timeout_count
    cdef readonly uint64_t dropped_count    # an ephemeral channel's overflow
    cdef readonly uint64_t cancelled_count
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
    cdef Packing packing                    # of the snapshot that is under way
    cdef Entry *unpacked                    # of the queue: the next one that it visits
    cdef Holding *unpacked_holding          # in flight: the same; NULL: all were visited ...
    cdef Entry *unpacked_held               # ... of that; NULL: it is at its end
    cdef uint8_t round                      # of that snapshot, or of the last one: see pack()
    cdef set cancelled                      # seqs of records that a start will fan out in vain

    cdef void touch_dirty(self) noexcept
    cdef void set_ttl(self, int64_t ttl) noexcept
    cdef void give_timeout(self, Consumer consumer) noexcept
    cdef bint is_forlorn(self) noexcept
    cdef uint64_t depth(self) noexcept
    cdef uint64_t held(self) noexcept
    cdef uint64_t ahead(self) noexcept
    cdef uint64_t surplus(self) noexcept
    cdef void carry(self, uint64_t ahead) noexcept
    cdef void replay(self, uint64_t skipped) noexcept
    cdef bint passes(self, const Record *record) noexcept
    cdef uint64_t activity(self) noexcept
    cdef bint was_cancelled(self, uint64_t seq) except -1
    cdef int queue_record(self, const Entry *addressed) except -1
    cdef Deferred *defer(self, const Deferred *message, int64_t due) except NULL
    cdef int defer_entry(self, Entry *entry, int64_t due) except -1
    cdef inline Entry *no_longer_deferred(self, Deferred *deferred) except NULL
    cdef int queue_due(self, Deferred *deferred) except -1
    cdef void queue_entry(self, Entry *entry, uint32_t size) noexcept
    cdef int defer_record(self, const Entry *delayed, int64_t due) except -1
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
    cdef void pack(self, Deferred *entry) noexcept
    cdef void begin_packing(self, Packing packing) noexcept
    cdef void visit_holding(self, Holding *holding) noexcept
    cdef int pack_more(self, int budget) noexcept
    cdef bint is_packed(self) noexcept
    cdef Deferred *find_deferred(self, uint64_t id) noexcept
    cdef uint64_t cancel(self, uint64_t id) noexcept
    cdef int expire(self, int budget) except -1
    cdef void set_alarm(self) noexcept
    cdef int add_consumer(self, Consumer consumer) except -1
    cdef void remove_consumer(self, Consumer consumer) noexcept
    cdef void check_ready(self, Consumer consumer) noexcept
    cdef void tell(self, Events events, bytes names) noexcept
    cdef void note(self, EventKind kind, const Entry *entry) noexcept
    cdef void note_finish(self, const Entry *entry) noexcept
    cdef Outcome finish(self, Consumer consumer, uint64_t id) noexcept
    cdef int64_t age_of(self, uint64_t id) noexcept

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
    cdef void leave_agenda(self) noexcept
    cdef inline Record *record_at_cursor(self) except? NULL
    cdef Record *find_record(self) except? NULL
    cdef void skip_holes(self) noexcept
    cdef void skip_ranges(self, const Hole *ranges, uint32_t count) noexcept
    cdef void skip_missing(self, uint64_t seq, const Hole *ranges, uint32_t count) noexcept
    cdef int add_finished(self, uint64_t start, uint64_t end) except -1
    cdef inline void window_step(self, Record *record) noexcept
    cdef void step_over(self, Record *record) noexcept
    cdef inline Entry *entry_at_cursor(self, Record *record) except NULL
    cdef inline bint queue_is_next(self, const Entry *first) noexcept
    cdef Entry *take(self, int most) except? NULL
    cdef Entry *take_sifted(self, int most) except? NULL
    cdef inline Entry *take_record(self, Record *record) except NULL
    cdef inline Entry *take_queued(self) except? NULL
    cdef void unqueue_first(self) noexcept
    cdef bint at_hand(self, const Entry *entry) except -1
    cdef int read_ahead(self) except -1
    cdef Record *record_of(self, const Entry *entry) noexcept
    cdef inline Turnstile *next_in_turn(self) noexcept
    cdef inline int deliver(self, RecordWindow window, Consumer consumer, Entry *entry) except -1
    cdef inline void drop_entry(self, Entry *entry) noexcept
    cdef inline int hold(self, Holding *holding, Entry *entry, int64_t deadline) except -1
    cdef int hold_seldom(self, Holding *holding, Entry *entry, int64_t deadline) except -1
    cdef inline void let_go(self, Entry *entry) noexcept
    cdef Holding *new_holding(self, Consumer consumer) except NULL
    cdef void free_holding(self, Holding *holding) noexcept
    cdef inline int table_add(self, Entry *entry) except -1
    cdef int grow_table(self) except -1
    cdef void move_some(self, uint32_t slots) noexcept
    cdef void move_one(self, uint32_t slot) noexcept
    cdef inline uint32_t table_find(self, uint64_t id) noexcept
    cdef uint32_t find_outgrown(self, uint64_t id, uint32_t slot) noexcept
    cdef inline void table_clear(self, uint32_t slot) noexcept
    cdef inline Entry *held_by(self, Consumer consumer, uint64_t id, Outcome *outcome) noexcept
    cdef inline void no_longer_in_flight(self, Entry *entry) noexcept
    cdef int expire_holding(self, Holding *holding, int budget) except -1
