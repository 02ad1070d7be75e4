# Declarations of nsqcy.channels for other packages.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.base.core cimport (
    FIRST_OF_AGES, HEAP_NOWHERE, Heap, HeapNode, HeapSlot, Histogram, Latency, Percentiles,
    heap_check, heap_due, heap_push, heap_remove, heap_update, histogram_add,
)
from nsqcy.storage.core cimport (
    IN_FLIGHT, LOADING, Block, BlockPool, Cursor, Deferred, Entry, Hole, Pages, ReadAhead, Record,
    RecordWindow,
)

# -- channel_cursor --


ctypedef struct ChannelCursor:
    void *window                # RecordWindow, borrowed from the channel
    Cursor at
    uint64_t address            # seqs of records that are only for this channel
    uint64_t skipped            # number of records to skip at or after the cursor
    Hole *finished              # ranges to skip at or after the cursor
    uint32_t finished_count
    uint64_t replay_end         # delayed records before this one are not deferred again
    uint64_t carried            # messages from before a restart
cdef int cursor_add_finished(ChannelCursor *cursor, uint64_t start, uint64_t end) except -1
cdef bint cursor_passes(const ChannelCursor *cursor, const Record *record) noexcept

# -- checkpoint_entries --


# An entry in the format of a journal; see docs/DISKFORMAT.md.
cdef packed struct PackedEntry:
    uint64_t seq
    uint64_t segment
    uint64_t offset
    int64_t due                 # wall clock, ns; before fan-out: delay; in transfer: number
    uint16_t attempts
    uint8_t state
    uint8_t reason              # moving: MoveReason
    uint32_t size               # size of the body; 0: unknown


cdef class Packing:
    cdef PackedEntry *entries
    cdef uint64_t *ids              # ids of the messages
    cdef uint32_t count
    cdef uint32_t room
    cdef bint failed                # out of memory: the entries are incomplete

    # Add an entry in any state; omit it if its record is only in memory.
    cdef void add(self, const Deferred *entry, int64_t due) noexcept
    # Return the entries added since the last call, as two arrays.
    cdef tuple take(self)
    cdef bint grow(self) noexcept

# -- counters --

# Metrics of topics and channels, by number. The first ones are counters, whose totals outlive their
# owner; the others are gauges.


cdef enum:
    TOPIC_MESSAGES = 0
    TOPIC_BYTES = 1
    TOPIC_DROPPED = 2
    TOPIC_COUNTERS = 3
    TOPIC_DEPTH = 3
    TOPIC_DISK_BYTES = 4
    TOPIC_PAUSED = 5
    TOPIC_FIGURES = 6

    CHANNEL_MESSAGES = 0
    CHANNEL_DELIVERIES = 1
    CHANNEL_FINISHES = 2
    CHANNEL_REQUEUES = 3
    CHANNEL_TIMEOUTS = 4
    CHANNEL_DEAD_LETTERS = 5
    CHANNEL_DROPPED = 6
    CHANNEL_COUNTERS = 7
    CHANNEL_DEPTH = 7
    CHANNEL_IN_FLIGHT = 8
    CHANNEL_DEFERRED = 9
    CHANNEL_CONSUMERS = 10
    CHANNEL_PAUSED = 11
    CHANNEL_FIGURES = 12


# The metrics series that includes a topic or channel.
cdef enum Series:
    UNDECIDED = 0               # not yet decided
    OWN = 1                     # its own series
    OTHERS = 2                  # the sum of all series beyond the maximum number
    EPHEMERALS = 3              # the sum of all ephemeral topics or channels
    SERIES = 4


# The combined values of one series.
ctypedef struct Sums:
    uint64_t topic[TOPIC_FIGURES]
    uint64_t channel[CHANNEL_FIGURES]
    Histogram ages


