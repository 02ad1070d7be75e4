"""Channels: who gets which message, and what happens to it until it is finished.

Owns the redelivery queue, the rules of delivery and the counters. Its bases own the parts: the
cursor over the window (channel_cursor), what is deferred (deferral), what consumers hold
(inflight); ready_ring knows whose turn it is. Knows blocks and entries, but neither connections (a
Consumer is whatever can take a message) nor clocks: `agenda.now` is set by whoever drives it.

The balance that holds at any time:
received = finished + queued + in flight + deferred + dropped + sampled out; see Channel.ledger().
"""

cimport cython
from libc.string cimport memset

from nsqcy.base.debug cimport NSQCY_DEBUG
from nsqcy.channels.events cimport DEAD_LETTER, EXPIRED, FINISH, REQUEUE, TIMEOUT
from nsqcy.channels.counters cimport (
    CHANNEL_CONSUMERS,
    CHANNEL_DEAD_LETTERS,
    CHANNEL_DEFERRED,
    CHANNEL_DELIVERIES,
    CHANNEL_DEPTH,
    CHANNEL_DROPPED,
    CHANNEL_FINISHES,
    CHANNEL_IN_FLIGHT,
    CHANNEL_MESSAGES,
    CHANNEL_PAUSED,
    CHANNEL_REQUEUES,
    CHANNEL_TIMEOUTS,
)
from nsqcy.base.heap cimport (
    HEAP_NOWHERE,
    HeapNode,
    heap_check,
    heap_due,
    heap_first_due,
    heap_free,
    heap_push,
    heap_remove,
)
from nsqcy.channels.inflight cimport MOVED_SLOTS, holdings_alive
from nsqcy.channels.ready_ring cimport (
    ANYWHERE,
    REGION_LOCAL,
    ZONE_LOCAL,
    enter_ring,
    init_place,
    init_ring,
    leave_ring,
    next_in_turn,
    pass_turn,
)
from nsqcy.channels.deferral cimport HOLDING_TIMER
from nsqcy.storage.block cimport LOADING, UNREADABLE
from nsqcy.storage.entry cimport MOVING, NEVER, QUEUED, Page, deferred_of, size_tag
from nsqcy.storage.record cimport RECORD_EXPIRES, is_spoiled, record_address_of, record_expiry

from nsqcy.config.policies import ON_FULL as _ON_FULL

cdef enum:
    DROP_AT_ONCE = 4096             # messages; what else is dropped is freed bit by bit

    REDRIVEN_AT_ONCE = 256          # messages on their way back

    # Of a rate, in ns. What nobody wanted to have is let go later, but no more than this time's;
    # of what a late turn could not send, more, so that the rate is kept on a busy machine too.
    BURST = 10000000
    MAKE_UP = 100000000
    PACE = 1000000              # between two wake-ups: a high rate lets several go at each

    READ_AHEAD = 1024               # messages of the queue that are read at once


cdef double SECOND = 1e9
cdef double MOST_RATE = 1e9

# Objects alive, counted in the debug build.
cdef Py_ssize_t live_channels = 0


def live():
    """How many channels exist, and holdings of their consumers; zeros in a release build."""
    return {"channels": live_channels, "holdings": holdings_alive()}


cdef OnFull on_full_of(str name) except *:
    return <OnFull><int>_ON_FULL.index(name)


@cython.final
@cython.no_gc_clear      # or it could not give back what the window has
cdef class Discarded:
    cdef int free_some(self, int budget) noexcept:
        """Free so many messages; returns what is left of the budget: 0 if some may be left."""
        cdef Entry *entry
        cdef Page *page
        cdef Deferred *deferred
        cdef uint32_t left
        while self.entries != NULL and budget > 0:
            entry = self.entries
            self.entries = entry.next
            self.window.unref(entry.block)
            self.window.store.free_entry(entry)
            budget -= 1
        while self.pages.first != NULL and budget > 0:
            page = self.pages.first
            deferred = deferred_of(page)
            left = page.used            # the page goes with the last one
            budget -= left
            while left:
                if deferred.block != NULL:
                    self.window.unref(deferred.block)
                    self.window.store.free_deferred(&self.pages, deferred)
                    left -= 1
                deferred += 1
        return max(0, budget)


cdef class Waiter:
    cdef int publish_done(self, uint64_t ticket, str error) except -1:
        """The publish behind `ticket` was accepted (error is None) or failed."""
        raise NotImplementedError

    cdef int log_answered(self, uint64_t ticket, bytes answer, bytes error) except -1:
        """What was asked behind `ticket` is known, or cannot be answered (error is not None)."""
        raise NotImplementedError


cdef class Consumer(Waiter):
    cdef bint has_room(self) noexcept:
        """Whether a message can be sent now without holding too much unsent output."""
        return True

    cdef int64_t usual_timeout(self) noexcept:
        """The message timeout of clients that did not ask for one."""
        return self.msg_timeout

    cdef bint send_message(self, RecordWindow window, Block *block, Record *record,
                           uint16_t attempts) except -1:
        """Put one message frame into the output; whether there is room for another."""
        raise NotImplementedError

    cdef int on_channel_gone(self) except -1:
        """The channel was deleted under the consumer."""
        raise NotImplementedError

    def counters(self):
        """What /stats shows of the client, as a dict."""
        raise NotImplementedError


cdef class Mover(Consumer):
    cdef int take_over(self, Entry *entry, MoveReason reason, str client) except -1:
        """Hold a message from now on, whose id and timestamp are known, and move it. `client`: who
        had it last."""
        raise NotImplementedError

    cdef int restore_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1:
        """The same of one that a start has found on its way, in the order of their numbers."""
        raise NotImplementedError

    cdef bint send_back(self, Entry *entry, const Record *record) except -1:
        """Hold a message from now on, and move it to where its headers say that it came from; not
        if they do not say."""
        raise NotImplementedError

    cdef int go_on(self) except -1:
        """Send what can be sent now."""
        raise NotImplementedError


