# Declarations of nsqcy.broker for other packages.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.base.core cimport Histogram, IdSource, KeyHash, KeySources, Taken
from nsqcy.channels.core cimport (
    SERIES, Channel, KeyTable, OnFull, Sample, SchedulerState, Series, Sums, Waiter,
)
from nsqcy.storage.core cimport (
    CELL_IDS, RECORD_EXT_DELAY_SIZE, Block, BlockPool, Cursor, Deferred, Entry, FileCalls, IdCell,
    IoThread, KnownId, LeftMemory, LeftTopic, Log, Note, Produced, Record, RecordWindow,
    keep_store_order, log_done,
)

# -- compaction --


cdef enum Stage:
    IDLE = 0
    LOAD = 1
    GATHER = 2
    COPY = 3
    WRITE = 4
    AWAIT = 5
    REDIRECT = 6
    REDIRECTED = 7


# The records copied from one block, after this header: unordered until COPY, then ordered by
# source.
ctypedef struct Relocations:
    Block *target           # NULL: no record has been copied yet
    uint32_t count
    uint32_t room


cdef class Compaction:
    """Compactions of one window, run one at a time."""
    cdef RecordWindow window
    cdef readonly Stage stage
    cdef Block **blocks             # blocks of this compaction; each is pinned
    cdef uint32_t count
    cdef uint32_t room
    cdef uint32_t at                # index of the next block in LOAD, COPY and WRITE
    cdef uint32_t loading           # blocks not read back yet
    cdef bint on_disk
    cdef list channels              # channels whose entries are visited
    cdef Py_ssize_t walked          # number of channels visited in this walk
    cdef Block *survivor            # open block for copies, pinned

    cdef int choose(self) except -1
    cdef int add(self, Block *block) except -1
    cdef bint begin(self, list channels) except -1
    cdef bint loaded(self) except -1
    cdef int load_more(self, uint32_t count) except -1
    cdef bint written(self) noexcept
    cdef bint waits(self) noexcept
    cdef int step(self, int budget) except? -1
    cdef void stop(self) noexcept
    cdef void close_survivor(self) noexcept
    cdef bint is_sparse(self, Block *block) noexcept
    cdef void enter(self, Stage stage) noexcept
    cdef int walk(self, int budget) except? -1
    cdef void gather(self, const Deferred *entry, Relocations *relocations) noexcept
    cdef void redirect(self, Deferred *entry, Relocations *relocations) noexcept
    cdef int copy(self, Block *block) except -1
    cdef Block *next_copies(self, int *budget) except? NULL
    cdef Block *survivor_block(self, uint32_t length, uint64_t seq) except NULL

# -- topic_host --


