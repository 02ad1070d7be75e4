"""Topics: a window of records, plus the channels that read them.

A topic is a chain of base classes. Each class uses only the classes above it in this list:

    RecordWindow records in memory                      storage/record_window.pyx
    TopicQueue   from a publish to the channels         topic_publishing.pyx
    Checkpoints  the journal                            checkpoint.pyx
    TopicLog     the log: writes, retention, readers    topic_log.pyx
    Topic        channels, policy, statistics, saving and closing

Independent of connections, clocks and the event loop. The life of a record:

    appended ──► visible ──► fanned out ──► taken by each channel's cursor
             │           │
             │           └ immediately, unless the topic is paused, is held or has no channel
             └ immediately, unless the topic overflows or is durable: then once the log has written
               or synced it, which is also when the publisher is answered
"""

cdef enum:
    KEPT = 128                  # block flag: survivors whose readers are unknown


cdef int64_t REST = 10 * SECOND     # idle time after which an open block is released


cdef bint is_synced(const Block *block) noexcept:
    """Return whether all records in a block are known to survive a power loss."""
    cdef const Extent *extent = &block.extent
    if block.stored < block.size:
        return False
    while extent != NULL and extent.bytes:
        if extent.segment.synced < extent.offset + extent.bytes:
            return False
        extent = extent.next
    return True


