"""Channels: the lifecycle of a message until it is finished.

Owns the consumer commands for messages in flight, the effects of time on messages, and the
channel's policy and counters. Its base classes own the rest: which message comes next and which
consumer receives it (dispatch), which messages must not be delivered (undeliverable), and where
each message is (deferred_and_in_flight). Depends on blocks and entries, but not on connections or
clocks: the caller sets `scheduler.now`.

Invariant: received = finished + queued + in flight + deferred + dropped + sampled out; see
Channel.ledger().
"""

# Channels: a cursor over the window of a topic, and the messages handed out to consumers.
#
#                       take                     deliver
#   window ──cursor──────────────► (entry) ────────────────► in flight ──finish──► gone
#                        ▲                                    │  │  │
#                        │ at the tail                requeue │  │  │ timeout
#                     queued ◄────────────────────────────────┘  │  │
#                        ▲  ▲────────────────────────────────────│──┘
#                        │ due                                   │ requeue with a delay
#                     deferred ◄─────────────────────────────────┘


cdef enum:
    DROP_AT_ONCE = 4096             # maximum messages freed immediately; more are freed in steps

cdef double MAX_RATE = 1e9


cdef OnFull on_full_of(str name) except *:
    """Return the action that has this name in policies."""
    return <OnFull><int>_ON_FULL.index(name)


# Live objects, counted in the debug build.
cdef Py_ssize_t live_channels = 0


def live():
    """Return how many channels and in-flight lists exist; zeros in a release build."""
    return {"channels": live_channels, "in_flight_lists": in_flight_lists_alive()}


