# Topic host: what the topics of a shard share.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.base.core cimport IdSource
from nsqcy.channels.scheduler_state cimport SchedulerState
from nsqcy.channels.counters cimport SERIES, Sums
from nsqcy.storage.io cimport IoThread
from nsqcy.storage.block_pool cimport BlockPool


cdef enum:
    FIRST_READ_PAUSE = 100000000    # ns from a failed read to the next try


cdef class TopicHost:
    cdef SchedulerState scheduler
    cdef BlockPool pool
    cdef IdSource ids
    cdef IoThread io
    cdef uint64_t sync_every                # options of logs
    cdef object policies                    # nsqcy.config.policies.Policies, or None
    cdef object on_event                    # called as on_event(kind, topic name, channel name)
    cdef object log                         # for operators
    cdef object read_failures               # nsqcy.storage.read_failures.ReadFailures, or None
    cdef dict topics                        # bytes name -> Topic
    cdef public object copies             # nsqcy.nsqd.copies.topics.CopiedTopics, or None
    cdef list dirty_topics                  # topics whose settle_turn() is due
    cdef list unsettled                     # topics whose settle_turn() continues in the next turn
    cdef list gathering                     # topics with batches to append
    cdef list compacting                    # topics whose compaction can continue
    cdef list journalling                   # topics with a journal snapshot in progress
    cdef public int snapshot_budget         # entries packed per turn
    cdef list reads                         # log reads that can continue
    cdef list hurried                       # topics with readers waiting for memory-only records
    cdef list unreadable                    # topics whose log could not be read
    cdef int64_t next_read                  # when the first of them is due; INT64_MAX: none waits
    cdef int64_t next_periodic              # when the shard must do this and similar work
    cdef uint64_t reserved                  # bytes of current and future responses to reads
    cdef bint closing
    cdef public bytes boot                  # identifies the boot of the machine
    cdef readonly str health                # "OK" or "NOK - reason"
    cdef readonly int64_t health_at         # wall clock, ns
    cdef public object probe                # nsqcy.storage.disk_probe.DiskProbe, or None
    cdef readonly int64_t damages           # damaged places found in logs
    cdef str refused                        # why writes are refused; None: they are accepted
    cdef str shut                           # why publishes are refused; None: they are accepted
    cdef public uint64_t log_hold_max_bytes     # maximum bytes that cursors keep per topic
    cdef public int64_t log_cursor_expiry       # ns until an unused cursor expires
    cdef uint64_t own_series                # topics and channels with their own series
    cdef Sums gone[<int>SERIES]             # totals of deleted topics without their own series

    cdef int read_at(self, int64_t due) except -1
    cdef uint64_t answer_room(self, uint64_t wanted) noexcept
    cdef int event(self, str kind, str topic, str channel) except -1
    cdef int tell(self, str text) except -1
    cdef int report(self, str name, error) except -1
    cdef int report_missing(self, str name, str what) except -1
    cdef int report_overrun(self, str name, cursors) except -1
    cdef int report_recalled(self, str topic) except -1
    cdef int report_unreadable(self, str topic, str path, int error) except -1
    cdef int report_readable(self, str topic) except -1
