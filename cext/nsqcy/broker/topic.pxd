# Topics: publishing, the fan-out position, overflow to the log; and the topics of one worker.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.broker.channel cimport Channel, OnFull, Waiter
from nsqcy.broker.scheduler_state cimport SchedulerState
from nsqcy.broker.compaction cimport Compaction
from nsqcy.broker.counters cimport SERIES, Series, Sums
from nsqcy.base.histogram cimport Histogram
from nsqcy.base.ids cimport IdSource
from nsqcy.storage.io cimport IoThread
from nsqcy.storage.log cimport Log
from nsqcy.storage.log_recovery cimport Recovered
from nsqcy.broker.checkpoint_entries cimport PackedEntry
from nsqcy.broker.log_reader cimport LogRead
from nsqcy.broker.checkpoint cimport Snapshot
from nsqcy.storage.block cimport Block
from nsqcy.storage.block_pool cimport BlockPool
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Produced, Record
from nsqcy.storage.record_window cimport Cursor, RecordWindow


# What a record must have gone through before it is visible and its publisher is answered.
cdef enum Durability:
    MEMORY = 0                  # nothing
    OS = 1                      # written: it survives the end of any process
    FSYNC = 2                   # written and synced: it survives a power loss

cdef Durability durability_of(str name) except *


ctypedef struct Promise:
    uint64_t seq                # accepted when records up to this one are visible
    uint64_t ticket
    void *waiter                # owned reference


# One write under way: bytes [start, end) of a block.
cdef struct Write:
    void *topic                 # owned reference
    Block *block
    uint32_t start
    uint32_t end
    uint64_t first_seq
    uint64_t last_seq
    uint32_t count
    bint gated                  # the records become visible when it is done


# Where a recovered block lies.
ctypedef struct Place:
    uint64_t segment
    uint64_t offset
    Block *block
    bint has_delayed
    bint has_produced


