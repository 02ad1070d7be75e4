"""Topics: publishing, fan-out, overflow to the log, recovery.

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
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from nsqcy.base.bytes cimport load_be16, load_be32
from nsqcy.broker.channel cimport DROP_NEWEST, DROP_OLDEST, REJECT, Waiter, on_full_of
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
    Sums,
    add_counters,
)
from nsqcy.base.headers cimport HEADERS_SIZE, headers_ttl
from nsqcy.base.histogram cimport histogram_merge
from nsqcy.storage.log cimport RUN_HAS_DELAYED, RUN_SURVIVORS
from nsqcy.broker.dead_letters cimport Moves
from nsqcy.broker.checkpoint_entries cimport Packing
from nsqcy.broker.peek cimport Peek
from nsqcy.broker.log_reader cimport ENDED, Fetch, LogRead, Poll, Seek, WAITING
from nsqcy.broker.checkpoint cimport Snapshot
from nsqcy.storage.store cimport (
    DEFERRED,
    IN_WINDOW,
    LOADING,
    RECORD_ADDRESSED,
    RECORD_DELAYED,
    RECORD_EXT_CHANNEL,
    RECORD_EXT_DELAY,
    RECORD_EXT_DELAY_SIZE,
    RECORD_EXPIRES,
    RECORD_EXT_EXPIRES,
    RECORD_EXT_EXPIRES_SIZE,
    RECORD_EXT_HEADERS,
    RECORD_EXT_PRODUCED,
    RECORD_EXT_PRODUCED_SIZE,
    RECORD_HEADERS,
    RECORD_PRODUCED,
    SEALED,
    SURVIVORS,
    UNREADABLE,
    Deferred,
    Produced,
    append_record,
    offset_of,
    record_address_of,
    record_body,
    record_extend,
    record_extension_size,
    size_tag,
)

from nsqcy.broker import events as _events
from nsqcy.broker import dead_letter_headers as dead_letters
from nsqcy.storage import journal
from nsqcy.config.durations import short_duration
from nsqcy.broker.named_cursors import NamedCursors
from nsqcy.names import EVENTS_TOPIC as _EVENTS_TOPIC
from nsqcy.names import is_ephemeral
from nsqcy.broker.policies import DURABILITIES as _DURABILITIES
from nsqcy.broker.producers import ChunkError, ChunkName, Producers, messages_in
from nsqcy.broker.topic_host import DRAINING, EXITING


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_DECREF(object)


cdef enum:
    # What one turn does of each at most; the rest stays for the next one.
    JOURNAL_TICKS = 16              # a journal that is due costs as much as so many of them
    FAN_OUT_BUDGET = 4096           # delayed records fanned out in one step
    DELAYED_PACKED = 16384          # records of a backlog; a start finds the rest by itself
    TICK_EXPIRES = 4096             # records of a topic's own that a tick finds too old
    ADDRESS_HEADER = 16             # bytes of that header but for its value

cdef int64_t MILLISECOND = 1000000
cdef int32_t NO_LIMIT = 0x7fffffff  # of the bytes of a message: the wire has no larger ones

cdef Block *block_behind(const Cursor *keeper) noexcept:
    """The first block that a cursor that keeps has not passed: it stands at the start of a block,
    or at the end of the last one."""
    cdef Block *block = keeper.block
    return block if block == NULL or keeper.offset == 0 else block.next


cdef int64_t SECOND = 1000000000
cdef uint64_t NOTHING_HELD = <uint64_t>-1
cdef int64_t REST = 10 * SECOND     # idle time after which an open block is given back


cdef Durability durability_of(str name) except *:
    if name == "memory":        # as nearly everybody's
        return MEMORY
    return <Durability><int>_DURABILITIES.index(name)


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
cdef class Topic(Window):
    def __cinit__(self, TopicHost shard not None, bytes key not None):
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

    cdef void let_go_of_kept(self) noexcept:
        cdef Block *block = self.stragglers
        cdef Block *following
        while block != NULL:
            following = block.next
            if block.flags & KEPT:
                block.flags &= ~KEPT
                self.unpin(block)
            block = following
