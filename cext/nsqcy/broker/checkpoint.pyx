"""Checkpoints: the journal of a topic, which lists its channels and every unfinished message.

Decides when the journal is written, and appends deltas between two snapshots. A snapshot describes
the topic as it was when the snapshot began. It may or may not contain a message that has been
finished since. A topic may have a million deferred messages, so a snapshot can take many turns; the
channels ensure that no message is omitted (`Channel.pack`).
"""

cdef class Snapshot:
    def __init__(self, Log log not None, bytes head not None, list channels not None,
                 bint records_wait):
        """
        head: the snapshot without the channels' entries
        records_wait: later records must wait for the snapshot
        """
        cdef Channel channel
        self.log = log
        self.channels = channels
        self.deltas = []
        self.records_wait = records_wait
        log.begin_snapshot()
        log.add_to_snapshot(head)
        for channel in channels:
            channel.begin_packing(Packing())

    cdef int step(self, int budget) except -1:
        cdef Channel channel
        while budget > 0 and not self.is_complete():
            channel = <Channel>self.channels[self.packed]
            budget = channel.pack_more(budget)
            self.write_entries(channel)
            self.packed += channel.is_packed()
        return budget

    cdef bint is_complete(self) noexcept:
        return self.packed == len(self.channels)

    cdef int write_entries(self, Channel channel) except -1:
        cdef tuple packed
        if channel.packing.count:
            packed = channel.packing.take()
            self.log.add_to_snapshot(journal.encode_entries(channel.name, packed[0], packed[1]))
        return 0

    cdef int end(self, log_done done, void *arg) except -1:
        """Replace the journal with the complete snapshot. Raise MemoryError if packing failed."""
        cdef Channel channel
        for channel in self.channels:
            if channel.packing.failed:
                self.give_up()
                raise MemoryError("a snapshot of the journal")
            self.write_entries(channel)
            channel.packing = None
        return self.log.end_snapshot(self.deltas, self.records_wait, done, arg)

    cdef int give_up(self) except -1:
        """Discard the snapshot; the journal stays unchanged."""
        cdef Channel channel
        for channel in self.channels:
            channel.packing = None
        return self.log.give_up_snapshot()


cdef enum:
    JOURNAL_TICKS = 16              # cost of a due journal, in topic ticks
    UNFILED_IDS = 262144            # deduplication ids that make the next journal due early
    DELAYED_PACKED = 16384          # maximum delayed records in a snapshot; recovery finds the rest


cdef int journal_done(void *arg, int error) except -1:
    """Handle the end of a journal write.

    arg: an owned pair: the topic whose durability class the journal records, or None; and the
    waiting callbacks
    """
    waiting = <object>arg
    Py_DECREF(waiting)
    topic, waiters = waiting
    if topic is not None:
        (<Checkpoints>topic).class_journalled(error)
    for done in waiters:
        done(os.strerror(error).lower() if error else None)
    return 0


cdef tuple transfer_runs(Channel channel):
    """Return the runs of a channel's dead-letter transfer (nsqcy.storage.journal.TransferRun)."""
    if channel.transfer is None:
        return ()
    return tuple((<DeadLetterTransfer>channel.transfer).runs)


cdef int deltas_synced(void *arg, int error) except -1:
    topic = <object>arg
    Py_DECREF(topic)
    topic.deltas_synced(os.strerror(error).lower() if error else None)
    return 0


cdef class PendingChange:
    """A change to answer once it is as durable as the topic's durability class requires.

    Call it with None or a reason to answer the change; later calls do nothing.
    """
    cdef Checkpoints topic
    cdef object done

    def __call__(self, reason):
        done, self.done = self.done, None
        if done is not None:
            self.topic.changes.discard(self)
            done(reason)


