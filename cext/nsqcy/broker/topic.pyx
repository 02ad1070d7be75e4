"""Topics: publishing, fan-out, overflow to the log, recovery; and the shard of topics of a worker.

A topic is the window of its records plus the channels that read them. Knows neither connections
nor clocks nor the event loop. The life of a record:

    appended ──► visible ──► fanned out ──► taken by each channel's cursor
             │           │
             │           └ at once, unless the topic is paused, is held or has no channel
             └ at once, unless the topic overflows or is to be durable: then when the log has
               written it, or synced it, and the publisher is answered then
"""

import json
import os
from dataclasses import replace

cimport cython
from libc.limits cimport INT_MAX
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

from nsqcy.base.bytes cimport load_be16, load_be32
from nsqcy.broker.channel cimport (
    DROP_NEWEST,
    DROP_OLDEST,
    REJECT,
    Discarded,
    MoveReason,
    Waiter,
    on_full_of,
)
from nsqcy.broker.scheduler_state cimport Timer
from nsqcy.broker.compaction cimport IDLE, Compaction, is_worthwhile
from nsqcy.broker.counters cimport (
    CHANNEL_COUNTERS,
    CHANNEL_FIGURES,
    EPHEMERALS,
    OWN,
    TOPIC_BYTES,
    TOPIC_COUNTERS,
    TOPIC_DEPTH,
    TOPIC_DISK_BYTES,
    TOPIC_DROPPED,
    TOPIC_FIGURES,
    TOPIC_MESSAGES,
    TOPIC_PAUSED,
    add_counters,
)
from nsqcy.base.headers cimport HEADERS_SIZE, headers_ttl
from nsqcy.base.heap cimport HeapNode, heap_first_due, heap_peek
from nsqcy.base.histogram cimport histogram_merge
from nsqcy.storage.log cimport Log
from nsqcy.storage.log_recovery cimport Recovered, RecoveredRun, recover_log
from nsqcy.storage.segment cimport RUN_HAS_DELAYED, RUN_HAS_PRODUCED, RUN_SURVIVORS, Segment
from nsqcy.broker.dead_letters cimport Moves
from nsqcy.broker.checkpoint_entries cimport PackedEntry, Packing
from nsqcy.broker.peek cimport Peek
from nsqcy.broker.log_reader cimport ENDED, Fetch, LogRead, Poll, Seek, WAITING
from nsqcy.broker.checkpoint cimport Snapshot
from nsqcy.storage.block cimport IN_WINDOW, LOADING, SEALED, SURVIVORS, UNREADABLE, offset_of
from nsqcy.storage.entry cimport DEFERRED, MOVING, Deferred, size_tag
from nsqcy.storage.record cimport (
    RECORD_ADDRESSED,
    RECORD_DAMAGED,
    RECORD_DELAYED,
    RECORD_EXPIRES,
    RECORD_EXT_CHANNEL,
    RECORD_EXT_DELAY,
    RECORD_EXT_DELAY_SIZE,
    RECORD_EXT_EXPIRES,
    RECORD_EXT_EXPIRES_SIZE,
    RECORD_EXT_HEADERS,
    RECORD_EXT_PRODUCED,
    RECORD_EXT_PRODUCED_SIZE,
    RECORD_HEADERS,
    RECORD_PRODUCED,
    Produced,
    is_spoiled,
    record_address,
    record_address_of,
    record_body,
    record_delay,
    record_extend,
    record_extension_size,
    record_produced,
)
from nsqcy.storage.record_window cimport append_record

from nsqcy.broker import events as _events
from nsqcy.broker import dead_letter_headers as dead_letters
from nsqcy.storage import journal
from nsqcy.config.durations import short_duration
from nsqcy.broker.named_cursors import NamedCursors
from nsqcy.names import EVENTS_TOPIC as _EVENTS_TOPIC
from nsqcy.names import is_ephemeral
from nsqcy.broker.policies import DURABILITIES as _DURABILITIES
from nsqcy.broker.producers import ChunkError, ChunkName, Producers, messages_in
from nsqcy.storage.write_failures import WriteFailures


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_DECREF(object)


cdef enum:
    # What one turn does of each at most; the rest stays for the next one.
    DISPATCH_BUDGET = 4096          # records that channels deliver or step over
    EXPIRE_BUDGET = 4096            # messages that are due, or have timed out
    COMPACT_BUDGET = 4096           # entries visited by compactions, and what it costs to copy
    TICK_BUDGET = 256               # topics of whom the second is over, or a checkpoint may be due
    JOURNAL_TICKS = 16              # a journal that is due costs as much as so many of them
    FAN_OUT_BUDGET = 4096           # delayed records fanned out in one step
    SNAPSHOT_BUDGET = 4096          # entries packed for snapshots of journals
    DISCARD_BUDGET = 4096           # messages freed that were dropped
    DELAYED_PACKED = 16384          # records of a backlog; a start finds the rest by itself
    TICK_EXPIRES = 4096             # records of a topic's own that a tick finds too old
    KEPT = 128                      # block flag: survivors that nobody is known to need, or not to
    ADDRESS_HEADER = 16             # bytes of that header but for its value
    READ_BUDGET = 8192              # records that reads of logs look at, or what costs as much
    READ_SLICE = 2048               # of which one, before the next has its turn
    ANSWERS_MOST = 67108864         # bytes of their answers; above it they become short
    SHORT_ANSWER = 262144

cdef int64_t MILLISECOND = 1000000
cdef int32_t NO_LIMIT = 0x7fffffff  # of the bytes of a message: the wire has no larger ones

cdef int compare_runs(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<const RecoveredRun *>a).first_seq
    cdef uint64_t other = (<const RecoveredRun *>b).first_seq
    return (one > other) - (one < other)


cdef int compare_places(const void *a, const void *b) noexcept nogil:
    cdef const Place *one = <const Place *>a
    cdef const Place *other = <const Place *>b
    if one.segment != other.segment:
        return -1 if one.segment < other.segment else 1
    if one.offset != other.offset:
        return -1 if one.offset < other.offset else 1
    return 0


cdef Block *block_behind(const Cursor *keeper) noexcept:
    """The first block that a cursor that keeps has not passed: it stands at the start of a block,
    or at the end of the last one."""
    cdef Block *block = keeper.block
    return block if block == NULL or keeper.offset == 0 else block.next


EXITING = "exiting"
DRAINING = "draining"

cdef int64_t SECOND = 1000000000
cdef uint64_t NOTHING_HELD = <uint64_t>-1
cdef int64_t REST = 10 * SECOND     # idle time after which an open block is given back
cdef int64_t MIN_CHECKPOINT_PERIOD = SECOND // 100
cdef int64_t HURRY = SECOND // 10   # between two writes for whom waits for more of a log


cdef Durability durability_of(str name) except *:
    if name == "memory":        # as nearly everybody's
        return MEMORY
    return <Durability><int>_DURABILITIES.index(name)