cdef class TopicHost:
    cdef SchedulerState scheduler
    cdef BlockPool pool
    cdef IdSource ids
    cdef IoThread io
    cdef uint64_t sync_every                # options of logs
    cdef object policies                    # nsqcy.config.policies.Policies, or None
    cdef object on_event                    # called as on_event(kind, topic name, channel name)
    cdef object log                         # for operators
    cdef object read_failures               # nsqcy.storage.read_failures.ReadFailures, or None
    cdef dict topics                        # bytes name -> Topic
    cdef public object copies             # nsqcy.nsqd.copies.topics.CopiedTopics, or None
    cdef list dirty_topics                  # topics whose settle_turn() is due
    cdef list unsettled                     # topics whose settle_turn() continues in the next turn
    cdef list gathering                     # topics with batches to append
    cdef list compacting                    # topics whose compaction can continue
    cdef list journalling                   # topics with a journal snapshot in progress
    cdef public int snapshot_budget         # entries packed per turn
    cdef list reads                         # log reads that can continue
    cdef list hurried                       # topics with readers waiting for memory-only records
    cdef list unreadable                    # topics whose log could not be read
    cdef int64_t next_read                  # when the first retry is due; INT64_MAX if none is
    cdef int64_t next_periodic              # due time of this and other periodic work
    cdef uint64_t reserved                  # bytes of current and future responses to reads
    cdef bint closing
    cdef public bytes boot                  # identifies the boot of the machine
    cdef readonly str health                # "OK" or "NOK - reason"
    cdef readonly int64_t health_at         # wall clock, ns
    cdef public object probe                # nsqcy.storage.write_probe.WriteProbe, or None
    cdef readonly int64_t damages           # damaged parts found in logs
    cdef str refused                        # why writes are refused; None: they are accepted
    cdef str shut                           # why publishes are refused; None: they are accepted
    cdef public uint64_t log_hold_max_bytes     # maximum bytes kept by named cursors per topic
    cdef public int64_t log_cursor_expiry       # ns until an unused cursor expires
    cdef uint64_t own_series                # topics and channels with their own series
    cdef Sums gone[<int>SERIES]             # totals of deleted topics without their own series

    cdef int read_at(self, int64_t due) except -1
    cdef uint64_t answer_room(self, uint64_t wanted) noexcept
    cdef int event(self, str kind, str topic, str channel) except -1
    cdef int tell(self, str text) except -1
    cdef int report(self, str name, error) except -1
    cdef int report_missing(self, str name, str what) except -1
    cdef int report_lost_ids(self, str name, str path) except -1
    cdef int report_keyless(self, str name, uint64_t messages, str source) except -1
    cdef int report_overrun(self, str name, cursors) except -1
    cdef int report_recalled(self, str topic) except -1
    cdef int report_unreadable(self, str topic, str path, int error) except -1
    cdef int report_readable(self, str topic) except -1

# -- log_fetch --


cdef enum:
    LARGEST_ANSWER = 8388608        # bytes in a response, unless a single message is larger


cdef enum ReadStage:
    COLLECT = 0
    MEASURE = 1
    FILL = 2
    CHECK = 3
    WAITING = 4
    ENDED = 5


# A block used by a read.
cdef struct Piece:
    Block *block            # pinned
    uint8_t *data           # the block's records; NULL: unreadable
    uint8_t *owned          # buffer read from disk for this read; NULL: the block's own data


cdef class OpenReads:
    """The reads of one topic that are in progress."""
    cdef TopicHost host
    cdef list open
    cdef uint32_t polls             # reads that are waiting for new records

    cdef int begin(self, LogRead read) except -1
    cdef int advanced(self, LogRead read) except -1


cdef class LogRead:
    cdef RecordWindow window
    cdef OpenReads reads
    cdef Waiter waiter              # receives the result; None: the caller has disconnected
    cdef uint64_t ticket
    cdef ReadStage stage
    cdef bint reading               # the last piece is being read
    cdef bint failed                # a read failed, but may succeed later
    cdef Piece *pieces
    cdef uint32_t count
    cdef uint32_t room
    cdef readonly uint64_t next_seq     # next record to visit
    cdef uint64_t end               # exclusive
    cdef readonly uint64_t held     # bytes

    cdef int step(self, int budget) except? -1
    cdef int take(self, Block *block) except -1
    cdef int on_piece_read(self, int error) except -1
    cdef int answer(self, bytes answer, bytes error) except -1
    cdef int abandon(self, bytes error) except -1
    cdef void release(self) noexcept

# -- once --


cdef enum:
    CHUNK_IDS = CELL_IDS
    FOUND_IDS = 64              # maximum for add_found()


ctypedef struct FoundId:
    KeyHash hash
    int64_t time
    uint64_t seq


ctypedef struct IdChunk:
    IdCell *cell
    uint32_t next[CHUNK_IDS]    # in the chains of the table