@cython.final
cdef class Channel(Dispatch):
    def __cinit__(self, SchedulerState scheduler not None, RecordWindow window not None,
                  str name not None):
        global live_channels
        if NSQCY_DEBUG:
            live_channels += 1
        self.scheduler = scheduler
        self.window = window
        self.cursor.window = <void *>window
        self.pool = scheduler.pool
        self.name = name
        self.ephemeral = name.endswith("#ephemeral")
        self.mem_queue_size = scheduler.mem_queue_size
        self.dead_letter_topic = ""
        key = name.encode()
        self.cursor.address = record_address_of(key, len(key))
        self.used_at = scheduler.now
        window.watch(&self.cursor.at)
        window.move_cursor(&self.cursor.at, &window.fanout)
        self.born_seq = window.fanout.seq
        if scheduler.percentiles.quantiles:
            self.latency = Latency(scheduler.percentiles, scheduler.now)
            self.watched = True

    def __dealloc__(self):
        # A channel that was not closed is garbage together with its topic, which may already be
        # partially cleared: do not touch the topic.
        global live_channels
        if NSQCY_DEBUG:
            live_channels -= 1

    def set_policy(self, policy):
        """Set the policy of the channel (nsqcy.config.policies). Messages in flight keep their
        deadlines."""
        cdef Consumer consumer
        self.mem_queue_size = self.scheduler.mem_queue_size
        if policy.mem_queue_size is not None:
            self.mem_queue_size = policy.mem_queue_size
        self.msg_timeout = policy.msg_timeout or 0
        self.max_attempts = policy.max_attempts
        self.dead_letter_topic = policy.dead_letter_topic
        self.set_rules(policy)
        self.returns = policy.requeue_on_disconnect == "yes" or (
            policy.requeue_on_disconnect == "auto" and policy.order == "key")
        self.set_ttl(self.ttl)
        self.set_rate(policy.rate)
        self.max_depth = policy.max_depth
        self.on_full = on_full_of(policy.on_full)
        self.prune_after = policy.prune_after
        self.prune_messages = policy.prune_messages
        for consumer in self.consumers:
            self.give_timeout(consumer)

    cdef int begin_owner(self, uint32_t topic) except -1:
        """Let the next process find the channel. `topic`: number of the topic."""
        self.owner = self.scheduler.owners.add(self.name.encode(), topic)
        self.save_position(NULL)
        self.number = self.pages.owner = self.owner.number
        return 0

    cdef bint is_unused(self) noexcept:
        """Return whether the channel should be pruned. Called once a second."""
        if self.consumers or self.held() and not self.prune_messages:
            self.used_at = self.scheduler.now
            return False
        return self.prune_after != 0 and self.scheduler.now - self.used_at >= self.prune_after

    # -- numbers --

    cdef void carry(self, uint64_t ahead) noexcept:
        """Finish the restore: the channel's messages are from before a restart. `ahead`: the
        number of records to skip that have not been fanned out again yet."""
        self.born_seq = self.window.fanout.seq
        self.cursor.skipped -= cursor_surplus(&self.cursor) + ahead
        self.cursor.carried += self.held()
        self.cursor.skipped += ahead

    cdef void replay(self, uint64_t skipped) noexcept:
        """Update the counts after the cursor has moved back, with this many records to skip after
        it. Redelivered messages have no delay."""
        self.cursor.skipped = skipped
        self.cursor.finished_count = 0
        self.cursor.replay_end = self.window.fanout.seq
        self.cursor.carried += self.depth()
        self.touch_dirty()

    cdef uint64_t activity(self) noexcept:
        """Return a counter that changes with every message event between two publishes, such as a
        delivery."""
        return (self.cursor.at.seq + self.taken[0] + self.taken[1] + self.taken[2]
                + self.finish_count + self.requeue_count + self.timeout_count
                - self.queued - self.in_flight_count - self.deferred_count)

    @property
    def message_count(self):
        """Return the number of messages received from the topic since the channel was created or
        loaded."""
        return self.window.fanout.seq - self.born_seq

    def counters(self):
        """Return the statistics of the channel, as /stats shows them."""
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
                self.scheduler.percentiles.summary([self.latency], self.scheduler.now),
        }
        if self.unusual:
            shown["policy"] = self.unusual
        if self.keyed and self.keys is not None:
            shown["keys"] = self.key_facts()
        return shown

    cdef void add_figures(self, uint64_t *figures) noexcept:
        """Add the metrics of the channel; the counters of a deleted channel are still valid."""
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
        figures[CHANNEL_KEYS_PAUSED] += <uint64_t>len(self.paused_keys)
        if self.census is not None:
            figures[CHANNEL_KEYS_WAITING] += self.census.latest.waiting
            figures[CHANNEL_KEYS_BLOCKED] += self.census.latest.blocked
            figures[CHANNEL_KEYS_BLOCKED_LONG] += self.census.latest.blocked_long

    def ledger(self):
        """Return the outcome of every message that the channel received from the topic or restored
        after a restart.

        Everything that removes a message is counted, except damage on disk: a message that can no
        longer be read from any file is missing from the sum.
        """
        cdef uint64_t received = (self.message_count + self.cursor.carried
                                  + cursor_surplus(&self.cursor))
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

    # -- consumer commands --

    cdef inline Entry *held_by(self, Consumer consumer, uint64_t id, Outcome *outcome) noexcept:
        """Return the message in flight with this id; remove it from the table if the consumer owns
        it."""
        cdef uint32_t slot = table_find(&self.table, id)
        cdef Entry *entry = self.table.slots[slot]
        if entry == NULL:
            outcome[0] = NOT_IN_FLIGHT
            return NULL
        if (<InFlightList *>entry.in_flight_list).consumer != <void *>consumer:
            outcome[0] = NOT_OWNER
            return NULL
        table_clear(&self.table, slot)
        outcome[0] = DONE
        return entry

    cdef Outcome finish(self, Consumer consumer, uint64_t id) noexcept:
        cdef Outcome outcome
        cdef Entry *entry = self.held_by(consumer, id, &outcome)
        if entry == NULL:
            return outcome
        if self.watched:
            self.report_finish(entry)
        self.count_down(consumer)
        self.list_remove(entry)
        self.in_flight_count -= 1
        self.finish_count += 1
        consumer.finish_count += 1
        self.free_entry(entry)
        return DONE

    cdef Outcome requeue(self, Consumer consumer, uint64_t id, int64_t delay) except *:
        """Requeue a message: at the tail, or deferred for `delay` ns."""
        cdef Outcome outcome
        cdef int64_t due
        cdef Entry *entry = self.held_by(consumer, id, &outcome)
        if entry == NULL:
            return outcome
        if self.watched:
            self.report(REQUEUE, entry)
        self.no_longer_in_flight(entry)
        self.requeue_count += 1
        consumer.requeue_count += 1
        if self.is_exhausted(entry):
            self.dead_letter(entry, OUT_OF_ATTEMPTS, consumer.client_id)
            return DONE
        if delay:
            due = self.scheduler.due_after(delay)
            if self.keys is not None and self.keys.order:
                due = min(due, self.expiry_of(entry))
            self.defer_entry(entry, due)
            return DONE
        if self.ephemeral:
            # Messages fanned out earlier precede this one in the queue.
            self.collect()
        self.queue_entry(entry, 0)
        return DONE

    cdef int64_t expiry_of(self, const Entry *entry) noexcept:
        """Return the monotonic time when a message that was delivered becomes too old."""
        cdef Block *block = entry.block
        cdef int64_t expiry = 0x7fffffffffffffff
        if block.data != NULL and not block.flags & LOADING:
            expiry = record_expiry(<const Record *>(block.data + entry.offset))
        if self.ttl:
            expiry = min(expiry, entry.timestamp + self.ttl)
        if expiry == 0x7fffffffffffffff:
            return expiry
        return max(self.scheduler.now + 1, expiry - self.scheduler.wall + self.scheduler.now)

    cdef int return_messages(self, InFlightList *in_flight_list, str client) except -1:
        """Requeue the messages of a client that has left, in order of delivery."""
        cdef uint32_t left = in_flight_list.count
        cdef Entry *entry
        while left:
            left -= 1
            entry = in_flight_list.first
            table_clear(&self.table, table_find(&self.table, entry.id))
            self.requeue_count += 1
            # The list is freed with its last message.
            self.no_longer_in_flight(entry)
            if self.is_exhausted(entry):
                self.dead_letter(entry, OUT_OF_ATTEMPTS, client)
            else:
                self.queue_entry(entry, 0)
        return 0

    cdef Outcome reject(self, Consumer consumer, uint64_t id, int64_t delay, str text) except *:
        """Move a message to the dead-letter topic immediately; requeue the message if there is no
        dead-letter topic. `text`: the consumer's reason."""
        cdef Outcome outcome
        cdef Entry *entry
        if not self.dead_letter_topic:
            outcome = self.requeue(consumer, id, delay)
            return NO_DEAD_LETTERS if outcome == DONE else outcome
        entry = self.held_by(consumer, id, &outcome)
        if entry == NULL:
            return outcome
        self.no_longer_in_flight(entry)
        self.dead_letter(entry, REJECTED, consumer.client_id, text)
        return DONE

    cdef Outcome touch(self, Consumer consumer, uint64_t id) noexcept:
        """Restart the consumer's message timeout, up to max-msg-timeout in total."""
        cdef uint32_t slot = table_find(&self.table, id)
        cdef Entry *entry = self.table.slots[slot]
        cdef InFlightList *in_flight_list
        cdef int64_t deadline = self.scheduler.now + consumer.msg_timeout
        cdef int64_t held
        cdef uint32_t delivered
        if entry == NULL:
            return NOT_IN_FLIGHT
        in_flight_list = <InFlightList *>entry.in_flight_list
        if in_flight_list.consumer != <void *>consumer:
            return NOT_OWNER
        # Milliseconds modulo 2^32: enough for attempts of up to 24 days. The delivery time was
        # rounded up and the result is rounded down, so a message never times out early.
        delivered = entry.node.tag
        held = <int64_t><int32_t>(<uint32_t>(self.scheduler.now // 1000000) - delivered) * 1000000
        held = max(<int64_t>0, held)
        if held + consumer.msg_timeout >= self.scheduler.max_msg_timeout:
            deadline = self.scheduler.now + self.scheduler.max_msg_timeout - held
        if entry.round != self.round:
            # A snapshot in progress does not need this message again.
            self.pack(<Deferred *>entry)
        self.list_remove(entry)
        self.list_add_uninlined(in_flight_list, entry, deadline)
        entry.node.tag = delivered
        return DONE

    # -- time passes --

    cdef int expire(self, int budget) except -1:
        """Handle due messages, at most `budget`; return their number."""
        cdef int left = budget
        cdef HeapNode *node
        if self.ephemeral:
            self.collect()
        if self.pacer.node.index != HEAP_NOWHERE and heap_due(
                &self.scheduler.channel_timers, &self.pacer.node) <= self.scheduler.now:
            heap_remove(&self.scheduler.channel_timers, &self.pacer.node)
            self.touch_dirty()
        if self.keys is not None:
            self.touch_dirty()
            self.keys.wake()
        while left > 0 and heap_first_due(&self.timers) <= self.scheduler.now:
            node = self.timers.slots[0].node
            if node.tag & IN_FLIGHT_TIMER:
                left -= self.expire_in_flight_list(<InFlightList *>node, left)
                continue
            self.queue_due(<Deferred *>node)
            left -= 1
        self.set_alarm()
        return budget - left

    cdef int expire_in_flight_list(self, InFlightList *in_flight_list, int budget) except -1:
        """Time out messages that a consumer has held too long; return their number."""
        cdef Entry *entry = in_flight_list.first
        cdef int expired = 0
        cdef bint is_last
        heap_remove(&self.timers, &in_flight_list.timer)
        while entry != NULL and entry.due <= self.scheduler.now and expired < budget:
            expired += 1
            table_clear(&self.table, table_find(&self.table, entry.id))
            self.timeout_count += 1
            if self.watched:
                self.report(TIMEOUT, entry)
            # The list of a client that has left is freed with its last message: do not use the
            # list afterwards.
            is_last = in_flight_list.count == 1 and in_flight_list.consumer == NULL
            if self.is_exhausted(entry):
                self.dead_letter_timed_out(entry)
            else:
                self.no_longer_in_flight(entry)
                self.queue_entry(entry, 0)
            if is_last:
                return expired
            entry = in_flight_list.first
        if entry != NULL:
            heap_check(heap_push(&self.timers, &in_flight_list.timer, entry.due))
        return expired

    # -- administration --

    cdef void pass_over(self) noexcept:
        """Handle the fan-out of a record that is for a different channel."""
        self.cursor.skipped += 1
        self.born_seq += 1

    def pause(self, bint paused):
        self.paused = paused
        self.touch_dirty()

    cdef void set_cut_off(self, bint cut_off) noexcept:
        """Stop deliveries, or resume them."""
        self.cut_off = cut_off
        self.touch_dirty()

    def set_rate(self, double rate):
        """Limit deliveries to this many messages per second; 0: no limit."""
        if not 0 <= rate <= MAX_RATE:
            raise ValueError(f"a rate of {rate}")
        if rate == self.rate:
            return
        self.rate = rate
        self.next_send = self.scheduler.now
        self.held_back = False
        heap_remove(&self.scheduler.channel_timers, &self.pacer.node)
        self.touch_dirty()

    def redrive(self, uint64_t limit, tuple targets=None):
        """Send up to this many waiting messages (0: all) back to the topics named in their headers.
        Messages without these headers stay in the channel, as do messages from topics that match no
        pattern in `targets` (None: all topics match). Return the number of messages to check: none
        while take_out() or a redrive with different targets checks them."""
        cdef uint64_t count = self.depth()
        if self.redriving and (self.wanted or self.targets != targets):
            return 0
        if limit:
            count = min(count, limit)
        if self.keys is not None and count:
            self.rebuild_keys(True)
        self.targets = targets
        self.redriving = max(self.redriving, count)
        self.touch_dirty()
        return count

    def take_out(self, uint64_t id, bint drop, done, tuple targets=None):
        """Send the waiting message with this id back to the topic named in its headers, or drop it.

        Checks each waiting message once, in several turns. Calls done(None), or done(reason) if no
        waiting message has this id, the message has no such headers, or the topic matches no
        pattern in `targets` (None: all topics match). Returns False if messages are already being
        redriven.
        """
        if self.redriving:
            return False
        self.redriving = self.depth()
        if self.keys is not None and self.redriving:
            self.rebuild_keys(True)
        self.targets = targets
        self.wanted = id
        self.drops_wanted = drop
        self.wanted_done = done
        if self.redriving == 0:
            self.wanted = 0
            self.end_search("MESSAGE_NOT_FOUND")
        self.touch_dirty()
        return True

    cdef void move(self) noexcept:
        """Send each message to the same channel of the open topic as soon as it is due."""
        self.moves = True
        self.targets = None
        self.redriving = <uint64_t>-1 >> 1
        self.touch_dirty()

    def empty(self):
        """Drop all messages: waiting, in flight and deferred."""
        cdef Consumer consumer
        self.emptied_count += self.held()
        self.cursor.carried += cursor_surplus(&self.cursor)
        self.drop_everything()
        self.window.move_cursor(&self.cursor.at, &self.window.fanout)
        self.window.trim()
        self.set_alarm()
        self.touch_dirty()      # the position has changed
        for consumer in self.consumers:
            consumer.in_flight = 0
            self.check_ready(consumer)
        if self.transfer is not None:
            self.transfer.in_flight = 0

    cdef int drop_everything(self) except -1:
        """Drop all messages; free them immediately if they are few."""
        cdef Discarded discarded = Discarded()
        if self.owner != NULL:
            self.number = self.scheduler.owners.renumber(self.owner)
        discarded.window = self.window
        discarded.entries = self.drop_in_flight()
        discarded.pages = self.pages
        memset(&self.pages, 0, sizeof(Pages))
        self.pages.owner = self.number
        # Only deferred messages are left; removing them in order would double the cost.
        heap_free(&self.timers)
        self.queue_first = self.queue_last = self.place.queued = self.unpacked = NULL
        if self.keys is not None:
            self.keys.stop()
        self.forget_emptied()
        self.prefetch = None
        self.visit_in_flight_list(NULL)
        table_forget_all(&self.table)
        self.queued = self.deferred_count = self.in_flight_count = self.cursor.skipped = 0
        self.cursor.finished_count = 0
        if discarded.free_some(DROP_AT_ONCE) == 0:
            self.scheduler.discarded.append(discarded)
        return 0

    cdef Entry *drop_in_flight(self) noexcept:
        """Take all messages back from the consumers. Return the messages in flight, followed by the
        queued messages."""
        cdef Entry *entries = self.queue_first
        cdef InFlightList *in_flight_list = self.in_flight_lists
        if self.keys is not None:
            if self.queue_first == NULL:
                entries = self.keys.take_all_entries()
            else:
                self.queue_last.next = self.keys.take_all_entries()
        cdef InFlightList *following
        while in_flight_list != NULL:
            following = in_flight_list.next
            if in_flight_list.first != NULL:
                in_flight_list.last.next = entries
                entries = in_flight_list.first
                in_flight_list.first = in_flight_list.last = NULL
                in_flight_list.count = 0
            if in_flight_list.timer.index != HEAP_NOWHERE:
                heap_remove(&self.timers, &in_flight_list.timer)
            if in_flight_list.consumer == NULL:
                self.free_in_flight_list(in_flight_list)
            in_flight_list = following
        return entries

    cdef int close(self) except -1:
        """Close the channel: notify consumers and drop messages."""
        cdef Consumer consumer
        if self.gone:
            return 0
        self.gone = True
        self.returns = False
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.on_channel_gone()
        if self.transfer is not None:
            self.remove_consumer(self.transfer)
            self.transfer = None
        if self.owner != NULL:
            self.scheduler.owners.remove(self.owner)
            self.owner = NULL
            self.number = 0
        self.drop_everything()
        self.window.unwatch(&self.cursor.at)
        self.drop_alarm()
        heap_remove(&self.scheduler.channel_timers, &self.pacer.node)
        return 0