def boot_id():
    """16 bytes that name this boot of the machine; zeros if it does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


cdef object name_of(const Produced *produced):
    return ChunkName(produced.producer, produced.epoch, produced.part, produced.chunk)


cdef bint is_next(const Produced *stretch, uint32_t end, const Produced *produced) noexcept:
    """Whether a message is the one that follows on [stretch.index, end) of its chunk."""
    return (produced.index == end and produced.chunk == stretch.chunk
            and produced.part == stretch.part and produced.epoch == stretch.epoch
            and produced.producer == stretch.producer and produced.count == stretch.count)


cdef int note_error(void *arg, int error) except -1:
    (<int *>arg)[0] = error
    return 0


cdef int journal_done(void *arg, int error) except -1:
    """The journal was written, or not. arg: an owned pair, a topic whose class it says, or None,
    and those who wait for it."""
    waiting = <object>arg
    Py_DECREF(waiting)
    topic, waiters = waiting
    if topic is not None:
        (<Topic>topic).class_journalled(error)
    for done in waiters:
        done(os.strerror(error).lower() if error else None)
    return 0


cdef int moves_synced(void *arg, int error) except -1:
    topic = <object>arg
    Py_DECREF(topic)
    topic.moves_synced(os.strerror(error).lower() if error else None)
    return 0


cdef int write_done(void *arg, int error) except -1:
    cdef Write *write = <Write *>arg
    cdef Topic topic = <Topic>write.topic
    try:
        topic.on_written(write, error)
    finally:
        free(write)
        Py_DECREF(topic)
    return 0


@cython.no_gc_clear      # as the window it is
cdef class Topic(RecordWindow):
    def __cinit__(self, Shard shard not None, bytes key not None):
        self.shard = shard
        self.agenda = shard.agenda
        self.store = shard.store
        self.key = key
        self.name = key.decode()
        self.ephemeral = is_ephemeral(self.name)
        if self.ephemeral:
            self.series = EPHEMERALS
        self.channels = {}
        self.journal_waiters = []
        self.unsynced_moves = []
        self.named = NamedCursors()
        self.durability = "memory"
        self.started = True
        self.least = 1
        self.stable = self.log_first = 1
        self.past = self.missing = ()
        self.may_drop = self.ephemeral
        self.mem_queue_size = self.agenda.mem_queue_size
        self.max_msg_size = NO_LIMIT
        self.last_publish = self.agenda.now
        self.watch(&self.visible)
        self.watch(&self.fanout)

    def __dealloc__(self):
        free(self.promises)
        free(self.gone_ephemerals)

    # -- policy --

    def set_policy(self, policy):
        """What its operator asks of the topic (nsqcy.broker.policies), from now on. An ephemeral
        topic is never on disk."""
        self.mem_queue_size = (
            self.agenda.mem_queue_size if policy.mem_queue_size is None else policy.mem_queue_size)
        self.min_msg_size = min(policy.min_msg_size, NO_LIMIT)
        self.max_msg_size = NO_LIMIT if policy.max_msg_size is None else policy.max_msg_size
        self.limited = self.min_msg_size > 1 or self.max_msg_size != NO_LIMIT
        self.ttl = policy.ttl
        self.max_bytes = policy.max_bytes
        self.max_depth = policy.max_depth
        self.on_full = on_full_of(policy.on_full)
        self.prune_after = policy.prune_after
        self.prune_messages = policy.prune_messages
        if self.log is not None:
            self.set_durability(policy.durability)
            self.set_retention(policy.retention_time, policy.retention_bytes)

    cdef int set_durability(self, str name) except -1:
        """For what is published from now on; what was published before is as durable as it was."""
        cdef Durability wanted = durability_of(name)
        if wanted == self.promised:
            return 0
        if self.next_seq > 1 or self.channels:
            # The log_id is kept after a crash if the journal says that nothing was lost. So it says
            # so before more is promised, and no longer says so before less is.
            self.journal_due = True
            self.gate = max(self.gate, wanted)
            self.floor = self.gate if wanted < self.gate else MEMORY
        else:
            self.gate = wanted
        self.durability = name
        self.promised = wanted
        # A write of class OS would wait for a sync that nobody asked for.
        self.log.sync_every = 0 if wanted == OS else self.shard.sync_every
        self.touch_dirty()
        return 0

    cdef void class_journalled(self, int error) noexcept:
        """A journal that says of which class the topic is was written, or not."""
        self.class_writes -= 1
        if error:
            self.journal_stale = True
        elif self.class_writes == 0 and not self.journal_due:
            self.class_written()

    cdef void class_written(self) noexcept:
        """The journal says what is promised now."""
        self.floor = MEMORY
        if not self.overflowing:
            self.gate = self.promised

    cdef int set_retention(self, int64_t time, uint64_t size) except -1:
        """What every channel is done with is kept from now on, or let go at once."""
        self.retention_time = time
        self.retention_bytes = size
        return self.update_retains()

    cdef bint fits(self, int64_t size) noexcept:
        """Whether a message of this size is taken by a topic that is `limited`."""
        return self.min_msg_size <= size <= self.max_msg_size

    cdef int32_t misfit(self, const uint8_t *batch, uint32_t count,
                        bint headers) noexcept:
        """The size of the first message of an MPUB that is not, with headers before their bodies or
        without; or 0."""
        cdef uint32_t length
        cdef int64_t body
        cdef uint32_t _i
        for _i in range(count):
            body = length = load_be32(batch)
            if headers:
                body -= HEADERS_SIZE + load_be16(batch + 4)
            if not self.fits(body):
                return <int32_t>body
            batch += 4 + length
        return 0

    cdef bytes objection(self, const char *command, int64_t size):
        """Why it is not."""
        if size > self.max_msg_size:
            return b"E_BAD_MESSAGE %s message too big %d > %d" % (
                <bytes>command, size, self.max_msg_size)
        return b"E_BAD_MESSAGE %s message too small %d < %d" % (
            <bytes>command, size, self.min_msg_size)

    # -- numbers --

    cdef uint64_t depth(self) noexcept:
        """Messages of the topic that no channel has been given yet."""
        return self.visible.seq - self.fanout.seq

    def remains(self):
        """What consumers are not done with, as (channel, waiting, in flight, deferred); what no
        channel has been given yet, or is not written yet, is the topic's: its channel is "".
        Nothing that is ephemeral, as that is never kept, and no events."""
        cdef Channel channel
        cdef uint64_t waiting = self.depth() + self.pending_messages
        if self.ephemeral or self.name == _EVENTS_TOPIC:
            return []
        found = [("", waiting, 0, 0)] if waiting else []
        for channel in self.channels.values():
            if not channel.ephemeral and channel.held():
                found.append((channel.name, channel.depth(), channel.in_flight_count,
                              channel.deferred_count))
        return found

    @property
    def memory_bytes(self):
        """Bytes of records in memory."""
        cdef uint64_t total = 0
        cdef Block *block = self.oldest
        while block != NULL:
            if block.data != NULL:
                total += block.capacity
            block = block.next
        block = self.stragglers
        while block != NULL:
            if block.data != NULL:
                total += block.capacity
            block = block.next
        return total

    def counters(self):
        """What /stats shows of the topic itself, as a dict."""
        cdef Channel channel
        cdef uint64_t depth = self.depth()
        cdef uint64_t memory = self.mem_queue_size
        shown = {
            "topic_name": self.name,
            "depth": depth,
            "backend_depth": 0 if self.ephemeral or depth < memory else depth - memory,
            "message_count": self.message_count,
            "message_bytes": self.message_bytes,
            "paused": bool(self.paused),
            "e2e_processing_latency": self.agenda.percentiles.summary(
                [channel.latency for channel in self.channels.values()], self.agenda.now),
        }
        if self.durability != "memory":
            shown["durability"] = self.durability
        if self.named:
            shown["cursors"] = self.cursor_facts()
        if self.unusual:
            shown["policy"] = self.unusual
        return shown

    cdef void add_figures(self, uint64_t *figures) noexcept:
        """Add what metrics show of the topic itself."""
        figures[TOPIC_MESSAGES] += self.message_count
        figures[TOPIC_BYTES] += self.message_bytes
        figures[TOPIC_DROPPED] += self.full_count + self.dropped_count + self.expired_count
        figures[TOPIC_DEPTH] += self.depth()
        if self.log is not None:
            figures[TOPIC_DISK_BYTES] += self.log.disk_bytes + self.log.journal_bytes
        figures[TOPIC_PAUSED] += self.paused

    cdef int forget_channel(self, Channel channel) except -1:
        """A channel goes: where its counters are a part of a sum, that keeps them."""
        cdef uint64_t figures[CHANNEL_FIGURES]
        cdef uint64_t *kept = NULL
        if channel.series == OWN:
            self.shard.own_series -= 1
        elif self.series > OWN:
            kept = self.shard.gone[<int>self.series].channel
        elif channel.series > OWN:
            kept = self.shard.gone[<int>channel.series].channel
        elif channel.ephemeral:
            if self.gone_ephemerals == NULL:
                self.gone_ephemerals = <uint64_t *>calloc(CHANNEL_COUNTERS, sizeof(uint64_t))
                if self.gone_ephemerals == NULL:
                    raise MemoryError()
            kept = self.gone_ephemerals
        if kept != NULL:
            memset(figures, 0, sizeof(figures))
            channel.add_figures(figures)
            add_counters(kept, figures, CHANNEL_COUNTERS)
        return 0

    cdef void forget_figures(self) noexcept:
        """The same for the topic itself."""
        cdef uint64_t figures[TOPIC_FIGURES]
        cdef Sums *kept
        if self.series == OWN:
            self.shard.own_series -= 1
        elif self.series > OWN:
            kept = &self.shard.gone[<int>self.series]
            memset(figures, 0, sizeof(figures))
            self.add_figures(figures)
            add_counters(kept.topic, figures, TOPIC_COUNTERS)
            histogram_merge(&kept.ages, &self.ages)
            if self.gone_ephemerals != NULL:
                add_counters(kept.channel, self.gone_ephemerals, CHANNEL_COUNTERS)

    def ledger(self):
        """Messages that it took and dropped itself: no channel ever received them."""
        return {
            "dropped": {"full": self.full_count, "overflow": self.dropped_count},
            "expired": self.expired_count,
        }

    # -- publishing --

    cdef Record *new_record(self, uint32_t body_length, int64_t delay) except? NULL:
        """A record with everything but its body, for the caller to copy that in and then, once for
        all records of the command, to call published(). NULL: an ephemeral topic is full and
        drops the message, which counts as published."""
        cdef Record *record = self.add_record(body_length, RECORD_EXT_DELAY_SIZE if delay else 0)
        if delay and record != NULL:
            self.set_delay(record, delay)
        return record

    cdef Record *new_headered(self, uint32_t body_length, int64_t delay, const uint8_t *headers,
                              uint16_t length) except? NULL:
        """The same with headers, which were checked and are `length` bytes."""
        cdef uint32_t before = RECORD_EXT_DELAY_SIZE if delay else 0
        cdef int64_t ttl = headers_ttl(headers, length)
        cdef Record *record
        if length == 0:
            return self.new_record(body_length, delay)
        record = self.add_record(body_length, before + self.headers_room(length, ttl))
        if record == NULL:
            return NULL
        if delay:
            self.set_delay(record, delay)
        self.put_headers(record, <uint8_t *>record + sizeof(Record) + before, headers, length, ttl)
        return record

    cdef inline uint32_t headers_room(self, uint16_t length, int64_t ttl) noexcept:
        """Bytes of extensions that put_headers() writes."""
        return record_extension_size(length) + (RECORD_EXT_EXPIRES_SIZE if ttl else 0)

    cdef inline void put_headers(self, Record *record, uint8_t *at, const uint8_t *headers,
                                 uint16_t length, int64_t ttl) noexcept:
        """Give the newest record its headers, and when it expires because of them."""
        at = record_extend(at, RECORD_EXT_HEADERS, headers, length)
        record.attributes |= RECORD_HEADERS
        if ttl:
            ttl = self.agenda.wall + ttl * MILLISECOND
            record_extend(at, RECORD_EXT_EXPIRES, &ttl, sizeof(ttl))
            record.attributes |= RECORD_EXPIRES
            self.perishable = True

    cdef int new_batch(self, const uint8_t *batch, uint32_t count) except -1:
        """The same for `count` messages without a delay, with their bodies: each lies behind its
        length, as in an MPUB, and these are checked."""
        cdef Record *record
        cdef size_t length
        cdef uint32_t _i
        for _i in range(count):
            length = load_be32(batch)
            batch += 4
            record = self.add_record(<uint32_t>length, 0)
            if record != NULL:
                memcpy(<uint8_t *>record + sizeof(Record), batch, length)
            batch += length
        return 0

    cdef uint32_t add_headered(self, const uint8_t *message, uint32_t length,
                               int64_t delay) except? 0:
        """A whole message as a client sends it that has negotiated headers, checked: their length,
        they, the body. Returns the bytes of that."""
        cdef uint16_t headers = load_be16(message)
        cdef uint32_t body = length - HEADERS_SIZE - headers
        cdef Record *record = self.new_headered(body, delay, message + HEADERS_SIZE, headers)
        if record != NULL:
            memcpy(record_body(record), message + HEADERS_SIZE + headers, body)
        return body

    cdef uint64_t add_headered_batch(self, const uint8_t *batch, uint32_t count) except? 0:
        """The same for `count` messages, each behind its length. Returns the bytes of bodies."""
        cdef uint64_t total = 0
        cdef uint32_t length
        cdef uint32_t _i
        for _i in range(count):
            length = load_be32(batch)
            total += self.add_headered(batch + 4, length, 0)
            batch += 4 + length
        return total

    @cython.final
    cdef Record *add_record(self, uint32_t body_length, uint32_t ext_length) except? NULL:
        """A record with everything but its extensions and its body; NULL: dropped."""
        cdef Record *record
        if self.may_drop and self.drops(body_length):
            return NULL
        if self.log is not None and not self.overflowing and self.must_overflow():
            self.overflowing = True
            self.seal()
        record = append_record(self, body_length, ext_length)
        record.id = self.shard.ids.next(self.agenda.wall)
        record.timestamp = self.agenda.wall
        return record

    cdef bint drops(self, uint32_t body_bytes) noexcept:
        """Whether the topic is full and drops a message that comes, which it counts."""
        if self.bounded and self.on_full == DROP_NEWEST and (
                self.exceeds_depth(1) or self.exceeds_bytes(1, body_bytes)):
            self.full_count += 1
            return True
        if self.ephemeral and not self.flowing() \
                and self.next_seq - self.fanout.seq >= self.mem_queue_size:
            self.dropped_count += 1
            return True
        return False

    cdef int set_delay(self, Record *record, int64_t delay) except -1:
        """Give the newest record, which has room for it, its delay."""
        cdef uint16_t *ext = <uint16_t *>(<uint8_t *>record + sizeof(Record))
        cdef Entry *entry
        record.attributes = RECORD_DELAYED
        ext[0] = RECORD_EXT_DELAY
        ext[1] = 8
        ext[2] = ext[3] = 0
        (<int64_t *>(ext + 4))[0] = delay
        entry = self.store.new_entry()
        entry.seq = record.seq
        entry.id = record.id
        entry.block = self.newest
        entry.offset = <uint32_t>(<uint8_t *>record - self.newest.data)
        entry.node.tag = size_tag(record.body_length)
        entry.due = delay
        entry.timestamp = 0
        self.add_delayed(entry)
        return 0

    @cython.final
    cdef void add_delayed(self, Entry *entry) noexcept:
        """Remember a record with a delay (`due`), for one channel (`timestamp`: its address) or all
        (0), until it is fanned out."""
        entry.state = DEFERRED
        entry.attempts = 0
        entry.next = NULL
        self.ref(entry.block)
        if self.delayed_last == NULL:
            self.delayed_first = entry
        else:
            self.delayed_last.next = entry
        self.delayed_last = entry
        self.delayed_count += 1

    cdef void demand(self, Durability least) noexcept:
        """A publisher wants more than the topic promises: so does, until it is answered, what comes
        behind it. Right before its records."""
        if self.log is not None and self.gate < least:
            if not self.is_kept():
                # So far a start would not have found anything: who is there is written first.
                self.journal_due = True
            self.gate = least

    @cython.final
    cdef bint must_overflow(self) noexcept:
        return (self.gate != MEMORY
                or self.next_seq - self.least >= self.mem_queue_size
                or self.store.resident_bytes > self.store.budget)

    @cython.final
    cdef bint flowing(self) noexcept:
        if not self.channels:
            return False
        return self.started and not self.paused and self.held_until == 0

    cdef int published(self, uint32_t count, uint64_t body_bytes) except -1:
        """The bodies of `count` records are in place. Returns whether they wait for the log."""
        self.message_count += count
        self.message_bytes += body_bytes
        self.last_publish = self.agenda.now
        self.touch_dirty()
        if self.overflowing and self.visible.seq != self.next_seq:     # not all were dropped
            self.pending_messages += count
            return 1
        self.cursor_to_end(&self.visible)
        self.fan_out()
        return 0

    cdef int add_chunk(self, object name, const uint8_t *batch, uint64_t size, uint32_t count,
                       bint headers, Durability least, uint32_t *added, uint64_t *bodies,
                       bint moved=False) except -1:
        """Append what is not there yet of a chunk (producers.ChunkName), whose messages
        lie as for new_batch, in `size` bytes, or with headers before their bodies. That are so many
        messages, and bytes of bodies, for the caller to call published() with them: also with none,
        as an attempt may be under way, whose outcome is to be waited for. ChunkError: it cannot be
        taken, and nothing was appended. `moved`: they come from another topic, and be it while we
        drain."""
        if self.producers is None:
            self.producers = Producers()
        added[0] = 0
        bodies[0] = 0
        wanted = self.producers.wanted(name, count, self.visible.seq, self.agenda.wall)
        if not wanted:
            return 0
        refusal = (self.obstacle(least, count, size) if moved and self.shard.shut is DRAINING
                   else self.refusal(least, count, size))
        if refusal is not None:
            raise ChunkError(refusal)
        if least != MEMORY:
            self.demand(least)
        if moved:
            address, _ = dead_letters.split_address(batch[6:6 + load_be16(batch + 4)])
            if address is not None and address not in self.channels:
                raise ChunkError(dead_letters.NO_CHANNEL)
            self.address = None if address is None else address.encode()
        self.keep_untold()
        added[0] = messages_in(wanted)
        try:
            bodies[0] = self.append_chunk(name, batch, count, headers, wanted)
        finally:
            self.address = None
        return 0

    cdef uint64_t append_chunk(self, object name, const uint8_t *batch, uint32_t count,
                               bint headers, tuple wanted) except? 0:
        """Append the messages of a chunk that are wanted; returns the bytes of their bodies."""
        cdef uint64_t first_seq = self.next_seq
        cdef uint64_t bodies = 0
        cdef uint32_t index = 0
        cdef uint32_t begun
        cdef uint32_t first
        cdef uint32_t end
        cdef Produced produced
        produced.producer, produced.epoch, produced.part, produced.chunk = name
        produced.count = count
        produced.reserved = 0
        taken = []
        for first, end in wanted:
            while index < first:
                batch += 4 + load_be32(batch)
                index += 1
            begun = first
            while index < end:
                produced.index = index
                if not self.add_produced(&produced, batch, headers, &bodies):
                    # Dropped by a topic that is full: as good as published.
                    if begun < index:
                        taken.append((begun, index))
                    begun = index + 1
                batch += 4 + load_be32(batch)
                index += 1
            if begun < end:
                taken.append((begun, end))
        self.producers.published(name, first_seq, tuple(taken))
        return bodies

    cdef bint add_produced(self, const Produced *produced, const uint8_t *message, bint headers,
                           uint64_t *bodies) except -1:
        """One message of a chunk, behind its length; whether it was taken."""
        cdef uint32_t body = load_be32(message)
        cdef uint16_t length = 0
        cdef uint32_t ext = RECORD_EXT_PRODUCED_SIZE
        cdef uint16_t address = 0
        cdef int64_t ttl = 0
        cdef Record *record
        cdef uint8_t *at
        message += 4
        if headers:
            length = load_be16(message)
            message += HEADERS_SIZE
            body -= HEADERS_SIZE + length
        if self.address is not None:
            address = len(self.address)
            ext += RECORD_EXT_DELAY_SIZE + record_extension_size(address)
            # Its own header says it no more.
            message += ADDRESS_HEADER + address
            length -= <uint16_t>(ADDRESS_HEADER + address)
        if length:
            ttl = headers_ttl(message, length)
            ext += self.headers_room(length, ttl)
        bodies[0] += body
        record = self.add_record(body, ext)
        if record == NULL:
            return False
        at = <uint8_t *>record + sizeof(Record)
        if address:
            # A delay that is over at once: it is an entry of that channel, and of no other.
            self.set_delay(record, 0)
            self.delayed_last.timestamp = <int64_t>record_address_of(self.address, address)
            record.attributes |= RECORD_ADDRESSED
            at = record_extend(at + RECORD_EXT_DELAY_SIZE, RECORD_EXT_CHANNEL,
                               <const uint8_t *>self.address, address)
        record.attributes |= RECORD_PRODUCED
        at = record_extend(at, RECORD_EXT_PRODUCED, produced, sizeof(Produced))
        if length:
            self.put_headers(record, at, message, length, ttl)
        memcpy(record_body(record), message + length, body)
        return True

    cdef int keep_untold(self) except -1:
        """A chunk follows. Until the journal knows of it its records stay, or a crash might leave
        no trace of it, and it were published again."""
        if self.gate != MEMORY and not self.has_untold:
            self.watch(&self.untold)
            self.has_untold = True
        return 0

    cdef int promise(self, Waiter waiter, uint64_t ticket) except -1:
        """Tell `waiter` when everything appended so far is visible, or has failed."""
        cdef Promise *grown
        cdef Promise *promise
        cdef uint32_t i
        if self.promise_count == self.promise_room:
            grown = <Promise *>malloc((2 * self.promise_room + 16) * sizeof(Promise))
            if grown == NULL:
                raise MemoryError()
            for i in range(self.promise_count):
                grown[i] = self.promises[(self.promise_first + i) % self.promise_room]
            free(self.promises)
            self.promises = grown
            self.promise_first = 0
            self.promise_room = 2 * self.promise_room + 16
        promise = &self.promises[(self.promise_first + self.promise_count) % self.promise_room]
        promise.seq = self.next_seq - 1
        promise.ticket = ticket
        promise.waiter = <void *>waiter
        Py_INCREF(waiter)
        self.promise_count += 1
        return 0

    cdef int keep_promises(self, uint64_t seq, str error) except -1:
        """Answer everyone who waits for records up to `seq`."""
        cdef Promise promise
        cdef Waiter waiter
        while self.promise_count and self.promises[self.promise_first].seq <= seq:
            promise = self.promises[self.promise_first]
            self.promise_first = (self.promise_first + 1) % self.promise_room
            self.promise_count -= 1
            waiter = <Waiter>promise.waiter
            Py_DECREF(waiter)
            waiter.publish_done(promise.ticket, error)
        return 0

    cdef str refusal(self, Durability least, uint64_t count, uint64_t body_bytes):
        """Why a publish of so much that is to be as durable as this cannot be taken right now; None
        if it can."""
        if self.shard.shut is not None and not self.gone:
            return self.shard.shut
        return self.obstacle(least, count, body_bytes)

    cdef str obstacle(self, Durability least, uint64_t count, uint64_t body_bytes):
        """The same of one that is taken while we drain."""
        if self.gone:
            return EXITING
        if self.shard.refused is not None and self.needs_disk(least):
            return self.shard.refused
        if self.bounded:
            reason = self.fullness(count, body_bytes)
            if reason is not None:
                return reason
        return self.error if self.failing else None

    cdef bint takes_at_once(self) except -1:
        """Whether a publish is neither refused nor has to wait for the log."""
        if self.overflowing or self.bounded:
            return False
        if self.may_refuse() and self.refusal(MEMORY, 1, 0) is not None:
            return False
        return self.log is None or not self.must_overflow()

    cdef bint needs_disk(self, Durability least) noexcept:
        """Whether a record of this durability, published now, has to be written before it is
        visible."""
        if self.log is None:
            return False
        self.touch_dirty()      # what consumers have finished may have ended an overflow
        return least != MEMORY or self.overflowing or self.must_overflow()

    # -- limits --

    cdef str fullness(self, uint64_t count, uint64_t body_bytes):
        """Why a publish of so much is too much for the topic, or for a channel, that refuses it;
        None if it is not."""
        cdef Channel channel
        cdef uint64_t coming = self.next_seq - self.fanout.seq + count
        if self.on_full == REJECT:
            if self.exceeds_depth(count):
                return f"topic {self.name} is full (max-depth {self.max_depth})"
            if self.exceeds_bytes(count, body_bytes):
                return f"topic {self.name} is full (max-bytes {self.max_bytes})"
        if not self.flowing():
            return None
        for channel in self.channels.values():
            if channel.max_depth and channel.on_full == REJECT \
                    and channel.depth() + coming > channel.max_depth:
                return f"channel {self.name}/{channel.name} is full (max-depth {channel.max_depth})"
        return None

    cdef bint exceeds_bytes(self, uint64_t count, uint64_t body_bytes) noexcept:
        """Whether so much more would be more bytes than the topic may hold."""
        if self.max_bytes == 0:
            return False
        return (self.bytes_from(self.last_reader()) + count * sizeof(Record) + body_bytes
                > self.max_bytes)

    cdef bint exceeds_depth(self, uint64_t count) noexcept:
        """Whether so many more would be more than may wait in the topic or in a channel."""
        cdef Channel channel
        cdef uint64_t coming = self.next_seq - self.fanout.seq + count
        if self.max_depth == 0:
            return False
        if not self.flowing():
            return coming > self.max_depth
        for channel in self.channels.values():
            if channel.depth() + coming > self.max_depth:
                return True
        return False

    cdef int set_bounds(self) except -1:
        """Limits of the topic or of a channel have changed, or a channel has come."""
        cdef Channel channel
        cdef uint64_t messages
        self.bounded = self.max_depth != 0 or self.max_bytes != 0
        for channel in self.channels.values():
            channel.set_ttl(self.ttl)
            messages = channel.max_depth
            if messages and channel.on_full == REJECT:
                self.bounded = True
                messages = 0
            if self.on_full != DROP_OLDEST:
                channel.keep_at_most(messages, 0)
                continue
            if self.max_depth and (messages == 0 or messages > self.max_depth):
                messages = self.max_depth
            channel.keep_at_most(messages, self.max_bytes)
        self.may_drop = self.ephemeral or self.bounded and self.on_full == DROP_NEWEST
        if self.bounded:
            self.touch_dirty()
        return 0

    cdef int keep_bounds(self) except -1:
        """Drop the oldest of what no channel has been given, where there is too much of it."""
        cdef uint64_t depth = self.depth()
        cdef Cursor *front = &self.fanout
        if self.max_depth and depth > self.max_depth:
            self.full_count += depth - self.max_depth
            self.drop_front(self.visible.seq - self.max_depth)
        while self.max_bytes and front.seq < self.visible.seq \
                and self.bytes_from(front) > self.max_bytes:
            depth = self.depth()
            self.drop_front(min(self.visible.seq, front.block.last_seq + 1))
            self.full_count += depth - self.depth()
        return 0

    # -- fan-out --

    @cython.final
    cdef int fan_out(self) except -1:
        """Give the channels everything that is visible; returns whether some is left for the next
        turn (records with a delay cost an entry for each channel)."""
        if not self.flowing():
            return 0
        if self.delayed_first != NULL and self.fan_out_delayed():
            return 1
        self.move_cursor(&self.fanout, &self.visible)
        self.touch_dirty()
        return 0

    @cython.final
    cdef bint fan_out_delayed(self) except -1:
        """Those of the records with a delay; whether some are left."""
        cdef Channel channel
        cdef Entry *entry = self.delayed_first
        cdef int64_t due
        cdef int budget = FAN_OUT_BUDGET
        cdef Cursor stop
        while entry != NULL and entry.seq < self.visible.seq:
            if budget == 0:
                stop.block = entry.block
                stop.offset = entry.offset
                stop.seq = entry.seq
                if stop.seq > self.fanout.seq:
                    self.move_cursor(&self.fanout, &stop)
                self.touch_dirty()
                return True
            budget -= 1
            due = self.agenda.now + entry.due
            for channel in self.channels.values():
                # One that is restored may be younger than the record.
                if channel.cursor.seq <= entry.seq:
                    if entry.timestamp == 0:
                        channel.defer_record(entry, due)
                    elif <uint64_t>entry.timestamp == channel.address:
                        channel.queue_record(entry)
                    else:
                        channel.pass_over()
            self.delayed_first = entry.next
            if entry.next == NULL:
                self.delayed_last = NULL
            self.delayed_count -= 1
            self.unref(entry.block)
            self.store.free_entry(entry)
            entry = self.delayed_first
        return False

    @cython.final
    cdef void touch_dirty(self) noexcept:
        """Have settle_turn called at the end of the turn."""
        if not self.dirty:
            self.dirty = True
            self.shard.dirty_topics.append(self)

    cdef int settle_turn(self) except -1:
        """The end of a turn in which something happened to the topic."""
        cdef Channel channel
        self.dirty = False
        if self.gone:
            return 0
        if self.fanout.seq < self.visible.seq:
            self.fan_out()
            if self.bounded and self.on_full == DROP_OLDEST and not self.flowing():
                self.keep_bounds()
        for channel in self.channels.values():
            if channel.ephemeral:
                channel.collect()
            channel.touch_dirty()
        self.journal_stale = True
        if self.log is not None:
            if self.journal_due and self.is_kept():
                self.write_journal(True)
            if not self.waits_for_journal():
                self.write_overflow()
            if self.rolling and self.writes == 0:
                self.write_down()
        self.settle(&self.visible)
        self.settle(&self.fanout)
        self.least = self.least_seq()
        if self.hole_count:
            self.drop_holes(self.least)
        if self.polls and not self.hurried and self.retains and self.stable < self.visible.seq:
            self.hurried = True
            self.shard.hurried.append(self)
        return 0

    # -- overflow --

    cdef int write_overflow(self) except -1:
        """Give the log what waits for it, one run for each block; leave overflow when all of it is
        written and the queue is short again."""
        cdef Block *block = self.newest
        if not self.overflowing:
            if self.store.resident_bytes > self.store.budget:
                self.spill()
            return 0
        if self.failing:
            return 0
        if self.pending_messages == 0:
            self.gate = max(self.promised, self.floor)
            self.least = self.least_seq()
            if not self.must_overflow():
                self.overflowing = False
                self.seal()
                self.check_droppable(self.newest)
            return 0
        while block != NULL and block.first_seq > self.visible.seq and block.prev != NULL:
            block = block.prev
        while block != NULL:
            if block.written < block.size and block.last_seq >= self.visible.seq \
                    and self.write_run(block, True):
                break
            block = block.next
        return self.log.commit()

    cdef int spill(self) except -1:
        """Memory is short: write the sealed blocks that are in memory only."""
        cdef Block *block = self.last_reader().block
        cdef int budget = 16
        while block != NULL and budget:
            if block.flags & SEALED and block.written < block.size \
                    and block.last_seq < self.visible.seq:
                if self.write_run(block, False):
                    break
                budget -= 1
            block = block.next
        return 0

    cdef int write_run(self, Block *block, bint gated, bint at_once=False) except -1:
        """Queue bytes [written, size) of a block for the log, in runs that fit into a segment, if
        no single publish is larger: one that may be refused goes into one segment as a whole, or
        what was written of it could not be taken back.
        Returns whether some of it has to wait: what comes behind a write must fail when that does,
        so it is queued only for the same file (`at_once`: copies, which nobody waits for, need
        not)."""
        cdef uint64_t most = self.log.room()
        cdef uint32_t start = block.written
        cdef uint32_t at = start
        cdef uint32_t count = 0
        cdef int flags = 0
        cdef uint64_t first_seq = 0
        cdef uint64_t last_seq = 0
        cdef Record *record
        while at < block.size:
            record = <Record *>(block.data + at)
            if count and at + record.length - start > most \
                    and not (gated and self.publish_goes_on(last_seq)):
                if self.writes and not at_once and self.log.rolls(at - start):
                    return 1
                self.write_part(block, start, at, first_seq, last_seq, count, flags, gated)
                most = self.log.room()
                start = at
                count = 0
                flags = 0
            if count == 0:
                first_seq = record.seq
            if record.attributes & RECORD_DELAYED:
                flags |= RUN_HAS_DELAYED
            last_seq = record.seq
            count += 1
            at += record.length
        if self.writes and not at_once and self.log.rolls(at - start):
            return 1
        self.write_part(block, start, at, first_seq, last_seq, count, flags, gated)
        return 0

    cdef int write_part(self, Block *block, uint32_t start, uint32_t end, uint64_t first_seq,
                        uint64_t last_seq, uint32_t count, int flags, bint gated) except -1:
        cdef Write *write = <Write *>malloc(sizeof(Write))
        if write == NULL:
            raise MemoryError()
        write.topic = <void *>self
        write.block = block
        write.start = start
        write.end = end
        write.first_seq = first_seq
        write.last_seq = last_seq
        write.count = count
        write.gated = gated
        Py_INCREF(self)
        block.written = end
        self.pin(block)
        self.writes += 1
        if gated:
            self.pending_writes += 1
        if block.flags & SURVIVORS:
            flags |= RUN_SURVIVORS
        if self.log.journal_lost and not self.log.is_telling():
            # Its last write failed, and nothing has called for another one since.
            self.journal_due = True
        if (self.was_restored or self.log.journal_lost) and (
                self.journal_due or self.waits_for_journal()):
            # The journal of an earlier process must not speak of these records.
            if self.journal_due:
                self.write_journal(True)
            self.finish_journal()
        self.log.append(block.data + start, end - start, first_seq, last_seq, count, flags,
                        self.gate == FSYNC, gated and self.publish_goes_on(last_seq),
                        &block.extent, write_done, write)
        return 0

    cdef bint publish_goes_on(self, uint64_t seq) noexcept:
        """Whether the publish that a record which is not visible came with has more behind it. Each
        of them has a promise."""
        cdef uint32_t low = 0
        cdef uint32_t high = self.promise_count
        cdef uint32_t middle
        while low < high:
            middle = (low + high) // 2
            if self.promises[(self.promise_first + middle) % self.promise_room].seq < seq:
                low = middle + 1
            else:
                high = middle
        return (low < self.promise_count
                and self.promises[(self.promise_first + low) % self.promise_room].seq != seq)

    cdef int on_written(self, Write *write, int error) except -1:
        cdef Block *block = write.block
        cdef Cursor end
        self.writes -= 1
        if error == 0:
            block.stored = write.end
            self.shard.set_health(None)
            if write.first_seq <= self.stable <= write.last_seq:
                self.stable = write.last_seq + 1
                self.stable_moved(block)
        else:
            self.shard.set_health(self.log.last_error_text)
            self.log.retract(&block.extent, write.end - write.start, write.first_seq, write.count)
            block.written = min(block.written, write.start)
            if self.log.journal_lost:
                self.journal_due = True
        if not self.gone and write.gated:
            self.pending_writes -= 1
            if error:
                self.failing = True
                self.error = self.log.last_error_text
            elif not self.failing:
                end.block = block
                end.offset = write.end
                end.seq = write.last_seq + 1
                self.move_cursor(&self.visible, &end)
                if self.visible.seq == self.next_seq:
                    self.pending_messages = 0
                self.fan_out()
                self.keep_promises(write.last_seq, None)
                if self.polls:
                    self.answer_polls()
            if self.failing and self.pending_writes == 0:
                self.undo_pending()
        if write.gated or error == 0:
            self.touch_dirty()
        if block.flags & SURVIVORS and self.compaction is not None and self.compaction.written():
            self.shard.compacting.append(self)
        self.check_droppable(block)
        self.unpin(block)
        return 0

    cdef int undo_pending(self) except -1:
        """The log failed: what waited for it was never published."""
        cdef str error = self.error
        cdef Entry *entry = self.delayed_first
        cdef Entry *last = NULL
        cdef Entry *following
        while entry != NULL and entry.seq < self.visible.seq:
            last = entry
            entry = entry.next
        if last == NULL:
            self.delayed_first = NULL
        else:
            last.next = NULL
        self.delayed_last = last
        while entry != NULL:
            following = entry.next
            self.unref(entry.block)
            self.store.free_entry(entry)
            self.delayed_count -= 1
            entry = following
        self.forget_counts()
        if self.producers is not None:
            self.producers.undo(self.visible.seq)
        self.truncate(self.visible.seq)
        self.pending_messages = 0
        self.failing = False
        self.error = None
        self.keep_promises(<uint64_t>-1, error)
        return 0

    cdef void forget_counts(self) noexcept:
        """Take the records that are not visible out of the counters of published messages."""
        cdef Block *block = self.newest
        cdef Record *record
        cdef uint32_t at
        while block != NULL and block.last_seq >= self.visible.seq:
            at = 0
            while at < block.size:
                record = <Record *>(block.data + at)
                if record.seq >= self.visible.seq:
                    self.message_count -= 1
                    self.message_bytes -= record.body_length
                at += record.length
            block = block.prev

    cdef void check_droppable(self, Block *block) noexcept:
        if block != NULL and block.data != NULL and block.flags & SEALED \
                and block.size and block.stored == block.size:
            self.store.droppable(block)

    cdef int on_loaded(self, Block *block) except -1:
        if block.moves != NULL and self.compaction.loaded():
            self.shard.compacting.append(self)
        if not self.gone and not self.stalled:
            self.wake_channels()
        return 0

    cdef void wake_channels(self) noexcept:
        """What they wait for may be in memory now, or may be asked for again."""
        cdef Channel channel
        for channel in self.channels.values():
            if channel.ephemeral:
                self.touch_dirty()
            channel.touch_dirty()

    # -- stragglers --

    cdef int compact(self) except -1:
        """Begin to copy the few records that entries still need out of mostly dead blocks, so that
        neither memory nor disk holds much more than four times what is needed."""
        if self.stragglers == NULL or not is_worthwhile(self):
            return 0
        if self.compaction is None:
            self.compaction = Compaction(self)
        if self.compaction.stage != IDLE:
            return 0
        self.compaction.choose()
        if self.compaction.count and self.compaction.begin(list(self.channels.values())):
            self.shard.compacting.append(self)
        return 0

    cdef int compact_now(self) except -1:
        """End the compaction that is under way, and copy what entries need of stragglers that are
        in memory only."""
        cdef Block *block
        if self.stragglers == NULL:
            return 0
        if self.compaction is None:
            self.compaction = Compaction(self)
        self.finish_compaction()
        block = self.stragglers
        while block != NULL:
            if block.written == 0 and block.refs and not block.flags & SURVIVORS:
                self.compaction.add(block)
            block = block.next
        if self.compaction.count:
            self.compaction.begin(list(self.channels.values()))
            self.finish_compaction()
        return 0

    cdef int finish_compaction(self) except -1:
        self.compaction.finish()
        while self.compaction.stage != IDLE:
            self.shard.io.drain()
            self.compaction.finish()
        return 0

    # -- messages that move to other topics --

    cdef object new_mover(self, object channel):
        return Moves(self, channel)

    def journal_move(self, str channel not None, uint64_t seq, bytes packed not None, run not None,
                     bint delayed, done not None):
        """A message of a channel moves; `packed`: where its record lies, as journals have it. Calls
        done(None), or done(why not), when a start would find that. Returns False if none would, and
        there is nothing to wait for."""
        if self.log is None or self.promised == MEMORY or is_ephemeral(channel):
            return False
        entry, = journal.unpack_entries(packed)
        self.journal_delta(
            journal.Delta(journal.Kind.ENTRY_MOVED, channel, seq, entry=entry, run=run,
                          delayed=delayed),
            done if self.promised == OS else lambda error: self.move_written(error, done))
        return True

    cdef int journal_delta(self, delta, done) except -1:
        if not self.append_delta(delta, done):
            self.write_journal(False, done)
        return 0

    def journal_moved(self, str channel not None, uint64_t seq):
        """It is where it belongs. If the journal does not get to know, it is sent again, for
        nothing."""
        if self.log is not None and self.promised != MEMORY and not is_ephemeral(channel):
            self.append_delta(journal.Delta(journal.Kind.ENTRY_MOVED, channel, seq), None)

    def move_written(self, error, done):
        if error is not None:
            done(error)
            return
        self.unsynced_moves.append(done)
        self.sync_moves()

    cdef int sync_moves(self) except -1:
        """One sync at a time, for all that were written before."""
        if self.syncing_moves is not None or not self.unsynced_moves or self.gone:
            return 0
        self.syncing_moves, self.unsynced_moves = self.unsynced_moves, []
        Py_INCREF(self)
        return self.log.sync(moves_synced, <void *>self)

    def moves_synced(self, reason):
        waiting, self.syncing_moves = self.syncing_moves, None
        for done in waiting:
            done(reason)
        self.sync_moves()

    cdef int write_copies(self, Block *block) except -1:
        # Nobody waits for it, so it need not fail with what was written before.
        self.write_run(block, False, True)
        return 0

    cdef int copies_written(self) except -1:
        return self.write_journal(False)

    cdef void end_compaction(self) noexcept:
        if self.compaction is not None:
            self.compaction.stop()
            self.compaction.close_survivor()
            self.compaction = None

    # -- channels --

    cdef Channel find_channel(self, str name):
        return <Channel>self.channels.get(name)

    def channel(self, str name not None):
        """The channel of that name, made at the fan-out position if it does not exist."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.new_channel(name)
            self.shard.give_channel_policy(self, channel)
            self.channels[name] = channel
            self.set_bounds()
            self.journal_channel(journal.Kind.CHANNEL_CREATED, channel)
            self.fan_out()
            self.touch_dirty()
            self.shard.event("channel_created", self.name, name)
        return channel

    cdef Channel new_channel(self, str name):
        cdef Channel channel = Channel(self.agenda, self, name)
        channel.ages = &self.ages       # it has the topic, as its window
        if self.agenda.events is not None and self.name != _EVENTS_TOPIC:
            channel.tell(self.agenda.events, _events.names_of(self.name, name))
        return channel

    def delete_channel(self, str name not None):
        """Delete a channel with its messages; its consumers are disconnected."""
        cdef Channel channel = self.channels.pop(name, None)
        if channel is None:
            return False
        self.set_bounds()
        self.journal_channel(journal.Kind.CHANNEL_DELETED, channel)
        self.forget_channel(channel)
        channel.close()
        self.touch_dirty()
        self.shard.event("channel_deleted", self.name, name)
        if self.ephemeral and not self.channels:
            self.shard.delete_topic(self.key)
        return True

    cdef int consumer_left(self, Channel channel) except -1:
        """A client unsubscribed: an ephemeral channel goes with its last one."""
        if channel.ephemeral and not channel.gone and not channel.consumers \
                and self.channels.get(channel.name) is channel:
            self.delete_channel(channel.name)
        return 0

    def log_facts(self):
        """What an operator may ask about the log."""
        cdef Channel channel
        cursors = {}
        for channel in self.channels.values():
            cursors[channel.name] = channel.cursor.seq
        return {
            "topic": self.name,
            "durability": self.durability,
            "retention_time": self.retention_time // SECOND,
            "retention_bytes": self.retention_bytes,
            "log_id": None if self.log is None else self.log.log_id.hex(),
            "first_seq": self.first_seq,
            "fanout_seq": self.fanout.seq,
            "next_seq": self.visible.seq,
            "disk_bytes": self.log_bytes,
            "memory_bytes": self.memory_bytes,
            "channels": cursors,
            "cursors": self.cursor_facts(),
        }

    @property
    def log_bytes(self):
        """Bytes of records on disk."""
        return 0 if self.log is None else self.log.disk_bytes

    @property
    def first_seq(self):
        """The oldest record that a channel could be made to begin with."""
        return self.first_kept()

    cdef uint64_t first_kept(self) noexcept:
        if self.oldest == NULL:
            return self.next_seq
        if self.retention_time or self.retention_bytes:
            return max(self.oldest.first_seq, self.kept.seq)
        return self.oldest.first_seq

    def seq_at(self, int64_t time):
        """The first record that was published at `time` (wall clock, ns) or later. None: a block
        has to be read for that; ask again."""
        cdef Block *block = self.oldest
        cdef Record *record
        cdef uint32_t at
        while block != NULL and block.last_time and block.last_time < time:
            block = block.next
        while block != NULL:
            if not block.flags & UNREADABLE:
                if block.data == NULL or block.flags & LOADING:
                    self.load(block)
                    self.shard.io.kick()
                    return None
                at = 0
                while at < block.size:
                    record = <Record *>(block.data + at)
                    if record.timestamp >= time:
                        return min(record.seq, self.fanout.seq)
                    at += record.length
            block = block.next
        return self.fanout.seq

    def peek(self, str channel not None, str state not None, int limit, after,
             uint32_t body_most, done):
        """Look at messages of a channel, or with "" at those of the topic itself, and call
        done(None) when that was done, or done(reason) if it cannot be: see nsqcy.broker.peek."""
        return self.begin_read(Peek(
            self, self.channels[channel] if channel else None, state, limit, after, body_most,
            done))

    def seek(self, str name not None, uint64_t seq):
        """Have a channel go on with record `seq`, or the one nearest to it that there is; what the
        channel holds is dropped. Returns where it stands then."""
        cdef Channel channel = self.channels[name]
        cdef uint64_t skipped = 0
        cdef uint32_t i
        seq = min(max(seq, <uint64_t>self.first_seq), self.fanout.seq)
        channel.empty()
        self.place_cursor(&channel.cursor, seq)
        for i in range(self.hole_count):
            if self.holes[i].end > seq:
                skipped += self.holes[i].end - max(seq, self.holes[i].start)
        channel.replay(skipped)
        self.trim()
        self.journal_due = True
        self.touch_dirty()
        return seq

    def pause(self, bint paused):
        self.paused = paused
        self.journal_due = True
        self.fan_out()
        self.touch_dirty()

    @property
    def held(self):
        """Whether it keeps its messages until channels that are known elsewhere have been made."""
        return self.held_until != 0

    def end_hold(self):
        """Every channel that is to have the first messages is there, or is not coming."""
        self.held_until = 0
        self.fan_out()

    def pause_channel(self, str name, bint paused):
        (<Channel>self.channels[name]).pause(paused)
        self.journal_due = True
        self.touch_dirty()

    def empty_channel(self, str name):
        """Drop what a channel holds: waiting, in flight and deferred."""
        (<Channel>self.channels[name]).empty()
        self.journal_due = True
        self.touch_dirty()

    def cancel(self, str name, uint64_t id, done):
        """Drop a deferred message of a channel, and call done(None) when that is written down, or
        done(reason) when it cannot be. False: there is none of this id."""
        cdef Channel channel = self.channels[name]
        cdef uint64_t seq = channel.cancel(id)
        if seq == 0:
            return False
        if self.log is None or channel.ephemeral or not self.is_kept():
            done(None)
        elif not self.append_delta(
                journal.Delta(journal.Kind.ENTRY_FINISHED, name, seq), done):
            self.write_journal(False, done)
        return True

    def empty(self):
        """Drop what the topic itself holds; channels keep theirs."""
        if self.visible.seq > self.fanout.seq:
            self.drop_front(self.visible.seq)
            self.journal_due = True

    cdef int drop_front(self, uint64_t seq) except -1:
        """Drop what the topic itself holds before record `seq`."""
        cdef Channel channel
        cdef uint64_t dropped = seq - self.fanout.seq
        cdef Cursor to = self.fanout
        self.drop_delayed(seq)
        if self.channels:
            self.add_hole(self.fanout.seq, seq)
            for channel in self.channels.values():
                channel.skipped += dropped
                channel.born_seq += dropped
        while to.block.next != NULL and to.block.last_seq < seq:
            to.block = to.block.next
            to.offset = 0
        to.seq = seq
        self.move_cursor(&self.fanout, &self.visible if seq == self.visible.seq else &to)
        self.trim()
        self.touch_dirty()
        return 0

    cdef void drop_delayed(self, uint64_t seq) noexcept:
        """Forget the delays of records before this one."""
        cdef Entry *entry
        while self.delayed_first != NULL and self.delayed_first.seq < seq:
            entry = self.delayed_first
            self.delayed_first = entry.next
            self.unref(entry.block)
            self.store.free_entry(entry)
            self.delayed_count -= 1
        if self.delayed_first == NULL:
            self.delayed_last = NULL

    # -- reading the log --

    cdef uint64_t stable_seq(self) except? 0:
        """Where readers of the log stop: what is before it is on disk, as surely as the topic
        promises."""
        cdef uint64_t first = self.first_kept()
        if self.stable < first:
            # What came before was let go of without having been written.
            self.stable = first
            self.pass_written(self.block_of(first))
        return min(self.stable, self.visible.seq)

    cdef void pass_written(self, Block *block) noexcept:
        """The stable position has come to this block: go on over what was written before what came
        before it."""
        cdef Record *record
        cdef uint32_t at = 0
        while block != NULL and block.stored == block.size and block.flags & IN_WINDOW:
            self.stable = max(self.stable, block.last_seq + 1)
            block = block.next
        if block == NULL or not block.flags & IN_WINDOW:
            return
        while at < block.stored:
            record = <Record *>(block.data + at)
            self.stable = max(self.stable, record.seq + 1)
            at += record.length

    cdef int stable_moved(self, Block *block) except -1:
        """What comes first of what was not on disk is, up to a place in this block."""
        if block.stored == block.size and block.flags & IN_WINDOW:
            self.pass_written(block.next)
        if self.polls:
            self.answer_polls()
        return 0

    cdef list logs(self):
        """The logs of which something is kept, as (log_id, first, end) and the oldest first: those
        that a start has ended, and the one that goes on, up to the stable position."""
        cdef uint64_t first = self.first_kept()
        cdef uint64_t stable = self.stable_seq()
        found = [(one.log_id, max(one.first_seq, first), one.end)
                 for one in self.past if one.end > first]
        found.append((self.log.log_id, min(max(self.log_first, first), stable), stable))
        return found

    cdef bytes log_bounds(self, bytes log_id, uint64_t *first, uint64_t *end):
        """What there is of a log; or an error."""
        names = []
        for known, begin, stop in self.logs():
            if known.hex().encode() == log_id:
                first[0] = begin
                end[0] = stop
                return None
            names.append(known.hex())
        return f"E_LOG_ID {' '.join(names)}".encode()

    def log_meta(self):
        """What a reader of the log has to know, as JSON."""
        logs = self.logs()
        log_id, first, end = logs[len(logs) - 1]
        return json.dumps({
            "topic": self.name,
            "log_id": log_id.hex(),
            "first_seq": first,
            "next_seq": end,
            "first_time": self.time_of(first) if first < end else 0,
            "last_time": self.time_of(end - 1) if first < end else 0,
            "bytes": self.log_bytes,
            "durability": self.durability,
            "retention": {"time": self.retention_time, "bytes": self.retention_bytes}
            if self.retention_time or self.retention_bytes else None,
            "incarnations": [
                {"log_id": one[0].hex(), "first_seq": one[1], "next_seq": one[2]} for one in logs],
            "cursors": self.cursor_facts(),
        }, separators=(",", ":")).encode()

    cdef int64_t time_of(self, uint64_t seq) except? 0:
        """When a record was published; of one that is not in memory, as far as its block tells."""
        cdef Block *block = self.block_of(seq)
        cdef uint32_t at
        if block == NULL:
            return 0
        if block.data == NULL or block.flags & LOADING:
            return block.first_time if seq == block.first_seq else block.last_time
        at = offset_of(block, seq)
        return 0 if at == block.size else (<Record *>(block.data + at)).timestamp

    cdef object poll_log(self, Waiter waiter, uint64_t ticket, uint64_t after):
        """Have the waiter told what log_meta() says as soon as the log reaches beyond `after`."""
        self.polls += 1
        self.touch_dirty()
        return self.begin_read(Poll(self, waiter, ticket, after))

    cdef int answer_polls(self) except -1:
        cdef uint64_t stable = self.stable_seq()
        cdef LogRead read
        cdef bytes answer = None
        for read in list(self.reads):
            if isinstance(read, Poll) and (<Poll>read).after < stable:
                answer = answer or self.log_meta()
                read.answer(answer, None)
        return 0

    cdef object seek_log(self, Waiter waiter, uint64_t ticket, bytes log_id, int64_t time):
        """Have the waiter told which record of a log is the first that is not older. Returns the
        read, or an error."""
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        cdef bytes error = self.log_bounds(log_id, &first, &end)
        return error or self.begin_read(Seek(self, waiter, ticket, first, end, time))

    cdef object fetch_log(self, Waiter waiter, uint64_t ticket, bytes log_id, uint64_t start,
                          uint64_t stop, uint64_t most, uint32_t columns):
        """Have the waiter told records of a log, as a block. Returns the read, or an error."""
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        cdef uint64_t room
        cdef bytes error = self.log_bounds(log_id, &first, &end)
        if error is not None:
            return error
        if start < first:
            return b"E_LOG_GONE %d" % first
        if start >= end or stop <= start:
            return b"E_LOG_RANGE %d" % end
        room = self.shard.answer_room(most)
        self.shard.reserved += room
        return self.begin_read(Fetch(
            self, waiter, ticket, bytes.fromhex(log_id.decode()), start, min(stop, end), room,
            columns))

    cdef LogRead begin_read(self, LogRead read):
        if self.reads is None:
            self.reads = []
        self.reads.append(read)
        # At once, so that what comes first cannot be let go of.
        read.step(1)
        if read.stage != ENDED and not read.reading:
            self.on_read(read)
        return read

    cdef int on_read(self, read) except -1:
        cdef LogRead one = read
        if one.stage == WAITING:
            return 0
        if one.stage != ENDED:
            self.shard.reads.append(one)
            return 0
        self.reads.remove(one)
        self.shard.reserved -= one.held
        self.polls -= isinstance(one, Poll)
        return 0

    def close(self, bint delete):
        """The end of the topic: its channels are closed, its files deleted or closed."""
        cdef Channel channel
        if self.gone:
            return
        if self.log is not None and not delete:
            # First of all: from here on files stay, whatever is released.
            self.log.close(NULL, NULL)
        for channel in list(self.channels.values()):
            self.forget_channel(channel)
            channel.close()
        self.channels.clear()
        self.forget_figures()
        self.gone = True
        self.give_up_journal()
        self.drop_delayed(<uint64_t>-1)
        self.end_compaction()
        self.let_go_of_kept()
        self.discard()
        self.keep_promises(<uint64_t>-1, "exiting")
        for read in list(self.reads or ()):
            (<LogRead>read).abandon(b"E_LOG_NO_TOPIC")
        if self.log is not None and delete:
            self.log.delete(NULL, NULL)

    # -- time passes --

    cdef int tick(self) except -1:
        """Once a second; returns what that cost of a turn's TICK_BUDGET."""
        cdef Channel channel
        if self.stalled:
            self.stalled = False
            self.wake_channels()
        for channel in self.channels.values():
            if channel.mover is not None:
                channel.touch_dirty()       # what has failed is tried again
        if self.held_until and self.agenda.now >= self.held_until:
            self.end_hold()
        if self.prunes and self.prune():
            return 1
        if self.agenda.now - self.last_publish > REST:
            self.rest()
        if self.agenda.percentiles.quantiles:
            for channel in self.channels.values():
                channel.latency.rotate(self.agenda.now)
        if self.ttl or self.perishable:
            self.drop_expired()
        self.date_blocks()
        self.compact()
        if self.producers is not None \
                and self.producers.expire(self.visible.seq, self.agenda.wall):
            self.journal_stale = True
        if self.named:
            self.expire_cursors()
        if self.retains:
            self.retain()
        return self.checkpoint()

    cdef int checkpoint(self) except -1:
        """Sync and write the journal if that is due; returns the cost in a turn's TICK_BUDGET."""
        if self.log is not None:
            self.log.tick(self.agenda.now)
            if self.is_kept() and self.agenda.now >= self.next_journal and self.snapshot is None \
                    and not self.log.is_telling() \
                    and (self.journal_stale or self.activity() != self.journalled):
                self.write_journal(False)
                return JOURNAL_TICKS
        return 1

    # -- messages that expire --

    cdef int drop_expired(self) except -1:
        """Once a second: what is too old goes, also where nobody wants it. Channels do so when
        they dispatch."""
        cdef Channel channel
        cdef uint64_t seq
        cdef int budget = TICK_EXPIRES
        for channel in self.channels.values():
            channel.touch_dirty()
        while self.ttl and budget > 0 and self.fanout.seq < self.visible.seq:
            seq = self.first_fresh(&budget)
            if seq == self.fanout.seq:
                break
            self.expired_count += seq - self.fanout.seq
            self.drop_front(seq)
        return 0

    cdef uint64_t first_fresh(self, int *budget) noexcept:
        """The first record of the topic's own that is not too old, as far as the block goes that
        the first of all is in."""
        cdef int64_t born = self.agenda.wall - self.ttl
        cdef uint64_t seq = self.fanout.seq
        cdef uint32_t at
        cdef Block *block
        cdef Record *record
        if not self.settle(&self.fanout):
            return seq
        block = self.fanout.block
        if block.data == NULL or block.flags & LOADING:
            budget[0] -= 1
            if block.last_time == 0 or block.last_time > born:
                return seq
            return min(block.last_seq + 1, self.visible.seq)
        at = self.fanout.offset
        while at < block.size and seq < self.visible.seq and budget[0] > 0:
            record = <Record *>(block.data + at)
            if record.seq >= seq:
                if record.timestamp > born:
                    break
                seq = record.seq + 1
                budget[0] -= 1
            at += record.length
        return seq

    # -- pruning --

    cdef bint prune(self) except -1:
        """Delete what nobody has used for as long as its policy says; whether that is the topic."""
        cdef Channel channel
        for channel in list(self.channels.values()):
            if channel.is_forlorn():
                self.shard.tell(f"TOPIC({self.name}): pruning channel({channel.name}), nobody has "
                                f"used it for {short_duration(channel.prune_after)}")
                self.delete_channel(channel.name)
        if self.channels:
            self.used_at = self.agenda.now
        if self.gone or not self.is_forlorn():
            return self.gone
        self.shard.tell(f"TOPIC({self.name}): pruning, nobody has used it for "
                        f"{short_duration(self.prune_after)}")
        self.shard.delete_topic(self.key)
        return True

    cdef bint is_forlorn(self) noexcept:
        """Whether its time to be pruned has come."""
        cdef bint has_messages = (self.fanout.seq != self.next_seq
                                  or self.retains and self.oldest != NULL)
        if not self.prune_after or self.channels or self.pending_messages:
            return False
        if has_messages and not self.prune_messages:
            return False
        return self.agenda.now - max(self.used_at, self.last_publish) >= self.prune_after

    # -- retention --

    cdef void date_blocks(self) noexcept:
        """Note of the blocks that were sealed since the last time that they are not younger."""
        cdef Block *block = self.newest
        while block != NULL and block.last_time == 0:
            if block.flags & SEALED:
                block.last_time = self.agenda.wall
                if block.data != NULL and block.size:
                    block.first_time = (<Record *>block.data).timestamp
            block = block.prev

    cdef int update_retains(self) except -1:
        """Begin to keep what every channel is done with, from the oldest record on that there is
        still, or cease to: as the policy and the named cursors want it."""
        cdef bint wanted = (self.retention_time or self.retention_bytes
                            or self.held_seq() != NOTHING_HELD)
        if wanted == self.retains:
            return 0
        self.retains = wanted
        if wanted:
            self.watch(&self.kept)
            self.watch(&self.outdated)
            self.keep_all()
        else:
            self.unwatch(&self.kept)
            self.unwatch(&self.outdated)
        return 0

    cdef void keep_all(self) noexcept:
        """Keep what there is."""
        cdef Cursor start
        self.held_bytes = 0
        if self.oldest != NULL:
            start.block = self.oldest
            start.offset = 0
            start.seq = self.oldest.first_seq
            self.move_cursor(&self.kept, &start)
            self.move_cursor(&self.outdated, &start)

    cdef int retain(self) except -1:
        """Write down what is in memory only, let go of what is too old or too much, a block at a
        time, and keep the rest out of memory."""
        self.write_down()
        self.let_go()
        self.trim()
        self.cool()
        return 0

    cdef int let_go(self) except -1:
        """What retention lets go of goes unless a named cursor holds it, which holds so many bytes
        at most."""
        cdef Block *block = block_behind(&self.outdated)
        cdef uint64_t held = self.log.disk_bytes - min(self.log.disk_bytes, self.held_bytes)
        cdef uint64_t held_seq
        while block != NULL and self.is_outdated(block, held):
            held -= min(held, <uint64_t>block.size)
            self.held_bytes += block.size
            self.move_past(&self.outdated, block)
            block = block.next
        held_seq = self.held_seq()
        block = block_behind(&self.kept)
        while block != NULL and block.last_seq < self.outdated.seq:
            if block.last_seq >= held_seq:
                if self.held_bytes <= self.shard.log_hold_max_bytes:
                    break
                self.move_past(&self.kept, block)
                self.shard.report_overrun(self.name, self.named.overrun(self.kept.seq))
                held_seq = self.held_seq()
            else:
                self.move_past(&self.kept, block)
            self.held_bytes -= min(self.held_bytes, <uint64_t>block.size)
            block = block.next
        return self.update_retains()

    cdef void move_past(self, Cursor *keeper, Block *block) noexcept:
        cdef Cursor to
        to.block = block.next
        to.offset = 0
        to.seq = self.next_seq if block.next == NULL else block.next.first_seq
        if block.next == NULL:
            to.block = block
            to.offset = block.size
        self.move_cursor(keeper, &to)

    cdef bint is_outdated(self, Block *block, uint64_t held) noexcept:
        if not block.flags & SEALED or block.last_time == 0:
            return False
        if not self.retention_time and not self.retention_bytes:
            return True
        return (self.retention_time and block.last_time < self.agenda.wall - self.retention_time
                or self.retention_bytes and held > self.retention_bytes)

    cdef int write_down(self) except -1:
        """Write what is visible and in memory only."""
        cdef Block *block = self.newest
        self.rolling = False
        if self.failing:
            return 0
        while block != NULL and block.prev != NULL and block.first_seq > self.stable:
            block = block.prev
        while block != NULL and block.first_seq < self.visible.seq:
            if block.written < block.size and not (
                    self.overflowing and block.last_seq >= self.visible.seq) \
                    and self.write_run(block, False):
                self.rolling = True
                break
            block = block.next
        return 0

    cdef void cool(self) noexcept:
        """What is behind every reader is read again by a replay only: it leaves memory."""
        cdef Block *block = self.last_reader().block
        if block != NULL:
            block = block.prev
        while block != NULL and block.data != NULL:
            if block.refs == 0 and block.pins == 0 and block.flags & SEALED \
                    and block.stored == block.size:
                self.store.take_memory(block)
            block = block.prev

    # -- named cursors --

    def cursor_facts(self):
        """What an operator may ask about the named cursors."""
        return self.named.facts(self.first_seq, self.visible.seq, self.agenda.wall)

    def set_cursor(self, str name not None, bytes log_id not None, uint64_t seq, done not None):
        """Have a named cursor stand before record `seq`, which must be there, or be the next one.
        It holds the records from there on. Calls done(None), or done(why not), when the journal has
        it. nsqcy.broker.named_cursors.TooManyCursors: nothing was done."""
        cursor = journal.NamedCursor(name, log_id, seq, self.agenda.wall)
        self.named.set(cursor)
        self.update_retains()
        if self.retains and seq < self.kept.seq:
            self.keep_all()     # it is still there for some channel only
        self.journal_cursor(cursor, False, done)

    def find_cursor(self, str name not None):
        """The named cursor (storage.journal.NamedCursor) of somebody who asks for it; None: there
        is none."""
        self.journal_stale = True
        return self.named.use(name, self.agenda.wall)

    def delete_cursor(self, str name not None, done not None):
        """Calls done(None), or done(why not), when the journal has it. Returns whether there was
        one; otherwise there is nothing to wait for."""
        cursor = self.named.delete(name)
        if cursor is None:
            return False
        self.update_retains()
        self.journal_cursor(cursor, True, done)
        return True

    cdef int expire_cursors(self) except -1:
        if self.named.expire(self.agenda.wall - self.shard.log_cursor_expiry):
            self.journal_stale = True
            self.update_retains()
        return 0

    cdef uint64_t held_seq(self) except? 0:
        """The first record that a named cursor holds."""
        if not self.named:
            return NOTHING_HELD
        seq = self.named.held(self.first_seq)
        return NOTHING_HELD if seq is None else seq

    cdef int journal_cursor(self, cursor, bint deleted, done) except -1:
        self.journal_stale = True
        if self.log is None:
            done(None)
            return 0
        delta = journal.Delta(journal.Kind.CURSOR_NAMED, "", cursor=cursor, deleted=deleted)
        if not self.append_delta(delta, done):
            self.write_journal(False, done)
        return 0

    # -- to disk and back --

    cdef bint is_kept(self) noexcept:
        """Whether a start would find anything of the topic but its name."""
        return (self.gate != MEMORY or self.log.disk_bytes != 0 or self.log.journal_lost
                or len(self.named) > 0)

    cdef int journal_channel(self, kind, Channel channel) except -1:
        """A channel came or goes: write it down before any record that is fanned out after that."""
        if self.log is None or channel.ephemeral or not self.started or not self.is_kept():
            return 0
        if not self.append_delta(journal.Delta(kind, channel.name, channel.cursor.seq)):
            self.journal_due = True
        return 0

    cdef bint append_delta(self, delta, done=None) except -1:
        """Write down what has happened, in the journal there is and in one that is under way;
        False if there is none. `done`: as of write_journal()."""
        encoded = journal.encode_delta(delta)
        if self.snapshot is not None:
            self.snapshot.deltas.append(encoded)
        if done is None:
            return self.log.append_delta(encoded, NULL, NULL)
        waiting = (None, (done,))
        Py_INCREF(waiting)
        if self.log.append_delta(encoded, journal_done, <void *>waiting):
            return True
        Py_DECREF(waiting)
        return False

    cdef uint64_t activity(self) noexcept:
        """What it was when the journal was written, if nothing has happened in the channels since
        and `journal_stale` is not set."""
        cdef Channel channel
        cdef uint64_t total = 0
        for channel in self.channels.values():
            total += channel.activity()
        return total

    cdef int write_journal(self, bint records_wait, done=None) except -1:
        """Write down who is where, as far as records on disk are concerned; `records_wait`: before
        any that follow. Done at once, unless there is much of it; then `done`, unless it is None,
        is called with None or what went wrong."""
        if done is not None:
            self.journal_waiters.append(done)
        if self.snapshot is not None:
            # What it says may be from before.
            self.snapshot_due = True
            self.journal_due = self.journal_due or records_wait
            return 0
        self.begin_journal(records_wait)
        self.go_on_with_journal(self.shard.snapshot_budget)
        if self.snapshot is not None:
            self.shard.journalling.append(self)
        return 0

    cdef int begin_journal(self, bint records_wait) except -1:
        cdef Channel channel
        cdef uint64_t entries = self.delayed_count
        cdef list channels = []
        for channel in self.channels.values():
            entries += channel.deferred_count + channel.in_flight_count + channel.queued
            if not channel.ephemeral:
                channels.append(channel)
        self.journal_stale = self.journal_due = self.snapshot_due = False
        self.journalled = self.activity()
        # A big one is written less often.
        self.next_journal = self.agenda.now + self.log.sync_timeout * <int64_t>(
            1 + entries // 100000)
        self.snapshot = Snapshot(
            self.log, journal.encode_snapshot(self.state()), channels, records_wait)
        # Until that is said, and on disk, the class is the stronger one.
        self.snapshot.tells_class = self.floor != MEMORY
        self.class_writes += self.snapshot.tells_class
        self.snapshot.waiters = self.journal_waiters
        self.journal_waiters = []
        for channel in channels:
            for seq in channel.cancelled or ():
                self.snapshot.deltas.append(journal.encode_delta(
                    journal.Delta(journal.Kind.ENTRY_FINISHED, channel.name, seq)))
        return self.journal_told()

    cdef int go_on_with_journal(self, int budget) except -1:
        """Pack so many entries for the snapshot that is under way; returns what is left of the
        budget."""
        cdef Snapshot snapshot = self.snapshot
        budget = snapshot.step(budget)
        if not snapshot.is_complete():
            return 0
        self.snapshot = None
        self.end_snapshot(snapshot)
        if self.snapshot_due:
            # At once: as long as one is under way, files that the journal names stay.
            self.begin_journal(self.journal_due)
        elif snapshot.records_wait:
            self.touch_dirty()
        return budget

    cdef int end_snapshot(self, Snapshot snapshot) except -1:
        waiting = (self if snapshot.tells_class else None, snapshot.waiters)
        Py_INCREF(waiting)
        try:
            return snapshot.end(journal_done, <void *>waiting)
        except MemoryError:
            Py_DECREF(waiting)
            self.forget_snapshot(snapshot, "no memory")
            raise

    cdef int forget_snapshot(self, Snapshot snapshot, str reason) except -1:
        """What a snapshot would have said nobody will read."""
        self.class_writes -= snapshot.tells_class
        self.journal_stale = True
        for done in snapshot.waiters:
            done(reason)
        return 0

    cdef int finish_journal(self) except -1:
        """Have what is under way written."""
        while self.snapshot is not None:
            self.go_on_with_journal(INT_MAX)
        return 0

    cdef int give_up_journal(self) except -1:
        cdef Snapshot snapshot = self.snapshot
        if snapshot is not None:
            self.snapshot = None
            snapshot.give_up()
            self.forget_snapshot(snapshot, EXITING)
        return 0

    cdef int journal_told(self) except -1:
        """The journal that is being written knows of all chunks that are visible."""
        cdef Cursor to = self.visible
        cdef uint64_t seq
        if not self.has_untold:
            return 0
        seq = self.producers.unspoken(self.visible.seq)
        while to.block != NULL and to.block.first_seq > seq and to.block.prev != NULL:
            to.block = to.block.prev
            to.offset = 0
            to.seq = to.block.first_seq
        self.move_cursor(&self.untold, &to)
        if self.visible.seq == self.next_seq:
            self.has_untold = False
            self.unwatch(&self.untold)
        return 0

    cdef bint waits_for_journal(self) noexcept:
        """Whether no record may be written before a snapshot that is under way."""
        return self.snapshot is not None and (self.snapshot.records_wait or self.journal_due)

    def saved_state(self):
        """What its next journal says, as a TopicState."""
        cdef Channel channel
        self.finish_journal()
        state = self.state()
        saved = []
        for each in state.channels:
            channel = self.channels[each.name]
            channel.begin_packing(Packing())
            channel.pack_more(INT_MAX)
            entries, ids = channel.packing.take()
            channel.packing = None
            saved.append(replace(each, entries=entries, ids=ids))
        return replace(state, channels=tuple(saved))

    cdef object state(self):
        cdef Channel channel
        cdef uint32_t i
        return journal.TopicState(
            log_id=self.log.log_id,
            next_seq=self.visible.seq,
            fanout_seq=self.fanout.seq,
            paused=bool(self.paused),
            holes=tuple((self.holes[i].start, self.holes[i].end) for i in range(self.hole_count)),
            channels=tuple(self.channel_state(channel) for channel in self.channels.values()
                           if not channel.ephemeral),
            delayed=self.pack_delayed(),
            clean=bool(self.is_last),
            boot=self.shard.boot,
            durability=self.promised,
            cursors=self.named.state(),
            epochs=self.producers.state(self.visible.seq) if self.producers else (),
            produced_seq=self.producers.unspoken(self.visible.seq) if self.producers else 0,
            past=tuple(one for one in self.past if one.end > self.first_kept()),
            missing=tuple(one for one in self.missing if one[1] > self.first_kept()),
        )

    cdef object channel_state(self, Channel channel):
        cdef uint32_t i
        return journal.ChannelState(
            name=channel.name, paused=bool(channel.paused), cursor=channel.cursor.seq,
            skipped=channel.skipped, replay_end=channel.replay_end,
            moves=() if channel.mover is None else tuple((<Moves>channel.mover).runs),
            finished=tuple((channel.finished[i].start, channel.finished[i].end)
                           for i in range(channel.finished_count)))

    cdef bytes pack_delayed(self):
        cdef Packing packing = Packing()
        cdef Entry *entry = self.delayed_first
        cdef uint32_t count
        while entry != NULL and entry.seq < self.visible.seq and (
                self.is_last or packing.count < DELAYED_PACKED):
            count = packing.count
            packing.add(<Deferred *>entry, entry.due)
            if packing.count > count:
                packing.entries[count].reason = entry.timestamp != 0
            entry = entry.next
        if packing.failed:
            raise MemoryError()
        return packing.take()[0]

    def save_records(self):
        """Give the log every record that somebody still needs and that is in memory only."""
        cdef Channel channel
        cdef Block *block
        if self.log is None or self.gone:
            return
        self.finish_journal()
        for channel in list(self.channels.values()):
            if channel.ephemeral:
                channel.close()
                del self.channels[channel.name]
        while self.pending_messages:
            self.write_overflow()
            self.shard.io.drain()
        self.settle_all()
        self.seal()
        self.compact_now()
        block = self.stragglers
        while block != NULL:
            if block.written < block.size and block.refs:
                self.write_all(block)
            block = block.next
        block = self.oldest
        while block != NULL:
            if block.written < block.size:
                self.write_all(block)
            block = block.next

    cdef int write_all(self, Block *block) except -1:
        """Write what is left of a block, waiting for the disk between files."""
        cdef uint32_t written = block.written
        cdef bint tried
        while self.write_run(block, False):
            tried = block.written > written
            self.shard.io.drain()
            if tried and block.written <= written:
                # The disk does not take it, and there is nobody left to tell.
                return 0
            written = block.written
        return 0

    cdef void settle_all(self) noexcept:
        cdef uint32_t i
        for i in range(self.cursor_count):
            self.settle(self.cursors[i])
        self.trim()

    def save_journal(self):
        """After save_records, when the log is done: the last snapshot. A topic without messages
        leaves no files."""
        if self.log is None or self.gone:
            return
        if self.needs_nothing():
            if self.log._first != NULL or self.log.journal_bytes or self.was_restored:
                self.close(True)
            return
        self.finish_journal()
        self.is_last = True
        self.write_journal(False)
        self.finish_journal()

    cdef bint needs_nothing(self) noexcept:
        cdef Channel channel
        cdef Block *block = self.stragglers
        while block != NULL:
            if block.flags & KEPT:
                return False
            block = block.next
        if self.delayed_count or self.fanout.seq != self.next_seq:
            return False
        if self.named or self.producers:
            return False
        if self.retains and self.oldest != NULL:
            return False
        for channel in self.channels.values():
            if channel.depth() or channel.in_flight_count or channel.deferred_count:
                return False
        return True

    def restore(self, channels):
        """Take up what is on disk. `channels`: {name: paused} as far as they are known already."""
        cdef Recovered found = recover_log(self.log)
        cdef Channel channel
        state = journal.replay(found.journal)
        names = dict(channels)
        self.was_restored = True
        self.shard.ids.lift(found.max_id)
        for path, offset, text in found.damages:
            self.shard.report_damage(path, offset, text)
        self.next_seq = found.next_seq
        if state is not None:
            self.next_seq = max(self.next_seq, state.next_seq)
            for saved in state.channels:
                names.setdefault(saved.name, saved.paused)
            self.named = NamedCursors(state.cursors)
        cursors = {saved.name: saved for saved in state.channels} if state is not None else {}
        ahead = {}
        # A channel is made at the fan-out position, which may have moved since the snapshot.
        fanout = max(state.fanout_seq, *(saved.cursor for saved in state.channels), 1) \
            if state is not None else 1
        # Without a word of where a channel was, it gets everything: twice is better than never.
        least = 1 if self.retains else min([fanout] + [
            cursors[name].cursor if name in cursors else (fanout if state is not None else 1)
            for name in names])
        untold = 1 if state is None else state.produced_seq or state.next_seq
        held = self.named.held(0) if self.named else NOTHING_HELD
        self.restore_blocks(found, min(least, self.first_untold(found, untold), held))
        self.update_retains()
        if self.oldest != NULL and (self.retains or state is None):
            least = self.oldest.first_seq       # who needed what was before it nobody knows
        self.find_missing(least, () if state is None else state.missing)
        self.name_logs(found, state)
        self.named.end_at(self.log.log_id, self.next_seq)
        self.started = False
        self.cursor_to_end(&self.visible)
        if self.retains:
            self.keep_all()
        self.place_cursor(&self.fanout, fanout)
        if state is not None:
            for start, end in state.holes:
                self.add_hole(start, end)
            self.restore_delayed(state.delayed)
        for name, paused in names.items():
            channel = self.channel(name)
            channel.paused = paused
            saved = cursors.get(name)
            if saved is not None:
                self.place_cursor(&channel.cursor, saved.cursor)
                channel.skipped = saved.skipped
                channel.replay_end = saved.replay_end
                if saved.moves:
                    (<Moves>channel.make_mover()).restore_runs(saved.moves)
                self.restore_entries(channel, saved)
                ahead[name] = self.restore_finished(channel, saved.finished)
        self.restore_new_delays(state.fanout_seq if state is not None else 1,
                                bool(names) and not (state is not None and state.paused))
        self.restore_produced(state, untold)
        if state is None:
            self.restore_survivors()
        self.release_unneeded()
        self.settle_all()
        free(self.places)
        self.places = NULL
        self.started = True
        # What was read need not have been synced.
        self.journal_due = self.promised == FSYNC
        self.least = self.least_seq()
        for channel in self.channels.values():
            channel.carry(ahead.get(channel.name, 0))
        self.journal_due = True     # the one there is says that nothing was published since
        self.touch_dirty()
        self.fan_out()

    cdef bint is_whole(self, found, state) except -1:
        """Whether everything that was visible is still there."""
        if state is None or found.damages:
            return False
        if not state.clean and not found.open_end:
            # The segment that was being written is missing.
            return False
        return (state.clean or state.durability == FSYNC
                or state.durability == OS and state.boot == self.shard.boot)

    cdef int name_logs(self, Recovered found, state) except -1:
        """Which logs the records belong to that were found; and whether the last one goes on. It
        does not when something of it may be lost that readers were told of: its seqs would be used
        again."""
        cdef bytes log_id = self.log.log_id
        self.stable = self.log_first = self.next_seq
        self.past = ()
        # In class fsync it is what readers are told of.
        if self.promised != FSYNC or self.oldest == NULL or self.sync_found():
            self.past = journal.name_logs(self.stretches(), () if state is None else state.past)
        named = [one.log_id for one in self.past]
        if not self.is_whole(found, state) or log_id in named and (
                self.past[len(named) - 1].log_id != log_id
                or self.past[len(named) - 1].end != self.next_seq):
            self.log.log_id = os.urandom(16)
        elif log_id in named:
            self.log_first = self.past[len(named) - 1].first_seq
            self.past = self.past[:len(named) - 1]
        return 0

    cdef list stretches(self):
        """The records in the window, as (first, end, log_id of their segments) without a gap."""
        cdef Block *block = self.oldest
        cdef Segment *segment = NULL
        cdef uint64_t first = 0
        cdef uint64_t end = 0
        found = []
        while block != NULL:
            if segment == NULL or block.first_seq != end \
                    or memcmp(segment.log_id, block.extent.segment.log_id, 16) != 0:
                if segment != NULL:
                    found.append((first, end, <bytes>segment.log_id[:16]))
                first = block.first_seq
                segment = block.extent.segment
            end = block.last_seq + 1
            block = block.next
        if segment != NULL:
            found.append((first, end, <bytes>segment.log_id[:16]))
        return found

    cdef bint sync_found(self) except -1:
        """What was written by a process that was killed must survive a power loss from now on;
        whether it does."""
        cdef int error = 0
        self.log.sync_found(note_error, &error)
        self.shard.io.drain()
        return error == 0

    cdef int restore_blocks(self, Recovered found, uint64_t least) except -1:
        """Runs on disk become blocks without memory: in the window, or stragglers before it."""
        cdef RecoveredRun *run
        cdef Block *block
        cdef size_t i
        self.places = <Place *>malloc((found.run_count + 1) * sizeof(Place))
        if self.places == NULL:
            raise MemoryError()
        self.place_count = 0
        if found.run_count:
            qsort(found.run_array, found.run_count, sizeof(RecoveredRun), compare_runs)
        for i in range(found.run_count):
            run = &found.run_array[i]
            block = self.store.new_block(0)
            block.size = block.written = block.stored = run.extent.bytes
            block.count = max(1, run.count)
            block.first_seq = run.first_seq
            block.last_seq = run.last_seq
            block.first_time = run.first_time
            block.last_time = max(<int64_t>1, run.last_time)
            block.extent = run.extent
            block.flags = SEALED
            self.places[self.place_count].segment = run.extent.segment.number
            self.places[self.place_count].offset = run.extent.offset
            self.places[self.place_count].block = block
            self.places[self.place_count].has_delayed = (run.flags & RUN_HAS_DELAYED) != 0
            self.places[self.place_count].has_produced = (run.flags & RUN_HAS_PRODUCED) != 0
            self.place_count += 1
            if run.flags & RUN_SURVIVORS:
                block.flags |= SURVIVORS
                self.add_straggler(block)
            elif run.last_seq < least:
                self.add_straggler(block)
            else:
                self.push_block(block)
        qsort(self.places, self.place_count, sizeof(Place), compare_places)
        return 0

    cdef int find_missing(self, uint64_t seq, told) except -1:
        """Note the records from `seq` on that are in no file any more, and tell of them, but for
        those in these ranges, of which a start has told before."""
        cdef Block *block = self.oldest
        cdef uint64_t found
        missing = []
        while block != NULL or seq < self.next_seq:
            found = self.next_seq if block == NULL else block.first_seq
            if found > seq:
                missing.append((seq, found))
            if block == NULL:
                break
            seq = max(seq, block.last_seq + 1)
            block = block.next
        self.missing = tuple(missing)
        untold = journal.without(missing, told)
        if untold:
            count = sum([end - first for first, end in untold])
            first, end = untold[0][0], untold[len(untold) - 1][1]
            self.shard.report_missing(self.name, f"{count} records from {first} to {end - 1}")
        return 0

    cdef Block *block_at(self, uint64_t segment, uint64_t offset, uint32_t *within) noexcept:
        """The block that holds a place on disk; NULL if none does."""
        cdef size_t low = 0
        cdef size_t high = self.place_count
        cdef size_t middle
        cdef Place *place
        while low < high:
            middle = (low + high) // 2
            place = &self.places[middle]
            if place.segment < segment or (place.segment == segment and place.offset <= offset):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return NULL
        place = &self.places[low - 1]
        if place.segment != segment or offset - place.offset + sizeof(Record) > place.block.size \
                or (offset - place.offset) % 8:
            return NULL
        within[0] = <uint32_t>(offset - place.offset)
        return place.block

    cdef void place_cursor(self, Cursor *cursor, uint64_t seq) noexcept:
        """Put a cursor before record `seq`: at the start of its block, not in memory yet."""
        cdef Cursor to
        to.block = self.oldest
        to.offset = 0
        to.seq = seq
        while to.block != NULL and to.block.last_seq < seq and to.block.next != NULL:
            to.block = to.block.next
        if to.block != NULL and to.block.last_seq < seq:
            to.offset = to.block.size
        if to.block != NULL and to.seq < to.block.first_seq:
            # What was before is finished and gone; the journal was too old to say so.
            to.seq = to.block.first_seq
        self.move_cursor(cursor, &to)

    cdef Block *restored_block(self, const PackedEntry *packed, uint32_t *within) noexcept:
        """NULL: the record is not there any more."""
        # That number must never stand for another file: a journal may be older than what it names.
        self.log.last_number = max(self.log.last_number, packed.segment)
        return self.block_at(packed.segment, packed.offset, within)

    cdef int restore_entries(self, Channel channel, saved) except -1:
        cdef bytes entries = saved.entries
        cdef bytes ids = saved.ids
        cdef const PackedEntry *packed = <const PackedEntry *><const char *>entries
        cdef const uint64_t *id = <const uint64_t *><const char *>ids
        cdef size_t known = len(ids) // sizeof(uint64_t)
        cdef Block *block
        cdef uint32_t within = 0
        cdef size_t i
        cdef size_t missing = 0
        for i in range(len(entries) // sizeof(PackedEntry)):
            block = self.restored_block(&packed[i], &within)
            if block == NULL:
                missing += 1
            else:
                self.restore_entry(channel, &packed[i], id[i] if i < known else 0, block, within)
        if saved.cancelled:
            channel.cancelled = set(saved.cancelled)
        if missing:
            self.shard.report_missing(
                self.name, f"{missing} messages that channel {channel.name} had handed out")
        return 0

    cdef int64_t restore_finished(self, Channel channel, finished) except -1:
        """What the cursor of a channel need not see: what has moved, and what was delivered, handed
        back and cancelled since the snapshot. Returns how many of these are fanned out again, and
        so received once more."""
        cdef uint64_t fanout = self.fanout.seq
        cdef int64_t moved = 0
        cdef int64_t cancelled = 0
        ranges = list(finished)
        for start, end in finished:
            moved += max(end, fanout) - max(start, fanout)
        for seq in sorted(channel.cancelled or ()):
            if seq >= channel.cursor.seq and not self.was_delayed(seq):
                channel.cancelled.remove(seq)
                cancelled += seq >= fanout
                channel.skipped += 1
                ranges.append((seq, seq + 1))
        for start, end in sorted(ranges):
            channel.add_finished(start, end)
        channel.dead_lettered_count += moved
        channel.cancelled_count += cancelled
        return moved + cancelled

    cdef bint was_delayed(self, uint64_t seq) except -1:
        """Whether a record has a delay: the cursor steps over it."""
        cdef Block *block = self.block_of(seq)
        cdef const Record *record
        cdef uint32_t at
        if block == NULL or not self.load_now(block):
            return True
        at = offset_of(block, seq)
        if at == block.size:
            return True
        record = <const Record *>(block.data + at)
        return record.seq > seq or record.attributes & RECORD_DELAYED != 0

    cdef int restore_entry(self, Channel channel, const PackedEntry *packed, uint64_t id,
                           Block *block, uint32_t within) except -1:
        cdef Deferred message
        cdef Entry *entry
        if packed.state == MOVING:
            return self.restore_move(channel, packed, block, within)
        message.node.tag = size_tag(packed.size)
        message.seq = packed.seq
        message.id = id
        message.block = block
        message.offset = within
        message.attempts = packed.attempts
        message.round = channel.round
        self.ref(block)
        if packed.state == DEFERRED:
            channel.defer(&message, self.agenda.now + max(
                <int64_t>0, packed.due - self.agenda.wall))
        else:
            entry = self.store.new_entry()
            (<Deferred *>entry)[0] = message
            channel.queue_entry(entry, size_tag(packed.size))
            entry.holding = NULL
        return 0

    cdef int restore_move(self, Channel channel, const PackedEntry *packed, Block *block,
                          uint32_t within) except -1:
        """A message that was moving goes on doing so."""
        cdef Entry *entry
        cdef Record *record
        self.ref(block)         # or it would go when it has been read
        if not self.load_now(block):
            self.unref(block)
            return 0
        record = <Record *>(block.data + within)
        if is_spoiled(record, packed.seq):
            self.unref(block)
            return 0
        if packed.seq >= self.fanout.seq and not record.attributes & RECORD_DELAYED:
            # The ranges took it for one that had moved; and it is received once more.
            channel.dead_lettered_count -= 1
            channel.carried -= 1
        entry = self.store.new_entry()
        entry.seq = packed.seq
        entry.id = record.id
        entry.timestamp = record.timestamp
        entry.block = block
        entry.offset = within
        entry.attempts = packed.attempts
        entry.round = channel.round
        return channel.make_mover().restore_move(
            entry, <MoveReason>packed.reason, <uint64_t>packed.due)

    cdef int restore_delayed(self, bytes entries) except -1:
        cdef const PackedEntry *packed = <const PackedEntry *><const char *>entries
        cdef Block *block
        cdef Record *record
        cdef Entry *entry
        cdef uint32_t within = 0
        cdef size_t i
        for i in range(len(entries) // sizeof(PackedEntry)):
            block = self.restored_block(&packed[i], &within)
            if block == NULL:
                continue
            entry = self.store.new_entry()
            entry.node.tag = size_tag(packed[i].size)
            entry.seq = packed[i].seq
            entry.id = 0
            entry.block = block
            entry.offset = within
            entry.due = packed[i].due
            entry.timestamp = 0
            self.ref(block)
            if packed[i].reason and self.load_now(block):
                record = <Record *>(block.data + within)
                if not is_spoiled(record, entry.seq):
                    entry.timestamp = <int64_t>record_address(record)
            self.add_delayed(entry)
            block.refs -= 1
        return 0

    cdef int restore_new_delays(self, uint64_t seq, bint fanned_out) except -1:
        """Records with a delay from `seq` on that the journal does not know: it knows those that
        were on disk when it was written. Where there was a channel to get them their delay began
        with the publish; else it begins now."""
        cdef size_t i
        cdef Block *block
        cdef Record *record
        cdef Entry *entry
        cdef uint32_t at
        if self.delayed_last != NULL:
            seq = max(seq, self.delayed_last.seq + 1)
        for i in range(self.place_count):
            block = self.places[i].block
            if not self.places[i].has_delayed or block.last_seq < seq \
                    or not block.flags & IN_WINDOW:
                continue
            at = 0
            while self.load_now(block) and at < block.size:
                record = <Record *>(block.data + at)
                if record.attributes & RECORD_DELAYED and record.seq >= seq:
                    entry = self.store.new_entry()
                    entry.seq = record.seq
                    entry.id = record.id
                    entry.block = block
                    entry.offset = at
                    entry.node.tag = size_tag(record.body_length)
                    entry.due = record_delay(record)
                    entry.timestamp = <int64_t>record_address(record)
                    if fanned_out:
                        entry.due = min(entry.due, max(
                            <int64_t>0, record.timestamp + entry.due - self.agenda.wall))
                    self.add_delayed(entry)
                at += record.length
        return 0

    cdef bint load_now(self, Block *block) except -1:
        """Wait until a block is in memory; whether it is."""
        if block.data == NULL:
            self.load(block)
            self.shard.io.drain()
            if self.stalled:
                raise OSError(self.log.last_error_text)
        return block.data != NULL

    cdef uint64_t first_untold(self, Recovered found, uint64_t seq) noexcept:
        """The first record of the runs that may have chunks from record `seq` on."""
        cdef RecoveredRun *run
        cdef uint64_t first = NOTHING_HELD
        cdef size_t i
        for i in range(found.run_count):
            run = &found.run_array[i]
            if run.flags & RUN_HAS_PRODUCED and not run.flags & RUN_SURVIVORS \
                    and run.last_seq >= seq:
                first = min(first, run.first_seq)
        return first

    cdef int restore_produced(self, state, uint64_t seq) except -1:
        """What the journal knows of chunks, and what records from `seq` on tell of them. These stay
        until a journal knows it."""
        cdef Block *block
        cdef size_t i
        if state is not None and state.epochs:
            self.producers = Producers()
            self.producers.restore(state.epochs)
        for i in range(self.place_count):
            block = self.places[i].block
            if not self.places[i].has_produced or block.flags & SURVIVORS or block.last_seq < seq:
                continue
            if self.producers is None:
                self.producers = Producers()
            if not self.has_untold:
                self.has_untold = True
                self.watch(&self.untold)
                self.place_cursor(&self.untold, seq)
            self.find_produced(block, seq)
        if self.has_untold:
            self.producers.found_all(self.agenda.wall)
        if self.has_untold and self.promised != FSYNC:
            # Whoever sends such a chunk again is answered at once, and may have asked for a sync.
            self.sync_found()
        return 0

    cdef int find_produced(self, Block *block, uint64_t seq) except -1:
        """Tell the producers of the chunks in a block, from record `seq` on."""
        cdef Record *record
        cdef Produced produced
        cdef Produced stretch       # of one chunk, ends before `end`
        cdef uint32_t end = 0
        cdef uint32_t at = 0
        while self.load_now(block) and at < block.size:
            record = <Record *>(block.data + at)
            at += record.length
            if record.seq < seq or not record_produced(record, &produced):
                continue
            if end and is_next(&stretch, end, &produced):
                end += 1
                continue
            if end:
                self.producers.found(name_of(&stretch), stretch.index, end, stretch.count)
            stretch = produced
            end = produced.index + 1
        if end:
            self.producers.found(name_of(&stretch), stretch.index, end, stretch.count)
        return 0

    cdef int restore_survivors(self) except -1:
        """There is no journal to say who needs the copies of old records: every channel gets them;
        without any channel they stay where they are."""
        cdef Block *block = self.stragglers
        cdef Channel channel
        while block != NULL:
            if block.flags & SURVIVORS:
                self.pin(block)
                self.load(block)
            block = block.next
        self.shard.io.drain()
        block = self.stragglers
        while block != NULL:
            if block.flags & SURVIVORS and block.data != NULL and self.channels:
                for channel in self.channels.values():
                    self.queue_survivors(channel, block)
                block.pins -= 1
            elif block.flags & SURVIVORS:
                block.flags |= KEPT
            block = block.next
        return 0

    cdef void let_go_of_kept(self) noexcept:
        cdef Block *block = self.stragglers
        cdef Block *following
        while block != NULL:
            following = block.next
            if block.flags & KEPT:
                block.flags &= ~KEPT
                self.unpin(block)
            block = following

    cdef int queue_survivors(self, Channel channel, Block *block) except -1:
        cdef Record *record
        cdef Entry *entry
        cdef uint32_t at = 0
        while at < block.size:
            record = <Record *>(block.data + at)
            if not record.attributes & RECORD_DAMAGED:
                entry = self.store.new_entry()
                entry.seq = record.seq
                entry.id = record.id
                entry.block = block
                entry.offset = at
                entry.attempts = 0
                entry.round = channel.round
                self.ref(block)
                channel.queue_entry(entry, size_tag(record.body_length))
            at += record.length
        return 0

    cdef int release_unneeded(self) except -1:
        """Blocks before the window that no entry refers to are finished."""
        cdef Block *block = self.stragglers
        cdef Block *following
        while block != NULL:
            following = block.next
            if block.refs == 0 and block.pins == 0:
                self.forget_straggler(block)
            block = following
        return 0


cdef class Shard:
    def __init__(self, *, SchedulerState agenda not None, IdSource ids not None, IoThread io,
                 str data_path, log_options=None, policies=None, has_room=None, on_event=None,
                 log=None):
        """
        agenda: the worker's agenda; its store is the shard's
        io, data_path: where topics keep their logs; None: nothing ever goes to disk
        log_options: keyword arguments for each Log
        policies: what topic(name) gives a policy for each topic; None: every topic has the default
        has_room: called as has_room(), whether there may be one more topic; None: always
        on_event: called as on_event(kind, topic, channel) for created and deleted things
        log: something with info(), warn() and error(), for operators
        """
        self.agenda = agenda
        self.store = agenda.store
        self.ids = ids
        self.io = io
        self.data_path = data_path
        self.log_options = log_options or {}
        self.sync_every = self.log_options.get("sync_every", 0)
        self.checkpoint_period = max(
            MIN_CHECKPOINT_PERIOD, self.log_options.get("sync_timeout", SECOND))
        quick = io is not None and self.checkpoint_period < SECOND
        self.next_checkpoint = 0 if quick else INT64_MAX
        self.policies = policies
        self.has_room = has_room
        self.on_event = on_event
        self.log = log
        self.failures = None if log is None else WriteFailures(log)
        self.topics = {}
        self.dirty_topics = []
        self.ticking = []
        self.checkpointing = []
        self.compacting = []
        self.journalling = []
        self.snapshot_budget = SNAPSHOT_BUDGET
        self.reads = []
        self.hurried = []
        self.health = "OK"
        self.boot = boot_id()
        self.log_hold_max_bytes = 10 << 30
        self.log_cursor_expiry = 7 * 24 * 3600 * SECOND

    # -- topics --

    cdef Topic find(self, bytes key):
        return <Topic>self.topics.get(key)

    cdef Topic find_or_create(self, bytes key):
        cdef Topic topic = <Topic>self.topics.get(key)
        if topic is None:
            if self.has_room is not None and not self.has_room():
                return None
            topic = self.make_topic(key)
            if self.hold_new:
                topic.held_until = self.agenda.now + self.hold_new
            self.event("topic_created", topic.name, None)
        return topic

    cdef Topic make_topic(self, bytes key):
        cdef Topic topic = Topic(self, key)
        if self.io is not None and not topic.ephemeral:
            topic.log = Log(self.io, self.data_path, topic.name, on_damage=self.report_damage,
                            on_failure=self.report_failed_write,
                            on_recovery=self.report_written_again, **self.log_options)
        self.give_policy(topic)
        self.topics[key] = topic
        return topic

    cdef int give_policy(self, Topic topic) except -1:
        if self.policies is not None:
            topic.set_policy(self.policies.topic(topic.name))
            topic.unusual = self.policies.unusual_of_topic(topic.name)
            topic.prunes = topic.prunes or topic.prune_after != 0
            topic.set_bounds()
        return 0

    cdef int give_channel_policy(self, Topic topic, Channel channel) except -1:
        if self.policies is not None:
            policy = self.policies.channel(topic.name, channel.name)
            if policy.dead_letter_topic == topic.name:
                # A message would come back, and to each of its channels.
                policy = policy._replace(max_attempts=0, dead_letter_topic="")
            channel.set_policy(policy)
            channel.unusual = self.policies.unusual_of_channel(topic.name, channel.name)
            topic.prunes = topic.prunes or channel.prune_after != 0
        return 0

    def policies_changed(self, str name not None):
        """Something else is said of a topic, or of `topic/channel`; both need not exist."""
        cdef Topic topic = self.find(name.partition("/")[0].encode())
        cdef Channel channel
        if topic is None:
            return
        topic.prunes = False
        self.give_policy(topic)
        for channel in topic.channels.values():
            self.give_channel_policy(topic, channel)
        topic.set_bounds()

    def load_topic(self, bytes key not None, bint paused, channels):
        """Take up a topic at start: what its log holds, and what metadata say of it."""
        cdef Topic topic = self.make_topic(key)
        topic.paused = paused
        if topic.log is not None:
            topic.restore(channels)
        else:
            for name, channel_paused in channels.items():
                topic.channel(name).pause(channel_paused)
        return topic

    def report_damage(self, path, offset, text):
        if self.log is not None:
            self.log.error(f"{path} at {offset}: {text}", event="record_damaged",
                           path=str(path), offset=offset, error=text)

    def report_failed_write(self, topic, verb, path, error):
        return self.failures is not None and self.failures.failed(
            self.agenda.now, topic, verb, path, error)

    def report_written_again(self, topic):
        self.failures.recovered(topic)

    def report_missing(self, str name, str what):
        """At a start: the journal speaks of something that is not there. It is written now and then
        only, so a process that was killed may well have been done with it."""
        if self.log is not None:
            self.log.warn(f"TOPIC({name}): {what} are in no file: finished since the journal was "
                          "written, in memory only, or lost",
                          event="records_missing", topic=name, records=what)

    def report_overrun(self, str name, cursors):
        """Named cursors hold nothing any more."""
        if self.log is not None:
            self.log.warn(f"TOPIC({name}): named cursors are overrun, as more than "
                          f"{self.log_hold_max_bytes} bytes were held: {', '.join(cursors)}",
                          event="cursors_overrun", topic=name, cursors=cursors)

    def topic(self, bytes key not None, *, create=False):
        """The topic of that name; None if it does not exist and is not to be created, or has no
        room."""
        return self.find_or_create(key) if create else self.find(key)

    def delete_topic(self, bytes key not None):
        """Delete a topic with its channels, messages and files."""
        cdef Topic topic = self.topics.pop(key, None)
        if topic is None:
            return False
        topic.close(True)
        self.event("topic_deleted", topic.name, None)
        return True

    cdef int tell(self, str text) except -1:
        if self.log is not None:
            self.log.info(text, event="pruned")
        return 0

    def event(self, kind, topic, channel):
        if self.on_event is not None and not self.closing:
            self.on_event(kind, topic, channel)

    def set_health(self, reason):
        """The outcome of the latest write to a log: None, or what went wrong."""
        self.health = "OK" if reason is None else f"NOK - {reason}"
        self.health_at = self.agenda.wall

    def set_refusal(self, reason):
        """From now on refuse, for this reason, publishes that have to be written; None: no more."""
        self.refused = reason

    def set_draining(self, bint draining):
        """Refuse every publish, so that what there is can be consumed; or refuse none any more."""
        if not self.closing:
            self.shut = DRAINING if draining else None

    # -- turns --

    cdef int64_t turn(self) except? -1:
        """Do what is to be done at the end of a turn. Returns when it wants to be called again, on
        the monotonic clock (ns): `agenda.now` if work is left."""
        cdef int64_t now = self.agenda.now
        cdef Topic topic
        cdef list work
        cdef int64_t due
        cdef bint left
        if heap_first_due(&self.agenda.channel_timers) <= now:
            self.expire()
        if now >= self.next_tick and not self.ticking:
            self.tick()
        if self.ticking:
            self.tick_on()
        if now >= self.next_checkpoint and not self.checkpointing:
            self.begin_checkpoints()
        if self.checkpointing:
            self.go_on_with_checkpoints()
        while self.dirty_topics:
            work = self.dirty_topics
            self.dirty_topics = []
            for topic in work:
                try:
                    topic.settle_turn()
                except Exception as error:
                    self.report(topic.name, error)
        left = self.dispatch()
        if self.hurried and now >= self.next_hurry:
            self.write_hurried()
        if self.has_long_work():
            self.go_on()
            left = left or self.has_long_work()
        if self.io is not None:
            self.io.kick()
        if left or self.dirty_topics or self.ticking or self.checkpointing:
            return now
        due = min(self.next_tick, self.next_checkpoint)
        if self.hurried:
            due = min(due, self.next_hurry)
        return min(due, heap_first_due(&self.agenda.channel_timers))

    cdef inline bint has_long_work(self) noexcept:
        """Whether there is work that takes many turns: there seldom is."""
        if self.compacting or self.journalling or self.agenda.discarded or self.reads:
            return True
        return False

    cdef int go_on(self) except -1:
        """Do a turn's part of that."""
        if self.compacting:
            self.compact()
        if self.journalling:
            self.go_on_with_journals()
        if self.agenda.discarded:
            self.free_discarded()
        if self.reads:
            self.read_on()
        return 0

    cdef int expire(self) except -1:
        """Messages that are due; what exceeds the budget is still due in the next turn."""
        cdef int budget = EXPIRE_BUDGET
        cdef HeapNode *node
        while budget > 0:
            if heap_first_due(&self.agenda.channel_timers) > self.agenda.now:
                break
            node = heap_peek(&self.agenda.channel_timers)
            budget -= max(1, (<Channel>(<Timer *>node).owner).expire(budget))
        return 0

    cdef bint dispatch(self) except -1:
        """Dirty channels deliver; whether some could go on. Those that the budget was not enough
        for are the first in the next turn."""
        cdef bint left = False
        cdef int budget = DISPATCH_BUDGET
        cdef list work = self.agenda.dirty_channels
        cdef Py_ssize_t done = 0
        cdef Channel channel
        self.agenda.dirty_channels = []
        for channel in work:
            if budget == 0:
                break
            done += 1
            channel.dirty = False
            if channel.gone:
                continue
            try:
                budget = channel.dispatch(budget)
                if budget == 0:
                    channel.touch_dirty()
                    left = True
            except Exception as error:
                self.report(channel.name, error)
            channel.set_alarm()
        if done < len(work):
            self.agenda.dirty_channels = work[done:] + self.agenda.dirty_channels
            left = True
        return left

    cdef int compact(self) except -1:
        """Go on with the compactions of topics, one after the other."""
        cdef int budget = COMPACT_BUDGET
        cdef Topic topic
        while self.compacting and budget > 0:
            topic = self.compacting[0]
            try:
                if topic.compaction is not None:
                    budget = topic.compaction.step(budget)
            except Exception as error:
                self.report(topic.name, error)
                topic.compaction.stop()
            if topic.compaction is None or topic.compaction.waits():
                self.compacting.pop(0)
        return 0

    cdef int go_on_with_journals(self) except -1:
        """Go on with the snapshots of topics' journals, one after the other."""
        cdef int budget = self.snapshot_budget
        cdef Topic topic
        while self.journalling and budget > 0:
            topic = self.journalling[0]
            try:
                if topic.snapshot is not None:
                    budget = topic.go_on_with_journal(budget)
            except Exception as error:
                self.report(topic.name, error)
                topic.give_up_journal()
            if topic.snapshot is None:
                self.journalling.pop(0)
        return 0

    cdef int free_discarded(self) except -1:
        """Free some more of what channels have dropped."""
        cdef int budget = DISCARD_BUDGET
        cdef Discarded discarded
        while self.agenda.discarded and budget > 0:
            discarded = self.agenda.discarded[0]
            budget = discarded.free_some(budget)
            if budget > 0:
                self.agenda.discarded.pop(0)
        return 0

    cdef int read_on(self) except -1:
        """Go on with reads of logs, one after the other."""
        cdef int budget = READ_BUDGET
        cdef int given
        cdef LogRead read
        while self.reads and budget > 0:
            read = self.reads.pop(0)
            if read.stage == ENDED:
                continue
            given = min(budget, <int>READ_SLICE)
            try:
                budget -= given - read.step(given)
            except Exception as error:
                self.report((<Topic>read.window).name, error)
                read.abandon(b"E_LOG_FAILED " + type(error).__name__.encode())
            if read.stage != ENDED and not read.reading:
                self.reads.append(read)
        return 0

    cdef int write_hurried(self) except -1:
        """Somebody waits for what would be written with the end of the second."""
        cdef Topic topic
        work = self.hurried
        self.hurried = []
        self.next_hurry = self.agenda.now + HURRY
        for topic in work:
            topic.hurried = False
            if not topic.gone:
                try:
                    topic.write_down()
                except Exception as error:
                    self.report(topic.name, error)
        return 0

    cdef uint64_t answer_room(self, uint64_t wanted) noexcept:
        """How large an answer to a read may be: many, and those that nobody takes, make each other
        short."""
        cdef uint64_t room = 0
        if self.reserved < ANSWERS_MOST:
            room = (ANSWERS_MOST - self.reserved) // 2
        return min(wanted, max(room, <uint64_t>SHORT_ANSWER))

    cdef int report(self, str name, error) except -1:
        """Something that should not happen: it must not take the others' turn with it."""
        if self.log is not None:
            self.log.error(f"{name} - {type(error).__name__}: {error}", event="internal_error",
                           subject=name, error=str(error))
        return 0

    cdef int tick(self) except -1:
        """Once a second: what need not be exact."""
        self.next_tick = self.agenda.now + SECOND
        self.store.trim(self.agenda.now)
        self.ticking = list(self.topics.values())
        return 0

    cdef int tick_on(self) except -1:
        """Tell some more topics that the second is over."""
        cdef int budget = TICK_BUDGET
        cdef Topic topic
        while self.ticking and budget > 0:
            topic = self.ticking.pop()
            if topic.gone:
                continue
            try:
                budget -= topic.tick()
            except Exception as error:
                self.report(topic.name, error)
        return 0

    cdef int begin_checkpoints(self) except -1:
        """A --sync-timeout below a second has passed: a tick comes too late for checkpoints."""
        self.next_checkpoint = self.agenda.now + self.checkpoint_period
        self.checkpointing = list(self.topics.values())
        return 0

    cdef int go_on_with_checkpoints(self) except -1:
        cdef int budget = TICK_BUDGET
        cdef Topic topic
        while self.checkpointing and budget > 0:
            topic = self.checkpointing.pop()
            if topic.gone:
                continue
            try:
                budget -= topic.checkpoint()
            except Exception as error:
                self.report(topic.name, error)
        return 0

    cdef bint has_work(self) noexcept:
        """Whether something became dirty after the turn."""
        return len(self.dirty_topics) > 0 or len(self.agenda.dirty_channels) > 0

    def settle(self):
        """Do for all topics what is done at the end of a turn, so that their numbers are right."""
        cdef Topic topic
        work = self.dirty_topics
        self.dirty_topics = []
        for topic in work:
            topic.settle_turn()

    def run_turn(self, now, wall):
        """A whole turn from outside (tests, tools): set the clocks, do the work."""
        self.agenda.now = now
        self.agenda.wall = wall
        return self.turn()

    # -- the end --

    def save(self):
        """Write down everything that is not ephemeral: queued, in flight (it is delivered again)
        and deferred messages, and who is where. Blocks until it is on disk."""
        cdef Topic topic
        self.closing = True
        self.shut = EXITING
        while self.agenda.discarded:
            self.free_discarded()
        if self.io is not None:
            self.io.drain()         # a compaction that is under way ends
        for topic in list(self.topics.values()):
            topic.save_records()
        if self.io is not None:
            self.io.drain()
        for topic in list(self.topics.values()):
            topic.save_journal()
        if self.io is not None:
            self.io.drain()
        for topic in list(self.topics.values()):
            topic.close(False)
        if self.io is not None:
            self.io.drain()