cdef class Once:
    cdef BlockPool pool
    cdef uint32_t owner                 # number of the topic; 0: no process finds the ids
    cdef readonly int64_t window
    cdef readonly uint64_t maximum
    cdef readonly uint64_t early        # ids that were forgotten although they counted
    # Numbers of ids; see once.pyx.
    cdef uint64_t first
    cdef uint64_t end
    cdef uint64_t confirmed
    cdef uint64_t filed
    # The ids of all records before these are in files: according to the journal, and written.
    cdef uint64_t confirmed_seq
    cdef uint64_t filed_seq
    cdef IdChunk **chunks
    cdef size_t chunks_first
    cdef size_t chunks_count
    cdef size_t chunks_room
    cdef uint32_t **pieces              # of the table
    cdef size_t pieces_count
    cdef size_t pieces_room
    cdef uint64_t buckets
    cdef uint64_t table_size
    cdef list files                     # IdsFile; the next journal lists them
    cdef dict listed                    # number -> bytes of the files that the journal lists
    cdef uint64_t last_file
    cdef uint64_t failures              # failed writes of files
    cdef bint is_open                   # the last file accepts more ids

    cdef IdChunk *chunk_of(self, uint64_t number) noexcept
    cdef uint64_t seq_at(self, uint64_t number) noexcept
    cdef uint64_t number_of(self, uint32_t ref) noexcept
    cdef KnownId *id_at(self, uint64_t number) noexcept
    cdef int reserve(self, int64_t wall) except -1
    cdef IdChunk *new_chunk(self) except NULL
    cdef void free_chunk(self, IdChunk *chunk) noexcept
    cdef void belong(self, uint32_t owner) noexcept
    cdef void clear(self) noexcept
    cdef uint32_t *bucket(self, uint64_t hash) noexcept
    cdef int grow_table(self) except -1
    cdef int add_bucket(self) except -1
    cdef int relink(self, uint32_t ref) except -1
    cdef int shrink_table(self) except -1
    cdef void unlink(self, uint64_t number) noexcept
    cdef uint64_t find(self, const KeyHash *hash) noexcept
    cdef bint counts(self, int64_t time, int64_t wall) noexcept
    cdef bint is_known(self, const KeyHash *hash, int64_t wall, uint64_t *seq) noexcept
    cdef int add(self, const KeyHash *hash, int64_t time, uint64_t seq) except -1
    cdef void append(self, const KeyHash *hash, int64_t time, uint64_t seq) noexcept
    cdef int add_found(self, const FoundId *found, int count, int64_t wall) except -1
    cdef int add_one_found(self, const KeyHash *hash, int64_t time, uint64_t seq,
                           int64_t wall) except -1
    cdef int add_left(self, LeftTopic left, int64_t wall) except -1
    cdef int undo(self, uint64_t seq) except -1
    cdef int remove_first(self) except -1
    cdef int expire(self, int64_t wall, int budget) except -1
    cdef uint64_t unfiled(self, uint64_t seq) noexcept
    cdef int drop_files(self, int64_t wall) except -1
    cdef bytes next_batch(self, uint64_t seq)
    cdef int confirm(self, uint64_t filed, uint64_t seq) except -1
    cdef int abandon_files(self) except -1
    cdef int found_files(self, files, bint whole, uint64_t seq) except -1

# -- topic_queue --


# Durability class: what must happen to a record before its publish is acknowledged.
cdef enum Durability:
    MEMORY = 0                  # no requirement
    OS = 1                      # written: the record survives the end of any process
    FSYNC = 2                   # written and synced: the record survives a power loss

cdef size_t taken_header(const uint8_t *at, size_t n) noexcept
cdef Durability durability_of(str name) except *


cdef enum:
    AT_ONCE = 4096              # messages that a publish may append in the turn that receives it


ctypedef struct PendingAck:
    uint64_t seq                # acknowledged when records up to this one are visible
    uint64_t ticket
    void *waiter                # owned reference


# The additions of one publish to a topic that takes keys or ids from messages.
ctypedef struct Publish:
    Durability minimum          # required by the publisher; MEMORY once a record follows
    uint32_t count              # messages published
    uint64_t bytes              # of their bodies
    uint64_t repeated           # the last record with an id that the publish repeats; 0: none


