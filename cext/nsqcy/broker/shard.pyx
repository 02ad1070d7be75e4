"""The topics of one worker: by name, with their policies and logs, from start to shutdown; and the
order of work in a turn: timers, ticks, dirty topics, dirty channels, and long-running work.

Owns the budgets: the maximum of each kind of work per turn, so that no kind delays the others.
Calls topics and channels to do part of their work; the details of that work are theirs. Also owns
the pauses between attempts to read an unreadable log: each topic waits separately, and others
continue. A topic whose log cannot be read at startup does not exist until it has been restored:
nothing is written over its files, and no new topic gets its name.

A shard is independent of workers and placement: the caller decides which topics it contains.
"""

cdef enum:
    # Maximum amount of each kind of work per turn; the next turn continues with the rest.
    DISPATCH_BUDGET = 4096          # records that channels deliver or skip
    EXPIRE_BUDGET = 4096            # messages that are due or have timed out
    GATHER_BUDGET = 4096            # messages of batches that are appended
    COMPACT_BUDGET = 4096           # entries visited by compactions, plus the cost of copies
    TICK_BUDGET = 256               # topics whose tick or checkpoint is due
    DISCARD_BUDGET = 4096           # dropped messages that are freed
    READ_BUDGET = 2048              # records that log reads visit, or equivalent cost
    READ_SLICE = 1024               # maximum for one read before another read continues
    MIN_READ_BUDGET = 256           # visited by log reads in a turn that delivers messages

cdef int64_t MIN_CHECKPOINT_PERIOD = SECOND // 100
cdef int64_t HURRY = SECOND // 10   # interval between writes for waiting log readers
cdef int64_t MAX_READ_PAUSE = 5 * SECOND

_DAMAGED = "damaged"     # directory in the data path for files with damaged records


