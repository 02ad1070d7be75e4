# Declarations of nsqcy.channels for other packages.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.base.core cimport (
    FIRST_OF_AGES, HEAP_NOWHERE, Heap, HeapNode, HeapSlot, Histogram, KeyHash, Latency,
    Percentiles,
    heap_check, heap_due, heap_push, heap_remove, heap_update, histogram_add,
)
from nsqcy.storage.core cimport (
    IN_FLIGHT, LOADING, Block, BlockPool, Cursor, Deferred, Entry, Hole, Note, Owner, Owners, Pages,
    Position, ReadAhead, Record, RecordWindow, keep_store_order,
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
    # Deferred: wall clock, ns; before the fan-out: the delay; in transfer: the number; queued: the
    # place in a channel with rules for keys, or 0.
    int64_t due
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
    TOPIC_DUPLICATES = 3
    TOPIC_IDS_EARLY = 4
    TOPIC_COUNTERS = 5
    TOPIC_DEPTH = 5
    TOPIC_DISK_BYTES = 6
    TOPIC_IDS = 7
    TOPIC_PAUSED = 8
    TOPIC_FIGURES = 9

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
    CHANNEL_KEYS_WAITING = 12
    CHANNEL_KEYS_BLOCKED = 13
    CHANNEL_KEYS_BLOCKED_LONG = 14
    CHANNEL_KEYS_PAUSED = 15
    CHANNEL_FIGURES = 16


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
    cdef readonly Owners owners
    cdef public uint64_t mem_queue_size     # messages
    cdef public int64_t max_msg_timeout     # ns
    cdef public bint topology_aware
    cdef readonly Percentiles percentiles   # quantiles of the time from publish to finish
    cdef readonly Events events             # receives message events; None: off
    cdef public object publish_once         # for transfers: see nsqcy.broker.dead_letter_transfer
    cdef readonly KeyRoom key_room          # memory for the indexes of the channels
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

# -- key_pauses --


ctypedef struct KeySlot:
    uint64_t high
    uint64_t low
    uint64_t seq                # 0: empty


@cython.final
cdef class KeyTable:
    cdef KeySlot *slots
    cdef uint32_t mask
    cdef uint32_t count

    cdef int add(self, uint64_t high, uint64_t low, uint64_t seq) except -1
    cdef int grow(self) except -1
    cdef void clear(self) noexcept

    cdef inline KeySlot *slot_of(self, uint64_t high, uint64_t low) noexcept:
        """Return the slot of a key, or the empty slot for it; there are slots."""
        cdef uint32_t at = <uint32_t>low & self.mask
        while self.slots[at].seq and (self.slots[at].low != low or self.slots[at].high != high):
            at = (at + 1) & self.mask
        return &self.slots[at]

    cdef inline uint64_t seq_of(self, uint64_t high, uint64_t low) noexcept:
        """Return the sequence number of a key; 0 if the key is not in the table."""
        return 0 if self.count == 0 else self.slot_of(high, low).seq

# -- key_nodes --


# The begin of each node of a KeyNodes.
ctypedef struct KeyNode:
    HeapNode heap               # tag: next node in the same bucket; 0: none
    uint64_t high               # hash of the key
    uint64_t low


# Which nodes of a page are free.
ctypedef struct NodePage:
    uint32_t following          # the next page with free nodes, plus 1; 0: none
    uint16_t end                # nodes below have been used
    uint16_t free               # a free node, plus 1, linked by `heap.tag`; 0: none
    uint16_t used


cdef enum:
    NODES_A_PAGE = 512          # with sizes that are multiples of 8: whole pages of memory


ctypedef struct KeyNodes:
    uint32_t size               # bytes of a node
    uint32_t count
    uint8_t **pages
    NodePage *page_states
    uint32_t page_count
    uint32_t page_room
    uint32_t partial            # a page with free nodes, plus 1; 0: none
    uint32_t bucket_count
    uint32_t *buckets           # the first node of each
    uint32_t bucket_mask        # covers bucket_count - 1
    uint32_t bucket_room


cdef void nodes_init(KeyNodes *nodes, uint32_t size) noexcept nogil
cdef void nodes_free(KeyNodes *nodes) noexcept nogil
cdef KeyNode *nodes_add(KeyNodes *nodes, uint64_t high, uint64_t low,
                        uint32_t *number) noexcept nogil
cdef void nodes_remove(KeyNodes *nodes, KeyNode *node) noexcept nogil
cdef bint add_page(KeyNodes *nodes) noexcept nogil
cdef bint add_bucket(KeyNodes *nodes) noexcept nogil


cdef inline KeyNode *node_at(const KeyNodes *nodes, uint32_t number) noexcept nogil:
    return <KeyNode *>(nodes.pages[number // NODES_A_PAGE]
                       + <size_t>(number % NODES_A_PAGE) * nodes.size)


cdef inline uint32_t *bucket_of(const KeyNodes *nodes, uint64_t low) noexcept nogil:
    """Return the bucket of a hash; the table must have buckets."""
    cdef uint32_t index = <uint32_t>low & nodes.bucket_mask
    if index >= nodes.bucket_count:
        index &= nodes.bucket_mask >> 1
    return &nodes.buckets[index]


cdef inline uint32_t first_in_bucket(const KeyNodes *nodes, uint64_t low) noexcept nogil:
    """Return the first node in the bucket of a hash; 0 if it is empty."""
    return bucket_of(nodes, low)[0] if nodes.count else 0

# -- key_index --


# Where a message belongs: the hash of its key, and its level of priority.
ctypedef struct MessageKey:
    uint64_t high
    uint64_t low                # both 0: no key
    uint32_t level              # 0 to 9


# Deliverable or not: the state of a flow.
cdef enum FlowState:
    IDLE = 0                    # nothing waits
    IN_TURN = 1                 # in the ring or the heap of its level
    BLOCKED = 2                 # a rule forbids each message; `prev` is the time: see since_of()


# The waiting messages of one key and level. The first flow of a key also counts what limits apply
# to: the key's messages that consumers hold, and its rate.
ctypedef struct Flow:
    KeyNode node                # in the level's heap; blocked by the rate: in `timers`
    HeapNode size               # first of a key: in `sizes`; tag: waiting messages in the index
    Flow *prev                  # in the level's ring
    Flow *next
    Entry *first_entry          # messages that were delivered or deferred before, by place
    Entry *last_entry
    double next_send            # when the rate allows the next message; monotonic, ns
    uint64_t place              # with order: place of the message that is held
    uint32_t first              # items: records that were never delivered, in log order
    uint32_t last
    uint32_t held               # messages that count for the key's limits
    uint32_t total              # in the key's first flow: waiting messages of all its flows
    uint32_t items
    uint32_t beyond             # number of the Beyond; 0: all records are in the index
    uint32_t number
    uint32_t key                # number of the key's first flow
    uint32_t sibling            # next flow of the same key
    uint32_t later              # in `later`: seq of the next message, modulo 2^32
    uint8_t level
    uint8_t state               # FlowState
    uint8_t used
    uint8_t timed               # in `timers`


# A key as lists and statistics show it.
ctypedef struct ListedKey:
    uint64_t high
    uint64_t low
    uint32_t waiting
    uint32_t held
    uint32_t since              # blocked: since when, in seconds of the monotonic clock
    bint blocked
    bint paused


# Counts of keys.
ctypedef struct KeyCounts:
    uint64_t waiting
    uint64_t blocked
    uint64_t blocked_long       # keys that are not paused, blocked for BLOCKED_LONG
    uint32_t seconds            # for how long the first of them has been blocked


# A record that waits.
ctypedef struct Item:
    uint64_t seq
    uint32_t offset             # in its block
    uint32_t next               # the key's next item; free: the next free item


# The part of a flow that is not in the index: records from one on.
ctypedef struct Beyond:
    HeapNode node               # in `hungry`
    uint64_t seq                # records before it are in the index, or do not wait
    uint32_t count
    uint32_t flow               # number of the flow; free: the next free one
    uint32_t skipped            # number of the pass that added no more records


# Keys of deferred messages that hold their key: seq -> flow.
ctypedef struct HeldSlot:
    uint64_t seq                # 0: empty
    uint32_t flow


cdef enum:
    LEVELS = 10
    NO_FLOW = 0                 # the message counts for no key
    UNRESOLVED = 0xFFFFFFFE     # its key is not known yet


cdef inline uint64_t place_of_record(uint64_t seq) noexcept nogil:
    """Return the place of a record that was never delivered."""
    return seq << 20 | 0xFFFFF


# Result of an attempt to make room.
cdef enum RoomMade:
    NO_ROOM = 0                 # each flow has at most one item
    MAKING_ROOM = 1             # not yet: the budget is used up
    MADE_ROOM = 2


cdef class KeyRoom:
    """Memory for the indexes of a worker's channels."""
    cdef readonly uint64_t limit        # bytes
    cdef readonly uint64_t used         # bytes
    cdef uint64_t minimum               # bytes that each index may use in any case
    cdef bint short                     # some indexes wait for room
    cdef void **indexes                 # KeyIndex, borrowed
    cdef uint32_t index_count
    cdef Item **pages
    cdef uint32_t page_count
    cdef uint32_t item_end              # numbers below have been used
    cdef uint32_t free_item             # linked by `next`
    cdef readonly uint64_t items
    # The search for the largest flow.
    cdef uint32_t top                   # about the number of items of the largest flow
    cdef uint32_t seen                  # the same, of the flows visited in this round
    cdef uint32_t hand_index
    cdef uint32_t hand_flow             # the latest flow visited
    # The flow that is giving up items.
    cdef void *cut_index                # NULL: none
    cdef uint32_t cut_flow
    cdef uint32_t cut_item              # the last item that stays, so far
    cdef uint32_t cut_items             # items when the search began
    cdef uint32_t cut_kept              # of these, up to cut_item
    cdef uint32_t cut_left              # items still to be kept

    cdef inline Item *item_at(self, uint32_t number) noexcept:
        return &self.pages[number >> 11][number & 2047]

    cdef int add(self, KeyIndex index) except -1
    cdef void remove(self, void *index) noexcept
    cdef uint32_t new_item(self) except 0
    cdef void free_items(self, uint32_t first, uint32_t last, uint32_t count) noexcept
    cdef void free_pages(self) noexcept
    cdef void wake(self) noexcept
    cdef RoomMade make_room(self, int *budget) except *
    cdef bint find_largest(self, int *budget) noexcept


cdef class KeyIndex:
    """The waiting messages of a channel by key, and the order in which the keys are served."""
    cdef SchedulerState scheduler
    cdef RecordWindow window
    cdef ChannelCursor *cursor          # the channel's
    cdef InFlightList **in_flight_lists     # the channel's
    cdef Heap *deferred                 # the channel's timers

    # The rules.
    cdef bint order
    cdef bint fair
    cdef bint urgent_first
    cdef uint32_t in_flight_per_key     # 0: no limit
    cdef double gap                     # ns between two messages of a key; 0: no limit
    cdef int64_t share                  # of a level, in billionths of a delivery
    cdef bint single                    # no rules: all messages are served in log order
    cdef bint sized                     # `sizes` is kept
    cdef uint32_t depth_per_key         # messages of a key above it are dropped; 0: no limit
    cdef uint32_t *overfull             # numbers of keys that have exceeded it
    cdef uint32_t overfull_count
    cdef uint32_t overfull_room
    cdef KeyTable pauses                # paused keys; None: no key is paused
    cdef KeyTable emptied               # keys whose records before a seq are dropped; or None
    cdef uint64_t emptied_items         # records that the scan has dropped

    # Keys.
    cdef KeyNodes flow_nodes
    cdef uint32_t flow_end              # numbers below have been used
    cdef KeyNodes rates                 # keys without a flow that are remembered for their rate
    cdef Heap rate_ends                 # when it allows the next message
    cdef Flow *rings[LEVELS]            # the flow that is served next
    cdef Heap turns[LEVELS]
    cdef uint32_t *later                # level 0: flows in turn, by the record that is next; a ring
    cdef uint32_t later_mask
    cdef uint64_t horizon               # flows with earlier records are in the heap
    cdef uint32_t later_count           # flows in it
    cdef uint32_t waiting_levels        # bits
    cdef int64_t debts[LEVELS]
    cdef Heap timers                    # keys that their rate blocks
    cdef Heap sizes                     # the flow with the most messages first
    cdef Timer alarm                    # in the scheduler's timers

    # Records.
    cdef bint started
    cdef Cursor at                      # records before it are in the index
    cdef readonly uint64_t items
    cdef uint64_t bytes                 # of the records that wait, before the scan position
    cdef uint64_t *bits                 # records at or after the cursor that are not waiting
    cdef uint64_t bits_base             # record of the first bit; a multiple of 64
    cdef uint64_t bits_room             # words
    cdef readonly uint64_t passed       # bits that are set
    # Words of `bits` that save_bits() must copy, as (seq / 64) of their first record.
    cdef uint64_t changed_from
    cdef uint64_t changed_to            # exclusive
    cdef uint64_t bits_end              # no record from here on has a bit; a multiple of 64
    cdef bint bits_lost                 # the saved bits are those of an index that has ended
    cdef Block *last_block              # block of the latest item; only a hint

    # Memory; see KeyRoom.
    cdef KeyRoom room
    cdef uint64_t used                  # bytes
    cdef readonly bint short            # a scan waits for room
    cdef readonly uint64_t beyond       # records before the scan position that are not in the index
    cdef Beyond **beyond_pages
    cdef uint32_t beyond_room           # pages
    cdef uint32_t beyond_end
    cdef uint32_t free_beyond
    cdef Heap hungry                    # flows whose next message is beyond the index
    cdef bint reading_again
    cdef bint again_waits               # for a read, or for room
    cdef Cursor again                   # position of the pass over records beyond the index
    cdef uint64_t again_start
    cdef uint32_t again_pass            # its number

    # Entries.
    cdef readonly uint64_t entries      # in flows
    cdef uint64_t gate                  # fan-out position of the latest arrival ...
    cdef uint64_t arrivals              # ... and number of arrivals there
    cdef HeldSlot *held                 # deferred messages that hold their key
    cdef uint32_t held_mask
    cdef uint32_t held_count
    cdef bint unsettled                 # the keys of some held messages are not known yet
    cdef bint unsorted                  # the queue may not be in order of the places
    cdef bint lost                      # pop() found no record where one was
    cdef uint32_t walked_flow           # see UnfinishedMessages.walk
    cdef Entry *walked
    cdef uint32_t unpacked_flow         # see UnfinishedMessages.pack_more
    cdef Entry *unpacked

    cdef inline Flow *flow_at(self, uint32_t number) noexcept:
        return &(<Flow *>self.flow_nodes.pages[number // NODES_A_PAGE])[
            number % NODES_A_PAGE]

    cdef inline Item *item_at(self, uint32_t number) noexcept:
        return &self.room.pages[number >> 11][number & 2047]

    cdef inline Beyond *beyond_at(self, uint32_t number) noexcept:
        return &self.beyond_pages[number >> 8][number & 255]

    cdef inline void take(self, uint64_t bytes) noexcept:
        self.used += bytes
        self.room.used += bytes

    cdef inline void give(self, uint64_t bytes) noexcept:
        self.used -= bytes
        self.room.used -= bytes
        if self.room.short:
            self.room.wake()

    cdef inline bint is_hungry(self, const Flow *flow) noexcept:
        """Return whether a flow's next message is not in the index."""
        return flow.beyond != 0 and flow.first == 0 and (
            flow.first_entry == NULL
            or <uint64_t>flow.first_entry.in_flight_list >> 20
            > self.beyond_at(flow.beyond).seq)

    cdef inline bint has_head(self, const Flow *flow) noexcept:
        """Return whether a flow's next message is in the index."""
        return flow.size.tag != 0 and not self.is_hungry(flow)

    cdef uint64_t unreached(self) noexcept
    cdef bint has_room(self, uint64_t bytes) noexcept
    cdef Beyond *new_beyond(self, Flow *flow, uint64_t seq) except NULL
    cdef void free_beyond_of(self, Flow *flow) noexcept
    cdef void update_hunger(self, Flow *flow) noexcept
    cdef int give_up(self, Flow *flow, uint32_t last, uint32_t count) except -1
    cdef bint is_cut(self, const Flow *flow) noexcept
    cdef void count_beyond(self, Flow *flow, int change) noexcept
    cdef int read_again(self, int budget) except -1
    cdef RoomMade add_again(self, Record *record, uint32_t offset, int *budget) except *
    cdef void found_again(self, Flow *flow) noexcept
    cdef int begin_pass(self) except -1
    cdef void end_pass(self) noexcept
    cdef int end_of_log(self) except -1
    cdef RoomMade room_again(self, Flow *flow, uint64_t seq, int *budget) except *
    cdef RoomMade room_for(self, Flow *flow, uint64_t bytes, int *budget) except *
    cdef int append_item(self, Flow *flow, uint64_t seq, uint32_t offset) except -1
    cdef int start(self) except -1
    cdef void stop(self) noexcept
    cdef Flow *find(self, const MessageKey *key) noexcept
    cdef Flow *find_or_make(self, const MessageKey *key) except NULL
    cdef Flow *new_flow(self, const MessageKey *key) except NULL
    cdef Flow *any_flow(self, const MessageKey *key) noexcept
    cdef inline uint32_t seconds(self) noexcept:
        """Return the current time in seconds, for the times since when keys are blocked."""
        return <uint32_t>(self.scheduler.now // 1000000000)

    cdef void note_overfull(self, const Flow *key) noexcept
    cdef bint list_flow(self, uint32_t number, ListedKey *into) noexcept
    cdef bytes text_of(self, const ListedKey *listed)
    cdef void update_hash(self, const KeyHash *hash) noexcept
    cdef bint was_emptied(self, const Record *record) except -1
    cdef void free_all(self) noexcept
    cdef void free_if_unused(self, Flow *flow) noexcept
    cdef void free_flow(self, Flow *flow) noexcept
    cdef uint64_t unlink_item(self, Flow *flow) noexcept
    cdef void unlink_entry(self, Flow *flow) noexcept
    cdef uint64_t head_place(self, const Flow *flow) noexcept
    cdef bint is_blocked(self, const Flow *key) noexcept
    cdef void enter_turn(self, Flow *flow) noexcept
    cdef void leave_turn(self, Flow *flow) noexcept
    cdef void move_turn(self, Flow *flow) noexcept
    cdef bint enter_later(self, Flow *flow, uint64_t place) noexcept
    cdef void leave_later(self, const Flow *flow) noexcept
    cdef bint grow_later(self, uint64_t seq) noexcept
    cdef inline Flow *oldest_in_turn(self, uint32_t level) noexcept
    cdef void update_flow(self, Flow *flow) noexcept
    cdef void update_key(self, Flow *key) noexcept
    cdef void count_waiting(self, Flow *flow, int change) noexcept
    cdef inline void total_changed(self, Flow *key, int change) noexcept
    cdef void update_size(self, Flow *key) noexcept
    cdef Flow *oldest_of_key(self, Flow *key) noexcept
    cdef Flow *first_to_drop(self, Flow *key) noexcept
    cdef Flow *first_before(self, Flow *key, uint64_t place) noexcept
    cdef int set_sized(self, bint sized) except -1
    cdef int key_of(self, const Record *record, MessageKey *into) except -1
    cdef int scan(self, int budget) except -1
    cdef RoomMade add_record(self, Record *record, uint32_t offset, int *budget) except *
    cdef int pass_ranges(self) except -1
    cdef int pass_each(self, const Hole *ranges, uint32_t count) except -1
    cdef int leave_log(self, uint64_t seq) except -1
    cdef void release_flow(self, uint32_t number) noexcept
    cdef int set_alarm(self) except -1
    cdef int save_rates(self) except -1
    cdef bint save_rate(self, Flow *key) noexcept
    cdef void recall_rate(self, Flow *key) noexcept
    cdef void forget_rate(self, KeyNode *rate) noexcept
    cdef void forget_rates(self) noexcept
    cdef void remember_rate(self, Flow *key) noexcept
    cdef int pass_missing(self, uint64_t start, uint64_t end) except -1
    cdef uint64_t set_bits(self, uint64_t start, uint64_t end) except? 0
    cdef bint has_bit(self, uint64_t seq) noexcept
    cdef bint has_left(self, uint64_t seq) noexcept
    cdef const Entry *next_listed(self, uint32_t *flow, const Entry *entry) noexcept
    cdef int room_for_bits(self, uint64_t end) except -1
    cdef uint64_t first_clear(self, uint64_t seq) noexcept
    cdef int advance(self) except -1
    cdef inline void bit_changed(self, uint64_t word) noexcept:
        self.changed_from = min(self.changed_from, word)
        self.changed_to = max(self.changed_to, word + 1)
        self.bits_end = max(self.bits_end, (word + 1) << 6)

    cdef bint save_bits(self, Owners owners, const Position *saved, Position *to) noexcept
    cdef bytes packed_bits(self)
    cdef int restore_bits(self, uint64_t first, bytes packed) except -1
    cdef Flow *next_flow(self) noexcept
    cdef Block *block_of(self, uint64_t seq) except? NULL
    cdef Entry *head_entry(self, Flow *flow) noexcept
    cdef Entry *pop(self, Flow *flow, uint8_t round) except? NULL
    cdef int load_heads(self, Flow *flow) except -1
    cdef int drop_head(self, Flow *flow, Entry **entry) except -1
    cdef inline void fetch_head(self, const Flow *flow) noexcept
    cdef inline void fetch_record(self, const Flow *flow) noexcept
    cdef void fetch_next(self) noexcept
    cdef void hold(self, Flow *flow, Entry *entry) noexcept
    cdef void serve(self, Flow *flow, Entry *entry) noexcept
    cdef void release(self, Entry *entry) noexcept
    cdef uint64_t arrive(self) noexcept
    cdef uint64_t restore_place(self, const Entry *entry, uint64_t place) noexcept
    cdef int join(self, Entry *entry) except -1
    cdef int join_flow(self, Flow *flow, Entry *entry) except -1
    cdef int resolve(self, Entry *entry, const Record *record) except -1
    cdef int hold_deferred(self, const Deferred *deferred, uint32_t flow) except -1
    cdef uint32_t forget_deferred(self, uint64_t seq) noexcept
    cdef uint32_t held_slot(self, uint64_t seq) noexcept
    cdef bint settle(self) except -1
    cdef bint settle_message(self, Deferred *message, bint loads) except -1
    cdef int wake(self) except -1
    cdef Entry *take_all_entries(self) noexcept
    cdef int reset(self) except -1
    cdef void begin_walk(self) noexcept
    cdef bint walk(self, Deferred **entry) noexcept
    cdef void begin_packing(self) noexcept
    cdef bint is_packed(self) noexcept
    cdef Entry *next_to_pack(self) noexcept

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
    cdef Owner *owner                       # NULL: the channel ends with its process
    cdef uint32_t number                    # of the owner; 0 if there is none
    cdef bint note_due                      # what the owner's note contains has changed
    cdef uint64_t arrivals                  # messages that were queued

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
    cdef readonly KeyIndex keys             # waiting messages by key; None: no rule needs it
    cdef bint keyed                         # the policy has rules for keys

    # In flight.
    cdef InFlightTable table
    cdef InFlightList *in_flight_lists
    cdef readonly uint64_t in_flight_count
    cdef readonly list consumers
    cdef ReadyRing ready
    cdef int64_t msg_timeout                # ns, default for consumers; 0: the server's default
    cdef bint returns                       # messages return when their consumer disconnects
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

    cdef void save_position(self, Note *note) noexcept
    cdef void become_dirty(self) noexcept
    cdef void set_alarm(self) noexcept
    cdef void drop_alarm(self) noexcept
    cdef int defer_record(self, const Entry *delayed, int64_t due) except -1
    cdef bint was_cancelled(self, uint64_t seq) except -1
    cdef Deferred *defer(self, const Deferred *message, int64_t due) except NULL
    cdef int defer_entry(self, Entry *entry, int64_t due) except -1
    cdef Deferred *find_deferred(self, uint64_t id) noexcept
    cdef uint64_t cancel(self, uint64_t id) noexcept
    cdef int defer_key(self, Entry *entry, const Deferred *deferred) except -1
    cdef void forget_key(self, uint64_t seq) noexcept
    cdef uint64_t gate_of(self, const Entry *entry) noexcept
    cdef void release_key(self, Entry *entry) noexcept
    cdef uint64_t depth(self) noexcept
    cdef uint64_t held(self) noexcept
    cdef int queue_record(self, const Entry *addressed) except -1
    cdef void queue_entry(self, Entry *entry, uint32_t size) noexcept
    cdef int restore_queued(self, Entry *entry, uint64_t place) except -1
    cdef void append_to_queue(self, Entry *entry) noexcept
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
    cdef int restore_in_flight(
        self, InFlightList *in_flight_list, Entry *entry, int64_t deadline,
        uint32_t delivered) except -1
    cdef bint claim(self, Consumer consumer, uint64_t id, int64_t deadline) except -1
    cdef list in_flight_to(self, Consumer consumer)
    cdef int64_t age_of(self, uint64_t id) noexcept
    cdef void give_timeout(self, Consumer consumer) noexcept
    cdef int add_consumer(self, Consumer consumer) except -1
    cdef void remove_consumer(self, Consumer consumer) noexcept
    cdef void drop_consumer(self, Consumer consumer) noexcept
    cdef int return_messages(self, InFlightList *in_flight_list, str client) except -1
    cdef void check_ready(self, Consumer consumer) noexcept
    cdef void report_to(self, Events events, bytes names) noexcept
    cdef void report(self, EventKind kind, const Entry *entry) noexcept
    cdef void report_finish(self, Entry *entry) noexcept
    cdef void fetch_held(self, const Entry *entry) noexcept

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
        self.own(entry)
        return entry

    cdef inline void own(self, Entry *entry) noexcept:
        """State that a new entry, which is complete, is the channel's."""
        keep_store_order()
        entry.owner = self.number

    cdef inline void drop_entry(self, Entry *entry) noexcept:
        if self.keys is not None:
            self.release_key(entry)
        self.free_entry(entry)

    cdef inline void free_entry(self, Entry *entry) noexcept:
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
        self.own(entry)
        self.pool.free_deferred(&self.pages, deferred)
        if self.keys is not None:
            entry.node.index = self.keys.forget_deferred(entry.seq)
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
    cdef uint64_t waiting_bytes(self) noexcept
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

# -- chosen keys: see key_pauses --


@cython.final
cdef class EmptiedKey:
    cdef readonly bytes text
    cdef readonly uint64_t seq      # the scan drops the key's records before this one
    cdef KeyHash hash
    cdef uint64_t place             # the index drops the key's messages before this place
    cdef bint searched              # the index has no such message any more
    cdef bint resolved              # the queue has no message whose key is not known
    cdef object done                # None: already called


cdef class ChosenKeys(Undeliverable):
    cdef readonly dict paused_keys          # their texts
    cdef KeyTable pauses                    # their hashes; None: no key was ever paused
    cdef readonly tuple emptied_keys        # EmptiedKey: their messages are being dropped
    cdef readonly uint64_t emptied_count

    cdef KeyHash hash_of(self, bytes text) except *
    cdef int set_key_paused(self, bytes text, bint paused) except -1
    cdef int add_emptied(self, bytes text, uint64_t seq, uint64_t place, done) except -1
    cdef int set_emptied(self) except -1
    cdef int drop_emptied(self) except -1
    cdef bint is_emptied(self, EmptiedKey emptied) noexcept
    cdef int answer_emptied(self, EmptiedKey emptied) except -1
    cdef int drop_waiting(self, EmptiedKey emptied, int budget) except -1
    cdef bint is_entry_emptied(self, const Entry *entry, const Record *record) except -1
    cdef int forget_emptied(self) except -1

# -- key_listing --


@cython.final
cdef class LargestKeys:
    cdef ListedKey *keys
    cdef uint32_t count
    cdef uint32_t limit

    cdef void offer(self, const ListedKey *key) noexcept
    cdef void sort(self) noexcept


@cython.final
cdef class KeyCensus:
    cdef uint32_t at                # next flow
    cdef KeyCounts counts           # of the walk in progress
    cdef KeyCounts latest
    cdef LargestKeys found          # by the walk in progress
    cdef LargestKeys largest
    cdef dict texts                 # (high, low) -> text

    cdef bint walk(self, KeyIndex keys, uint32_t budget) noexcept
    cdef void restart(self) noexcept
    cdef void count(self, KeyIndex keys, const ListedKey *key) noexcept
    cdef list largest_keys(self, KeyIndex keys)


@cython.final
cdef class KeyListing:
    cdef KeyedMessages channel
    cdef readonly bint only_blocked
    cdef bint only_paused
    cdef LargestKeys largest
    cdef uint32_t at                # next flow
    cdef uint64_t matching

    cdef int offer(self, const ListedKey *key) except -1

# -- keyed_messages --


cdef class KeyedMessages(ChosenKeys):
    cdef KeyCensus census                   # None: the statistics have not been needed yet
    cdef uint32_t depth_per_key             # 0: no limit
    cdef tuple rules                        # see set_rules()
    cdef bint unscanned                     # the last dispatch did not add all records to `keys`
    cdef bint parked                        # a search has returned messages
    cdef uint64_t full_count                # oldest messages dropped, because there were too many
    cdef int64_t next_sweep
    cdef uint32_t swept                     # number of the latest flow checked for its age

    cdef int set_rules(self, policy) except -1
    cdef int make_keys(self) except -1
    cdef int apply_rules(self, bint single) except -1
    cdef int mark_held(self, uint32_t flow) except -1
    cdef int rebuild_keys(self, bint single) except -1
    cdef int queue_in_order(self) except -1
    cdef int sort_queue(self, Entry *entry) except -1
    cdef int end_keys(self) except -1
    cdef int prepare_keys(self, bint searching) except -1
    cdef bint keys_lag(self) noexcept
    cdef bint waits_for_scan(self, const Entry *entry) noexcept
    cdef int resolve_keys(self) except -1
    cdef Entry *take_keyed(self, int maximum) except? NULL
    cdef Entry *pop_keyed(self, Flow *flow) except? NULL
    cdef bint sift(self, Flow *flow, Entry *entry) except -1
    cdef int restore_taken(self, uint64_t first, bytes taken) except -1
    cdef int restore_chosen(self, paused, emptied) except -1
    cdef bint is_searched(self) noexcept
    cdef int put_back(self, Entry *entry, uint32_t size) except -1
    cdef bint key_is_full(self, const KeyHash *hash, uint64_t coming) noexcept
    cdef int count_keys(self) except -1
    cdef dict key_facts(self)
    cdef int drop_overfull(self, int budget) except -1
    cdef bint drop_oldest_of(self, Flow *key) except -1
    cdef int drop_keyed(self, int budget) except -1
    cdef int sweep_expired(self) except -1
    cdef int sweep_flow(self, Flow *flow) except -1

# -- dispatch --


cdef class Dispatch(KeyedMessages):
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

    cdef inline bint rejects_keys(self) noexcept:
        """Return whether publishes of a key are refused while the channel has too many of them."""
        return self.depth_per_key != 0 and self.on_full == REJECT

    cdef uint64_t born_seq                  # fan-out position when the channel was created
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
    cdef int64_t expiry_of(self, const Entry *entry) noexcept
    cdef Outcome requeue(self, Consumer consumer, uint64_t id, int64_t delay) except *
    cdef Outcome reject(self, Consumer consumer, uint64_t id, int64_t delay, str text) except *
    cdef Outcome touch(self, Consumer consumer, uint64_t id) noexcept
    cdef int expire(self, int budget) except -1
    cdef int expire_in_flight_list(self, InFlightList *in_flight_list, int budget) except -1
    cdef void set_cut_off(self, bint cut_off) noexcept
    cdef void move(self) noexcept
    cdef int begin_owner(self, uint32_t topic) except -1
    cdef int drop_everything(self) except -1
    cdef Entry *drop_in_flight(self) noexcept
    cdef int close(self) except -1
    cdef inline Entry *held_by(self, Consumer consumer, uint64_t id, Outcome *outcome) noexcept