cdef class PendingAcks:
    """Publishes to answer when their records are visible."""
    cdef PendingAck *ring       # ordered by seq
    cdef uint32_t first
    cdef uint32_t count
    cdef uint32_t room

    cdef int add(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1
    cdef int insert(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1
    cdef uint64_t end_of(self, uint64_t seq) noexcept
    cdef uint32_t first_from(self, uint64_t seq) noexcept
    cdef int answer(self, uint64_t seq, str error) except -1
    cdef uint64_t oldest(self) noexcept
    cdef bint publish_goes_on(self, uint64_t seq) noexcept


cdef class Batch:
    """The checked messages of one publish."""
    cdef readonly bytes source          # owns the messages
    cdef const uint8_t *at              # the next message
    cdef uint32_t left                  # messages not appended yet
    cdef uint64_t left_bytes            # total size of their bodies, or slightly more
    cdef Durability minimum             # durability required by the publisher
    cdef Waiter waiter                  # receives the outcome; None: already answered
    cdef uint64_t ticket
    cdef list followers                 # (waiter, ticket) of publishes with the same outcome

    cdef int begin(self, TopicQueue topic) except -1
    cdef uint64_t append(self, TopicQueue topic, uint32_t count) except? 0
    cdef int complete(self, TopicQueue topic) except -1
    cdef int abandon(self, TopicQueue topic) except -1
    cdef int release(self) except -1


cdef class SizedBatch(Batch):
    """Messages encoded as in an MPUB: a length precedes each message."""
    cdef bint headers                   # each message has headers before its body


cdef class ChunkBatch(Batch):
    """A producer's chunk, laid out as an MPUB. Only its missing messages are appended."""
    cdef object name                    # producers.ChunkName
    cdef uint32_t count                 # messages in the chunk
    cdef bint headers
    cdef bint moved                     # the messages come from another topic ...
    cdef bytes address                  # ... and are for this channel only, unless None
    cdef uint64_t size                  # bytes of the chunk
    cdef list wanted                    # [first, end) of the messages to append
    cdef uint32_t index                 # index of the message at `at`
    cdef list pieces                    # (first_seq, ranges) of the appended records

    cdef uint32_t append_range(self, TopicQueue topic, Produced *produced, uint32_t count,
                               list taken, uint64_t *bodies) except? 0


cdef enum Dirty:
    CLEAN
    TRIMS                # settle_turn is due, but no channel has new work
    DIRTY


cdef class TopicQueue(RecordWindow):
    cdef readonly str name
    cdef readonly bytes key
    cdef readonly bint ephemeral
    cdef readonly bint paused
    cdef readonly bint gone
    cdef readonly bint started
    cdef int64_t held_until             # fan-out is held until end_hold() or this time; 0: not held
    cdef bint unannounced               # publishes stay unanswered until announced() is called
    cdef Dirty dirty
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
    cdef KeySources sources             # None: keys and ids are those of the default headers
    cdef bint takes                     # add_message() is used; implies `limited`
    cdef uint32_t repeats               # messages that the current slice of a batch repeats
    cdef Once once                      # None: repeated publishes are kept
    cdef uint64_t duplicate_count       # repeated publishes that were not kept
    cdef uint64_t early_count           # ids forgotten early before the latest change to `once`
    cdef list spans                     # (first, end) of completed batches that are not visible yet
    cdef uint64_t keyless_count         # messages without the key that the policy names ...
    cdef uint64_t keyless_told          # ... and how many of them have been logged
    cdef str key_source                 # of the policy
    cdef int64_t keyless_due            # time of the next log line about them
    cdef uint64_t max_bytes             # 0: no limit
    cdef uint64_t max_depth             # messages; 0: no limit
    cdef OnFull on_full
    cdef bint bounded                   # the topic or one of its channels limits depth or bytes
    cdef bint key_bounded               # a channel refuses publishes of keys with many messages
    cdef str full_key                   # why the next publish is refused; see check_key()
    cdef KeyTable coming_keys           # how many messages of each key it has
    cdef tuple source_texts             # sources of keys, priorities and ids
    cdef bint may_drop                  # the topic drops messages when it is full
    cdef uint64_t full_count            # messages dropped because the topic was full
    cdef readonly uint64_t dropped_count    # messages dropped on overflow of an ephemeral topic
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
    cdef bint moving                    # the current publish comes from another topic
    cdef list batches                   # the topic appends the first batch while gathering
    cdef bint gathering                 # a large batch is being appended: no record becomes visible
    cdef uint64_t gathered_from         # first record of that batch
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
    cdef int add_message(self, const uint8_t *headers, uint16_t length, const uint8_t *body,
                         uint32_t size, int64_t delay, Publish *publish) except -1
    cdef size_t add_messages(self, const uint8_t *batch, uint32_t count, bint headers,
                             int64_t delay, Publish *publish) except? 0
    cdef uint64_t end_publish(self, const Publish *publish) except? 0
    cdef int acknowledge_at(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1
    cdef Record *add_record(self, uint32_t body_length, uint32_t ext_length) except? NULL
    cdef int set_delay(self, Record *record, int64_t delay) except -1
    cdef inline void state_visible(self) noexcept:
        """Let the next process know which records are visible; call this before a publisher is
        answered."""
        if self.owner != NULL:
            keep_store_order()
            self.owner.visible = self.visible.seq

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
    cdef int set_sources(self, policy) except -1
    cdef void journal_window(self) noexcept
    cdef int tell_keyless(self) except -1
    cdef bint repeats_id(self, const Taken *taken, KeyHash *hash, Publish *publish) except -1
    cdef uint32_t fresh(self, const uint8_t *batch, uint32_t count, bint headers,
                        uint64_t *bodies) except? 0
    cdef uint32_t add_fresh(self, const uint8_t *headers, uint16_t length, const uint8_t *body,
                            uint32_t size, uint64_t *bodies) except? 0
    cdef uint64_t end_of_publish(self, uint64_t seq) noexcept
    cdef bint fits(self, int64_t size) noexcept
    cdef int32_t invalid_length(self, const uint8_t *batch, uint32_t count, bint headers) noexcept
    cdef bytes delay_error(self, int64_t delay)
    cdef bytes size_error(self, const char *command, int64_t size)
    cdef bint drops(self, uint32_t body_bytes) noexcept
    cdef str fullness(self, uint64_t count, uint64_t body_bytes)
    cdef bint exceeds_bytes(self, uint64_t count, uint64_t body_bytes) noexcept
    cdef bint exceeds_depth(self, uint64_t count) noexcept
    cdef int set_bounds(self) except -1
    cdef int set_takes(self) except -1
    cdef int check_key(self, const KeyHash *hash) except -1
    cdef void forget_coming_keys(self) noexcept
    cdef int bound_channel(self, Channel channel) except -1
    cdef int unbound_channel(self, Channel channel) except -1
    cdef int limit_channel(self, Channel channel) except -1
    cdef int apply_bounds(self) except -1
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
    cdef void touch_to_trim(self) noexcept

    cdef inline void touch_dirty(self) noexcept:
        """Schedule settle_turn for the end of the turn."""
        if self.dirty != DIRTY:
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

# -- checkpoint --


cdef class Snapshot:
    cdef Log log
    cdef list channels              # channels in the snapshot; deltas record deletions
    cdef Py_ssize_t packed          # number of channels packed so far
    cdef list deltas                # changes made since the snapshot began
    cdef readonly bint records_wait     # whether later records wait for the snapshot
    cdef list waiters               # callbacks for the snapshot's completion
    cdef bint tells_class           # whether the snapshot records a durability change

    # Pack up to `budget` entries. Return the unused budget, which is positive only at the end.
    cdef int step(self, int budget) except -1
    cdef bint is_complete(self) noexcept
    cdef int write_entries(self, Channel channel) except -1
    cdef int end(self, log_done done, void *arg) except -1
    cdef int give_up(self) except -1


cdef class Checkpoints(TopicQueue):
    cdef readonly str durability        # "memory", "os" or "fsync"
    cdef Durability promised            # default class for all publishers
    cdef Durability floor               # minimum class until the journal records `promised`
    cdef uint32_t class_writes          # pending journal writes that record `promised`
    cdef bint was_restored              # the topic has data from an earlier process
    cdef bint is_last                   # the journal being written is the last one
    cdef bint journal_stale             # the journal is out of date
    cdef bint is_as_saved               # the last process's journal has not been replaced
    cdef uint64_t saved_end             # visible.seq in that journal
    cdef uint64_t log_first             # first record of this process's log
    cdef Snapshot snapshot              # snapshot in progress; None if there is none
    cdef bint snapshot_due              # another snapshot must follow the one in progress
    cdef list journal_waiters           # callbacks for the next journal
    cdef uint64_t journalled            # activity() at the last journal
    cdef int64_t next_journal           # earliest time of the next journal
    cdef list unsynced_deltas           # callbacks for the next sync of the journal
    cdef list syncing_deltas            # callbacks for the current sync; None: no sync
    cdef set changes                    # changes that are not answered yet
    cdef int64_t retention_time         # ns; 0: no time limit
    cdef uint64_t retention_bytes       # 0: no size limit
    cdef tuple past                     # logs of earlier processes (storage.journal.Incarnation)
    cdef tuple missing                  # [first, end) of records missing from all files at startup

    cdef uint64_t activity(self) noexcept
    cdef void expect_no_change(self) noexcept
    cdef bint is_unchanged(self) noexcept
    cdef int checkpoint(self) except -1
    cdef bint is_journal_due(self) except -1
    cdef int journal_channel(self, kind, Channel channel, done=*) except -1
    cdef int journal_delta(self, delta, done) except -1
    cdef bint append_delta(self, delta, done=*) except -1
    cdef int write_journal(self, bint records_wait, done=*) except -1
    cdef int begin_journal(self, bint records_wait) except -1
    cdef int go_on_with_journal(self, int budget) except -1
    cdef int end_snapshot(self, Snapshot snapshot) except -1
    cdef int forget_snapshot(self, Snapshot snapshot, str reason) except -1
    cdef int finish_journal(self) except -1
    cdef int give_up_journal(self) except -1
    cdef bint waits_for_journal(self) noexcept
    cdef object channel_state(self, Channel channel)
    cdef uint64_t first_kept(self) noexcept
    cdef bytes pack_delayed(self)
    cdef uint64_t safe_seq(self) except? 0
    cdef bint has_unfiled(self, uint64_t minimum) except -1
    cdef tuple file_ids(self)
    cdef int set_durability(self, str name) except -1
    cdef void class_journalled(self, int error) noexcept
    cdef void class_written(self) noexcept
    cdef object when_synced(self, done)
    cdef int sync_deltas(self) except -1
    cdef object pending_change(self, done)
    cdef int answer_changes(self, str reason) except -1
    cdef int delete_log(self, done) except -1
    cdef object state(self)
    cdef int begin_owner(self) except -1
    cdef void end_owner(self) noexcept
    cdef void state_log(self) noexcept
    cdef int save_position(self) except -1
    cdef int save_channel(self, Channel channel) except -1
    cdef Note *new_note(self, state) except? NULL
    cdef object note_state(self)
    cdef object channel_note_state(self, Channel channel)

# -- topic_log --


# A pending write: bytes [start, end) of a block.
cdef struct Write:
    void *topic                 # owned reference
    Block *block
    uint32_t start
    uint32_t end
    uint64_t first_seq
    uint64_t last_seq
    uint32_t count
    bint gated                  # the records become visible when the write ends


cdef class TopicLog(Checkpoints):
    cdef uint64_t writes                # pending writes
    cdef uint64_t pending_writes        # pending writes that are gated
    cdef uint64_t stable                # all available records before this one are on disk
    cdef bint rolling                   # the next file begins when pending writes end
    cdef int64_t unreadable_since       # wall clock
    cdef int64_t read_pause             # pause before failed reads are retried; 0 if none failed
    cdef int64_t read_due               # when failed reads are retried
    cdef Compaction compaction          # None before the first compaction
    cdef bint retains                   # the log keeps records that every channel has finished
    cdef uint64_t held_bytes            # between `kept` and `outdated`, for named cursors only
    cdef OpenReads reads                # None before the first read
    cdef bint hurried                   # write memory-only records before the next tick

    cdef int write_overflow(self) except -1
    cdef int spill(self) except -1
    cdef int undo_pending(self) except -1
    cdef int write_run(self, Block *block, bint gated, bint at_once=*) except -1
    cdef int write_part(self, Block *block, uint32_t start, uint32_t end, uint64_t first_seq,
                        uint64_t last_seq, uint32_t count, int flags, bint gated) except -1
    cdef int write_all(self, Block *block) except -1
    cdef int write_down(self) except -1
    cdef int on_written(self, Write *write, int error) except -1
    cdef void check_droppable(self, Block *block) noexcept
    cdef void pass_written(self, Block *block) noexcept
    cdef int stable_moved(self, Block *block) except -1
    cdef int on_loaded(self, Block *block) except -1
    cdef int read_failed(self) except -1
    cdef int try_reads(self) except -1
    cdef int compact(self) except -1
    cdef int compact_more(self, int budget) except? -1
    cdef int compact_now(self) except -1
    cdef int finish_compaction(self) except -1
    cdef void end_compaction(self) noexcept

    cdef int set_retention(self, int64_t time, uint64_t size) except -1
    cdef int update_retains(self) except -1
    cdef void keep_all(self) noexcept
    cdef int retain(self) except -1
    cdef int drop_outdated(self) except -1
    cdef int drop_unread(self) except -1
    cdef void move_past(self, Cursor *keeper, Block *block) noexcept
    cdef bint is_outdated(self, Block *block, uint64_t held) noexcept
    cdef void cool(self) noexcept
    cdef void date_blocks(self) noexcept
    cdef int expire_cursors(self) except -1
    cdef void cursors_changed(self) noexcept
    cdef uint64_t held_seq(self) except? 0
    cdef int journal_cursor(self, cursor, bint deleted, done) except -1

    cdef uint64_t safe_seq(self) except? 0
    cdef uint64_t stable_seq(self) except? 0
    cdef list logs(self)
    cdef bytes log_bounds(self, bytes log_id, uint64_t *first, uint64_t *end)
    cdef int64_t time_of(self, uint64_t seq) except? 0
    cdef object poll_log(self, Waiter waiter, uint64_t ticket, uint64_t after)
    cdef int answer_polls(self) except -1
    cdef object seek_log(self, Waiter waiter, uint64_t ticket, bytes log_id, int64_t time)
    cdef object fetch_log(self, Waiter waiter, uint64_t ticket, bytes log_id, uint64_t start,
                          uint64_t stop, uint64_t maximum, uint32_t columns)
    cdef LogRead begin_read(self, LogRead read)

    cdef inline bint has_polls(self) noexcept:
        return self.reads is not None and self.reads.polls != 0

# -- topic --


cdef class Topic(TopicLog):
    cdef int64_t prune_after            # ns; 0: never
    cdef bint prune_messages            # whether a topic with messages is pruned too
    cdef dict unusual                   # non-default policy, shown by /stats
    cdef Histogram ages                 # ages of messages when finished, in all channels
    cdef Series series                  # the metrics series that includes this topic's counters
    cdef uint64_t *gone_ephemerals      # counters of deleted channels, or NULL
    cdef bint prunes                    # whether the topic or one of its channels may be pruned
    cdef int64_t used_at                # last time when the topic had channels
    cdef bint cut_off                   # deliveries are stopped temporarily
    cdef bint moves                     # whether its messages are moved to the open topic
    cdef readonly str moved_from        # id of the closed group that is being drained, or None
    cdef Sample samples[2]              # older, newer; see server/recent_rates.pyx

    cdef int apply_policy(self) except -1
    cdef int apply_channel_policy(self, Channel channel) except -1
    cdef int recall_policies(self, bytes note) except -1
    cdef void add_figures(self, uint64_t *figures) noexcept
    cdef dict once_facts(self)
    cdef int forget_channel(self, Channel channel) except -1
    cdef void forget_figures(self) noexcept
    cdef Channel new_channel(self, str name)
    cdef int consumer_left(self, Channel channel) except -1
    cdef int move(self) except -1
    cdef int hand_over_pauses(self, Topic target) except -1
    cdef int end(self, bint delete, str reason, done=*) except -1
    cdef int settle_turn(self) except -1
    cdef int tick(self) except -1
    cdef bint prune(self) except -1
    cdef bint is_unused(self) noexcept
    cdef void settle_all(self) noexcept
    cdef bint needs_nothing(self) noexcept
    cdef void let_go_of_kept(self) noexcept

# -- shard --


cdef class Shard:
    cdef readonly TopicHost host
    cdef readonly SchedulerState scheduler
    cdef readonly BlockPool pool
    cdef readonly IoThread io
    cdef readonly str data_path
    cdef str aside                      # directory for damaged segments; None: they are not kept
    cdef dict log_options
    cdef readonly object policies           # nsqcy.config.policies.Policies, or None
    cdef object has_room                    # callable: whether a topic may be created, or None
    cdef object failures                    # nsqcy.storage.write_failures.WriteFailures, or None
    cdef readonly dict topics               # bytes name -> Topic
    cdef readonly dict closed               # (group, bytes name) -> Topic that is being drained
    cdef readonly LeftMemory left           # topics of a dead process to be restored; or None
    cdef object marks                       # what MemoryRecovery tells what it reads; or None
    cdef bint taken_over                    # see inherit()
    cdef dict unloaded                      # key -> _Unloaded: topics that could not be restored
    # Returns the number of syncs that an exit replaces with one sync of the file system; 0: none.
    # If None, each file has its own sync.
    cdef public object shares_syncs_from
    cdef public object on_loaded            # called with the key of a topic that was restored late
    cdef public int64_t hold_new            # maximum hold of a new topic, ns; 0: no hold
    cdef public bint announce_new           # a held topic's publishes wait for announced()
    cdef str full                           # why writes are refused: the disk is nearly full
    cdef readonly str hung                  # why writes are refused: a disk operation hangs
    cdef list ticking                       # topics whose tick is due
    cdef list checkpointing                 # topics still to check for a due checkpoint
    cdef int64_t checkpoint_period
    cdef int64_t next_checkpoint            # INT64_MAX: ticks come often enough
    cdef int64_t next_hurry                 # earliest next call of write_hurried()
    cdef int64_t next_tick
    cdef int dispatched                     # records delivered or skipped in this turn

    cdef Topic find(self, bytes key)
    cdef Topic find_or_create(self, bytes key)
    cdef Topic make_topic(self, bytes key)
    cdef LeftTopic left_topic(self, Topic topic)
    cdef Log make_log(self, str name, FileCalls files, str directory)
    cdef list all_topics(self)
    cdef int64_t turn(self) except? -1
    cdef int expire(self) except -1
    cdef bint dispatch(self) except -1

    cdef inline bint has_long_work(self) noexcept:
        """Return whether there is work that takes many turns. Such work is rare."""
        cdef TopicHost host = self.host
        if host.gathering or host.compacting or host.journalling or self.scheduler.discarded \
                or host.reads or host.unsettled:
            return True
        return False

    cdef inline bint has_work(self) noexcept:
        """Return whether a topic or channel has become dirty since the turn ended."""
        if self.host.dirty_topics or self.scheduler.dirty_channels:
            return True
        return False

    cdef int go_on(self) except -1
    cdef int gather(self) except -1
    cdef int compact(self) except -1
    cdef int go_on_with_journals(self) except -1
    cdef int free_discarded(self) except -1
    cdef int read_on(self) except -1
    cdef int64_t write_hurried(self) except? -1
    cdef int do_periodic(self) except -1
    cdef int tick(self) except -1
    cdef int tick_on(self) except -1
    cdef int begin_checkpoints(self) except -1
    cdef int go_on_with_checkpoints(self) except -1
    cdef int read_again(self) except -1
    cdef int _share_syncs(self) except -1
    cdef int load_again(self, bytes key) except -1