def boot_id():
    """Return 16 bytes that identify this boot of the machine; zeros if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


cdef class _Unloaded:
    """A topic waiting to be restored."""
    cdef bint paused
    cdef object channels
    cdef object error           # Unreadable
    cdef int64_t since          # wall clock
    cdef int64_t pause
    cdef int64_t due
    cdef bint is_probing


cdef class Shard:
    def __cinit__(self):
        self.closed = {}
        self.unloaded = {}
        self.ticking = []
        self.checkpointing = []
        self.next_checkpoint = INT64_MAX

    def __init__(self, *, SchedulerState scheduler not None, IdSource ids not None, IoThread io,
                 str data_path, log_options=None, policies=None, has_room=None, on_event=None,
                 log=None):
        """
        scheduler: the worker's scheduler; its pool is the shard's
        io, data_path: where topics keep their logs; None: memory only
        log_options: keyword arguments for each Log
        policies: topic(name) returns the policy of a topic; None: all topics use the default
        has_room: function that returns whether another topic may be created; None: always
        on_event: called as on_event(kind, topic, channel) when one is created or deleted
        log: object with info(), warn() and error() methods, for operators
        """
        self.host = TopicHost(scheduler, ids, io)
        self.scheduler = scheduler
        self.pool = scheduler.pool
        self.io = io
        self.data_path = data_path
        self.log_options = log_options or {}
        self.policies = policies
        self.has_room = has_room
        self.topics = self.host.topics
        self.host.sync_every = self.log_options.get("sync_every", 0)
        self.host.policies = policies
        self.host.on_event = on_event
        self.host.log = log
        self.host.boot = boot_id()
        if log is not None:
            self.failures = WriteFailures(log)
            self.host.read_failures = ReadFailures(log)
        self.checkpoint_period = max(
            MIN_CHECKPOINT_PERIOD, self.log_options.get("sync_timeout", SECOND))
        if io is not None and not io.read_only:
            self.aside = os.path.join(data_path, _DAMAGED)
        if io is not None and self.checkpoint_period < SECOND:
            self.next_checkpoint = 0

    # -- topics --

    cdef Topic find(self, bytes key):
        return <Topic>self.topics.get(key)

    cdef Topic find_or_create(self, bytes key):
        cdef Topic topic = <Topic>self.topics.get(key)
        if topic is None:
            if key in self.unloaded or self.has_room is not None and not self.has_room():
                return None
            topic = self.make_topic(key)
            if self.hold_new:
                topic.held_until = self.scheduler.now + self.hold_new
                topic.unannounced = self.announce_new
            self.host.event("topic_created", topic.name, None)
        return topic

    def topic(self, bytes key not None, *, create=False):
        """Return the topic `key`, creating it if `create` is true.

        Return None if it does not exist and is not created, for example because the maximum number
        of topics is reached.
        """
        return self.find_or_create(key) if create else self.find(key)

    cdef Topic make_topic(self, bytes key):
        cdef Topic topic = Topic(self.host, key)
        copies = self.host.copies
        copied = None if copies is None else copies.files(topic.name)
        if copied is not None:
            topic.log = self.make_log(topic.name, copied[0], copied[1])
        elif self.io is not None:
            if not topic.ephemeral:
                topic.log = self.make_log(topic.name, self.io, self.data_path)
            topic.begin_owner()
        topic.apply_policy()
        self.topics[key] = topic
        if copied is not None:
            copies.created(topic)
        return topic

    cdef Log make_log(self, str name, FileCalls files, str directory):
        return Log(files, directory, name, aside=self.aside, on_damage=self.host.report_damage,
                   on_readable=self.logs_readable, on_failure=self.report_failed_write,
                   on_recovery=self.report_written_again, **self.log_options)

    def open_topic(self, bytes key not None, FileCalls files not None, str directory not None,
                   in_flight=None):
        """Open a topic whose files are in another directory, and restore it from them. Raises
        Unreadable.

        in_flight: messages that stay in flight until their consumers are there, as {channel:
            {id: deadline}}
        """
        cdef Topic topic = Topic(self.host, key)
        topic.log = self.make_log(topic.name, files, directory)
        topic.apply_policy()
        restore(topic, None, None, None, False, in_flight)
        self.topics[key] = topic
        self.host.event("topic_created", topic.name, None)
        for name in topic.channels:
            self.host.event("channel_created", topic.name, name)
        return topic

    def lose_topic(self, bytes key not None):
        """Close a topic whose files another process has taken over. Disconnects publishers with
        pending publishes."""
        cdef Topic topic = self.topics.pop(key)
        topic.lose()
        self.host.event("topic_deleted", topic.name, None)

    def load_topic(self, bytes key not None, bint paused, channels):
        """Load a topic at startup from its log and its metadata. Raises Unreadable."""
        cdef Topic topic = self.make_topic(key)
        cdef LeftTopic left = self.left_topic(topic)
        topic.paused = paused
        if topic.log is not None or left is not None:
            try:
                restore(topic, channels, left, self.marks, self.taken_over)
            except Unreadable:
                del self.topics[key]
                raise
            if self.left is not None:
                self.left.topics.pop(key, None)
        else:
            for name, channel_paused in channels.items():
                topic.channel(name).pause(channel_paused)
        return topic

    # -- the memory of a dead process --

    def inherit(self, LeftMemory left not None, marks=None, *, bint taken_over=False):
        """Restore topics from the memory of a dead process, too, when they are loaded. Its blocks
        are in the pool's records. `marks`: see MemoryRecovery.

        taken_over: this process takes over the consumers, too. Their messages stay in flight, and
            wait for their deadlines like those of clients that have left, until the consumers are
            there. Otherwise, ephemeral topics and channels have ended
        """
        if not taken_over:
            left.leave_out_ephemerals()
        self.left = left
        self.marks = marks
        self.taken_over = taken_over

    cdef LeftTopic left_topic(self, Topic topic):
        """Return what a dead process has left of a topic; None: nothing."""
        if self.left is None or topic.owner == NULL:
            return None
        if self.marks is not None and self.marks.leaves_out(topic.key, 0):
            return None
        return <LeftTopic>self.left.topics.get(topic.key)

    def end_inheritance(self):
        """All topics that can be loaded are loaded, and the next process can find what they have in
        memory: from now on, the memory of the dead process is used again. Topics whose logs cannot
        be read keep what is theirs."""
        cdef LeftTopic left
        if self.left is not None:
            for left in list(self.left.topics.values()):
                if left.key in self.unloaded:
                    left.hold(self.pool)
                else:
                    del self.left.topics[left.key]
            self.left.forget()
            if not self.left.topics:
                self.left = None
        self.marks = None
        self.pool.end_adoption()

    @property
    def left_topics(self):
        """Return the topics of a dead process that are not loaded."""
        return [] if self.left is None else list(self.left.topics)

    def open_closed(self, str group not None, bytes key not None, FileCalls files not None,
                    str directory not None):
        """Open a log whose messages are to be moved, because its group was taken over. The log
        accepts no publishes. Raises Unreadable."""
        cdef Topic topic = Topic(self.host, key)
        topic.moved_from = group
        topic.log = self.make_log(topic.name, files, directory)
        restore(topic, {})
        self.closed[group, key] = topic
        return topic

    def move_closed(self, str group not None, bytes key not None):
        """Move the messages of a closed log to the open topic of the same name: each message to the
        channels that have not finished it. These channels must exist."""
        cdef Topic topic = self.closed[group, key]
        cdef Topic target = self.find(key)
        if target is not None:
            topic.hand_over_pauses(target)
        topic.move()

    def close_closed(self, str group not None, bytes key not None):
        """Close a drained log, and delete its files."""
        cdef Topic topic = self.closed.pop((group, key))
        topic.close(True)

    def lose_closed(self, str group not None, bytes key not None):
        """Close a log that is being drained and whose files another process has taken over."""
        cdef Topic topic = self.closed.pop((group, key))
        topic.lose()

    def delete_topic(self, bytes key not None, done=None):
        """Delete a topic with its channels, messages and files. `done` is called as for other
        changes of a topic."""
        cdef Topic topic = self.find(key)
        if topic is None:
            return False
        topic.delete(done)
        return True

    # -- policies --

    def policies_changed(self, str name not None):
        """Apply a changed policy for a topic or for `topic/channel`; neither needs to exist."""
        cdef Topic topic = self.find(name.partition("/")[0].encode())
        cdef Channel channel
        if topic is None:
            return
        topic.prunes = False
        topic.apply_policy()
        for channel in topic.channels.values():
            topic.apply_channel_policy(channel)
        topic.set_bounds()
        topic.journal_stale = True      # the policy note in the journal has changed

    # -- refusing publishes, and disk failures --

    def set_refusal(self, reason):
        """Set the reason for refusing publishes that must be written to disk: the disk is nearly
        full. If `reason` is None, accept them again."""
        self.full = reason
        self.host.refused = self.hung or self.full

    @property
    def is_refusing(self):
        """Whether publishes that must be written to disk are refused because the disk is nearly
        full."""
        return self.full is not None

    def set_hung(self, reason):
        """Set the reason for refusing publishes that must be written to disk: the disk hangs. If
        `reason` is None, accept them again. Pending publishes are not answered: see
        Topic.leave_unanswered()."""
        self.hung = reason
        self.host.refused = self.hung or self.full

    def unsaved(self):
        """Return the number of messages of each topic that are not known to be on disk. The number
        is 0 if only the topic's journal is not on disk."""
        cdef Topic topic
        cdef LeftTopic left
        found = {}
        for topic in self.all_topics():
            count = topic.unsaved()
            if count or topic.has_lost_journal:
                found[topic.name] = found.get(topic.name, 0) + count
        for key in self.unloaded if self.left is not None else ():
            left = <LeftTopic>self.left.topics.get(key)
            if left is not None and left.memory_records():
                found[key.decode()] = left.memory_records()
        return found

    def set_draining(self, bint draining):
        """Refuse all publishes, so that consumers can drain the topics, or accept publishes
        again."""
        if not self.host.closing:
            self.host.shut = DRAINING if draining else None

    def report_failed_write(self, topic, verb, path, error):
        if error != ESTALE:     # otherwise, another process has taken over the files
            self.host.set_health(f"{verb} {path}: {os.strerror(error).lower()}")
        return self.failures is not None and self.failures.failed(
            self.scheduler.now, topic, verb, path, error)

    def report_written_again(self, topic):
        self.failures.recovered(topic)

    # -- a turn --

    cdef int64_t turn(self) except? -1:
        """Do the end-of-turn work.

        Return the monotonic time (ns) of the next call, which is `scheduler.now` if work is left.
        """
        cdef int64_t now = self.scheduler.now
        cdef Topic topic
        cdef list work
        cdef int64_t due
        cdef bint left
        if heap_first_due(&self.scheduler.channel_timers) <= now:
            self.expire()
        if now >= self.host.next_periodic:
            self.do_periodic()
        while self.host.dirty_topics:
            work = self.host.dirty_topics
            self.host.dirty_topics = []
            for topic in work:
                try:
                    topic.settle_turn()
                except Exception as error:
                    self.host.report(topic.name, error)
        left = self.dispatch()
        if self.has_long_work():
            self.go_on()
            left = left or self.has_long_work()
        due = heap_first_due(&self.scheduler.channel_timers)
        if self.host.hurried:
            due = min(due, self.write_hurried())
        if self.io is not None:
            self.io.kick()
        if left or self.host.dirty_topics:
            return now
        return min(due, self.host.next_periodic)

    cdef int go_on(self) except -1:
        """Do this turn's share of the long-running work."""
        cdef Topic topic
        if self.host.gathering:
            self.gather()
        if self.host.compacting:
            self.compact()
        if self.host.journalling:
            self.go_on_with_journals()
        if self.scheduler.discarded:
            self.free_discarded()
        if self.host.reads:
            self.read_on()
        for topic in self.host.unsettled:
            topic.touch_dirty()
        self.host.unsettled.clear()
        return 0

    cdef int expire(self) except -1:
        """Handle due messages, up to the budget; the rest stay due until the next turn."""
        cdef int budget = EXPIRE_BUDGET
        cdef HeapNode *node
        while budget > 0:
            if heap_first_due(&self.scheduler.channel_timers) > self.scheduler.now:
                break
            node = heap_peek(&self.scheduler.channel_timers)
            budget -= max(1, (<Channel>(<Timer *>node).owner).expire(budget))
        return 0

    cdef bint dispatch(self) except -1:
        """Deliver messages from dirty channels; return whether any channel could continue.

        Channels beyond the budget come first in the next turn.
        """
        cdef bint left = False
        cdef int budget = DISPATCH_BUDGET
        cdef list work = self.scheduler.dirty_channels
        cdef Py_ssize_t done = 0
        cdef Channel channel
        self.scheduler.dirty_channels = []
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
                (<Topic>channel.window).save_channel(channel)
            except Exception as error:
                self.host.report(channel.name, error)
            channel.set_alarm()
        self.dispatched = DISPATCH_BUDGET - budget
        if done < len(work):
            self.scheduler.dirty_channels = work[done:] + self.scheduler.dirty_channels
            left = True
        return left

    cdef int gather(self) except -1:
        """Append a slice of the first topic's batch; another topic's batch follows in the next
        turn."""
        cdef Topic topic = self.host.gathering.pop(0)
        try:
            topic.append_batches(GATHER_BUDGET)
        except Exception as error:
            self.host.report(topic.name, error)
            topic.break_batch(type(error).__name__)
        if topic.batches:
            self.host.gathering.append(topic)
        return 0

    cdef int compact(self) except -1:
        """Continue the topics' compactions, one after another."""
        cdef int budget = COMPACT_BUDGET
        cdef Topic topic
        while self.host.compacting and budget > 0:
            topic = self.host.compacting[0]
            try:
                if topic.compaction is not None:
                    budget = topic.compact_more(budget)
            except Exception as error:
                self.host.report(topic.name, error)
                topic.compaction.stop()
            if topic.compaction is None or topic.compaction.waits():
                self.host.compacting.pop(0)
        return 0

    cdef int go_on_with_journals(self) except -1:
        """Continue the topics' journal snapshots, one after another."""
        cdef int budget = self.host.snapshot_budget
        cdef Topic topic
        while self.host.journalling and budget > 0:
            topic = self.host.journalling[0]
            try:
                if topic.snapshot is not None:
                    budget = topic.go_on_with_journal(budget)
            except Exception as error:
                self.host.report(topic.name, error)
                topic.give_up_journal()
            if topic.snapshot is None:
                self.host.journalling.pop(0)
        return 0

    cdef int free_discarded(self) except -1:
        """Free messages that channels dropped, up to the budget."""
        cdef int budget = DISCARD_BUDGET
        cdef Discarded discarded
        while self.scheduler.discarded and budget > 0:
            discarded = self.scheduler.discarded[0]
            budget = discarded.free_some(budget)
            if budget > 0:
                self.scheduler.discarded.pop(0)
        return 0

    cdef int read_on(self) except -1:
        """Continue log reads, one after another.

        Consumers come first: in a turn that delivers messages, reads visit half as many records.
        """
        cdef int budget = READ_BUDGET
        cdef int given
        cdef LogRead read
        if self.dispatched:
            budget = max(<int>MIN_READ_BUDGET, self.dispatched // 2)
        while self.host.reads and budget > 0:
            read = self.host.reads.pop(0)
            if read.stage == ENDED:
                continue
            given = min(budget, <int>READ_SLICE)
            try:
                budget -= given - read.step(given)
            except Exception as error:
                self.host.report((<Topic>read.window).name, error)
                read.abandon(b"E_LOG_FAILED " + type(error).__name__.encode())
            if read.stage != ENDED and not read.reading:
                self.host.reads.append(read)
        return 0

    cdef int64_t write_hurried(self) except? -1:
        """Write memory-only records that log readers are waiting for, without waiting for the tick;
        return the time of the next call."""
        cdef Topic topic
        if self.scheduler.now < self.next_hurry:
            return self.next_hurry
        work = self.host.hurried
        self.host.hurried = []
        self.next_hurry = self.scheduler.now + HURRY
        for topic in work:
            topic.hurried = False
            if not topic.gone:
                try:
                    topic.write_down()
                except Exception as error:
                    self.host.report(topic.name, error)
        return self.next_hurry if self.host.hurried else INT64_MAX

    cdef list all_topics(self):
        return [*self.topics.values(), *self.closed.values()]

    cdef int do_periodic(self) except -1:
        """Start or continue the periodic work that is due."""
        cdef int64_t now = self.scheduler.now
        if now >= self.next_tick and not self.ticking:
            self.tick()
        if self.ticking:
            self.tick_on()
        if now >= self.next_checkpoint and not self.checkpointing:
            self.begin_checkpoints()
        if self.checkpointing:
            self.go_on_with_checkpoints()
        if now >= self.host.next_read:
            self.read_again()
        self.host.next_periodic = min(self.next_tick, self.next_checkpoint, self.host.next_read)
        if self.ticking or self.checkpointing:
            self.host.next_periodic = now
        return 0

    cdef int tick(self) except -1:
        """Start the work that is due about once a second."""
        self.next_tick = self.scheduler.now + SECOND
        self.pool.trim(self.scheduler.now)
        if self.host.probe is not None and self.host.health != "OK":
            self.host.probe.look()      # there may be no other write that would detect the recovery
        self.ticking = self.all_topics()
        return 0

    cdef int tick_on(self) except -1:
        """Tick more topics, up to the budget."""
        cdef int budget = TICK_BUDGET
        cdef Topic topic
        while self.ticking and budget > 0:
            topic = self.ticking.pop()
            if topic.gone:
                continue
            try:
                budget -= topic.tick()
            except Exception as error:
                self.host.report(topic.name, error)
        return 0

    cdef int begin_checkpoints(self) except -1:
        """Check all topics for due checkpoints, if --sync-timeout is shorter than a tick."""
        self.next_checkpoint = self.scheduler.now + self.checkpoint_period
        self.checkpointing = self.all_topics()
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
                self.host.report(topic.name, error)
        return 0

    def settle(self):
        """Do the end-of-turn work for all topics, so that their statistics are current."""
        cdef Topic topic
        work = self.host.dirty_topics
        self.host.dirty_topics = []
        for topic in work:
            topic.settle_turn()

    def run_turn(self, now, wall):
        """Run a complete turn, for tests and tools: set the clocks and do the work."""
        self.scheduler.now = now
        self.scheduler.wall = wall
        return self.turn()

    # -- logs that cannot be read --

    def logs_readable(self):
        """Handle a log whose failed range has been read."""
        cdef Topic topic
        for topic in list(self.host.unreadable):
            if topic.gone or topic.log.unreadable is None:
                self.host.unreadable.remove(topic)
                topic.read_pause = 0
                if not topic.gone:
                    self.host.report_readable(topic.name)
                    topic.try_reads()

    cdef int read_again(self) except -1:
        """Retry the failed reads that are due."""
        cdef Topic topic
        cdef _Unloaded waiting
        for topic in list(self.host.unreadable):
            if topic.gone:
                self.host.unreadable.remove(topic)
            elif topic.read_due <= self.scheduler.now:
                topic.read_pause = min(2 * topic.read_pause, MAX_READ_PAUSE)
                topic.read_due = self.scheduler.now + topic.read_pause
                try:
                    topic.try_reads()
                    topic.log.probe()
                except Exception as error:
                    self.host.report(topic.name, error)
        for key, waiting in list(self.unloaded.items()):
            if waiting.due <= self.scheduler.now and not self.host.closing:
                waiting.pause = min(2 * waiting.pause, MAX_READ_PAUSE)
                waiting.due = self.scheduler.now + waiting.pause
                self._probe(key)
        self.host.next_read = INT64_MAX
        for topic in self.host.unreadable:
            self.host.next_read = min(self.host.next_read, topic.read_due)
        for waiting in self.unloaded.values():
            self.host.next_read = min(self.host.next_read, waiting.due)
        return 0

    def load_or_wait(self, bytes key not None, bint paused, channels):
        """Load a topic at startup; return None if its log cannot be read now.

        In that case, the topic is loaded as soon as possible, and `on_loaded` is called with its
        key.
        """
        cdef _Unloaded waiting
        try:
            return self.load_topic(key, paused, channels)
        except Unreadable as error:
            waiting = _Unloaded.__new__(_Unloaded)
            waiting.paused = paused
            waiting.channels = channels
            waiting.error = error
            waiting.since = self.scheduler.wall
            waiting.pause = FIRST_READ_PAUSE
            waiting.due = self.scheduler.now + FIRST_READ_PAUSE
            self.unloaded[key] = waiting
            self.host.read_at(waiting.due)
            self.host.report_unreadable(key.decode(), error.filename, error.errno)
            return None

    def _probe(self, bytes key not None):
        """Start to retry the failed read; load the topic once the read succeeds."""
        cdef _Unloaded waiting = self.unloaded[key]
        error = waiting.error

        def done(failed):
            waiting.is_probing = False
            if failed != error.errno and self.unloaded.get(key) is waiting:
                self.load_again(key)

        if not waiting.is_probing:
            waiting.is_probing = True
            self.io.open(error.filename).read(bytearray(error.bytes or 1), error.offset, done)

    cdef int load_again(self, bytes key) except -1:
        cdef _Unloaded waiting = self.unloaded[key]
        if self.host.closing:
            return 0
        try:
            self.load_topic(key, waiting.paused, waiting.channels)
        except Unreadable as error:
            waiting.error = error
            return 0
        except Exception as error:
            self.host.report(key.decode(), error)
            return 0
        del self.unloaded[key]
        self.host.report_readable(key.decode())
        if self.on_loaded is not None:
            self.on_loaded(key)
        return 0

    def is_unloaded(self, bytes key not None):
        """Return whether a topic exists but is waiting for its log to become readable."""
        return key in self.unloaded

    def unreadable(self):
        """Return the topics whose logs cannot be read: topic, path, error (a name like EIO), text,
        and since (wall clock, ns); oldest failure first."""
        cdef Topic topic
        cdef _Unloaded waiting
        found = []
        for topic in self.host.unreadable:
            bad = topic.log.unreadable
            if bad is not None and not topic.gone:
                found.append((topic.unreadable_since, topic.name, bad.path, bad.error, bad.text))
        for key, waiting in self.unloaded.items():
            error = waiting.error
            found.append((waiting.since, key.decode(), error.filename, error.errno,
                          f"read {error.filename}: {error.strerror.lower()}"))
        return [{"topic": name, "path": path, "error": _errno.errorcode.get(error, str(error)),
                 "text": text, "since": since}
                for since, name, path, error, text in sorted(found)]

    # -- the end --

    def save(self):
        """Save everything that is not ephemeral; block until it is on disk. Return what could not
        be saved, like unsaved().

        This includes queued, in-flight (to be redelivered) and deferred messages, and all
        positions.
        """
        cdef Topic topic
        cdef bint has_deleted = False
        self.host.closing = True
        self.host.shut = EXITING
        while self.host.gathering:
            self.gather()
        while self.scheduler.discarded:
            self.free_discarded()
        if self.io is not None:
            self._share_syncs()
            self.io.drain()         # end a running compaction
        for topic in self.all_topics():
            topic.save_records()
        if self.io is not None:
            self.io.drain()
            self._sync_names()
            self._share_syncs()
        for topic in self.all_topics():
            topic.sync_found()
            topic.save_journal()
            has_deleted = has_deleted or topic.gone
        if self.io is not None:
            self.io.drain()
            if has_deleted:
                self._sync_names()
        lost = self.unsaved()
        for topic in self.all_topics():
            topic.close(False)
        if self.io is not None:
            self.io.drain()
        return lost

    cdef int _share_syncs(self) except -1:
        if self.shares_syncs_from is not None:
            self.io.share_syncs(self.shares_syncs_from())
        return 0

    def _sync_names(self):
        """Sync the data path once, for the directories of all topics."""
        cdef Topic topic
        errors = []
        self.io.on_path_now("sync", self.data_path, errors.append)
        self.io.drain()
        for topic in self.all_topics():
            if errors == [0] and topic.log is not None and topic.log.io is self.io:
                topic.log.name_synced()