@cython.no_gc_clear      # as RecordWindow requires
cdef class Topic(TopicLog):
    def __cinit__(self):
        if self.ephemeral:
            self.series = EPHEMERALS

    def __dealloc__(self):
        free(self.gone_ephemerals)

    # -- policy --

    def set_policy(self, policy):
        """Apply a policy (nsqcy.config.policies). An ephemeral topic is never written to disk."""
        self.set_limits(policy)
        self.prune_after = policy.prune_after
        self.prune_messages = policy.prune_messages
        if self.log is not None:
            self.set_durability(policy.durability)
            self.set_retention(policy.retention_time, policy.retention_bytes)

    cdef int apply_policy(self) except -1:
        """Apply the policy for the topic's name."""
        policies = self.host.policies
        if policies is not None:
            self.set_policy(policies.topic(self.name))
            self.unusual = policies.unusual_of_topic(self.name)
            self.prunes = self.prunes or self.prune_after != 0
            self.set_bounds()
        return 0

    cdef int apply_channel_policy(self, Channel channel) except -1:
        policies = self.host.policies
        if policies is not None:
            policy = policies.channel(self.name, channel.name)
            if policy.dead_letter_topic == self.name:
                # Otherwise, the message would return to this channel and to all other channels in
                # the topic.
                policy = policy._replace(max_attempts=0, dead_letter_topic="")
            channel.set_policy(policy)
            channel.unusual = policies.unusual_of_channel(self.name, channel.name)
            self.prunes = self.prunes or channel.prune_after != 0
        return 0

    cdef int recall_policies(self, bytes note) except -1:
        """Apply the policy note in a journal, unless the topic's policies are saved elsewhere."""
        policies = self.host.policies
        if policies is None or not policies.recall(self.name, note):
            return 0
        self.apply_policy()
        return self.host.report_recalled(self.name)

    # -- statistics --

    def remains(self):
        """Return unfinished messages as (channel, waiting, in flight, deferred).

        Messages that have not been fanned out or written yet are counted for channel "". Ephemeral
        topics and channels, which are never kept, and events are excluded.
        """
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
        """Return the bytes of records in memory."""
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
        """Return the topic's own statistics, with the keys of /stats."""
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
            "e2e_processing_latency": self.scheduler.percentiles.summary(
                [channel.latency for channel in self.channels.values()], self.scheduler.now),
        }
        if self.durability != "memory":
            shown["durability"] = self.durability
        shown |= self.once_facts()
        if self.keyless_count:
            shown["without_key"] = self.keyless_count
        if self.named:
            shown["cursors"] = self.cursor_facts()
        if self.unusual:
            shown["policy"] = self.unusual
        return shown

    cdef dict once_facts(self):
        """Return what /stats shows about repeated publishes."""
        if self.once is None:
            return {"duplicates": self.duplicate_count} if self.duplicate_count else {}
        return {
            "duplicates": self.duplicate_count,
            "dedup": {"ids": len(self.once), "early": self.early_count + self.once.early},
        }

    def log_facts(self):
        """Return facts about the log, for operators."""
        cdef Channel channel
        cursors = {}
        for channel in self.channels.values():
            cursors[channel.name] = channel.cursor.at.seq
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

    def ledger(self):
        """Return the number of messages that the topic accepted, and the number that it dropped
        before any channel received them."""
        return {
            "dropped": {"full": self.full_count, "overflow": self.dropped_count},
            "expired": self.expired_count,
        }

    cdef void add_figures(self, uint64_t *figures) noexcept:
        """Add the topic's own metrics."""
        figures[TOPIC_MESSAGES] += self.message_count
        figures[TOPIC_BYTES] += self.message_bytes
        figures[TOPIC_DROPPED] += self.full_count + self.dropped_count + self.expired_count
        figures[TOPIC_DUPLICATES] += self.duplicate_count
        figures[TOPIC_IDS_EARLY] += self.early_count
        if self.once is not None:
            figures[TOPIC_IDS_EARLY] += self.once.early
            figures[TOPIC_IDS] += self.once.end - self.once.first
        figures[TOPIC_DEPTH] += self.depth()
        if self.log is not None:
            figures[TOPIC_DISK_BYTES] += self.log.disk_bytes + self.log.journal_bytes
        figures[TOPIC_PAUSED] += self.paused

    cdef int forget_channel(self, Channel channel) except -1:
        """Keep the counters of a deleted channel in the topic's totals."""
        cdef uint64_t figures[CHANNEL_FIGURES]
        cdef uint64_t *kept = NULL
        if channel.series == OWN:
            self.host.own_series -= 1
        elif self.series > OWN:
            kept = self.host.gone[<int>self.series].channel
        elif channel.series > OWN:
            kept = self.host.gone[<int>channel.series].channel
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
        """Keep the counters of the deleted topic in the worker's totals."""
        cdef uint64_t figures[TOPIC_FIGURES]
        cdef Sums *kept
        if self.series == OWN:
            self.host.own_series -= 1
        elif self.series > OWN:
            kept = &self.host.gone[<int>self.series]
            memset(figures, 0, sizeof(figures))
            self.add_figures(figures)
            add_counters(kept.topic, figures, TOPIC_COUNTERS)
            histogram_merge(&kept.ages, &self.ages)
            if self.gone_ephemerals != NULL:
                add_counters(kept.channel, self.gone_ephemerals, CHANNEL_COUNTERS)

    # -- channels --

    def channel(self, str name not None):
        """Return the channel `name`, created at the fan-out position if it does not exist."""
        cdef Channel channel = self.channels.get(name)
        if channel is None:
            channel = self.new_channel(name)
            if self.moved_from is None:
                self.apply_channel_policy(channel)
            self.channels[name] = channel
            if self.owner != NULL:
                channel.begin_owner(self.number)
            self.bound_channel(channel)
            self.journal_channel(journal.Kind.CHANNEL_CREATED, channel)
            if self.fanout.seq < self.visible.seq:
                self.fan_out()
            self.touch_to_trim()
            channel.touch_dirty()
            if self.moved_from is None and self.started:
                self.host.event("channel_created", self.name, name)
        return channel

    cdef Channel new_channel(self, str name):
        cdef Channel channel = Channel(self.scheduler, self, name)
        channel.cut_off = self.cut_off
        channel.ages = &self.ages       # the channel references the topic as its window
        channel.new_transfer = DeadLetterTransfer
        if self.scheduler.events is not None and self.name != _EVENTS_TOPIC:
            channel.report_to(self.scheduler.events, event_names(self.name, name))
        return channel

    # The methods with a callback `done` call done(None) once the change is as durable as the
    # topic's class requires, or done(reason) if the change may be lost. `done` may be None.

    def delete_channel(self, str name not None, done=None):
        """Delete a channel with its messages; its consumers are disconnected."""
        cdef Channel channel = self.channels.pop(name, None)
        if channel is None:
            return False
        self.unbound_channel(channel)
        self.journal_channel(journal.Kind.CHANNEL_DELETED, channel, done)
        self.forget_channel(channel)
        channel.close()
        self.touch_to_trim()
        self.host.event("channel_deleted", self.name, name)
        if self.ephemeral and not self.channels:
            self.delete()
        return True

    cdef int consumer_left(self, Channel channel) except -1:
        """Handle an unsubscribe; an ephemeral channel is deleted with its last consumer."""
        if channel.ephemeral and not channel.gone and not channel.consumers \
                and self.channels.get(channel.name) is channel:
            self.delete_channel(channel.name)
        return 0

    def pause_channel(self, str name, bint paused, done=None):
        cdef Channel channel = self.channels[name]
        channel.pause(paused)
        self.record_channel(channel, done)

    def empty_channel(self, str name, done=None):
        """Drop all messages in a channel: waiting, in flight and deferred."""
        cdef Channel channel = self.channels[name]
        channel.empty()
        self.record_channel(channel, done)

    def pause_key(self, str name, bytes key, bint paused, done=None):
        """Pause a key of a channel, or unpause it; see Channel.why_not_pause()."""
        cdef Channel channel = self.channels[name]
        channel.pause_key(key, paused)
        self.record_channel(channel, done)

    def empty_key(self, str name, bytes key, done=None):
        """Drop the messages of a key that wait in a channel; see Channel.why_not_empty()."""
        cdef Channel channel = self.channels[name]
        channel.empty_key(key, lambda: self.record_channel(channel, done))

    def record_channel(self, Channel channel not None, done=None):
        """Record the state of a channel. An ephemeral channel has no state on disk."""
        if channel.ephemeral and done is not None:
            done(None)
            done = None
        channel.note_due = True
        self.record(done)

    def cancel(self, str name, uint64_t id, done):
        """Drop a deferred message in a channel; return False if the id is unknown."""
        cdef Channel channel = self.channels[name]
        cdef uint64_t seq = channel.cancel(id)
        if seq == 0:
            return False
        change = None if channel.ephemeral else self.pending_change(done)
        if channel.ephemeral:
            done(None)
        elif self.log is not None and self.is_kept():
            self.journal_delta(journal.Delta(journal.Kind.ENTRY_FINISHED, name, seq),
                               self.when_synced(change))
        return True

    def seek(self, str name not None, uint64_t seq, done=None):
        """Move a channel to record `seq` or the nearest available one; return its new position.

        Messages that the channel has queued, in flight or deferred are dropped.
        """
        cdef Channel channel = self.channels[name]
        cdef uint64_t skipped = 0
        cdef uint32_t i
        seq = min(max(seq, <uint64_t>self.first_seq), self.fanout.seq)
        channel.empty()
        self.place_cursor(&channel.cursor.at, seq)
        for i in range(self.hole_count):
            if self.holes[i].end > seq:
                skipped += self.holes[i].end - max(seq, self.holes[i].start)
        channel.replay(skipped)
        self.trim()
        self.record_channel(channel, done)
        return seq

    # -- the topic itself --

    def pause(self, bint paused, done=None):
        self.paused = paused
        self.record(done)
        self.fan_out()

    def empty(self, done=None):
        """Drop messages that have not been fanned out; channels keep their messages."""
        if self.visible.seq > self.fanout.seq:
            self.drop_front(self.visible.seq)
        self.record(done)

    def delete(self, done=None):
        """Delete the topic with its channels, messages and files."""
        self.host.topics.pop(self.key, None)
        self.close(True, done)
        if self.host.copies is not None:
            self.host.copies.deleted(self.key)
        self.host.event("topic_deleted", self.name, None)

    def close(self, bint delete, done=None):
        """Close the topic and its channels; close its files, or delete them."""
        self.end(delete, EXITING, done)

    def set_cut_off(self, bint cut_off):
        """Stop or resume deliveries; they stop while another process may deliver the messages."""
        cdef Channel channel
        self.cut_off = cut_off
        for channel in self.channels.values():
            channel.set_cut_off(cut_off)

    def leave_unanswered(self):
        """Disconnect publishers with pending publishes, which may still be lost or accepted.
        Answer pending changes in the same way."""
        self.acks.answer(<uint64_t>-1, UNKNOWN)
        self.answer_changes(UNKNOWN)
        self.leave_batches(UNKNOWN)

    def lose(self):
        """Close the topic and its channels. Another process has taken over its files, and may have
        accepted the publishes that are pending here."""
        self.end(False, UNKNOWN)

    cdef int end(self, bint delete, str reason, done=None) except -1:
        cdef Channel channel
        if self.gone:
            return 0
        if self.unannounced:
            self.announced()
        self.end_owner()
        if self.log is not None and not delete:
            # Call this first, so that the files are kept even if runs are released afterwards.
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
        self.acks.answer(<uint64_t>-1, reason)
        self.answer_changes(reason)
        self.fail_batches(reason)
        if self.reads is not None:
            for read in list(self.reads.open):
                (<LogRead>read).abandon(b"E_LOG_NO_TOPIC")
        if delete:
            self.delete_log(done)
        return 0

    # -- turns and ticks --

    cdef int settle_turn(self) except -1:
        """Do the end-of-turn work of a topic that changed during the turn."""
        cdef Channel channel
        cdef bint only_trims = self.dirty == TRIMS and self.fanout.seq == self.visible.seq
        self.dirty = CLEAN
        if self.gone:
            return 0
        if self.fanout.seq < self.visible.seq:
            self.fan_out()
            if self.bounded and self.on_full == DROP_OLDEST and not self.flowing():
                self.keep_bounds()
        if not only_trims:
            for channel in self.channels.values():
                if channel.ephemeral:
                    channel.collect()
                channel.touch_dirty()
        if self.is_as_saved and not self.is_unchanged():
            self.is_as_saved = False
            self.journal_due = True      # the journal on disk does not cover later publishes
        if not self.is_as_saved:
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
        self.minimum = self.min_seq()
        if self.hole_count:
            self.drop_holes(self.minimum)
        if self.has_polls() and not self.hurried and self.retains \
                and self.stable < self.visible.seq:
            self.hurried = True
            self.host.hurried.append(self)
        return self.save_position()

    cdef int tick(self) except -1:
        """Do the once-a-second work; return its cost in units of TICK_BUDGET."""
        cdef Channel channel
        for channel in self.channels.values():
            if channel.transfer is not None:
                channel.touch_dirty()       # retry failed work
            if channel.keys is not None or channel.census is not None:
                channel.count_keys()
        if self.held_until and self.scheduler.now >= self.held_until:
            self.end_hold()
            self.announced()
        if self.prunes and self.prune():
            return 1
        if self.scheduler.now - self.last_publish > REST:
            self.rest()
        if self.scheduler.percentiles.quantiles:
            for channel in self.channels.values():
                channel.latency.rotate(self.scheduler.now)
        if self.ttl or self.perishable:
            self.drop_expired()
        self.date_blocks()
        self.compact()
        if self.producers is not None \
                and self.producers.expire(self.visible.seq, self.scheduler.wall):
            self.journal_stale = True
        if self.keyless_count != self.keyless_told:
            self.tell_keyless()
        if self.once is not None and self.once.tick(self.scheduler.wall):
            self.journal_stale = True
        if self.named:
            self.expire_cursors()
        if self.retains:
            self.retain()
        return self.checkpoint()

    cdef bint prune(self) except -1:
        """Delete unused channels or the topic, according to their policies; return whether the
        topic was deleted."""
        cdef Channel channel
        for channel in list(self.channels.values()):
            if channel.is_unused():
                self.host.tell(f"TOPIC({self.name}): pruning channel({channel.name}), unused "
                               f"for {short_duration(channel.prune_after)}")
                self.delete_channel(channel.name)
        if self.channels:
            self.used_at = self.scheduler.now
        if self.gone or not self.is_unused():
            return self.gone
        self.host.tell(f"TOPIC({self.name}): pruning, unused for "
                       f"{short_duration(self.prune_after)}")
        self.delete()
        return True

    cdef bint is_unused(self) noexcept:
        """Return whether the topic has been unused long enough to be pruned."""
        cdef bint has_messages = (self.fanout.seq != self.next_seq
                                  or self.retains and self.oldest != NULL)
        if not self.prune_after or self.channels or self.pending_messages:
            return False
        if has_messages and not self.prune_messages:
            return False
        return self.scheduler.now - max(self.used_at, self.last_publish) >= self.prune_after

    # -- to disk --

    def save_records(self):
        """Write to the log every needed record that is only in memory."""
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
            self.host.io.drain()
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

    def sync_found(self):
        """After save_records(), sync what an earlier process had written, but not synced before it
        crashed."""
        if self.unsaved():
            self.log.sync_found(NULL, NULL)

    def unsaved(self):
        """Return the number of acknowledged messages that are needed but not known to be synced.
        For a topic with copies, other machines store the messages."""
        cdef Block *block = self.oldest
        cdef uint64_t first = self.min_seq()
        cdef uint64_t count = 0
        if self.log is None or self.gone or self.log.io is not self.host.io:
            return 0
        while block != NULL and block.first_seq < self.visible.seq:
            if block.last_seq >= first and not is_synced(block):
                count += min(block.last_seq + 1, self.visible.seq) - max(block.first_seq, first)
            block = block.next
        block = self.stragglers
        while block != NULL:
            if block.refs and not is_synced(block):
                count += min(block.refs, block.count)
            block = block.next
        return count

    @property
    def has_lost_journal(self):
        """Whether the latest journal could not be written. Copied topics have other copies of their
        journal."""
        return (self.log is not None and not self.gone and self.log.io is self.host.io
                and bool(self.log.journal_lost))

    cdef void settle_all(self) noexcept:
        cdef uint32_t i
        for i in range(self.cursor_count):
            self.settle(self.cursors[i])
        self.trim()

    def save_journal(self):
        """Write the last snapshot, after save_records() and after the log has finished.

        A topic without messages leaves no files behind.
        """
        if self.log is None or self.gone:
            return
        if self.needs_nothing():
            if self.log.has_files():
                self.close(True)
            return
        if self.is_unchanged():
            return
        self.finish_journal()
        self.is_last = True
        self.write_journal(False)
        self.finish_journal()

    cdef int move(self) except -1:
        """Move each message to the open topic of the same name as soon as it is due."""
        cdef Channel channel
        self.pause(False)
        if not self.channels and (self.fanout.seq != self.next_seq or self.delayed_count):
            self.channel(_BACKLOG)
        for channel in self.channels.values():
            channel.move()
        self.moves = True
        return 0

    cdef int hand_over_pauses(self, Topic target) except -1:
        """Pause the keys in the open topic that are paused in this closed log."""
        cdef Channel channel
        for channel in self.channels.values():
            for key in channel.paused_keys if channel.name in target.channels else ():
                if target.channels[channel.name].why_not_pause(key) != "TOO_MANY_PAUSED_KEYS":
                    target.pause_key(channel.name, key, True)
        return 0

    @property
    def is_stalled(self):
        """Whether a read of the log has failed, and no later read has succeeded."""
        return bool(self.stalled)

    @property
    def is_moved(self):
        """Return whether all messages in a closed log have been moved."""
        cdef Channel channel
        if not self.moves or self.fanout.seq != self.next_seq or self.delayed_count:
            return False
        for channel in self.channels.values():
            if channel.depth() or channel.in_flight_count or channel.deferred_count:
                return False
        return True

    @property
    def moved_channels(self):
        """Return the channels that the open topic needs before a closed log can move its messages
        there."""
        return [name for name in self.channels if name != _BACKLOG]

    cdef bint needs_nothing(self) noexcept:
        cdef Channel channel
        cdef Block *block = self.stragglers
        while block != NULL:
            if block.flags & KEPT:
                return False
            block = block.next
        if self.delayed_count or self.fanout.seq != self.next_seq:
            return False
        if self.named or self.producers or self.once:
            return False
        if self.retains and self.oldest != NULL:
            return False
        for channel in self.channels.values():
            if channel.depth() or channel.in_flight_count or channel.deferred_count \
                    or channel.paused_keys:
                return False
        return True

    cdef void let_go_of_kept(self) noexcept:
        cdef Block *block = self.stragglers
        cdef Block *following
        while block != NULL:
            following = block.next
            if block.flags & KEPT:
                block.flags &= ~KEPT
                self.unpin(block)
            block = following
