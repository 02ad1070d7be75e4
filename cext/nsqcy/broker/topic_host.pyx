"""Topic host: the part of a shard that topics use: ids, the I/O threads, work lists and reports.

The lists contain work that later turns do for topics. The scheduler inherits the lists and empties
them. This module does not import topics, so that topics can import it.
"""

from nsqcy.logging import events

cdef enum:
    SNAPSHOT_BUDGET = 4096          # entries packed for journal snapshots per turn
    MAX_ANSWERS = 67108864         # bytes of pending responses above which responses become shorter
    SHORT_ANSWER = 262144


# Reasons for refusing publishes.
EXITING = "exiting"
DRAINING = "draining"

# Passed instead of a reason if it is unknown whether a message was published. The publisher's
# connection then ends without a response.
UNKNOWN = "unknown"


cdef class TopicHost:
    def __cinit__(self):
        self.dirty_topics = []
        self.unsettled = []
        self.gathering = []
        self.compacting = []
        self.journalling = []
        self.snapshot_budget = SNAPSHOT_BUDGET
        self.reads = []
        self.hurried = []
        self.health = "OK"

    def __init__(self):
        raise TypeError(f"{type(self).__name__} is a layer of Shard, not created by itself")

    # -- for topics --

    cdef int give_channel_policy(self, object topic, object channel) except -1:
        """Apply a new channel's policy to the channel."""
        raise NotImplementedError

    def policies_note(self, str topic not None):
        """Return what a topic's journal notes about its policies."""
        raise NotImplementedError

    def recall_policies(self, object topic, bytes note not None):
        """Apply a journal's note about a topic's policies, if they are not saved otherwise."""
        raise NotImplementedError

    def delete_topic(self, bytes key not None, done=None):
        """Delete a topic with its channels, messages and files."""
        raise NotImplementedError

    def event(self, kind, topic, channel):
        """Report that a topic or channel was created or deleted."""
        raise NotImplementedError

    cdef int wait_to_read(self, object topic) except -1:
        """Try the reads of a topic again after a pause."""
        raise NotImplementedError

    cdef uint64_t answer_room(self, uint64_t wanted) noexcept:
        """Return the maximum size of a response to a read.

        It shrinks as the total size of all responses grows, including responses that clients have
        not read yet.
        """
        cdef uint64_t room = 0
        if self.reserved < MAX_ANSWERS:
            room = (MAX_ANSWERS - self.reserved) // 2
        return min(wanted, max(room, <uint64_t>SHORT_ANSWER))

    # -- reports --

    def set_health(self, reason):
        """Set the result of the latest log write: None, or the error."""
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
        if self.log is not None:
            events.record_damaged(self.log, path=str(path), offset=offset, error=text)

    def report_missing(self, str name, str what):
        """Report at startup that the journal refers to missing data.

        The journal is only written at intervals, so the missing messages may have been finished by
        a process that was killed.
        """
        if self.log is not None:
            events.records_missing(self.log, topic=name, records=what)

    def report_overrun(self, str name, cursors):
        """Report named cursors that no longer keep any records."""
        if self.log is not None:
            events.cursors_overrun(self.log, self.log_hold_max_bytes, ", ".join(cursors),
                                   topic=name, cursors=cursors)