@cython.no_gc_clear      # as RecordWindow requires
cdef class Checkpoints(TopicQueue):
    def __cinit__(self):
        self.durability = "memory"
        self.journal_waiters = []
        self.unsynced_deltas = []
        self.changes = set()
        self.past = self.missing = ()

    # -- when a journal is due --

    cdef uint64_t activity(self) noexcept:
        """Return a counter that changes with every event in the channels.

        If it equals `journalled` and `journal_stale` is not set, the journal is current.
        """
        cdef Channel channel
        cdef uint64_t total = 0
        for channel in self.channels.values():
            total += channel.activity()
        return total

    cdef void expect_no_change(self) noexcept:
        """Keep the journal of the last process until the topic changes: it describes the topic."""
        self.is_as_saved = True
        self.saved_end = self.visible.seq
        self.journalled = self.activity()
        self.journal_stale = self.journal_due = False

    cdef bint is_unchanged(self) noexcept:
        """Return whether the journal of the last process still describes the topic."""
        return (self.is_as_saved and not self.journal_stale and not self.journal_due
                and self.visible.seq == self.saved_end and self.activity() == self.journalled)

    cdef int checkpoint(self) except -1:
        """Sync and write the journal if due; return the cost in TICK_BUDGET units."""
        if self.log is not None:
            self.log.tick(self.scheduler.now)
            if self.is_kept() and self.snapshot is None and not self.log.is_telling() \
                    and self.is_journal_due():
                self.write_journal(False)
                return JOURNAL_TICKS
        return 1

    cdef bint is_journal_due(self) except -1:
        if self.scheduler.now >= self.next_journal:
            return self.journal_stale or self.activity() != self.journalled
        # Recovery would read the records of ids that are in no file.
        return (self.scheduler.now >= self.next_journal - self.log.sync_timeout
                and self.has_unfiled(UNFILED_IDS))

    # -- deltas --

    cdef int journal_channel(self, kind, Channel channel, done=None) except -1:
        """Record the creation or deletion of a channel, before any record that is fanned out later.
        `done`, unless None, is called as in pending_change()."""
        change = None if channel.ephemeral else self.pending_change(done)
        if channel.ephemeral and done is not None:
            done(None)
        if self.log is None or channel.ephemeral or not self.started or not self.is_kept():
            return 0
        if not self.append_delta(
                journal.Delta(kind, channel.name, channel.cursor.at.seq), self.when_synced(change)):
            self.journal_due = True
            if change is not None:
                self.journal_waiters.append(change)
        return 0

    cdef int journal_delta(self, delta, done) except -1:
        if not self.append_delta(delta, done):
            self.write_journal(False, done)
        return 0

    cdef bint append_delta(self, delta, done=None) except -1:
        """Append a delta to the journal and to a snapshot in progress.

        Return False if there is no journal. `done` is as in write_journal().
        """
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

    cdef object when_synced(self, done):
        """Return the callback for a delta: it calls `done` once the delta is as durable as the
        topic's durability class requires."""
        if done is None or self.promised != FSYNC:
            return done
        return lambda error: self.delta_written(error, done)

    def delta_written(self, error, done):
        if error is not None:
            done(error)
            return
        self.unsynced_deltas.append(done)
        self.sync_deltas()

    cdef int sync_deltas(self) except -1:
        """Sync all written deltas that callers wait for; only one sync runs at a time."""
        if self.syncing_deltas is not None or not self.unsynced_deltas or self.gone:
            return 0
        self.syncing_deltas, self.unsynced_deltas = self.unsynced_deltas, []
        Py_INCREF(self)
        return self.log.sync(deltas_synced, <void *>self)

    def deltas_synced(self, reason):
        waiting, self.syncing_deltas = self.syncing_deltas, None
        if reason is None and self.log.journal_lost:
            # An earlier sync of the journal failed, and this one does not cover its deltas.
            reason = self.log.last_error_text
        for done in waiting:
            done(reason)
        self.sync_deltas()

    # -- answered changes --

    cdef object pending_change(self, done):
        """Return the callback that answers a change, or None if no callback is needed.

        Calls done(None) immediately if a restart would recover no more than the topic's name, or
        done(reason) if too few copies respond.
        """
        cdef PendingChange change
        if done is None:
            return None
        if self.log is None or not self.is_kept() or self.refused is not None:
            done(self.refused)
            return None
        change = PendingChange.__new__(PendingChange)
        change.topic = self
        change.done = done
        self.changes.add(change)
        return change

    def record(self, done=None):
        """Write the current state to the journal at the end of the turn, before any later record.

        `done`, unless None, is called with None once a restart would recover the state, or with
        the reason why not.
        """
        change = self.pending_change(done)
        self.journal_due = self.note_due = True
        self.touch_dirty()
        if change is not None:
            self.journal_waiters.append(change)

    @property
    def has_pending_changes(self):
        """Return whether a change, including the topic's deletion, is not answered yet."""
        return len(self.changes) > 0

    cdef int answer_changes(self, str reason) except -1:
        """Answer all pending changes with a reason: the changes may or may not be lost."""
        for change in list(self.changes):
            change(reason)
        return 0

    cdef int delete_log(self, done) except -1:
        """Delete the topic's files. An exiting shard makes all deletions durable at once."""
        change = self.pending_change(done)
        if self.log is None:
            return 0
        if change is None:
            return self.log.delete(not self.host.closing or self.log.io is not self.host.io,
                                   NULL, NULL)
        waiting = (None, (change,))
        Py_INCREF(waiting)
        return self.log.delete(True, journal_done, <void *>waiting)

    # -- snapshots --

    cdef int write_journal(self, bint records_wait, done=None) except -1:
        """Write a snapshot of the channels' positions and entries to the journal.

        A large snapshot continues over the following turns. With `records_wait`, later records wait
        for it. `done`, unless None, is called with None or the error.
        """
        if done is not None:
            self.journal_waiters.append(done)
        if self.snapshot is not None:
            # The snapshot in progress may predate the change.
            self.snapshot_due = True
            self.journal_due = self.journal_due or records_wait
            return 0
        self.begin_journal(records_wait)
        self.go_on_with_journal(self.host.snapshot_budget)
        if self.snapshot is not None:
            self.host.journalling.append(self)
        return 0

    cdef int begin_journal(self, bint records_wait) except -1:
        cdef Channel channel
        cdef uint64_t entries = self.delayed_count
        cdef list channels = []
        ids = self.file_ids()
        # A change that later records must wait for may be part of a snapshot that began for a
        # different reason.
        records_wait = records_wait or self.journal_due or self.is_as_saved
        self.is_as_saved = False
        for channel in self.channels.values():
            entries += channel.deferred_count + channel.in_flight_count + channel.queued
            if not channel.ephemeral:
                channels.append(channel)
        self.journal_stale = self.has_unfiled(1)
        self.journal_due = self.snapshot_due = False
        self.journalled = self.activity()
        # Write a large journal less often.
        self.next_journal = self.scheduler.now + self.log.sync_timeout * <int64_t>(
            1 + entries // 100000)
        self.snapshot = Snapshot(
            self.log, journal.encode_snapshot(self.state()), channels, records_wait)
        # The stronger class applies until the journal that records the change is on disk.
        self.snapshot.tells_class = self.floor != MEMORY
        self.class_writes += self.snapshot.tells_class
        self.snapshot.waiters = self.journal_waiters
        self.journal_waiters = []
        if ids is not None:
            self.snapshot.waiters.append(lambda reason: self.ids_journaled(ids, reason))
        for channel in channels:
            for seq in channel.cancelled or ():
                self.snapshot.deltas.append(journal.encode_delta(
                    journal.Delta(journal.Kind.ENTRY_FINISHED, channel.name, seq)))
        return self.journal_told()

    cdef int go_on_with_journal(self, int budget) except -1:
        """Pack up to `budget` entries for the current snapshot; return the unused budget."""
        cdef Snapshot snapshot = self.snapshot
        budget = snapshot.step(budget)
        if not snapshot.is_complete():
            return 0
        self.snapshot = None
        self.end_snapshot(snapshot)
        if self.snapshot_due:
            # Begin immediately: a snapshot in progress keeps all files that the journal lists.
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
        """Update the state for a discarded snapshot, and pass `reason` to its callbacks."""
        self.class_writes -= snapshot.tells_class
        self.journal_stale = True
        for done in snapshot.waiters:
            done(reason)
        return 0

    cdef int finish_journal(self) except -1:
        """Complete the snapshot in progress, and any that must follow it."""
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

    cdef bint waits_for_journal(self) noexcept:
        """Return whether records must wait for a snapshot in progress."""
        return self.snapshot is not None and (self.snapshot.records_wait or self.journal_due)

    def saved_state(self):
        """Return the state that the next journal would record, as a TopicState."""
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
        """Return the topic's state for the journal, as a TopicState that has no entries."""
        cdef Channel channel
        cdef uint32_t i
        policies = self.host.policies
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
            boot=self.host.boot,
            durability=self.promised,
            cursors=self.named.state(),
            epochs=self.producers.state(self.visible.seq) if self.producers else (),
            produced_seq=self.producers.unspoken(self.visible.seq) if self.producers else 0,
            past=tuple(one for one in self.past if one.end > self.first_kept()),
            missing=tuple(one for one in self.missing if one[1] > self.first_kept()),
            policies=b"" if policies is None else policies.note(self.name),
            ids_seq=0 if self.once is None else self.once.filed_seq,
            ids_files=() if self.once is None else tuple(
                (each.number, each.bytes) for each in self.once.files),
            secret=(<const char *>self.secret)[:sizeof(self.secret)] if self.has_secret else b"",
        )

    cdef object channel_state(self, Channel channel):
        cdef uint32_t i
        return journal.ChannelState(
            name=channel.name, paused=bool(channel.paused), cursor=channel.cursor.at.seq,
            skipped=channel.cursor.skipped, replay_end=channel.cursor.replay_end,
            transfers=transfer_runs(channel),
            taken=b"" if channel.keys is None else channel.keys.packed_bits(),
            paused_keys=tuple(channel.paused_keys),
            emptied_keys=tuple((each.seq, each.text) for each in channel.emptied_keys),
            finished=tuple((channel.cursor.finished[i].start, channel.cursor.finished[i].end)
                           for i in range(channel.cursor.finished_count)))

    # -- for the next process --
    #
    # If the process dies, the next one finds the topic's messages in memory. A note, which is like
    # the first entry of a journal, contains everything that does not fit into an owner.

    cdef int begin_owner(self) except -1:
        """Let the next process find the topic."""
        self.owner = self.scheduler.owners.add(self.key, 0)
        self.number = self.owner.number
        if self.once is not None:
            self.once.belong(self.number)
        self.state_log()
        return 0

    cdef void end_owner(self) noexcept:
        """The topic ends: the next process must not find it."""
        if self.owner != NULL:
            self.scheduler.owners.remove(self.owner)
            if self.once is not None:
                self.once.belong(0)
            self.owner = NULL
            self.number = 0

    cdef void state_log(self) noexcept:
        """State the log's name, and which records belong to it."""
        if self.log is None:
            return
        memcpy(self.owner.log_id, <const char *><bytes>self.log.log_id, 16)
        self.owner.log_first = self.log_first

    cdef int save_position(self) except -1:
        """State where the topic is, at the end of a turn."""
        cdef Owners owners = self.scheduler.owners
        cdef Position *saved
        cdef Position *to
        if self.owner == NULL:
            return 0
        saved = &self.owner.positions[self.owner.current]
        to = next_position(self.owner)
        to.seq = self.fanout.seq
        to.note = saved.note
        if self.note_due:
            to.note = self.new_note(self.note_state())
            self.note_due = False
        turn_position(self.owner)
        if saved.note != NULL and saved.note != to.note:
            owners.free_note(saved.note)
        saved.note = to.note
        return 0

    cdef int save_channel(self, Channel channel) except -1:
        """State where a channel is, at the end of a turn."""
        cdef Note *note
        if channel.owner == NULL:
            return 0
        note = channel.owner.positions[channel.owner.current].note
        if channel.note_due:
            note = self.new_note(self.channel_note_state(channel))
            channel.note_due = False
        channel.save_position(note)
        return 0

    cdef Note *new_note(self, state) except? NULL:
        """Return a note with this state; NULL if there is no state."""
        cdef bytes encoded
        cdef Note *note
        if state is None:
            return NULL
        encoded = journal.encode_snapshot(state)
        note = self.scheduler.owners.new_note(<uint32_t>len(encoded))
        if note == NULL:
            raise MemoryError()
        memcpy(note_bytes(note), <const char *>encoded, len(encoded))
        note.crc = crc32c(encoded)
        return note

    cdef object note_state(self):
        """Return what the topic's note contains, as a TopicState; None: nothing."""
        cdef uint32_t i
        if not (self.paused or self.hole_count or self.has_secret or self.named or self.producers
                or self.past or self.missing):
            return None
        return journal.TopicState(
            log_id=bytes(16) if self.log is None else self.log.log_id,
            paused=bool(self.paused),
            holes=tuple((self.holes[i].start, self.holes[i].end) for i in range(self.hole_count)),
            cursors=self.named.state(),
            epochs=self.producers.state(self.visible.seq) if self.producers else (),
            produced_seq=self.producers.unspoken(self.visible.seq) if self.producers else 0,
            past=tuple(one for one in self.past if one.end > self.first_kept()),
            missing=tuple(one for one in self.missing if one[1] > self.first_kept()),
            secret=(<const char *>self.secret)[:sizeof(self.secret)] if self.has_secret else b"",
        )

    cdef object channel_note_state(self, Channel channel):
        """Return what a channel's note contains, as a TopicState of one channel; None: nothing."""
        if not (channel.paused or channel.cursor.finished_count or channel.transfer is not None
                or channel.paused_keys or channel.emptied_keys):
            return None
        return journal.TopicState(
            log_id=bytes(16), channels=(replace(self.channel_state(channel), taken=b""),))

    @property
    def first_seq(self):
        """Return the oldest record at which a channel could start."""
        return self.first_kept()

    cdef uint64_t first_kept(self) noexcept:
        if self.oldest == NULL:
            return self.next_seq
        if self.retention_time or self.retention_bytes:
            return max(self.oldest.first_seq, self.kept.seq)
        return self.oldest.first_seq

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

    # -- deduplication ids --

    cdef uint64_t safe_seq(self) except? 0:
        """Return a record such that every record before it is on disk or is not needed."""
        return self.visible.seq

    cdef bint has_unfiled(self, uint64_t minimum) except -1:
        """Return whether as many ids could be written to files now."""
        return (self.once is not None
                and self.once.unfiled(self.safe_seq()) - self.once.filed >= minimum)

    cdef tuple file_ids(self):
        """Write the ids of records that may leave the log, for the next snapshot. Return the facts
        for ids_journaled(); None if there is nothing to do."""
        cdef Once once = self.once
        if once is None:
            return (None, 0, 0, 0, {}) if self.log.ids_files else None
        once.drop_files(self.scheduler.wall)
        batch = once.next_batch(self.safe_seq())
        if batch is not None:
            self.log.append_ids(once.last_file, batch)
        return (once, once.failures, once.filed, once.filed_seq,
                {each.number: each.bytes for each in once.files})

    def ids_journaled(self, facts, reason):
        """Handle the end of a journal write that lists files of ids."""
        cdef Once once
        of, failures, filed, seq, listed = facts
        once = of
        if self.gone or once is not self.once or once is not None and failures != once.failures:
            return
        if reason is not None:
            self.journal_stale = True
            if once is not None:
                once.abandon_files()
            return
        current = set()
        if once is not None:
            once.listed = listed
            once.confirm(filed, seq)
            current = {each.number for each in once.files}
        for number in self.log.ids_files - listed.keys() - current:
            self.log.remove_ids(number)

    # -- durability --

    cdef int set_durability(self, str name) except -1:
        """Set the durability class of future publishes; earlier publishes keep their class."""
        cdef Durability wanted = durability_of(name)
        if wanted == self.promised:
            return 0
        if self.next_seq > 1 or self.channels:
            # The log_id survives a crash if the journal proves that nothing was lost. So the
            # journal must record each change, to a stronger or a weaker class, before the change
            # takes effect.
            self.journal_due = True
            self.gate = max(self.gate, wanted)
            self.floor = self.gate if wanted < self.gate else MEMORY
        else:
            self.gate = wanted
        self.durability = name
        self.promised = wanted
        # A write with class OS would wait for an unnecessary sync.
        self.log.sync_every = 0 if wanted == OS else self.host.sync_every
        self.touch_dirty()
        return 0

    cdef void class_journalled(self, int error) noexcept:
        """Handle the end of a journal write that records the durability class."""
        self.class_writes -= 1
        if error:
            self.journal_stale = True
        elif self.class_writes == 0 and not self.journal_due:
            self.class_written()

    cdef void class_written(self) noexcept:
        """The journal on disk records the current class: remove the temporary minimum."""
        self.floor = MEMORY
        if not self.overflowing:
            self.gate = self.promised

    # -- dead-letter transfers --

    def journal_transfer(self, str channel not None, uint64_t seq, bytes packed not None,
                         run not None, bint delayed, done not None):
        """Record in the journal that a channel's message is being transferred.

        `packed` is the location of the message's record, in journal format. Calls done(None) once a
        restart would recover the transfer, or done(error). Returns False, and does not call `done`,
        if transfers of this topic do not survive a restart.
        """
        if self.log is None or self.promised == MEMORY or is_ephemeral(channel):
            return False
        entry, = journal.unpack_entries(packed)
        self.journal_delta(
            journal.Delta(journal.Kind.ENTRY_TRANSFERRED, channel, seq, entry=entry, run=run,
                          delayed=delayed),
            self.when_synced(done))
        return True

    def journal_transferred(self, str channel not None, uint64_t seq):
        """Record in the journal that the target topic accepted a message.

        If this entry is lost, the message is resent, and the target ignores the duplicate.
        """
        if self.log is not None and self.promised != MEMORY and not is_ephemeral(channel):
            self.append_delta(journal.Delta(journal.Kind.ENTRY_TRANSFERRED, channel, seq), None)
