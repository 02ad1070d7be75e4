"""Dispatch: the next message of a channel, and the consumer that receives it.

Owns the order of delivery, which is the same as in NSQ's single queue, and the channel's rate.
Accesses consumers only through their ready ring, and time only through the scheduler's clock.
"""

cdef enum:
    REDRIVEN_AT_ONCE = 256          # maximum messages in flight while redriving

    # Times of the rate limit, in ns: unused credit expires after BURST; a late turn may use the
    # credit of the last MAKE_UP ns, which maintains the rate even on a busy machine.
    BURST = 10000000
    MAKE_UP = 100000000
    PACE = 1000000              # between two wake-ups

cdef str NOT_FOUND = "MESSAGE_NOT_FOUND"


cdef class Dispatch(KeyedMessages):
    def __cinit__(self):
        self.pacer.node.index = HEAP_NOWHERE
        self.pacer.owner = <void *>self

    cdef int dispatch(self, int budget) except -1:
        """Deliver messages or skip records, at most `budget` in total. Return the unused budget, or
        0 if more messages could be delivered now."""
        if self.keys is not None:
            self.prepare_keys(self.redriving != 0)
        if self.redriving:
            budget = self.redrive_some(budget)
        if self.wanted:
            # The queue is not in order until the search ends.
            if self.transfer is not None:
                self.transfer.go_on()
            return 0 if self.keys_lag() else budget
        if self.paused or self.cut_off:
            pass
        elif self.redriving and self.keyed:
            pass                # the index ignores the rules until the redrive ends
        elif self.rate:
            budget = self.dispatch_at_rate(budget)
        elif next_in_turn(&self.ready) != NULL:
            budget = self.hand_out(budget)
        if self.keys is not None and self.keys.overfull_count:
            budget = self.drop_overfull(budget)
        if self.ttl or self.window.perishable or self.max_messages or self.max_bytes:
            budget = self.clear_out(budget)
        if self.transfer is not None:
            self.transfer.go_on()
        if self.queue_first == NULL:
            self.prefetch = None
        if self.keys is None:
            return budget
        self.keys.set_alarm()
        return 0 if self.keys_lag() else budget

    cdef int dispatch_at_rate(self, int budget) except -1:
        """Deliver as many messages as the rate allows; return the result of dispatch()."""
        cdef double now = self.scheduler.now
        cdef double gap = SECOND / self.rate
        cdef uint64_t before = self.in_flight_count
        cdef int maximum = 0
        cdef int left
        self.next_send = max(self.next_send, now - (MAKE_UP if self.held_back else BURST))
        if self.next_send <= now:
            maximum = <int>min(<double>budget, (now - self.next_send) / gap + 1)
        left = self.hand_out(maximum)
        # Messages that were sampled out or damaged were not sent.
        self.next_send += gap * (self.in_flight_count - before)
        self.held_back = self.next_send > now
        if self.held_back:
            if self.pacer.node.index == HEAP_NOWHERE:
                heap_check(heap_push(&self.scheduler.channel_timers, &self.pacer.node,
                                     <int64_t>max(self.next_send + 1, now + PACE)))
        elif left == 0:
            return 0
        return budget - maximum + left

    @cython.final
    cdef int hand_out(self, int budget) except -1:
        """Deliver messages to ready consumers; return the result of dispatch()."""
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

    cdef int collect(self) except -1:
        """Turn the messages fanned out to an ephemeral channel into explicit entries, because
        nothing else may keep the messages. Drop the newest messages beyond mem-queue-size."""
        cdef Record *record
        cdef Entry *entry
        cdef uint64_t seq
        while self.cursor.at.seq < self.window.fanout.seq:
            if self.queued >= self.mem_queue_size:
                # Drop messages before using the record: this reads other records, which may evict
                # the record's block from memory.
                seq = self.cursor.at.seq
                self.dispatch(1)
                if self.cursor.at.seq != seq:
                    continue
            record = cursor_record(&self.cursor)
            if record == NULL:
                return 0
            if record.attributes and cursor_passes(&self.cursor, record):
                cursor_step_over(&self.cursor, record)
                continue
            if self.queued >= self.mem_queue_size:
                self.dropped_count += 1
            else:
                entry = self.entry_at_cursor(record)
                entry.node.index = NO_FLOW
                self.queue_entry(entry, size_tag(record.body_length))
                if self.keys is None:
                    # The cursor is about to pass the record, so the message waits for no earlier
                    # record.
                    entry.in_flight_list = NULL
            cursor_step(&self.cursor, record)
        return 0

    # -- next message --

    @cython.final
    cdef Entry *take(self, int maximum) except? NULL:
        """Take the next message to deliver from the queue or the window, with its block in memory.
        Return NULL if there is none, or if this dispatch has skipped the allowed number of
        records."""
        cdef Record *record
        if not self.sifts:
            if self.queue_is_next(self.queue_first):
                return self.take_queued()
            record = cursor_record(&self.cursor)
            if record != NULL and not record.attributes:
                return self.take_record(record)
        return self.take_sifted(maximum)

    @cython.final
    cdef Entry *take_sifted(self, int maximum) except? NULL:
        """Like take(), but the next message may not be deliverable."""
        cdef Entry *entry
        cdef Record *record
        if self.keys is not None:
            return self.take_keyed(maximum)
        while True:
            entry = self.queue_first
            if self.queue_is_next(entry):
                if not self.sifts or not self.drop_queued():
                    return self.take_queued()
            else:
                record = cursor_record(&self.cursor)
                if record == NULL:
                    if entry != NULL and self.cursor.at.seq >= self.window.fanout.seq:
                        # The cursor has just skipped the last records that precede the queued
                        # message.
                        continue
                    return NULL
                if not self.leaves_out(record):
                    return self.take_record(record)
            self.stepped += 1
            if self.stepped >= maximum:
                return NULL

    cdef inline Entry *take_record(self, Record *record) except NULL:
        """Take the next message from the window."""
        cdef Entry *entry = self.entry_at_cursor(record)
        cursor_step(&self.cursor, record)
        return entry

    # -- delivery --

    cdef inline int deliver(self, RecordWindow window, Consumer consumer, Entry *entry) except -1:
        cdef Block *block = entry.block
        cdef Record *record = <Record *>(block.data + entry.offset)
        cdef RingPlace *place = &consumer.ring_place
        if block.data == NULL or is_spoiled(record, entry.seq) \
                or record.attributes & RECORD_EXPIRES:
            if self.drop_spoiled(entry):
                return 0
            if block.data == NULL:
                block = self.prefetch.block
                record = self.prefetch.find(entry.seq)
        self.taken[consumer.locality] += 1
        if consumer.sample_rate and self.scheduler.random_percent() > consumer.sample_rate:
            self.sampled_count += 1
            self.drop_entry(entry)
            return 0
        entry.attempts += 1
        entry.id = record.id
        entry.timestamp = record.timestamp
        self.list_add(consumer.in_flight_list, entry, self.scheduler.now + consumer.msg_timeout)
        table_add(&self.table, entry, self.in_flight_count)
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

    # -- without consumers --

    cdef int clear_out(self, int budget) except -1:
        """Drop messages that are too old, then those beyond the limit; return the unused budget."""
        self.stepped = 0
        if self.keys is not None:
            if self.ttl or self.window.perishable:
                self.sweep_expired()
        elif self.ttl or self.window.perishable:
            self.drop_expired(budget)
        if self.max_messages or self.max_bytes:
            budget = self.drop_oldest(budget)
        return max(0, budget - self.stepped)

    cdef int drop_oldest(self, int budget) except -1:
        """Drop the oldest waiting messages beyond the limit, within a budget; return the unused
        budget."""
        cdef Entry *entry
        if self.keys is not None:
            return self.drop_keyed(budget)
        while budget > self.stepped and self.is_over():
            entry = self.take(budget)
            if entry == NULL:
                break
            budget -= 1
            self.full_count += 1
            self.drop_entry(entry)
        return budget

    cdef int redrive_some(self, int budget) except -1:
        cdef Entry *entry
        cdef Record *record
        self.stepped = 0
        if self.keys is not None and not self.keys.single:
            self.rebuild_keys(True)
            self.prepare_keys(True)
        while self.redriving and budget > self.stepped and (
                self.transfer is None or self.transfer.in_flight < REDRIVEN_AT_ONCE):
            entry = self.take(budget)
            if entry == NULL:
                if not self.moves and (self.depth() == 0 or self.is_searched()):
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
            if self.wanted:
                self.check_wanted(entry, record)
            elif self.make_transfer().send_back(entry, record, self.targets) is not None:
                self.put_back(entry, size_tag(record.body_length))
        if self.redriving == 0:
            self.parked = False
            self.touch_dirty()      # the messages in the queue can be delivered
        if self.redriving == 0 and self.wanted:
            self.end_search(NOT_FOUND)
            self.wanted = 0
        return max(0, budget - self.stepped)

    cdef int check_wanted(self, Entry *entry, Record *record) except -1:
        """Redrive or drop the wanted message. Every other message goes to the tail of the queue, so
        the messages end up in their previous order."""
        if entry.id != self.wanted:
            self.put_back(entry, size_tag(record.body_length))
        elif self.drops_wanted:
            self.cancelled_count += 1
            self.drop_entry(entry)
            self.end_search(None)
        else:
            problem = self.make_transfer().send_back(entry, record, self.targets)
            if problem is not None:
                self.put_back(entry, size_tag(record.body_length))
            self.end_search(problem)
        return 0

    cdef int end_search(self, str problem) except -1:
        done, self.wanted_done = self.wanted_done, None
        if done is not None:
            done(problem)
        return 0