cdef class Topic(RecordWindow):
    cdef readonly str name
    cdef readonly bytes key
    cdef readonly bint ephemeral
    cdef readonly str durability        # "memory", "os" or "fsync"
    cdef readonly bint paused
    cdef readonly bint gone
    cdef readonly bint started
    cdef int64_t held_until             # no fan-out before end_hold(), or then; 0: not held
    cdef bint dirty
    cdef bint overflowing               # records wait for the log before they are visible
    cdef bytes address                  # a channel, whose alone is what is being published
    cdef list unsynced_moves            # who waits for the next sync of the journal ...
    cdef list syncing_moves             # ... and for the one under way; None: there is none
    cdef bint failing                   # a write failed; what waits for the log is being undone
    cdef bint journal_stale             # what the journal says is no longer so
    cdef bint journal_due               # and it must say so before it is followed by records
    cdef Snapshot snapshot              # of the journal, under way; None: there is none
    cdef bint snapshot_due              # another one has to follow that
    cdef list journal_waiters           # who is called when the next one is written
    cdef int64_t retention_time         # ns; 0: no limit of time
    cdef uint64_t retention_bytes       # 0: no limit of size
    cdef uint64_t mem_queue_size        # messages
    cdef bint limited                   # not every size of a message is taken
    cdef int32_t min_msg_size           # bytes
    cdef int32_t max_msg_size           # bytes
    cdef int64_t ttl                    # ns from the publish; 0: for ever
    cdef uint64_t max_bytes             # 0: any number
    cdef uint64_t max_depth             # messages; 0: any number
    cdef OnFull on_full
    cdef int64_t prune_after            # ns; 0: never
    cdef bint prune_messages            # also if it has some
    cdef bint bounded                   # it or a channel has a limit of depth or bytes
    cdef bint may_drop                  # it may be too full for a message, and drop that
    cdef uint64_t full_count            # messages dropped by the topic because of that
    cdef uint64_t expired_count         # by the topic, as they were too old
    cdef dict unusual                   # of its policy: what /stats shows
    cdef Histogram ages                 # of its messages when they were finished, in all channels
    cdef Series series                  # whose figures its are shown with
    cdef uint64_t *gone_ephemerals      # counters of channels that were; NULL: there was none
    cdef bint prunes                    # it, or a channel of it, is to be pruned one day
    cdef int64_t used_at                # when it was last seen to have channels
    cdef bint retains                   # the log keeps what every channel is done with
    cdef object named                   # nsqcy.broker.named_cursors.NamedCursors
    cdef uint64_t held_bytes            # between `kept` and `outdated`: for named cursors alone
    cdef object producers               # broker.producers.Producers; None: nobody sends chunks
    cdef bint has_untold                # chunks that the journal does not know: `untold` is watched
    cdef Durability promised            # to every publisher
    cdef Durability gate                # what records wait for now: more, if some publisher asked
    cdef Durability floor               # and this at least, until the journal says what is promised
    cdef uint32_t class_writes          # journals under way that say so
    cdef uint64_t journalled            # activity() when it was written
    cdef str error
    cdef Shard shard
    cdef SchedulerState agenda
    cdef readonly dict channels
    cdef uint64_t least                 # least_seq as of the last turn
    cdef uint64_t writes                # under way
    cdef uint64_t pending_writes        # of which gated
    cdef uint64_t pending_messages      # appended, not visible yet
    cdef Entry *delayed_first           # records with a delay at or after the fan-out position
    cdef Entry *delayed_last
    cdef readonly uint64_t delayed_count
    cdef Promise *promises              # ring buffer, in the order of seq
    cdef uint32_t promise_first
    cdef uint32_t promise_count
    cdef uint32_t promise_room
    cdef Compaction compaction          # of stragglers; None: there has not been one
    cdef readonly uint64_t message_count
    cdef readonly uint64_t message_bytes
    cdef readonly uint64_t dropped_count    # an ephemeral topic's overflow
    cdef int64_t last_publish
    cdef int64_t next_journal           # not before this
    cdef bint is_last                   # the journal that is written now is the last word
    cdef bint was_restored              # there is something on disk from before
    cdef uint64_t stable                # records before it, from the first there is, are on disk
    cdef tuple missing                  # [first, end) of records in no file, as its start found
    cdef tuple past                     # logs of earlier processes (storage.journal.Incarnation)
    cdef uint64_t log_first             # the first record of the log of this one
    cdef list reads                     # of its logs, that are under way; None: there was none
    cdef uint32_t polls                 # of which wait for more
    cdef bint rolling                   # the next file is written to when what is under way is done
    cdef bint hurried                   # what is in memory only is written before the next second
    cdef Place *places                  # while restoring: blocks in the order of their places
    cdef size_t place_count

    cdef int set_durability(self, str name) except -1
    cdef void class_written(self) noexcept
    cdef int set_retention(self, int64_t time, uint64_t size) except -1
    cdef bint fits(self, int64_t size) noexcept
    cdef int32_t misfit(self, const uint8_t *batch, uint32_t count, bint headers) noexcept
    cdef bytes objection(self, const char *command, int64_t size)
    cdef Record *new_record(self, uint32_t body_length, int64_t delay) except? NULL
    cdef Record *new_headered(self, uint32_t body_length, int64_t delay, const uint8_t *headers,
                              uint16_t length) except? NULL
    cdef int new_batch(self, const uint8_t *batch, uint32_t count) except -1
    cdef uint32_t add_headered(self, const uint8_t *message, uint32_t length,
                               int64_t delay) except? 0
    cdef uint64_t add_headered_batch(self, const uint8_t *batch, uint32_t count) except? 0
    cdef Record *add_record(self, uint32_t body_length, uint32_t ext_length) except? NULL
    cdef bint drops(self, uint32_t body_bytes) noexcept
    cdef int set_delay(self, Record *record, int64_t delay) except -1
    cdef int published(self, uint32_t count, uint64_t body_bytes) except -1
    cdef int add_chunk(self, object name, const uint8_t *batch, uint64_t size, uint32_t count,
                       bint headers, Durability least, uint32_t *added, uint64_t *bodies,
                       bint moved=*) except -1
    cdef str obstacle(self, Durability least, uint64_t count, uint64_t body_bytes)
    cdef int sync_moves(self) except -1
    cdef int restore_move(self, Channel channel, const PackedEntry *packed, Block *block,
                          uint32_t within) except -1
    cdef uint64_t append_chunk(self, object name, const uint8_t *batch, uint32_t count,
                               bint headers, tuple wanted) except? 0
    cdef bint add_produced(self, const Produced *produced, const uint8_t *message, bint headers,
                           uint64_t *bodies) except -1
    cdef uint32_t headers_room(self, uint16_t length, int64_t ttl) noexcept
    cdef void put_headers(self, Record *record, uint8_t *at, const uint8_t *headers,
                          uint16_t length, int64_t ttl) noexcept
    cdef void class_journalled(self, int error) noexcept
    cdef int keep_untold(self) except -1
    cdef int journal_told(self) except -1
    cdef int promise(self, Waiter waiter, uint64_t ticket) except -1

    cdef inline bint may_refuse(self) noexcept:
        """Whether there is any reason to ask for refusal(): of a plain topic, there is not."""
        return (self.bounded or self.failing or self.gone
                or self.shard.shut is not None or self.shard.refused is not None)

    cdef str refusal(self, Durability least, uint64_t count, uint64_t body_bytes)
    cdef str fullness(self, uint64_t count, uint64_t body_bytes)
    cdef int set_bounds(self) except -1
    cdef bint exceeds_bytes(self, uint64_t count, uint64_t body_bytes) noexcept
    cdef bint exceeds_depth(self, uint64_t count) noexcept
    cdef int keep_bounds(self) except -1
    cdef int drop_front(self, uint64_t seq) except -1
    cdef int drop_expired(self) except -1
    cdef uint64_t first_fresh(self, int *budget) noexcept
    cdef int fan_out(self) except -1
    cdef bint fan_out_delayed(self) except -1
    cdef int settle_turn(self) except -1
    cdef uint64_t depth(self) noexcept
    cdef Channel find_channel(self, str name)
    cdef Channel new_channel(self, str name)
    cdef int forget_channel(self, Channel channel) except -1
    cdef void add_figures(self, uint64_t *figures) noexcept
    cdef void forget_figures(self) noexcept
    cdef int consumer_left(self, Channel channel) except -1
    cdef void add_delayed(self, Entry *entry) noexcept
    cdef void demand(self, Durability least) noexcept
    cdef bint must_overflow(self) noexcept
    cdef bint takes_at_once(self) except -1
    cdef bint needs_disk(self, Durability least) noexcept
    cdef bint flowing(self) noexcept
    cdef int keep_promises(self, uint64_t seq, str error) except -1
    cdef void touch_dirty(self) noexcept
    cdef int write_overflow(self) except -1
    cdef int spill(self) except -1
    cdef int write_all(self, Block *block) except -1
    cdef int write_run(self, Block *block, bint gated, bint at_once=*) except -1
    cdef bint publish_goes_on(self, uint64_t seq) noexcept
    cdef int on_written(self, Write *write, int error) except -1
    cdef int undo_pending(self) except -1
    cdef void check_droppable(self, Block *block) noexcept
    cdef int on_loaded(self, Block *block) except -1
    cdef void wake_channels(self) noexcept
    cdef int compact(self) except -1
    cdef int compact_now(self) except -1
    cdef int finish_compaction(self) except -1
    cdef void end_compaction(self) noexcept
    cdef void forget_counts(self) noexcept
    cdef void drop_delayed(self, uint64_t seq) noexcept
    cdef int tick(self) except -1
    cdef int checkpoint(self) except -1
    cdef bint prune(self) except -1
    cdef bint is_forlorn(self) noexcept
    cdef int journal_channel(self, kind, Channel channel) except -1
    cdef bint is_kept(self) noexcept
    cdef int retain(self) except -1
    cdef int update_retains(self) except -1
    cdef void keep_all(self) noexcept
    cdef uint64_t held_seq(self) except? 0
    cdef int let_go(self) except -1
    cdef void move_past(self, Cursor *keeper, Block *block) noexcept
    cdef int expire_cursors(self) except -1
    cdef int journal_cursor(self, cursor, bint deleted, done) except -1
    cdef void date_blocks(self) noexcept
    cdef int write_down(self) except -1
    cdef uint64_t first_kept(self) noexcept
    cdef uint64_t stable_seq(self) except? 0
    cdef void pass_written(self, Block *block) noexcept
    cdef int stable_moved(self, Block *block) except -1
    cdef object poll_log(self, Waiter waiter, uint64_t ticket, uint64_t after)
    cdef int answer_polls(self) except -1
    cdef object seek_log(self, Waiter waiter, uint64_t ticket, bytes log_id, int64_t time)
    cdef object fetch_log(self, Waiter waiter, uint64_t ticket, bytes log_id, uint64_t start,
                          uint64_t stop, uint64_t most, uint32_t columns)
    cdef int64_t time_of(self, uint64_t seq) except? 0
    cdef list logs(self)
    cdef bytes log_bounds(self, bytes log_id, uint64_t *first, uint64_t *end)
    cdef LogRead begin_read(self, LogRead read)
    cdef int name_logs(self, Recovered found, state) except -1
    cdef list stretches(self)
    cdef bint sync_found(self) except -1
    cdef bint is_outdated(self, Block *block, uint64_t held) noexcept
    cdef void cool(self) noexcept
    cdef uint64_t activity(self) noexcept
    cdef int write_journal(self, bint records_wait, done=*) except -1
    cdef int forget_snapshot(self, Snapshot snapshot, str reason) except -1
    cdef int go_on_with_journal(self, int budget) except -1
    cdef int finish_journal(self) except -1
    cdef int begin_journal(self, bint records_wait) except -1
    cdef int end_snapshot(self, Snapshot snapshot) except -1
    cdef int give_up_journal(self) except -1
    cdef bint waits_for_journal(self) noexcept
    cdef object state(self)
    cdef object channel_state(self, Channel channel)
    cdef bytes pack_delayed(self)
    cdef bint append_delta(self, delta, done=*) except -1
    cdef void settle_all(self) noexcept
    cdef bint needs_nothing(self) noexcept
    cdef int restore_blocks(self, Recovered found, uint64_t least) except -1
    cdef int find_missing(self, uint64_t seq, told) except -1
    cdef Block *block_at(self, uint64_t segment, uint64_t offset, uint32_t *within) noexcept
    cdef void place_cursor(self, Cursor *cursor, uint64_t seq) noexcept
    cdef Block *restored_block(self, const PackedEntry *packed, uint32_t *within) noexcept
    cdef int restore_entries(self, Channel channel, saved) except -1
    cdef int64_t restore_finished(self, Channel channel, finished) except -1
    cdef bint was_delayed(self, uint64_t seq) except -1
    cdef int restore_entry(self, Channel channel, const PackedEntry *packed, uint64_t id,
                           Block *block, uint32_t within) except -1
    cdef bint is_whole(self, found, state) except -1
    cdef int restore_delayed(self, bytes entries) except -1
    cdef bint load_now(self, Block *block) except -1
    cdef uint64_t first_untold(self, Recovered found, uint64_t seq) noexcept
    cdef int restore_produced(self, state, uint64_t seq) except -1
    cdef int find_produced(self, Block *block, uint64_t seq) except -1
    cdef int restore_new_delays(self, uint64_t seq, bint fanned_out) except -1
    cdef int release_unneeded(self) except -1
    cdef int journal_delta(self, delta, done) except -1
    cdef int write_part(self, Block *block, uint32_t start, uint32_t end, uint64_t first_seq,
                        uint64_t last_seq, uint32_t count, int flags, bint gated) except -1
    cdef int restore_survivors(self) except -1
    cdef int queue_survivors(self, Channel channel, Block *block) except -1
    cdef void let_go_of_kept(self) noexcept


