# The journal of a topic, and the snapshots of it, made over as many turns as it takes.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.broker.durability cimport Durability
from nsqcy.broker.limits cimport Limits
from nsqcy.storage.log cimport Log
from nsqcy.storage.log_tasks cimport log_done


cdef class Snapshot:
    cdef Log log
    cdef list channels              # whose entries it has; those that have gone are in the deltas
    cdef Py_ssize_t packed          # so many of them have been walked
    cdef list deltas                # what has happened meanwhile that must not be forgotten
    cdef readonly bint records_wait     # it has to be there before any record that follows
    cdef list waiters               # who is called when it is written
    cdef bint tells_class           # of the topic's durability, which has changed

    # Pack so many entries; returns what is left of the budget, more than 0 at the end only.
    cdef int step(self, int budget) except -1
    cdef bint is_complete(self) noexcept
    cdef int write_entries(self, Channel channel) except -1
    cdef int end(self, log_done done, void *arg) except -1
    cdef int give_up(self) except -1


cdef class Checkpoints(Limits):
    cdef readonly str durability        # "memory", "os" or "fsync"
    cdef Durability promised            # to every publisher
    cdef Durability gate                # what records wait for now: more, if some publisher asked
    cdef Durability floor               # and this at least, until the journal says what is promised
    cdef uint32_t class_writes          # journals under way that say so
    cdef bint overflowing               # records wait for the log before they are visible
    cdef bint was_restored              # there is something on disk from before
    cdef bint is_last                   # the journal that is written now is the last word
    cdef bint journal_stale             # what the journal says is no longer so
    cdef bint journal_due               # and it must say so before it is followed by records
    cdef Snapshot snapshot              # of the journal, under way; None: there is none
    cdef bint snapshot_due              # another one has to follow that
    cdef list journal_waiters           # who is called when the next one is written
    cdef uint64_t journalled            # activity() when it was written
    cdef int64_t next_journal           # not before this
    cdef list unsynced_transfers        # who waits for the next sync of the journal ...
    cdef list syncing_transfers         # ... and for the one under way; None: there is none

    cdef bint is_kept(self) noexcept
    cdef uint64_t activity(self) noexcept
    cdef int checkpoint(self) except -1
    cdef int journal_channel(self, kind, Channel channel) except -1
    cdef int journal_delta(self, delta, done) except -1
    cdef bint append_delta(self, delta, done=*) except -1
    cdef int write_journal(self, bint records_wait, done=*) except -1
    cdef int begin_journal(self, bint records_wait) except -1
    cdef int go_on_with_journal(self, int budget) except -1
    cdef int end_snapshot(self, Snapshot snapshot) except -1
    cdef int forget_snapshot(self, Snapshot snapshot, str reason) except -1
    cdef int finish_journal(self) except -1
    cdef int give_up_journal(self) except -1
    cdef bint waits_for_journal(self) noexcept
    cdef object channel_state(self, Channel channel)
    cdef bytes pack_delayed(self)
    cdef int set_durability(self, str name) except -1
    cdef void class_journalled(self, int error) noexcept
    cdef void class_written(self) noexcept
    cdef int sync_transfers(self) except -1
    cdef object state(self)
    cdef int journal_told(self) except -1
