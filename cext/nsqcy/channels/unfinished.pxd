# The messages of a channel that are not finished, and the consumers that hold some of them.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nsqcy.base.core cimport (
    HEAP_NOWHERE, Heap, HeapNode, heap_check, heap_due, heap_push, heap_remove, heap_update,
)
from nsqcy.base.core cimport FIRST_OF_AGES, Histogram, histogram_add
from nsqcy.base.core cimport Latency
from nsqcy.channels.channel_cursor cimport ChannelCursor
from nsqcy.channels.checkpoint_entries cimport Packing
from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.events cimport EventKind, Events
from nsqcy.channels.inflight cimport (
    InFlightList, InFlightTable, list_enter, list_leave, table_find,
)
from nsqcy.channels.ready_ring cimport ReadyRing
from nsqcy.channels.scheduler_state cimport SchedulerState, Timer
from nsqcy.storage.block cimport LOADING
from nsqcy.storage.block_pool cimport BlockPool
from nsqcy.storage.entry cimport IN_FLIGHT, Deferred, Entry, Pages
from nsqcy.storage.readahead cimport ReadAhead
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow


cdef Py_ssize_t in_flight_lists_alive() noexcept


# The lowest bit of a timer's tag.
cdef enum TimerKind:
    ENTRY_TIMER = 0
    IN_FLIGHT_TIMER = 1


# Position of a walk over a channel's entries that takes many turns. Meanwhile, entries come and go:
# an entry that moves may be missed, or visited twice.
ctypedef struct Walk:
    uint8_t part            # WalkPart
    uint32_t left           # in the timers or the table: slots before this one remain
    Entry *queued           # in the queue: the next entry


cdef enum WalkPart:
    WALK_TIMERS = 0
    WALK_QUEUE = 1
    WALK_TABLE = 2


cdef class UnfinishedMessages:
    cdef SchedulerState scheduler
    cdef RecordWindow window
    cdef BlockPool pool
    cdef bint dirty
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

    # In the queue for redelivery.
    cdef Entry *queue_first                 # oldest first
    cdef Entry *queue_last
    cdef readonly uint64_t queued
    cdef ReadAhead prefetch                 # of the queue; None: all its blocks are in memory
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
    cdef bint watched                       # there is a latency to record, or events to report
    cdef Histogram *ages                    # ages of finished messages of its topic; NULL: not kept

    # Walks.
    cdef Walk place                         # position of the compaction in progress
    cdef uint8_t round                      # number of the latest checkpoint; see pack()
    cdef Packing packing                    # entries of the checkpoint in progress
    cdef InFlightList *unpacked_in_flight_list  # next list that it visits, or NULL
    cdef Entry *unpacked_in_flight          # its next message; NULL: the end of the list
    cdef Entry *unpacked                    # its next entry in the queue

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
        """Return whether the first message in the queue, if any, precedes the cursor's."""
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
        """Handle a deferred message that is due: make it an entry at the tail of the queue."""
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
        """Record the finish of `count` messages; the first has this age."""
        if self.ages != NULL:
            histogram_add(self.ages, FIRST_OF_AGES, age, count)
