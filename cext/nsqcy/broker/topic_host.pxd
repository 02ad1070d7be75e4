# Topic host: the base class of a shard, with the parts that topics use.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.base.ids cimport IdSource
from nsqcy.channels.scheduler_state cimport SchedulerState
from nsqcy.channels.counters cimport SERIES, Sums
from nsqcy.storage.io cimport IoThread
from nsqcy.storage.block_pool cimport BlockPool


cdef class TopicHost:
    cdef readonly SchedulerState scheduler
    cdef readonly BlockPool pool
    cdef readonly IdSource ids
    cdef readonly IoThread io
    cdef uint64_t sync_every                # options of logs
    cdef object log                         # for operators
    cdef list dirty_topics                  # topics whose settle_turn() is due
    cdef list unsettled                     # topics whose settle_turn() continues in the next turn
    cdef list gathering                     # topics with batches to append
    cdef list compacting                    # topics whose compaction can continue
    cdef list journalling                   # topics with a journal snapshot in progress
    cdef public int snapshot_budget         # entries packed per turn
    cdef list reads                         # log reads that can continue
    cdef list hurried                       # topics with readers waiting for memory-only records
    cdef uint64_t reserved                  # bytes of current and future responses to reads
    cdef readonly bint closing
    cdef public bytes boot                  # identifies the boot of the machine
    cdef readonly str health                # "OK" or "NOK - reason"
    cdef readonly int64_t health_at         # wall clock, ns
    cdef public object probe                # nsqcy.storage.disk_probe.DiskProbe, or None
    cdef readonly str refused               # why writes are refused; None: they are accepted
    cdef str full                           # ... because the disk is nearly full
    cdef readonly str hung                  # ... because an operation does not return
    cdef readonly str shut                  # why publishes are refused; None: they are accepted
    cdef public uint64_t log_hold_max_bytes     # maximum bytes that cursors keep per topic
    cdef public int64_t log_cursor_expiry       # ns until an unused cursor expires
    cdef uint64_t own_series                # topics and channels with their own series
    cdef Sums gone[<int>SERIES]             # totals of deleted topics without their own series

    cdef int give_channel_policy(self, object topic, object channel) except -1
    cdef int wait_to_read(self, object topic) except -1
    cdef uint64_t answer_room(self, uint64_t wanted) noexcept
    cdef int tell(self, str text) except -1
    cdef int report(self, str name, error) except -1
