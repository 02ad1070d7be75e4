"""A channel's messages when its policy has rules for keys.

Connects the index (key_index) with the other parts of a channel: takes the next message from it,
drops messages from it, and rebuilds it when the rules change. Independent of consumers.
"""

cdef enum:
    SCANNED_AT_ONCE = 16384         # records added to the index per turn
    SWEPT_AT_ONCE = 4096            # keys whose next message is checked for its age, per second

cdef int64_t SWEEP_PAUSE = 1000000000
cdef double SECOND = 1e9


cdef int compare_places(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = place_of((<const Entry *const *>a)[0])
    cdef uint64_t other = place_of((<const Entry *const *>b)[0])
    return (one > other) - (one < other)


cdef class KeyedMessages(ChosenKeys):
    # -- rules --

    cdef int set_rules(self, policy) except -1:
        """Apply the rules for keys of a policy."""
        cdef KeyIndex keys = self.keys
        cdef bint order = policy.order == "key"
        cdef double gap = SECOND / policy.key_rate if policy.key_rate else 0
        cdef int64_t share = <int64_t>round(policy.priority_share * ONE_DELIVERY)
        cdef uint32_t kept = policy.depth_per_key if policy.on_full == "drop-oldest" else 0
        cdef tuple rules = (order, policy.fair, policy.in_flight_per_key, gap,
                            policy.urgent_first, share, kept)
        cdef tuple before = self.rules
        self.keyed = (order or policy.fair or policy.in_flight_per_key != 0 or gap != 0
                      or policy.urgent_first or policy.depth_per_key != 0)
        self.depth_per_key = policy.depth_per_key
        self.rules = rules
        if not self.keyed:
            if keys is not None and not keys.single:
                self.rebuild_keys(True)
            return 0
        if keys is None:
            self.make_keys()
        elif keys.single or rules != before:
            self.rebuild_keys(False)
        return 0

    cdef int make_keys(self) except -1:
        """Begin to index the channel; the index is built from the next dispatch on."""
        cdef KeyIndex keys = KeyIndex()
        cdef Entry *entry = self.queue_first
        cdef uint64_t place = 0
        keys.scheduler = self.scheduler
        keys.room = self.scheduler.key_room
        keys.room.add(keys)
        keys.window = self.window
        keys.cursor = &self.cursor
        keys.in_flight_lists = &self.in_flight_lists
        keys.deferred = &self.timers
        keys.alarm.owner = self.alarm.owner
        keys.single = True
        keys.pauses = self.pauses if self.paused_keys else None
        self.keys = keys
        self.watched = True
        self.set_emptied()
        while entry != NULL:
            # A message that was restored has no place yet.
            if entry.in_flight_list == NULL:
                entry.in_flight_list = <void *>place_of_record(entry.seq)
            else:
                # Many messages may have come before the same record.
                place = max(<uint64_t>entry.in_flight_list << ARRIVAL_BITS,
                            place + (place & ARRIVAL_MASK < LAST_ARRIVAL))
                entry.in_flight_list = <void *>place
            # Without an index, nothing sets this field.
            entry.node.index = NO_FLOW
            entry = entry.next
        # Later arrivals come after the messages in the queue.
        keys.gate = self.window.fanout.seq
        keys.arrivals = place & ARRIVAL_MASK if place >> ARRIVAL_BITS == keys.gate else 0
        keys.unsorted = True
        self.set_ttl(self.ttl)
        return self.apply_rules(not self.keyed)

    cdef int apply_rules(self, bint single) except -1:
        """Begin to apply the current rules in an index without flows."""
        cdef KeyIndex keys = self.keys
        keys.single = single
        keys.order = keys.fair = keys.urgent_first = False
        keys.in_flight_per_key = 0
        keys.gap = 0
        keys.depth_per_key = 0
        keys.sized = False
        if not single:
            (keys.order, keys.fair, keys.in_flight_per_key, keys.gap, keys.urgent_first,
             keys.share, keys.depth_per_key) = self.rules
            if keys.gap == 0:
                keys.forget_rates()
        keys.unsettled = keys.order or keys.in_flight_per_key != 0
        self.mark_held(UNRESOLVED if keys.unsettled else NO_FLOW)
        self.touch_dirty()
        return 0

    cdef int mark_held(self, uint32_t flow) except -1:
        cdef InFlightList *in_flight_list = self.in_flight_lists
        cdef Entry *entry
        while in_flight_list != NULL:
            entry = in_flight_list.first
            while entry != NULL:
                entry.node.index = flow
                entry = entry.next
            in_flight_list = in_flight_list.next
        return 0

    cdef int rebuild_keys(self, bint single) except -1:
        """Build the index again, for other rules. `single`: all messages in log order."""
        if single and self.keys.single:
            return 0
        self.queue_in_order()
        self.keys.reset()
        return self.apply_rules(single)

    cdef int queue_in_order(self) except -1:
        """Move all entries of the index to the queue, in order of their places."""
        return self.sort_queue(self.keys.take_all_entries())

    cdef int sort_queue(self, Entry *entry) except -1:
        """Add entries, linked by `next`, to the queue, and sort it by the places."""
        cdef uint64_t count = 0
        cdef uint64_t i
        cdef Entry **found
        self.keys.unsorted = False
        if self.queue_last != NULL:
            self.queue_last.next = entry
            entry = self.queue_first
        self.queue_first = self.queue_last = NULL
        if entry == NULL:
            return 0
        found = <Entry **>malloc(self.queued * sizeof(Entry *))
        if found == NULL:
            raise MemoryError()
        while entry != NULL:
            found[count] = entry
            count += 1
            entry = entry.next
        qsort(found, count, sizeof(Entry *), compare_places)
        for i in range(count):
            self.append_to_queue(found[i])
        free(found)
        # Walks begin again: a message that was visited is skipped by its round.
        self.unpacked = self.queue_first if self.packing is not None else NULL
        self.place.queued = self.queue_first
        return 0

    cdef int end_keys(self) except -1:
        """Continue without an index: the records that wait follow the cursor."""
        cdef Entry *entry
        self.queue_in_order()
        self.keys.stop()
        self.keys = None
        self.set_ttl(self.ttl)
        entry = self.queue_first
        while entry != NULL:
            entry.in_flight_list = <void *>(<size_t>entry.in_flight_list >> ARRIVAL_BITS)
            entry = entry.next
        return 0

    cdef int restore_taken(self, uint64_t first, bytes taken) except -1:
        """Restore which records from `first` on have left the channel, out of log order."""
        if self.keys is None:
            self.make_keys()
        return self.keys.restore_bits(first, taken)

    # -- one key --

    def pause_key(self, bytes text not None, bint paused):
        """Pause a key, or unpause it: none of its messages is delivered until then. Raises
        ValueError for a channel without rules for keys."""
        if not self.keyed:
            raise ValueError("the channel has no rules for keys")
        self.set_key_paused(text, paused)

    def empty_key(self, bytes text not None, done=None):
        """Drop the messages of a key that wait. Calls done() once the index has none of them; the
        records that are not in the index yet are dropped when the scan finds them. Raises
        ValueError for a channel without rules for keys."""
        if not self.keyed:
            raise ValueError("the channel has no rules for keys")
        self.prepare_keys(False)
        self.add_emptied(text, self.window.fanout.seq, self.keys.arrive(), done)
        self.touch_dirty()

    cdef int restore_chosen(self, paused, emptied) except -1:
        """Restore the paused keys, and the keys that were being emptied."""
        for text in paused:
            self.set_key_paused(text, True)
        if emptied and self.keys is None:
            self.make_keys()
        for seq, text in emptied:
            self.add_emptied(text, seq, 0, None)
        return 0

    cdef bint key_is_full(self, const KeyHash *hash, uint64_t coming) noexcept:
        """Return whether more messages of a key would exceed `depth_per_key`."""
        cdef MessageKey key
        cdef const Flow *flow
        cdef uint64_t waiting = 0
        key.high = hash.high
        key.low = hash.low
        key.level = 0
        if self.keys is None or self.keys.single:
            return False
        flow = self.keys.any_flow(&key)
        if flow != NULL:
            waiting = self.keys.flow_at(flow.key).total
        return waiting + coming > self.depth_per_key

    # -- statistics --

    cdef int count_keys(self) except -1:
        """Continue the statistics about keys. Called once a second."""
        if self.keys is None or not self.keyed:
            self.census = None
            return 0
        if self.census is None:
            self.census = KeyCensus()
        self.census.walk(self.keys, COUNTED_PER_TICK)
        return 0

    cdef dict key_facts(self):
        """Return what /stats shows about keys. With many keys, the numbers are seconds old."""
        cdef KeyCensus census
        if self.census is None or self.keys.flow_end <= COUNTED_PER_TICK:
            self.census = KeyCensus() if self.census is None else self.census
            self.census.restart()
            self.census.walk(self.keys, COUNTED_PER_TICK)
        census = self.census
        return {
            "waiting": census.latest.waiting,
            "blocked": census.latest.blocked,
            "blocked_seconds": census.latest.seconds,
            "paused": len(self.paused_keys),
            "beyond_index": self.keys.unreached(),
            "largest": census.largest_keys(self.keys),
        }

    # -- each turn --

    cdef int prepare_keys(self, bint searching) except -1:
        """Bring the index up to date. `searching`: messages are taken in log order until all have
        been checked."""
        cdef KeyIndex keys = self.keys
        if keys.single and not searching:
            if self.keyed:
                self.rebuild_keys(False)
            elif keys.started and keys.passed == 0 and not self.emptied_keys:
                return self.end_keys()
        keys.wake()
        self.unscanned = keys.again_waits = False
        if self.ephemeral:
            keys.at.seq = self.window.fanout.seq
        else:
            if not keys.started:
                keys.start()
            self.unscanned = keys.scan(SCANNED_AT_ONCE) == 0
            if keys.hungry.size and keys.read_again(SCANNED_AT_ONCE) == 0:
                self.unscanned = True
        if keys.sized != (self.max_messages != 0 or self.max_bytes != 0):
            keys.set_sized(not keys.sized)
        if keys.unsettled:
            keys.settle()
        if self.queue_first != NULL and not (searching and self.parked):
            if keys.unsorted and not keys.single:
                self.sort_queue(NULL)
            self.resolve_keys()
        if self.emptied_keys:
            self.drop_emptied()
        return 0

    cdef bint keys_lag(self) noexcept:
        """Return whether the next turn can add messages to the index."""
        if self.keys is None:
            return False
        return self.unscanned or self.keys.hungry.size != 0 and not self.keys.again_waits

    cdef bint waits_for_scan(self, const Entry *entry) noexcept:
        """Return whether records that precede a message may not be in the index yet."""
        return self.keys.order and place_of(entry) >> ARRIVAL_BITS > self.keys.at.seq

    cdef int resolve_keys(self) except -1:
        """Find the keys of queued messages."""
        cdef KeyIndex keys = self.keys
        cdef Entry *entry
        cdef const Record *record
        while self.queue_first != NULL:
            entry = self.queue_first
            if self.waits_for_scan(entry):
                break
            if not keys.single and (entry.block.data == NULL or entry.block.flags & LOADING) \
                    and not self.at_hand(entry):
                break
            self.unqueue_first()
            record = NULL if keys.single else self.record_of(entry)
            if self.emptied_keys and self.is_entry_emptied(entry, record):
                self.emptied_count += 1
                self.drop_entry(entry)
                continue
            keys.resolve(entry, record)
            self.queued += 1
        return 0

    # -- taking messages --

    cdef Entry *take_keyed(self, int maximum) except? NULL:
        """Like Dispatch.take(): take the next message that the rules allow."""
        cdef KeyIndex keys = self.keys
        cdef Flow *flow
        cdef Entry *entry
        while not keys.unsettled and (self.queue_first == NULL or not keys.order
                                      or self.waits_for_scan(self.queue_first)):
            flow = keys.next_flow()
            if flow == NULL:
                return NULL
            entry = self.pop_keyed(flow)
            if entry != NULL:
                prefetch(&self.table.slots[home_slot(self.table.mask, entry.id)])
                if not self.sift(flow, entry):
                    keys.serve(flow, entry)
                    keys.fetch_next()
                    return entry
            elif not keys.lost:
                return NULL
            keys.lost = False
            self.stepped += 1
            if self.stepped >= maximum:
                return NULL
        return NULL

    cdef Entry *pop_keyed(self, Flow *flow) except? NULL:
        cdef uint64_t entries = self.keys.entries
        cdef Entry *entry = self.keys.pop(flow, self.round)
        if entry != NULL:
            self.own(entry)
        if self.keys.entries != entries:
            self.queued -= 1
            if entry.round != self.round:
                self.pack(<Deferred *>entry)
        return entry

    cdef bint sift(self, Flow *flow, Entry *entry) except -1:
        """Drop a message, popped from this flow, if it is too old or out of attempts."""
        cdef KeyIndex keys = self.keys
        cdef const Record *record = <const Record *>(entry.block.data + entry.offset)
        if is_spoiled(record, entry.seq):
            return False
        if entry.attempts and self.is_exhausted(entry):
            entry.id = record.id
            entry.timestamp = record.timestamp
            keys.hold(flow, entry)
            self.dead_letter(entry, OUT_OF_ATTEMPTS, "")
            return True
        if not self.is_expired(record):
            return False
        if self.dead_letter_topic:
            keys.hold(flow, entry)
            self.dead_letter_expired(entry, record)
            return True
        self.dead_letter_expired(entry, record)
        keys.update_flow(flow)
        keys.free_if_unused(flow)
        return True

    cdef bint is_searched(self) noexcept:
        """Return whether a search has taken all messages of the index. Some may have left the
        channel because they were out of attempts, so it may have returned fewer than it counted."""
        cdef KeyIndex keys = self.keys
        return (keys is not None and keys.items == 0 and keys.entries == 0 and keys.beyond == 0
                and not keys.short and keys.at.seq >= self.window.fanout.seq
                and (self.parked or self.queue_first == NULL))

    cdef int put_back(self, Entry *entry, uint32_t size) except -1:
        """Return a message to its place, after a search has taken it."""
        if self.keys is None:
            self.queue_entry(entry, size)
            return 0
        self.keys.release(entry)
        entry.state = QUEUED
        entry.node.tag = size
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.queued += 1
        self.parked = True
        self.append_to_queue(entry)
        return 0

    # -- dropping messages --

    cdef int drop_keyed(self, int budget) except -1:
        """Like Dispatch.drop_oldest(): with `fair` or `order`, drop the oldest message of the key
        with the most."""
        cdef KeyIndex keys = self.keys
        while budget > 0 and keys.sizes.size and self.is_over():
            if not self.drop_oldest_of(flow_of_size(keys.sizes.slots[0].node)):
                break
            budget -= 1
        return budget

    cdef int drop_overfull(self, int budget) except -1:
        """Drop the oldest messages of keys that have more than `depth_per_key`, in the order in
        which the keys exceeded it; return the unused budget."""
        cdef KeyIndex keys = self.keys
        cdef uint32_t count = keys.overfull_count
        cdef uint32_t done = 0
        cdef bint waits = False
        cdef Flow *key
        while done < count and budget > 0 and not waits:
            key = keys.flow_at(keys.overfull[done])
            # The number may belong to another key by now.
            while budget > 0 and not waits and key.used and key.key == key.number \
                    and key.total > keys.depth_per_key and not is_without_key(key):
                waits = not self.drop_oldest_of(key)
                budget -= not waits
            if budget > 0 and not waits:
                done += 1
        if done:
            memmove(keys.overfull, keys.overfull + done, (count - done) * sizeof(uint32_t))
            keys.overfull_count = count - done
        if keys.overfull_count and not waits:
            self.touch_dirty()
        return budget

    cdef bint drop_oldest_of(self, Flow *key) except -1:
        """Drop the oldest message of a key, because there are too many. Return False if the message
        is being read again."""
        cdef KeyIndex keys = self.keys
        cdef Flow *flow = keys.oldest_of_key(key)
        cdef Entry *entry
        if flow == NULL:
            return False
        keys.drop_head(flow, &entry)
        keys.update_flow(flow)
        keys.free_if_unused(flow)
        if entry != NULL:
            self.queued -= 1
            self.drop_entry(entry)
        self.full_count += 1
        return True

    cdef int sweep_expired(self) except -1:
        """Drop the expired messages at the head of each key, blocked or not, once a second."""
        cdef KeyIndex keys = self.keys
        cdef uint32_t left = SWEPT_AT_ONCE
        if self.scheduler.now < self.next_sweep:
            return 0
        self.next_sweep = self.scheduler.now + SWEEP_PAUSE
        while left and keys.flow_end:
            left -= 1
            self.swept += 1
            if self.swept >= keys.flow_end:
                self.swept = 0
                break
            self.sweep_flow(keys.flow_at(self.swept))
        return 0

    cdef int sweep_flow(self, Flow *flow) except -1:
        cdef KeyIndex keys = self.keys
        cdef Entry *entry
        cdef Block *block
        cdef const Record *record
        cdef uint64_t seq
        cdef uint32_t offset
        while flow.used and keys.has_head(flow):
            entry = keys.head_entry(flow)
            if entry != NULL:
                block, seq, offset = entry.block, entry.seq, entry.offset
            else:
                seq, offset = keys.item_at(flow.first).seq, keys.item_at(flow.first).offset
                block = keys.block_of(seq)
            if block == NULL:
                return 0
            if block.data == NULL or block.flags & LOADING:
                if self.ttl and block.last_time and \
                        block.last_time + self.ttl <= self.scheduler.wall:
                    self.window.load(block)
                return 0
            record = <const Record *>(block.data + offset)
            if offset >= block.size or is_spoiled(record, seq) or not self.is_expired(record):
                return 0
            entry = self.pop_keyed(flow)
            if entry == NULL:
                return 0
            if not self.sift(flow, entry):
                raise AssertionError("a message that has expired was not dropped")
            self.stepped += 1
        return 0


cdef inline Flow *flow_of_size(HeapNode *node) noexcept nogil:
    """Return the flow with this node in `sizes`."""
    return <Flow *>(<uint8_t *>node - sizeof(KeyNode))