cdef class Shard:
    """The topics of one worker."""
    cdef readonly dict topics               # bytes name -> Topic
    cdef readonly SchedulerState agenda
    cdef readonly BlockPool store
    cdef readonly IdSource ids
    cdef readonly IoThread io
    cdef readonly str data_path
    cdef dict log_options
    cdef uint64_t sync_every                # as the options say
    cdef readonly object policies           # nsqcy.broker.policies.Policies, or None
    cdef object has_room                    # whether there may be one more topic, or None
    cdef object on_event                    # called as on_event(kind, topic name, channel name)
    cdef object log                         # for operators
    cdef list dirty_topics
    cdef list ticking                       # topics that are still to be told of the second
    cdef list checkpointing                 # topics that are still to look if a checkpoint is due
    cdef int64_t checkpoint_period
    cdef int64_t next_checkpoint            # INT64_MAX: ticks are early enough
    cdef object failures                    # nsqcy.storage.write_failures.WriteFailures, or None
    cdef list compacting                    # topics whose compaction can go on
    cdef list journalling                   # topics with a snapshot of their journal under way
    cdef public int snapshot_budget         # entries a turn packs for these
    cdef list reads                         # reads of logs that can go on
    cdef list hurried                       # topics whose readers wait for what is in memory only
    cdef int64_t next_hurry                 # not before this
    cdef uint64_t reserved                  # bytes of answers to reads, made and to be made
    cdef int64_t next_tick
    cdef readonly bint closing
    cdef public int64_t hold_new            # ns a new topic is held at most; 0: not at all
    cdef public bytes boot                  # names the boot of the machine
    cdef readonly str health                # "OK" or "NOK - reason"
    cdef readonly int64_t health_at         # wall clock, ns
    cdef readonly str refused               # why nothing may be written; None: it may
    cdef public uint64_t log_hold_max_bytes     # that named cursors keep of a topic
    cdef public int64_t log_cursor_expiry       # ns without use after which one is gone
    cdef readonly str shut                  # why nothing may be published; None: it may
    cdef uint64_t own_series                # topics and channels that are shown by themselves
    cdef Sums gone[<int>SERIES]             # counters of what is gone and was not

    cdef Topic find(self, bytes key)
    cdef Topic find_or_create(self, bytes key)
    cdef int64_t turn(self) except? -1
    cdef Topic make_topic(self, bytes key)
    cdef int tell(self, str text) except -1
    cdef int give_policy(self, Topic topic) except -1
    cdef int give_channel_policy(self, Topic topic, Channel channel) except -1
    cdef int expire(self) except -1
    cdef bint dispatch(self) except -1
    cdef int compact(self) except -1
    cdef inline bint has_long_work(self) noexcept
    cdef int go_on(self) except -1
    cdef int go_on_with_journals(self) except -1
    cdef int free_discarded(self) except -1
    cdef int read_on(self) except -1
    cdef int write_hurried(self) except -1
    cdef uint64_t answer_room(self, uint64_t wanted) noexcept
    cdef int tick(self) except -1
    cdef int tick_on(self) except -1
    cdef int begin_checkpoints(self) except -1
    cdef int go_on_with_checkpoints(self) except -1
    cdef bint has_work(self) noexcept
    cdef int report(self, str name, error) except -1