cdef inline void add_counters(uint64_t *into, const uint64_t *figures, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        into[i] += figures[i]

# -- earliest --


cdef class Listing:
    cdef HeapSlot *slots        # heap whose first node is the latest message
    cdef int count
    cdef int limit
    cdef uint32_t left_out      # tag bits of a node that is not a message
    cdef HeapSlot border        # the last message before the wanted messages ...
    cdef uint64_t border_seq    # ... and its seq

    cdef inline bint is_later(self, const HeapSlot *one, const HeapSlot *other) noexcept
    cdef inline bint is_wanted(self, const HeapSlot *slot) noexcept
    cdef void offer(self, const HeapSlot *slot) noexcept
    # Return whether later messages are unnecessary, if messages are offered in order of time.
    cdef bint is_beyond(self, int64_t due) noexcept
    cdef void sift_up(self, int hole, const HeapSlot *slot) noexcept
    cdef void sift_down(self, const HeapSlot *slot) noexcept

# -- events --


cdef enum EventKind:
    FINISH = 0
    REQUEUE = 1
    TIMEOUT = 2
    DEAD_LETTER = 3
    EXPIRED = 4


ctypedef struct Event:
    int64_t time            # wall clock, ns
    uint64_t id
    int64_t in_flight       # ns
    int64_t age             # ns since the publish
    void *names             # owned bytes: topic and channel, as in the JSON line
    void *client            # owned str: client id
    uint16_t attempts
    uint8_t kind


cdef class Events:
    """Events of a worker's channels that have not been published yet."""
    cdef Event *ring
    cdef uint32_t first
    cdef readonly uint32_t waiting
    cdef uint64_t below                 # messages with a smaller hash produce events ...
    cdef bint all_of_them               # ... or all messages produce events
    cdef uint32_t under_way             # lines passed to `publish` but not yet accepted
    cdef readonly uint64_t published
    cdef readonly uint64_t dropped
    cdef public object publish          # publish(lines, done); done(None) or done(reason) follows
    cdef str client                     # time of the latest line, as text
    cdef bytes client_json

    cdef void add(self, EventKind kind, uint64_t id, uint16_t attempts, int64_t time,
                  int64_t in_flight, int64_t age, bytes names, str client) noexcept
    cdef int flush(self) except -1
    cdef list take(self)
    cdef void forget_first(self) noexcept

# -- inflight --


# One consumer's in-flight messages, in order of deadline. The list outlives the consumer: messages
# of a dead client stay in flight until they time out. `timer` is never later than the first
# deadline.
ctypedef struct InFlightList:
    HeapNode timer
    Entry *first
    Entry *last
    uint32_t count
    void *consumer              # borrowed; NULL after the consumer has left
    InFlightList *prev
    InFlightList *next


cdef inline void list_enter(InFlightList *in_flight_list, Entry *entry) noexcept nogil:
    """Add a message in order of deadline: nearly always at the end."""
    cdef Entry *before = in_flight_list.last
    while before != NULL and before.due > entry.due:
        before = before.prev
    entry.prev = before
    if before == NULL:
        entry.next = in_flight_list.first
        in_flight_list.first = entry
    else:
        entry.next = before.next
        before.next = entry
    if entry.next == NULL:
        in_flight_list.last = entry
    else:
        entry.next.prev = entry
    in_flight_list.count += 1


cdef inline void list_leave(InFlightList *in_flight_list, Entry *entry) noexcept nogil:
    if entry.prev == NULL:
        in_flight_list.first = entry.next
    else:
        entry.prev.next = entry.next
    if entry.next == NULL:
        in_flight_list.last = entry.prev
    else:
        entry.next.prev = entry.prev
    in_flight_list.count -= 1


# Entries by id: open addressing. A table that has become too small moves its entries to a larger
# one gradually: a few slots with each new entry, and every entry that is looked up.
ctypedef struct InFlightTable:
    Entry **slots
    uint32_t mask               # number of slots minus one
    Entry **outgrown            # the previous slots while they contain entries, else NULL
    uint32_t outgrown_mask
    uint32_t outgrown_left      # slots at or after this index are empty

# -- ready_ring --

cdef enum Locality:
    ZONE_LOCAL = 0
    REGION_LOCAL = 1
    ANYWHERE = 2
    LOCALITIES = 3


# A consumer's membership in a ring. `consumer` is borrowed.
ctypedef struct RingPlace:
    RingPlace *prev
    RingPlace *next
    void *consumer


# One ring per locality; consumers in an earlier ring take precedence.
ctypedef struct ReadyRing:
    RingPlace heads[3]

# -- recent rates: see server/recent_rates.pyx --


# Counters at one moment. `at`: monotonic, ns; 0: there is no sample.
ctypedef struct Sample:
    int64_t at
    uint64_t count              # messages published, received or finished


ctypedef struct ChannelSample:
    Sample received
    uint64_t finished
    uint64_t requeued
    uint64_t timed_out
    uint64_t backlog            # messages waiting or in flight

# -- consumer --


cdef class Waiter:
    """Receiver of the results of publishes and log queries."""
    cdef int publish_done(self, uint64_t ticket, str error) except -1
    cdef int log_answered(self, uint64_t ticket, bytes answer, bytes error) except -1


cdef class Consumer(Waiter):
    """A client from the channel's perspective: a ready count and a destination for messages."""
    cdef object channel             # the Channel
    cdef InFlightList *in_flight_list
    cdef RingPlace ring_place
    cdef Py_ssize_t index           # in the channel's list of consumers
    cdef bint waiting               # in the ring of ready consumers
    cdef readonly uint32_t ready_count
    cdef readonly int64_t in_flight
    cdef public int64_t msg_timeout         # ns
    cdef public bint asked_timeout          # the client requested this timeout
    cdef public uint32_t sample_rate
    cdef readonly uint8_t locality
    cdef readonly uint64_t message_count
    cdef readonly uint64_t finish_count
    cdef readonly uint64_t requeue_count
    cdef public str client_id
    cdef Sample samples[2]          # older, newer

    cdef bint has_room(self) noexcept
    cdef int64_t usual_timeout(self) noexcept
    cdef bint send_message(self, RecordWindow window, Block *block, Record *record,
                           uint16_t attempts) except -1
    cdef int on_channel_gone(self) except -1


# Reasons for moving a message to another topic.
cdef enum TransferReason:
    OUT_OF_ATTEMPTS = 0         # the message is out of attempts
    TOO_OLD = 1
    REDRIVEN = 2                # the message returns to its origin
    REJECTED = 3                # the consumer rejected the message


cdef class Transfer(Consumer):
    """Holder of messages in transfer to other topics, until they have arrived."""
    cdef int take_over(self, Entry *entry, TransferReason reason, str client, str text) except -1
    cdef str send_back(self, Entry *entry, const Record *record, tuple targets)
    cdef int restore_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1
    cdef int go_on(self) except -1

# -- scheduler_state --


# A heap node with a borrowed reference to its owner.
ctypedef struct Timer:
    HeapNode node
    void *owner


cdef class SchedulerState:
    """The work of a turn (dirty objects), and wake-ups (timers)."""
    cdef public int64_t now                 # monotonic, ns; read once per turn
    cdef public int64_t wall                # wall clock, ns
    cdef int64_t arrival                    # time of the latest deferral; see due_after()
    cdef list dirty_channels
    cdef list discarded                     # messages to be freed; see Discarded
    cdef Heap channel_timers
    cdef BlockPool pool
    cdef public uint64_t mem_queue_size     # messages
    cdef public int64_t max_msg_timeout     # ns
    cdef public bint topology_aware
    cdef readonly Percentiles percentiles   # quantiles of the time from publish to finish
    cdef readonly Events events             # receives message events; None: off
    cdef public object publish_once         # for transfers: see nsqcy.broker.dead_letter_transfer
    cdef uint32_t random_state

    cdef inline int64_t due_after(self, int64_t delay) noexcept:
        """Return the due time of a message that is deferred now. Within a turn, each message
        arrives 1 ns after the previous one, so equal delays end in order of arrival."""
        self.arrival = max(self.now, self.arrival + 1)
        return self.arrival + delay

    cdef uint32_t random_percent(self) noexcept


@cython.final
cdef class Discarded:
    """Messages of an emptied or deleted channel, to be freed in steps."""
    cdef RecordWindow window
    cdef Entry *entries         # linked by `next`
    cdef Pages pages

    cdef int free_some(self, int budget) noexcept

# -- unfinished --


# Values of the lowest bit of a timer's tag.
cdef enum TimerKind:
    ENTRY_TIMER = 0
    IN_FLIGHT_TIMER = 1


# Position of a walk over a channel's entries that takes many turns. Meanwhile, entries come and go:
# an entry that moves may be missed, or visited twice.
ctypedef struct Walk:
    uint8_t part            # WalkPart
    uint32_t left           # in the timers or the table: number of slots left to visit
    Entry *queued           # in the queue: the next entry


cdef class UnfinishedMessages:
    cdef SchedulerState scheduler
    cdef RecordWindow window
    cdef BlockPool pool
    cdef readonly bint dirty
    cdef Timer alarm                        # this channel in the scheduler's timers
    cdef readonly bint ephemeral
    cdef uint64_t mem_queue_size            # maximum number of messages, from the policy
    cdef ChannelCursor cursor

    # Deferred.
    cdef Pages pages
    cdef Heap timers                        # timers of deferred messages and of in-flight lists
    cdef readonly uint64_t deferred_count
    cdef set cancelled                      # seqs of records that fan-out skips after a restart
    cdef readonly uint64_t cancelled_count

    # Messages queued for redelivery.
    cdef Entry *queue_first                 # oldest first
    cdef Entry *queue_last
    cdef readonly uint64_t queued
    cdef ReadAhead prefetch                 # queue read-ahead; None: all blocks are in memory
    cdef readonly uint64_t dropped_count    # dropped messages of an ephemeral channel

    # In flight.
    cdef InFlightTable table
    cdef InFlightList *in_flight_lists
    cdef readonly uint64_t in_flight_count
    cdef readonly list consumers
    cdef ReadyRing ready
    cdef int64_t msg_timeout                # ns, default for consumers; 0: the server's default
    cdef uint64_t taken[3]                  # deliveries by locality

    # Reports.
    cdef readonly Latency latency           # latency from publish to finish; None: not kept
    cdef Events events                      # None: no events
    cdef bytes event_names
    cdef bint watched                       # whether latencies are recorded or events reported
    cdef Histogram *ages                    # ages of the topic's finished messages; NULL: not kept

    # Walks.
    cdef Walk place                         # position of the compaction in progress
    cdef uint8_t round                      # number of the latest checkpoint; see pack()
    cdef Packing packing                    # entries of the checkpoint in progress
    cdef InFlightList *unpacked_in_flight_list  # next list that the checkpoint visits, or NULL
    cdef Entry *unpacked_in_flight          # the list's next message; NULL: the end of the list
    cdef Entry *unpacked                    # the checkpoint's next entry in the queue

    cdef void become_dirty(self) noexcept
    cdef void set_alarm(self) noexcept
    cdef void drop_alarm(self) noexcept
    cdef int defer_record(self, const Entry *delayed, int64_t due) except -1
    cdef bint was_cancelled(self, uint64_t seq) except -1
    cdef Deferred *defer(self, const Deferred *message, int64_t due) except NULL
    cdef int defer_entry(self, Entry *entry, int64_t due) except -1
    cdef Deferred *find_deferred(self, uint64_t id) noexcept
    cdef uint64_t cancel(self, uint64_t id) noexcept
    cdef uint64_t depth(self) noexcept
    cdef uint64_t held(self) noexcept
    cdef int queue_record(self, const Entry *addressed) except -1
    cdef void queue_entry(self, Entry *entry, uint32_t size) noexcept
    cdef void unqueue_first(self) noexcept
    cdef bint at_hand(self, const Entry *entry) except -1
    cdef int read_ahead(self) except -1
    cdef Record *record_of(self, const Entry *entry) noexcept
    cdef void begin_walk(self) noexcept
    cdef bint walk(self, Deferred **entry) noexcept
    cdef void begin_packing(self, Packing packing) noexcept
    cdef int pack_more(self, int budget) noexcept
    cdef bint is_packed(self) noexcept
    cdef void pack(self, Deferred *entry) noexcept
    cdef int list_add_uninlined(
        self, InFlightList *in_flight_list, Entry *entry, int64_t deadline) except -1
    cdef InFlightList *new_in_flight_list(self, void *consumer) except NULL
    cdef void free_in_flight_list(self, InFlightList *in_flight_list) noexcept
    cdef void visit_in_flight_list(self, InFlightList *in_flight_list) noexcept
    cdef int64_t age_of(self, uint64_t id) noexcept
    cdef void give_timeout(self, Consumer consumer) noexcept
    cdef int add_consumer(self, Consumer consumer) except -1
    cdef void remove_consumer(self, Consumer consumer) noexcept
    cdef void drop_consumer(self, Consumer consumer) noexcept
    cdef void check_ready(self, Consumer consumer) noexcept
    cdef void report_to(self, Events events, bytes names) noexcept
    cdef void report(self, EventKind kind, const Entry *entry) noexcept
    cdef void report_finish(self, const Entry *entry) noexcept

    cdef inline void touch_dirty(self) noexcept:
        """Schedule a call to dispatch in this turn."""
        if not self.dirty:
            self.become_dirty()

    cdef inline Entry *entry_at_cursor(self, Record *record) except NULL:
        cdef Entry *entry = self.pool.new_entry()
        entry.block = self.cursor.at.block
        entry.offset = self.cursor.at.offset
        entry.seq = record.seq
        entry.id = record.id
        entry.attempts = 0
        entry.round = self.round
        self.window.ref(entry.block)
        return entry

    cdef inline void drop_entry(self, Entry *entry) noexcept:
        self.window.unref(entry.block)
        self.pool.free_entry(entry)

    cdef inline bint queue_is_next(self, const Entry *first) noexcept:
        """Return whether the first message in the queue, if any, precedes the message at the
        cursor."""
        return first != NULL and (<size_t>first.in_flight_list <= self.cursor.at.seq
                                  or self.cursor.at.seq >= self.window.fanout.seq)

    cdef inline Entry *take_queued(self) except? NULL:
        """Return the first message in the queue; NULL if its record must be read first."""
        cdef Entry *entry = self.queue_first
        if (entry.block.data == NULL or entry.block.flags & LOADING) and not self.at_hand(entry):
            return NULL
        self.unqueue_first()
        return entry

    cdef inline int queue_due(self, Deferred *deferred) except -1:
        """Make a deferred message that is due an entry at the tail of the queue."""
        cdef Entry *entry = self.pool.new_entry()
        cdef uint32_t size = deferred.node.tag
        heap_remove(&self.timers, &deferred.node)
        self.deferred_count -= 1
        (<Deferred *>entry)[0] = deferred[0]
        self.pool.free_deferred(&self.pages, deferred)
        self.queue_entry(entry, size)
        return 0

    cdef inline int list_add(
            self, InFlightList *in_flight_list, Entry *entry, int64_t deadline) except -1:
        """Add a message to a consumer's list."""
        entry.state = IN_FLIGHT
        entry.due = deadline
        entry.node.tag = <uint32_t>(<uint64_t>(self.scheduler.now + 999999) // 1000000)
        entry.in_flight_list = in_flight_list
        list_enter(in_flight_list, entry)
        if in_flight_list.timer.index == HEAP_NOWHERE:
            heap_check(heap_push(&self.timers, &in_flight_list.timer, deadline))
            self.touch_dirty()
        elif heap_due(&self.timers, &in_flight_list.timer) > deadline:
            heap_update(&self.timers, &in_flight_list.timer, deadline)
            self.touch_dirty()
        return 0

    cdef inline void list_remove(self, Entry *entry) noexcept:
        """Remove a message from its consumer's list."""
        cdef InFlightList *in_flight_list = <InFlightList *>entry.in_flight_list
        if self.unpacked_in_flight == entry:
            self.unpacked_in_flight = entry.next
        list_leave(in_flight_list, entry)
        if in_flight_list.count == 0 and in_flight_list.consumer == NULL:
            self.free_in_flight_list(in_flight_list)

    cdef inline void count_down(self, Consumer consumer) noexcept:
        """Handle the end of a message that was in flight to a consumer."""
        consumer.in_flight -= 1
        if not consumer.waiting:
            self.check_ready(consumer)

    cdef inline void no_longer_in_flight(self, Entry *entry) noexcept:
        """Remove the message from the consumer's list and the counters (the caller owns the
        table)."""
        cdef void *consumer = (<InFlightList *>entry.in_flight_list).consumer
        if consumer != NULL:
            self.count_down(<Consumer>consumer)
        self.list_remove(entry)
        self.in_flight_count -= 1

    cdef inline void record_ages(self, int64_t age, uint64_t count) noexcept:
        """Record that `count` messages finished; the first message has this age."""
        if self.ages != NULL:
            histogram_add(self.ages, FIRST_OF_AGES, age, count)

# -- undeliverable --


cdef class Undeliverable(UnfinishedMessages):
    cdef uint16_t max_attempts              # 0: any number
    cdef bint sifts                         # queued messages may be too old or out of attempts
    cdef int64_t ttl                        # ns from the publish; 0: forever
    cdef uint64_t max_messages              # beyond it, the oldest are dropped; 0: no limit
    cdef uint64_t max_bytes
    cdef int stepped                        # records skipped in this dispatch
    cdef uint64_t expired_count             # messages too old to be delivered
    cdef readonly str dead_letter_topic     # "": no such topic
    cdef object new_transfer                # called as new_transfer(window, channel)
    cdef Transfer transfer                  # None: no message has been transferred yet
    cdef readonly uint64_t dead_lettered_count
    cdef uint64_t redriven_count
    cdef uint64_t exhausted_count           # messages dropped after their last attempt

    cdef void set_ttl(self, int64_t ttl) noexcept
    cdef void keep_at_most(self, uint64_t messages, uint64_t bytes) noexcept
    cdef bint is_over(self) noexcept
    cdef bint is_expired(self, const Record *record) noexcept
    cdef void report_expired(self, const Record *record, uint16_t attempts) noexcept
    cdef bint drop_queued(self) except -1
    cdef bint drop_spoiled(self, Entry *entry) except -1
    cdef int dead_letter_expired(self, Entry *entry, const Record *record) except -1
    cdef bint leaves_out(self, Record *record) except -1
    cdef int drop_expired(self, int budget) except -1
    cdef int dead_letter(self, Entry *entry, TransferReason reason, str client,
                         str text=*) except -1
    cdef int dead_letter_timed_out(self, Entry *entry) except -1
    cdef Transfer make_transfer(self)
    cdef int return_transfer(self, Entry *entry) except -1
    cdef int add_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1
    cdef int drop_transfer(self, Entry *entry) except -1
    cdef int transferred(self, Entry *entry, str client) except -1

    cdef inline bint is_exhausted(self, const Entry *entry) noexcept:
        """Return whether a message is out of attempts."""
        return self.max_attempts and entry.attempts >= self.max_attempts

# -- dispatch --


cdef class Dispatch(Undeliverable):
    cdef readonly bint paused
    cdef bint cut_off                       # deliveries are stopped, but the channel is not paused
    cdef readonly double rate               # maximum messages sent per second; 0: no limit
    cdef double next_send                   # when the rate allows the next message; monotonic, ns
    cdef bint held_back                     # the last dispatch reached the limit of the rate
    cdef Timer pacer                        # timer until the rate allows more messages
    cdef uint64_t redriving                 # number of waiting messages to redrive, or to check
    cdef tuple targets                      # target topics of a redrive; None: all
    cdef uint64_t wanted                    # the only message to redrive or drop; 0: all
    cdef bint drops_wanted                  # drop the wanted message instead of redriving it
    cdef object wanted_done                 # callback for the result; None: already called
    cdef bint moves                         # whether its messages always move to the open topic
    cdef uint64_t full_count                # oldest messages dropped, because there were too many
    cdef readonly uint64_t sampled_count    # messages consumed without delivery

    cdef int dispatch(self, int budget) except -1
    cdef int dispatch_at_rate(self, int budget) except -1
    cdef int hand_out(self, int budget) except -1
    cdef int collect(self) except -1
    cdef Entry *take(self, int maximum) except? NULL
    cdef Entry *take_sifted(self, int maximum) except? NULL
    cdef inline Entry *take_record(self, Record *record) except NULL
    cdef inline int deliver(self, RecordWindow window, Consumer consumer, Entry *entry) except -1
    cdef int clear_out(self, int budget) except -1
    cdef int drop_oldest(self, int budget) except -1
    cdef int redrive_some(self, int budget) except -1
    cdef int check_wanted(self, Entry *entry, Record *record) except -1
    cdef int end_search(self, str problem) except -1

# -- channel --


# Action of a full topic or channel when the next message arrives.
cdef enum OnFull:
    REJECT = 0                  # publishes are rejected
    DROP_OLDEST = 1             # the oldest waiting message is dropped
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
    cdef uint64_t max_depth                 # messages; 0: no limit
    cdef OnFull on_full
    cdef int64_t prune_after                # ns; 0: never
    cdef bint prune_messages                # prune the channel even if it has messages
    cdef dict unusual                       # the part of the policy that /stats shows
    cdef int64_t used_at                    # time when the channel was last in use
    cdef inline bint rejects(self) noexcept:
        """Return whether publishes are refused while the channel is full."""
        return self.max_depth != 0 and self.on_full == REJECT

    cdef uint64_t born_seq                  # fan-out position when the channel was created
    cdef readonly uint64_t emptied_count
    cdef readonly uint64_t requeue_count
    cdef readonly uint64_t timeout_count
    cdef readonly uint64_t finish_count
    cdef Series series                      # the metrics series that includes the counters
    cdef ChannelSample samples[2]           # older, newer

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
