"""The order of work in a turn: timers, ticks, dirty topics, dirty channels, and long-running work.

Owns the budgets: the maximum of each kind of work per turn, so that no kind delays the others.
Calls topics and channels to do part of their work, without knowing what that work is.
"""

from libc.stdint cimport INT64_MAX, int64_t

from nsqcy.base.heap cimport HeapNode, heap_first_due, heap_peek
from nsqcy.channels.channel cimport Channel
from nsqcy.channels.discarded cimport Discarded
from nsqcy.channels.scheduler_state cimport Timer
from nsqcy.broker.log_reader cimport ENDED, LogRead
from nsqcy.broker.topic cimport Topic


cdef enum:
    # Maximum of each kind of work per turn; the rest is left for the next turn.
    DISPATCH_BUDGET = 4096          # records that channels deliver or skip
    EXPIRE_BUDGET = 4096            # messages that are due or have timed out
    GATHER_BUDGET = 4096            # messages of batches that are appended
    COMPACT_BUDGET = 4096           # entries visited by compactions, plus the cost of copies
    TICK_BUDGET = 256               # topics whose tick or checkpoint is due
    DISCARD_BUDGET = 4096           # dropped messages that are freed
    READ_BUDGET = 2048              # records that log reads visit, or equivalent cost
    READ_SLICE = 1024               # maximum for one read before the next one continues
    MIN_READ_BUDGET = 256           # in a turn that delivers messages

cdef int64_t SECOND = 1000000000
cdef int64_t MIN_CHECKPOINT_PERIOD = SECOND // 100
cdef int64_t HURRY = SECOND // 10   # interval between writes for waiting log readers


cdef class Scheduler(FailedReads):
    def __cinit__(self):
        self.topics = {}
        self.closed = {}
        self.ticking = []
        self.checkpointing = []
        self.next_checkpoint = INT64_MAX

    cdef int begin(self, int64_t sync_timeout) except -1:
        """Set how often checkpoints are due (ns)."""
        self.checkpoint_period = max(MIN_CHECKPOINT_PERIOD, sync_timeout)
        if self.io is not None and self.checkpoint_period < SECOND:
            self.next_checkpoint = 0
            self.next_periodic = 0
        return 0

    cdef int64_t turn(self) except? -1:
        """Do the work at the end of a turn.

        Return the monotonic time (ns) of the next call: `scheduler.now` if work is left.
        """
        cdef int64_t now = self.scheduler.now
        cdef Topic topic
        cdef list work
        cdef int64_t due
        cdef bint left
        if heap_first_due(&self.scheduler.channel_timers) <= now:
            self.expire()
        if now >= self.next_periodic:
            self.do_periodic()
        while self.dirty_topics:
            work = self.dirty_topics
            self.dirty_topics = []
            for topic in work:
                try:
                    topic.settle_turn()
                except Exception as error:
                    self.report(topic.name, error)
        left = self.dispatch()
        if self.has_long_work():
            self.go_on()
            left = left or self.has_long_work()
        due = heap_first_due(&self.scheduler.channel_timers)
        if self.hurried:
            due = min(due, self.write_hurried())
        if self.io is not None:
            self.io.kick()
        if left or self.dirty_topics:
            return now
        return min(due, self.next_periodic)

    cdef int go_on(self) except -1:
        """Do one turn's share of the work."""
        cdef Topic topic
        if self.gathering:
            self.gather()
        if self.compacting:
            self.compact()
        if self.journalling:
            self.go_on_with_journals()
        if self.scheduler.discarded:
            self.free_discarded()
        if self.reads:
            self.read_on()
        for topic in self.unsettled:
            topic.touch_dirty()
        self.unsettled.clear()
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
        """Deliver messages from dirty channels; return whether any could continue.

        Channels that did not fit into the budget come first in the next turn.
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
            except Exception as error:
                self.report(channel.name, error)
            channel.set_alarm()
        self.dispatched = DISPATCH_BUDGET - budget
        if done < len(work):
            self.scheduler.dirty_channels = work[done:] + self.scheduler.dirty_channels
            left = True
        return left

    cdef int gather(self) except -1:
        """Append a slice of the first batch; another topic's batch follows in the next turn."""
        cdef Topic topic = self.gathering.pop(0)
        try:
            topic.append_batches(GATHER_BUDGET)
        except Exception as error:
            self.report(topic.name, error)
            topic.break_batch(type(error).__name__)
        if topic.batches:
            self.gathering.append(topic)
        return 0

    cdef int compact(self) except -1:
        """Continue the topics' compactions, one after another."""
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
        """Continue the topics' journal snapshots, one after another."""
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

    cdef int64_t write_hurried(self) except? -1:
        """Write memory-only records that log readers are waiting for, without waiting for the tick;
        return the time of the next call."""
        cdef Topic topic
        if self.scheduler.now < self.next_hurry:
            return self.next_hurry
        work = self.hurried
        self.hurried = []
        self.next_hurry = self.scheduler.now + HURRY
        for topic in work:
            topic.hurried = False
            if not topic.gone:
                try:
                    topic.write_down()
                except Exception as error:
                    self.report(topic.name, error)
        return self.next_hurry if self.hurried else INT64_MAX

    cdef list all_topics(self):
        return [*self.topics.values(), *self.closed.values()]

    cdef int do_periodic(self) except -1:
        """Do the work that is due at certain times, or continue it."""
        cdef int64_t now = self.scheduler.now
        if now >= self.next_tick and not self.ticking:
            self.tick()
        if self.ticking:
            self.tick_on()
        if now >= self.next_checkpoint and not self.checkpointing:
            self.begin_checkpoints()
        if self.checkpointing:
            self.go_on_with_checkpoints()
        if now >= self.next_read:
            self.read_again()
        self.next_periodic = min(self.next_tick, self.next_checkpoint, self.next_read)
        if self.ticking or self.checkpointing:
            self.next_periodic = now
        return 0

    cdef int tick(self) except -1:
        """Start the work that is done about once a second."""
        self.next_tick = self.scheduler.now + SECOND
        self.pool.trim(self.scheduler.now)
        if self.probe is not None and self.health != "OK":
            self.probe.look()       # nothing else may write, so nothing else would find out
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
                self.report(topic.name, error)
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
                self.report(topic.name, error)
        return 0

    def settle(self):
        """Do the end-of-turn work for all topics, so that their statistics are current."""
        cdef Topic topic
        work = self.dirty_topics
        self.dirty_topics = []
        for topic in work:
            topic.settle_turn()

    def run_turn(self, now, wall):
        """Run a complete turn, for tests and tools: set the clocks and do the work."""
        self.scheduler.now = now
        self.scheduler.wall = wall
        return self.turn()