@cython.final
cdef class Channel(InFlight):
    def __cinit__(self, SchedulerState agenda not None, RecordWindow window not None,
                  str name not None):
        global live_channels
        if NSQCY_DEBUG:
            live_channels += 1
        self.agenda = agenda
        self.window = window
        self.store = agenda.store
        self.name = name
        self.ephemeral = name.endswith("#ephemeral")
        self.consumers = []
        self.mem_queue_size = agenda.mem_queue_size
        self.dead_letter_topic = ""
        key = name.encode()
        self.address = record_address_of(key, len(key))
        self.used_at = agenda.now
        init_ring(&self.ready)
        self.pacer.node.index = HEAP_NOWHERE
        self.pacer.owner = <void *>self
        window.watch(&self.cursor)
        window.move_cursor(&self.cursor, &window.fanout)
        self.born_seq = window.fanout.seq
        if agenda.percentiles.quantiles:
            self.latency = Latency(agenda.percentiles, agenda.now)
            self.watched = True

    def __dealloc__(self):
        # A channel that was not closed is garbage together with its topic, some of which may be
        # cleared already: nothing of it is touched.
        global live_channels
        if NSQCY_DEBUG:
            live_channels -= 1

    def set_policy(self, policy):
        """What its operator asks of the channel (nsqcy.config.policies), from now on; what is in
        flight keeps its deadline."""
        cdef Consumer consumer
        self.mem_queue_size = (
            self.agenda.mem_queue_size if policy.mem_queue_size is None else policy.mem_queue_size)
        self.msg_timeout = policy.msg_timeout or 0
        self.max_attempts = policy.max_attempts
        self.dead_letter_topic = policy.dead_letter_topic
        self.set_ttl(self.ttl)
        self.set_rate(policy.rate)
        self.max_depth = policy.max_depth
        self.on_full = on_full_of(policy.on_full)
        self.prune_after = policy.prune_after
        self.prune_messages = policy.prune_messages
        for consumer in self.consumers:
            self.give_timeout(consumer)

    cdef void set_ttl(self, int64_t ttl) noexcept:
        self.ttl = ttl
        self.sifts = ttl != 0 or self.max_attempts != 0

    cdef void give_timeout(self, Consumer consumer) noexcept:
        if not consumer.asked_timeout:
            consumer.msg_timeout = self.msg_timeout or consumer.usual_timeout()

    cdef bint is_forlorn(self) noexcept:
        """Whether its time to be pruned has come. Looked at once a second."""
        if self.consumers or self.held() and not self.prune_messages:
            self.used_at = self.agenda.now
            return False
        return self.prune_after != 0 and self.agenda.now - self.used_at >= self.prune_after

    # -- numbers --

    cdef uint64_t depth(self) noexcept:
        """Messages that wait for a consumer; neither in flight nor deferred."""
        cdef uint64_t end = self.window.fanout.seq
        cdef uint64_t waiting = 0
        if end > self.cursor.seq + self.skipped:
            waiting = end - self.cursor.seq - self.skipped
        return waiting + self.queued

    cdef uint64_t held(self) noexcept:
        """Messages it is not done with."""
        return self.depth() + self.in_flight_count + self.deferred_count

    cdef void carry(self, uint64_t ahead) noexcept:
        """What it holds now is what a restart gave it back. Of the records that it steps over, so
        many have not been fanned out again yet."""
        self.born_seq = self.window.fanout.seq
        self.skipped -= self.surplus() + ahead
        self.carried += self.held()
        self.skipped += ahead

    cdef void replay(self, uint64_t skipped) noexcept:
        """Its cursor was put back, before so many records that are for nobody. What it gets once
        more has had its delays."""
        self.skipped = skipped
        self.finished_count = 0
        self.replay_end = self.window.fanout.seq
        self.carried += self.depth()
        self.touch_dirty()

    cdef uint64_t activity(self) noexcept:
        """Between two publishes, it grows with whatever happens to a message."""
        return (self.cursor.seq + self.taken[0] + self.taken[1] + self.taken[2]
                + self.finish_count + self.requeue_count + self.timeout_count
                - self.queued - self.in_flight_count - self.deferred_count)

    @property
    def message_count(self):
        """Messages received from the topic since the channel was made or loaded."""
        return self.window.fanout.seq - self.born_seq

    def counters(self):
        """What /stats shows of the channel, as a dict."""
        cdef uint64_t depth = self.depth()
        cdef uint64_t memory = self.mem_queue_size
        shown = {
            "channel_name": self.name,
            "depth": depth,
            "backend_depth": 0 if self.ephemeral or depth < memory else depth - memory,
            "in_flight_count": self.in_flight_count,
            "deferred_count": self.deferred_count,
            "message_count": self.message_count,
            "zone_local_msg_count": self.taken[<int>ZONE_LOCAL],
            "region_local_msg_count": self.taken[<int>REGION_LOCAL],
            "global_msg_count": self.taken[<int>ANYWHERE],
            "requeue_count": self.requeue_count,
            "timeout_count": self.timeout_count,
            "client_count": len(self.consumers),
            "paused": bool(self.paused),
            "e2e_processing_latency":
                self.agenda.percentiles.summary([self.latency], self.agenda.now),
        }
        if self.unusual:
            shown["policy"] = self.unusual
        return shown

    cdef void add_figures(self, uint64_t *figures) noexcept:
        """Add what metrics show of the channel; of one that is gone its counters are right."""
        figures[CHANNEL_MESSAGES] += self.window.fanout.seq - self.born_seq
        figures[CHANNEL_DELIVERIES] += self.taken[0] + self.taken[1] + self.taken[2]
        figures[CHANNEL_FINISHES] += self.finish_count
        figures[CHANNEL_REQUEUES] += self.requeue_count
        figures[CHANNEL_TIMEOUTS] += self.timeout_count
        figures[CHANNEL_DEAD_LETTERS] += self.dead_lettered_count
        figures[CHANNEL_DROPPED] += (self.exhausted_count + self.full_count + self.dropped_count
                                     + self.expired_count)
        if self.gone:
            return
        figures[CHANNEL_DEPTH] += self.depth()
        figures[CHANNEL_IN_FLIGHT] += self.in_flight_count
        figures[CHANNEL_DEFERRED] += self.deferred_count
        figures[CHANNEL_CONSUMERS] += <uint64_t>len(self.consumers)
        figures[CHANNEL_PAUSED] += self.paused

    def ledger(self):
        """What became of every message that it received from the topic, or back from a restart.
        All that takes one away is counted, but for damage on disk: what no file gives back any
        more is what is missing in the sum."""
        cdef uint64_t received = self.message_count + self.carried + self.surplus()
        cdef uint64_t known = (self.held() + self.finish_count + self.sampled_count
                               + self.dropped_count + self.full_count + self.emptied_count
                               + self.expired_count + self.cancelled_count
                               + self.dead_lettered_count + self.exhausted_count
                               + self.redriven_count)
        return {
            "received": received,
            "finished": self.finish_count,
            "queued": self.depth(),
            "in_flight": self.in_flight_count,
            "deferred": self.deferred_count,
            "dropped": {
                "attempts": self.exhausted_count,
                "cancelled": self.cancelled_count,
                "damaged": <int64_t>(received - known),
                "emptied": self.emptied_count,
                "full": self.full_count,
                "overflow": self.dropped_count,
            },
            "dead_lettered": self.dead_lettered_count,
            "expired": self.expired_count,
            "redriven": self.redriven_count,
            "sampled": self.sampled_count,
        }

    # -- messages come in --

    cdef int queue_record(self, const Entry *addressed) except -1:
        """A record was fanned out that is for this channel only."""
        cdef Entry *entry
        if self.cancelled is not None and self.was_cancelled(addressed.seq):
            return 0
        entry = self.store.new_entry()
        entry.seq = addressed.seq
        entry.id = addressed.id
        entry.block = addressed.block
        entry.offset = addressed.offset
        entry.attempts = 0
        entry.round = self.round
        self.window.ref(entry.block)
        self.skipped += 1
        self.queue_entry(entry, addressed.node.tag)
        return 0

    cdef inline int queue_due(self, Deferred *deferred) except -1:
        """A deferred message is due: an entry again, at the tail of the queue."""
        cdef Entry *entry = self.store.new_entry()
        cdef uint32_t size = deferred.node.tag
        heap_remove(&self.timers, &deferred.node)
        self.deferred_count -= 1
        (<Deferred *>entry)[0] = deferred[0]
        self.store.free_deferred(&self.pages, deferred)
        self.queue_entry(entry, size)
        return 0

    cdef void queue_entry(self, Entry *entry, uint32_t size) noexcept:
        """To the tail: behind everything that has been fanned out so far. An ephemeral channel that
        is full drops it. `size`: of its body, as size_tag has it."""
        if self.ephemeral and self.queued >= self.mem_queue_size:
            self.dropped_count += 1
            self.drop_entry(entry)
            return
        entry.state = QUEUED
        entry.node.tag = size
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        entry.holding = <void *><size_t>self.window.fanout.seq
        entry.next = NULL
        if self.queue_last == NULL:
            self.queue_first = entry
        else:
            self.queue_last.next = entry
        self.queue_last = entry
        self.queued += 1
        self.touch_dirty()

    cdef int collect(self) except -1:
        """An ephemeral channel turns what was fanned out into explicit entries, dropping the newest
        beyond mem-queue-size, as nothing else may keep them."""
        cdef Record *record
        cdef uint64_t seq
        while self.cursor.seq < self.window.fanout.seq:
            if self.queued >= self.mem_queue_size:
                # Before the record is looked at: it has blocks leave memory when it reads others.
                seq = self.cursor.seq
                self.dispatch(1)
                if self.cursor.seq != seq:
                    continue
            record = self.record_at_cursor()
            if record == NULL:
                return 0
            if record.attributes and self.passes(record):
                self.step_over(record)
                continue
            if self.queued >= self.mem_queue_size:
                self.dropped_count += 1
            else:
                self.queue_entry(self.entry_at_cursor(record), size_tag(record.body_length))
                # The cursor is about to pass it: it waits for nothing.
                self.queue_last.holding = NULL
            self.window_step(record)
        return 0

    # -- the next message --

    cdef inline bint queue_is_next(self, const Entry *first) noexcept:
        """Whether the first message of the queue, if there is one, comes before the cursor's."""
        return first != NULL and (<size_t>first.holding <= self.cursor.seq
                                  or self.cursor.seq >= self.window.fanout.seq)

    cdef Entry *take(self, int most) except? NULL:
        """The next message to deliver, off the queue or the window, with its block in memory; NULL
        also when this dispatch has stepped over so many records."""
        cdef Record *record
        if not self.sifts:
            if self.queue_is_next(self.queue_first):
                return self.take_queued()
            record = self.record_at_cursor()
            if record != NULL and not record.attributes:
                return self.take_record(record)
        return self.take_sifted(most)

    cdef Entry *take_sifted(self, int most) except? NULL:
        """The same where the next one may be none to deliver."""
        cdef Entry *entry
        cdef Record *record
        while True:
            entry = self.queue_first
            if self.queue_is_next(entry):
                if not self.sifts or not self.drop_queued():
                    return self.take_queued()
            else:
                record = self.record_at_cursor()
                if record == NULL:
                    if entry != NULL and self.cursor.seq >= self.window.fanout.seq:
                        # It has just stepped over the last records before the queued one.
                        continue
                    return NULL
                if not self.leaves_out(record):
                    return self.take_record(record)
            self.stepped += 1
            if self.stepped >= most:
                return NULL

    cdef inline Entry *take_record(self, Record *record) except NULL:
        """Off the window."""
        cdef Entry *entry = self.entry_at_cursor(record)
        self.window_step(record)
        return entry

    cdef inline Entry *take_queued(self) except? NULL:
        """The first message of the queue; NULL if its record has to be read first."""
        cdef Entry *entry = self.queue_first
        if (entry.block.data == NULL or entry.block.flags & LOADING) and not self.at_hand(entry):
            return NULL
        self.unqueue_first()
        return entry

    cdef void unqueue_first(self) noexcept:
        cdef Entry *entry = self.queue_first
        self.queue_first = entry.next
        if self.queue_first == NULL:
            self.queue_last = NULL
        if self.place.queued == entry:
            self.place.queued = entry.next
        if self.unpacked == entry:
            self.unpacked = entry.next
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.queued -= 1

    cdef bint at_hand(self, const Entry *entry) except -1:
        """Whether all is known of the first message of the queue, whose block is not in memory. If
        not, it is asked for."""
        cdef Block *block = entry.block
        if block.flags & UNREADABLE:
            return True
        if block.flags & LOADING:
            return False
        if self.excerpt is None:
            self.read_ahead()
        elif self.excerpt.reading:
            return False
        elif self.excerpt.find(entry.seq) != NULL:
            return True
        elif self.excerpt.first_seq == entry.seq:
            # There is something wrong with it. The block has the details.
            self.window.load(block)
        else:
            self.read_ahead()
        return False

    cdef int read_ahead(self) except -1:
        """Have read what is next in the queue and not in memory."""
        cdef const Entry *entry = self.queue_first
        cdef Excerpt excerpt = Excerpt(self.window, entry.seq)
        cdef int left = READ_AHEAD
        self.excerpt = None
        if self.window.stalled:
            return 0
        while entry != NULL and left and excerpt.add(entry):
            entry = entry.next
            left -= 1
        if excerpt.read():
            self.excerpt = excerpt
        return 0

    cdef Record *record_of(self, const Entry *entry) noexcept:
        """The record of a message that is queued, or was a moment ago; NULL: not in memory, or
        damaged."""
        cdef Block *block = entry.block
        cdef Record *record
        if block.data != NULL and not block.flags & LOADING:
            record = <Record *>(block.data + entry.offset)
            return NULL if is_spoiled(record, entry.seq) else record
        return NULL if self.excerpt is None else self.excerpt.find(entry.seq)

    # -- messages go out --

    cdef int dispatch(self, int budget) except -1:
        """Deliver messages, or step over records, so many of both; returns what is left of the
        budget: 0 if something may be left that could go now."""
        if self.redriving:
            budget = self.redrive_some(budget)
        if self.paused:
            pass
        elif self.rate:
            budget = self.dispatch_at_rate(budget)
        elif next_in_turn(&self.ready) != NULL:
            budget = self.hand_out(budget)
        if self.ttl or self.window.perishable or self.most_messages or self.most_bytes:
            budget = self.clear_out(budget)
        if self.mover is not None:
            self.mover.go_on()
        if self.queue_first == NULL:
            self.excerpt = None
        return budget

    cdef int dispatch_at_rate(self, int budget) except -1:
        """The same, as far as the rate lets messages go."""
        cdef double now = self.agenda.now
        cdef double gap = SECOND / self.rate
        cdef uint64_t before = self.in_flight_count
        cdef int most = 0
        cdef int left
        self.next_send = max(self.next_send, now - (MAKE_UP if self.held_back else BURST))
        if self.next_send <= now:
            most = <int>min(<double>budget, (now - self.next_send) / gap + 1)
        left = self.hand_out(most)
        # Not what was sampled out or found damaged, which nobody was sent.
        self.next_send += gap * (self.in_flight_count - before)
        self.held_back = self.next_send > now
        if self.held_back:
            if self.pacer.node.index == HEAP_NOWHERE:
                heap_check(heap_push(&self.agenda.channel_timers, &self.pacer.node,
                                     <int64_t>max(self.next_send + 1, now + PACE)))
        elif left == 0:
            return 0
        return budget - most + left

    cdef int hand_out(self, int budget) except -1:
        """The same, if nothing forbids it."""
        cdef RecordWindow window = self.window
        cdef RingPlace *place
        cdef Entry *entry
        self.stepped = 0
        while budget > self.stepped:
            place = next_in_turn(&self.ready)
            if place == NULL:
                break
            entry = self.take(budget)
            if entry == NULL:
                break
            budget -= 1
            self.deliver(window, <Consumer>place.consumer, entry)
        return max(0, budget - self.stepped)

    cdef int clear_out(self, int budget) except -1:
        """Drop what is too old, then what is too much; returns what is left of the budget."""
        self.stepped = 0
        if self.ttl or self.window.perishable:
            self.drop_expired(budget)
        if self.most_messages or self.most_bytes:
            budget = self.drop_oldest(budget)
        return max(0, budget - self.stepped)

    cdef void keep_at_most(self, uint64_t messages, uint64_t bytes) noexcept:
        """The oldest messages go when more wait than this; 0: any number."""
        if messages != self.most_messages or bytes != self.most_bytes:
            self.most_messages = messages
            self.most_bytes = bytes
            self.touch_dirty()

    cdef bint is_over(self) noexcept:
        return (self.most_messages and self.depth() > self.most_messages
                or self.most_bytes and self.window.bytes_from(&self.cursor) > self.most_bytes)

    cdef bint is_expired(self, const Record *record) noexcept:
        """Whether a message is too old to be delivered."""
        return (self.ttl and record.timestamp + self.ttl <= self.agenda.wall
                or record_expiry(record) <= self.agenda.wall)

    cdef void note_expired(self, const Record *record, uint16_t attempts) noexcept:
        """A message leaves, as it is too old."""
        self.expired_count += 1
        if self.events is not None:
            self.events.add(EXPIRED, record.id, attempts, self.agenda.wall, 0,
                            self.agenda.wall - record.timestamp, self.event_names, "")

    cdef bint drop_queued(self) except -1:
        """Drop the first message of the queue if it is too old, or was delivered as often as may
        be, as far as a start knows."""
        cdef Entry *entry = self.queue_first
        cdef const Record *record = self.record_of(entry)
        if record == NULL:
            return False
        if self.is_exhausted(entry):
            self.unqueue_first()
            entry.id = record.id
            entry.timestamp = record.timestamp
            self.bury(entry, OUT_OF_ATTEMPTS, "")
            return True
        if self.is_expired(record):
            self.unqueue_first()
            self.bury_expired(entry, record)
            return True
        return False

    cdef bint drop_spoiled(self, Entry *entry) except -1:
        """Drop a message that cannot be delivered, as it is damaged or too old; whether it was."""
        cdef const Record *record = self.record_of(entry)
        if record == NULL:
            self.drop_entry(entry)
            return True
        if not self.is_expired(record):
            return False
        self.bury_expired(entry, record)
        return True

    cdef inline bint is_exhausted(self, const Entry *entry) noexcept:
        """Whether a message has been delivered as often as may be."""
        return self.max_attempts and entry.attempts >= self.max_attempts

    cdef int bury_expired(self, Entry *entry, const Record *record) except -1:
        """A message that nobody holds is too old."""
        if self.dead_letter_topic:
            entry.id = record.id
            entry.timestamp = record.timestamp
            return self.bury(entry, TOO_OLD, "")
        self.note_expired(record, entry.attempts)
        self.drop_entry(entry)
        return 0

    cdef int bury(self, Entry *entry, MoveReason reason, str client) except -1:
        """A message that nobody holds any more is delivered no more: it moves to the dead-letter
        topic, or is dropped if there is none."""
        if self.dead_letter_topic:
            return self.make_mover().take_over(entry, reason, client)
        self.exhausted_count += 1
        self.drop_entry(entry)
        return 0

    cdef int bury_timed_out(self, Entry *entry) except -1:
        cdef Holding *holding = <Holding *>entry.holding
        cdef str client = "" if holding.consumer == NULL else (<Consumer>holding.consumer).client_id
        self.no_longer_in_flight(entry)
        return self.bury(entry, OUT_OF_ATTEMPTS, client)

    cdef Mover make_mover(self):
        if self.mover is None:
            self.mover = self.window.new_mover(self)
            self.mover.channel = self
            self.mover.holding = self.new_holding(<void *>self.mover)
        return self.mover

    def redrive(self, uint64_t limit):
        """Have the next messages that wait, so many at most (0: all), go back to where their
        headers say that they came from. Those that do not say stay. Returns how many are looked
        at."""
        cdef uint64_t count = self.depth()
        if limit:
            count = min(count, limit)
        self.redriving = max(self.redriving, count)
        self.touch_dirty()
        return count

    cdef int redrive_some(self, int budget) except -1:
        cdef Entry *entry
        cdef Record *record
        self.stepped = 0
        while self.redriving and budget > self.stepped and (
                self.mover is None or self.mover.in_flight < REDRIVEN_AT_ONCE):
            entry = self.take(budget)
            if entry == NULL:
                if self.depth() == 0:
                    self.redriving = 0
                break
            budget -= 1
            self.redriving -= 1
            record = self.record_of(entry)
            if record == NULL:
                self.drop_entry(entry)
                continue
            entry.id = record.id
            entry.timestamp = record.timestamp
            if not self.make_mover().send_back(entry, record):
                self.queue_entry(entry, size_tag(record.body_length))
        return max(0, budget - self.stepped)

    cdef int give_back(self, Entry *entry) except -1:
        """What the mover held stays in this channel."""
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.queue_entry(entry, 0)
        return 0

    cdef void pass_over(self) noexcept:
        """A record is fanned out that is for another channel."""
        self.skipped += 1
        self.born_seq += 1

    cdef int hold_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1:
        """Have the mover hold a message, behind those with smaller numbers."""
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.hold_seldom(self.mover.holding, entry, <int64_t>(NEVER + number))
        entry.state = MOVING
        entry.node.tag = reason
        self.table_add(entry)
        self.in_flight_count += 1
        self.mover.in_flight += 1
        self.touch_dirty()
        return 0

    cdef int lose_move(self, Entry *entry) except -1:
        """What the mover held is damaged."""
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.drop_entry(entry)
        return 0

    cdef int moved(self, Entry *entry, str client) except -1:
        """What the mover held is where it belongs."""
        if self.events is not None and entry.node.tag != REDRIVEN:
            self.events.add(DEAD_LETTER, entry.id, entry.attempts, self.agenda.wall, 0,
                            self.agenda.wall - entry.timestamp, self.event_names, client)
        if entry.node.tag == REDRIVEN:
            self.redriven_count += 1
        else:
            self.dead_lettered_count += 1
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.drop_entry(entry)
        return 0

    cdef inline bint leaves_out(self, Record *record) except -1:
        """Step over the record at the cursor if it is not to be delivered from there."""
        cdef Entry *entry
        if not record.attributes and not self.ttl:
            return False
        if record.attributes and self.passes(record):
            self.step_over(record)
            return True
        if self.is_expired(record):
            entry = self.entry_at_cursor(record)
            # Before it is buried: what that publishes may have the record's block leave memory.
            self.window_step(record)
            self.bury_expired(entry, record)
            return True
        return False

    cdef int drop_expired(self, int budget) except -1:
        """Drop what is too old where the next message would be taken, also without consumers."""
        cdef Entry *entry
        cdef Record *record
        while budget > self.stepped:
            entry = self.queue_first
            if self.queue_is_next(entry):
                if not self.drop_queued():
                    break
            else:
                record = self.record_at_cursor()
                if record == NULL or not self.leaves_out(record):
                    break
            self.stepped += 1
        return 0

    cdef int drop_oldest(self, int budget) except -1:
        """Drop what waits longest until no more is there than may be, with what is left of a
        budget; returns what is left then."""
        cdef Entry *entry
        while budget > self.stepped and self.is_over():
            entry = self.take(budget)
            if entry == NULL:
                break
            budget -= 1
            self.full_count += 1
            self.drop_entry(entry)
        return budget

    cdef inline int deliver(self, RecordWindow window, Consumer consumer, Entry *entry) except -1:
        cdef Block *block = entry.block
        cdef Record *record = <Record *>(block.data + entry.offset)
        cdef RingPlace *place = &consumer.ring_place
        if block.data == NULL or is_spoiled(record, entry.seq) \
                or record.attributes & RECORD_EXPIRES:
            if self.drop_spoiled(entry):
                return 0
            if block.data == NULL:
                block = self.excerpt.block
                record = self.excerpt.find(entry.seq)
        self.taken[consumer.locality] += 1
        if consumer.sample_rate and self.agenda.random_percent() > consumer.sample_rate:
            self.sampled_count += 1
            self.drop_entry(entry)
            return 0
        entry.attempts += 1
        entry.id = record.id
        entry.timestamp = record.timestamp
        self.hold(consumer.holding, entry, self.agenda.now + consumer.msg_timeout)
        self.table_add(entry)
        self.in_flight_count += 1
        consumer.in_flight += 1
        consumer.message_count += 1
        if (not consumer.send_message(window, block, record, entry.attempts)
                or consumer.in_flight >= consumer.ready_count):
            consumer.waiting = False
            leave_ring(place)
        else:
            pass_turn(&self.ready, consumer.locality, place)
        return 0

    cdef inline void drop_entry(self, Entry *entry) noexcept:
        self.window.unref(entry.block)
        self.store.free_entry(entry)

    # -- in flight --

    cdef inline Entry *held_by(self, Consumer consumer, uint64_t id, Outcome *outcome) noexcept:
        """The message in flight with this id, taken off the table if the consumer owns it."""
        cdef uint32_t slot = self.table_find(id)
        cdef Entry *entry = self.table[slot]
        if entry == NULL:
            outcome[0] = NOT_IN_FLIGHT
            return NULL
        if (<Holding *>entry.holding).consumer != <void *>consumer:
            outcome[0] = NOT_OWNER
            return NULL
        self.table_clear(slot)
        outcome[0] = DONE
        return entry

    cdef inline void no_longer_in_flight(self, Entry *entry) noexcept:
        """Off its holding and the counters (the table is the caller's)."""
        cdef void *consumer = (<Holding *>entry.holding).consumer
        if consumer != NULL:
            (<Consumer>consumer).in_flight -= 1
            if not (<Consumer>consumer).waiting:
                self.check_ready(<Consumer>consumer)
        self.let_go(entry)
        self.in_flight_count -= 1

    cdef void tell(self, Events events, bytes names) noexcept:
        """From here on tell of what happens to messages."""
        self.events = events
        self.event_names = names
        self.watched = True

    cdef void note(self, EventKind kind, const Entry *entry) noexcept:
        """Something happens to a message that is in flight still. For channels that are watched."""
        cdef Holding *holding = <Holding *>entry.holding
        # Milliseconds modulo 2^32, as touch() has it.
        cdef int64_t held = <int32_t>(
            <uint32_t>(self.agenda.now // 1000000) - <uint32_t>entry.node.tag)
        cdef str client = ""
        if self.events is None:
            return
        if holding.consumer != NULL:
            client = (<Consumer>holding.consumer).client_id
        self.events.add(kind, entry.id, entry.attempts, self.agenda.wall, held * 1000000,
                        self.agenda.wall - entry.timestamp, self.event_names, client)

    cdef void note_finish(self, const Entry *entry) noexcept:
        if self.latency is not None:
            # The clock may have been set back since the publish.
            self.latency.add(max(<int64_t>0, self.agenda.wall - entry.timestamp), self.agenda.now)
        self.note(FINISH, entry)

    cdef Outcome finish(self, Consumer consumer, uint64_t id) noexcept:
        cdef Outcome outcome
        cdef Entry *entry = self.held_by(consumer, id, &outcome)
        if entry == NULL:
            return outcome
        if self.watched:
            self.note_finish(entry)
        self.no_longer_in_flight(entry)
        self.finish_count += 1
        consumer.finish_count += 1
        self.drop_entry(entry)
        return DONE

    cdef Outcome requeue(self, Consumer consumer, uint64_t id, int64_t delay) except *:
        """Put a message back: at once to the tail, or deferred for `delay` ns."""
        cdef Outcome outcome
        cdef Entry *entry = self.held_by(consumer, id, &outcome)
        if entry == NULL:
            return outcome
        if self.watched:
            self.note(REQUEUE, entry)
        self.no_longer_in_flight(entry)
        self.requeue_count += 1
        consumer.requeue_count += 1
        if self.is_exhausted(entry):
            self.bury(entry, OUT_OF_ATTEMPTS, consumer.client_id)
            return DONE
        if delay:
            self.defer_entry(entry, self.agenda.now + delay)
            return DONE
        if self.ephemeral:
            # What was fanned out before has its place in the queue before it.
            self.collect()
        self.queue_entry(entry, 0)
        return DONE

    cdef Outcome touch(self, Consumer consumer, uint64_t id) noexcept:
        """Give the consumer its whole message timeout again, up to max-msg-timeout in all."""
        cdef uint32_t slot = self.table_find(id)
        cdef Entry *entry = self.table[slot]
        cdef Holding *holding
        cdef int64_t deadline = self.agenda.now + consumer.msg_timeout
        cdef int64_t held
        cdef uint32_t delivered
        if entry == NULL:
            return NOT_IN_FLIGHT
        holding = <Holding *>entry.holding
        if holding.consumer != <void *>consumer:
            return NOT_OWNER
        # Milliseconds modulo 2^32: right for attempts of up to 24 days. The delivery was rounded up
        # and now is rounded down, so that a message is never taken back early.
        delivered = entry.node.tag
        held = <int64_t><int32_t>(<uint32_t>(self.agenda.now // 1000000) - delivered) * 1000000
        held = max(<int64_t>0, held)
        if held + consumer.msg_timeout >= self.agenda.max_msg_timeout:
            deadline = self.agenda.now + self.agenda.max_msg_timeout - held
        if entry.round != self.round:
            # It need not come to stand where a snapshot still comes by.
            self.pack(<Deferred *>entry)
        self.let_go(entry)
        self.hold_seldom(holding, entry, deadline)
        entry.node.tag = delivered
        return DONE

    # -- walks --

    cdef void begin_walk(self) noexcept:
        """Have walk begin anew."""
        self.place.part = WALK_TIMERS
        self.place.left = self.timers.size
        self.place.queued = NULL

    cdef bint walk(self, Deferred **entry) noexcept:
        """One step of a walk, and the entry that is there, or NULL; False when it is at its end. It
        goes the way of a deferred message, and backwards in what is an array, as the heap and the
        table fill their gaps from behind."""
        cdef Walk *place = &self.place
        cdef HeapNode *node
        entry[0] = NULL
        if place.part == WALK_TIMERS:
            place.left = min(place.left, self.timers.size)
            if place.left:
                place.left -= 1
                node = self.timers.slots[place.left].node
                if not node.tag & HOLDING_TIMER:
                    entry[0] = <Deferred *>node
                return True
            place.part = WALK_QUEUE
            place.queued = self.queue_first
        if place.part == WALK_QUEUE:
            if place.queued != NULL:
                entry[0] = <Deferred *>place.queued
                place.queued = place.queued.next
                return True
            place.part = WALK_TABLE
            place.left = self.table_mask + 1
        if self.outgrown != NULL:
            self.move_some(MOVED_SLOTS)
            return True
        place.left = min(place.left, self.table_mask + 1)
        if place.left:
            place.left -= 1
            entry[0] = <Deferred *>self.table[place.left]
            return True
        return False

    # -- snapshots of the journal --
    #
    # A snapshot has every message that the channel held when it was begun and that is not finished
    # when the snapshot comes to it, bit by bit: to what is in flight, to the queue and to what is
    # deferred. What moves meanwhile is packed as it moves. `round` of a
    # message is that of the channel when it need not be packed any more: since it was, or since it
    # has come after the snapshot was begun, which says then that it lies behind the cursor.

    cdef void begin_packing(self, Packing packing) noexcept:
        self.packing = packing
        self.round += 1
        self.visit_holding(self.holdings)
        self.unpacked = self.queue_first
        self.pages.walked = self.pages.first

    cdef int pack_more(self, int budget) noexcept:
        """Pack so many more; returns what is left of the budget."""
        cdef Entry *entry
        cdef Page *page
        cdef Deferred *deferred
        cdef uint32_t i
        while self.unpacked_holding != NULL and budget > 0:
            entry = self.unpacked_held
            budget -= 1
            if entry == NULL:
                self.visit_holding(self.unpacked_holding.next)
                continue
            self.unpacked_held = entry.next
            if entry.round != self.round:
                self.pack(<Deferred *>entry)
        while self.unpacked != NULL and budget > 0:
            entry = self.unpacked
            self.unpacked = entry.next
            budget -= 1
            if entry.round != self.round:
                self.pack(<Deferred *>entry)
        while self.pages.walked != NULL and budget > 0:
            page = self.pages.walked
            self.pages.walked = page.next
            deferred = deferred_of(page)
            budget -= page.made
            for i in range(page.made):
                if deferred[i].block != NULL and deferred[i].round != self.round:
                    self.pack(&deferred[i])
        return max(0, budget)

    cdef bint is_packed(self) noexcept:
        return (self.unpacked_holding == NULL and self.unpacked == NULL
                and self.pages.walked == NULL)

    # -- time passes --

    cdef int expire(self, int budget) except -1:
        """Handle what is due, at most `budget` messages; returns how many."""
        cdef int left = budget
        cdef HeapNode *node
        if self.ephemeral:
            self.collect()
        if self.pacer.node.index != HEAP_NOWHERE and heap_due(
                &self.agenda.channel_timers, &self.pacer.node) <= self.agenda.now:
            heap_remove(&self.agenda.channel_timers, &self.pacer.node)
            self.touch_dirty()
        while left > 0 and heap_first_due(&self.timers) <= self.agenda.now:
            node = self.timers.slots[0].node
            if node.tag & HOLDING_TIMER:
                left -= self.expire_holding(<Holding *>node, left)
                continue
            self.queue_due(<Deferred *>node)
            left -= 1
        self.set_alarm()
        return budget - left

    cdef int expire_holding(self, Holding *holding, int budget) except -1:
        """Time out what a consumer held for too long; returns how many."""
        cdef Entry *entry = holding.first
        cdef int expired = 0
        cdef bint is_last
        heap_remove(&self.timers, &holding.timer)
        while entry != NULL and entry.due <= self.agenda.now and expired < budget:
            expired += 1
            self.table_clear(self.table_find(entry.id))
            self.timeout_count += 1
            if self.watched:
                self.note(TIMEOUT, entry)
            # The last message of a client that left: the holding goes with it.
            is_last = holding.count == 1 and holding.consumer == NULL
            if self.is_exhausted(entry):
                self.bury_timed_out(entry)
            else:
                self.no_longer_in_flight(entry)
                self.queue_entry(entry, 0)
            if is_last:
                return expired
            entry = holding.first
        if entry != NULL:
            heap_check(heap_push(&self.timers, &holding.timer, entry.due))
        return expired

    # -- consumers --

    cdef int add_consumer(self, Consumer consumer) except -1:
        consumer.holding = self.new_holding(<void *>consumer)
        consumer.channel = self
        self.give_timeout(consumer)
        init_place(&consumer.ring_place, <void *>consumer)
        self.consumers.append(consumer)
        return 0

    cdef void remove_consumer(self, Consumer consumer) noexcept:
        """The client left; what it holds stays in flight until its deadlines."""
        cdef Holding *holding = consumer.holding
        if consumer.waiting:
            consumer.waiting = False
            leave_ring(&consumer.ring_place)
        consumer.holding = NULL
        consumer.channel = None
        if holding != NULL:
            holding.consumer = NULL
            if holding.count == 0:
                self.free_holding(holding)
        try:
            self.consumers.remove(consumer)
        except ValueError:
            pass
        self.touch_dirty()

    cdef void check_ready(self, Consumer consumer) noexcept:
        """Enter the consumer into its ring, or take it out, as its ready count says."""
        cdef bint ready = (
            consumer.channel is self and consumer.in_flight < consumer.ready_count
            and consumer.has_room())
        if ready == consumer.waiting:
            return
        consumer.waiting = ready
        if ready:
            enter_ring(&self.ready, consumer.locality, &consumer.ring_place)
            self.touch_dirty()
        else:
            leave_ring(&consumer.ring_place)

    # -- administration --

    def pause(self, bint paused):
        self.paused = paused
        self.touch_dirty()

    def set_rate(self, double rate):
        """Send consumers at most so many messages a second from now on; 0: as many as they take."""
        if not 0 <= rate <= MOST_RATE:
            raise ValueError(f"a rate of {rate}")
        if rate == self.rate:
            return
        self.rate = rate
        self.next_send = self.agenda.now
        self.held_back = False
        heap_remove(&self.agenda.channel_timers, &self.pacer.node)
        self.touch_dirty()

    def empty(self):
        """Drop everything: waiting, in flight and deferred."""
        cdef Consumer consumer
        self.emptied_count += self.held()
        self.carried += self.surplus()
        self.drop_everything()
        self.window.move_cursor(&self.cursor, &self.window.fanout)
        self.window.trim()
        self.set_alarm()
        for consumer in self.consumers:
            consumer.in_flight = 0
            self.check_ready(consumer)
        if self.mover is not None:
            self.mover.in_flight = 0

    cdef int drop_everything(self) except -1:
        """What there is little of goes at once."""
        cdef Discarded discarded = Discarded()
        discarded.window = self.window
        discarded.entries = self.drop_in_flight()
        discarded.pages = self.pages
        memset(&self.pages, 0, sizeof(Pages))
        # What is left are deferred messages; to take them out in order would cost as much again.
        heap_free(&self.timers)
        self.queue_first = self.queue_last = self.place.queued = self.unpacked = NULL
        self.excerpt = None
        self.visit_holding(NULL)
        memset(self.table, 0, (<size_t>self.table_mask + 1) * sizeof(Entry *))
        self.outgrown_left = 0
        self.move_some(0)
        self.queued = self.deferred_count = self.in_flight_count = self.skipped = 0
        self.finished_count = 0
        if discarded.free_some(DROP_AT_ONCE) == 0:
            self.agenda.discarded.append(discarded)
        return 0

    cdef Entry *drop_in_flight(self) noexcept:
        """Have nobody hold anything; returns what was in flight, and behind it what is queued."""
        cdef Entry *entries = self.queue_first
        cdef Holding *holding = self.holdings
        cdef Holding *following
        while holding != NULL:
            following = holding.next
            if holding.first != NULL:
                holding.last.next = entries
                entries = holding.first
                holding.first = holding.last = NULL
                holding.count = 0
            if holding.timer.index != HEAP_NOWHERE:
                heap_remove(&self.timers, &holding.timer)
            if holding.consumer == NULL:
                self.free_holding(holding)
            holding = following
        return entries

    cdef int close(self) except -1:
        """The end of the channel: its consumers are told and its messages dropped."""
        cdef Consumer consumer
        if self.gone:
            return 0
        self.gone = True
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.on_channel_gone()
        if self.mover is not None:
            self.remove_consumer(self.mover)
            self.mover = None
        self.drop_everything()
        self.window.unwatch(&self.cursor)
        self.drop_alarm()
        heap_remove(&self.agenda.channel_timers, &self.pacer.node)
        return 0
