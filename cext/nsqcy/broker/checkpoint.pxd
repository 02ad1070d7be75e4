# The journal of a topic, and its snapshots, which may take many turns to write.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.broker.topic_queue cimport Durability, TopicQueue
from nsqcy.storage.log cimport Log
from nsqcy.storage.segment_files cimport log_done


cdef class Snapshot:
    cdef Log log
    cdef list channels              # channels in the snapshot; deltas record deletions
    cdef Py_ssize_t packed          # number of channels packed so far
    cdef list deltas                # changes made since the snapshot began
    cdef readonly bint records_wait     # later records must wait for the snapshot
    cdef list waiters               # callbacks for its completion
    cdef bint tells_class           # it records a change to the topic's durability

    # Pack up to `budget` entries. Return the unused budget; it is positive only at the end.
    cdef int step(self, int budget) except -1
    cdef bint is_complete(self) noexcept
    cdef int write_entries(self, Channel channel) except -1
    cdef int end(self, log_done done, void *arg) except -1
    cdef int give_up(self) except -1


cdef class Checkpoints(TopicQueue):
    cdef readonly str durability        # "memory", "os" or "fsync"
    cdef Durability promised            # default for all publishers
    cdef Durability floor               # minimum until the journal records `promised`
    cdef uint32_t class_writes          # pending journal writes that record it
    cdef bint was_restored              # the topic has data from an earlier process
    cdef bint is_last                   # the journal being written is the last one
    cdef bint journal_stale             # the journal is out of date
    cdef Snapshot snapshot              # snapshot in progress; None if there is none
    cdef bint snapshot_due              # another snapshot must follow the one in progress
    cdef list journal_waiters           # callbacks for the next journal
    cdef uint64_t journalled            # activity() at the last journal
    cdef int64_t next_journal           # earliest time of the next journal
    cdef list unsynced_deltas           # callbacks for the next sync of the journal
    cdef list syncing_deltas            # callbacks for the current one; None: no sync
    cdef set changes                    # changes that are not answered yet
    cdef int64_t retention_time         # ns; 0: no time limit
    cdef uint64_t retention_bytes       # 0: no size limit
    cdef tuple past                     # logs of earlier processes (storage.journal.Incarnation)
    cdef tuple missing                  # [first, end) of records missing from all files at startup

    cdef uint64_t activity(self) noexcept
    cdef int checkpoint(self) except -1
    cdef int journal_channel(self, kind, Channel channel, done=*) except -1
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
    cdef uint64_t first_kept(self) noexcept
    cdef bytes pack_delayed(self)
    cdef int set_durability(self, str name) except -1
    cdef void class_journalled(self, int error) noexcept
    cdef void class_written(self) noexcept
    cdef object when_synced(self, done)
    cdef int sync_deltas(self) except -1
    cdef object pending_change(self, done)
    cdef int answer_changes(self, str reason) except -1
    cdef int delete_log(self, done) except -1
    cdef object state(self)
