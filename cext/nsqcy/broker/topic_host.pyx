"""Topic host: what the topics of a shard share: ids, the I/O threads, work lists and reports.

The lists contain work for topics in later turns. The shard empties the lists. This module does not
import topics, so that topics can import it.
"""

cdef enum:
    FIRST_READ_PAUSE = 100000000    # ns from a failed read to the first retry


cdef enum:
    SNAPSHOT_BUDGET = 4096          # journal snapshot entries packed per turn
    MAX_ANSWERS = 67108864         # bytes of pending responses above which responses become shorter
    SHORT_ANSWER = 262144

cdef int64_t SECOND = 1000000000

# Reasons for refusing publishes.
EXITING = "exiting"
DRAINING = "draining"

# Passed as the reason if it is unknown whether a message was published. In this case, the
# publisher's connection closes without a response.
UNKNOWN = "unknown"


cdef class TopicHost:
    def __cinit__(self, SchedulerState scheduler not None, IdSource ids not None, IoThread io):
        self.scheduler = scheduler
        self.pool = scheduler.pool
        self.ids = ids
        self.io = io
        self.topics = {}
        self.dirty_topics = []
        self.unsettled = []
        self.gathering = []
        self.compacting = []
        self.journalling = []
        self.snapshot_budget = SNAPSHOT_BUDGET
        self.reads = []
        self.hurried = []
        self.unreadable = []
        self.next_read = INT64_MAX
        self.health = "OK"
        self.log_hold_max_bytes = 10 << 30
        self.log_cursor_expiry = 7 * 24 * 3600 * SECOND

    cdef int read_at(self, int64_t due) except -1:
        """Retry failed reads at this time or earlier."""
        self.next_read = min(self.next_read, due)
        self.next_periodic = min(self.next_periodic, due)
        return 0

    cdef uint64_t answer_room(self, uint64_t wanted) noexcept:
        """Return the maximum size of a response to a read.

        The maximum shrinks as the total size of all responses grows, including responses that
        clients have not read yet.
        """
        cdef uint64_t room = 0
        if self.reserved < MAX_ANSWERS:
            room = (MAX_ANSWERS - self.reserved) // 2
        return min(wanted, max(room, <uint64_t>SHORT_ANSWER))

    # -- reports --

    cdef int event(self, str kind, str topic, str channel) except -1:
        """Report that a topic or channel was created or deleted."""
        if self.on_event is not None and not self.closing:
            self.on_event(kind, topic, channel)
        return 0

    def set_health(self, reason):
        """Set the result of the latest log write: None, or an error."""
        self.health = "OK" if reason is None else f"NOK - {reason}"
        self.health_at = self.scheduler.wall
        if reason is not None and self.probe is not None:
            self.probe.doubt()

    cdef int tell(self, str text) except -1:
        if self.log is not None:
            events.pruned(self.log, text)
        return 0

    cdef int report(self, str name, error) except -1:
        """Report an internal error; the turn continues for other topics."""
        if self.log is not None:
            events.internal_error(self.log, type(error).__name__, subject=name, error=str(error))
        return 0

    def report_damage(self, path, offset, text):
        self.damages += 1
        if self.log is not None:
            events.record_damaged(self.log, path=str(path), offset=offset, error=text)

    cdef int report_lost_ids(self, str name, str path) except -1:
        """Report at startup that a file of deduplication ids is missing or damaged."""
        if self.log is not None:
            events.dedup_ids_lost(self.log, topic=name, path=path)
        return 0

    cdef int report_keyless(self, str name, uint64_t messages, str source) except -1:
        """Report messages without the key that the topic's policy names."""
        if self.log is not None:
            events.messages_without_key(self.log, topic=name, messages=messages, source=source)
        return 0

    cdef int report_missing(self, str name, str what) except -1:
        """Report at startup that the journal refers to missing data.

        The journal is written only at intervals, so a process that was killed may have finished the
        missing messages.
        """
        if self.log is not None:
            events.records_missing(self.log, topic=name, records=what)
        return 0

    cdef int report_overrun(self, str name, cursors) except -1:
        """Report named cursors that no longer keep any records."""
        if self.log is not None:
            events.cursors_overrun(self.log, self.log_hold_max_bytes, ", ".join(cursors),
                                   topic=name, cursors=cursors)
        return 0

    cdef int report_recalled(self, str topic) except -1:
        """Report at startup that a journal contains policies that were set over HTTP and not
        saved."""
        if self.log is not None:
            events.policies_recalled(self.log, topic=topic)
        return self.event("policies_recalled", topic, None)

    cdef int report_unreadable(self, str topic, str path, int error) except -1:
        if self.read_failures is not None:
            self.read_failures.failed(self.scheduler.now, topic, "read", path, error)
        return 0

    cdef int report_readable(self, str topic) except -1:
        if self.read_failures is not None:
            self.read_failures.recovered(topic)
        return 0
