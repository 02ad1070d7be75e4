# What a topic knows of the shard that has it; the shard itself is made of this.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.base.ids cimport IdSource
from nsqcy.channels.scheduler_state cimport SchedulerState
from nsqcy.channels.counters cimport SERIES, Sums
from nsqcy.storage.io cimport IoThread
from nsqcy.storage.block_pool cimport BlockPool


cdef class TopicHost:
    cdef readonly SchedulerState agenda
    cdef readonly BlockPool store
    cdef readonly IdSource ids
    cdef readonly IoThread io
    cdef uint64_t sync_every                # of logs, as the options say
    cdef object log                         # for operators
    cdef list dirty_topics                  # topics whose settle_turn() is due
    cdef list compacting                    # topics whose compaction can go on
    cdef list journalling                   # topics with a snapshot of their journal under way
    cdef public int snapshot_budget         # entries a turn packs for these
    cdef list reads                         # reads of logs that can go on
    cdef list hurried                       # topics whose readers wait for what is in memory only
    cdef uint64_t reserved                  # bytes of answers to reads, made and to be made
    cdef readonly bint closing
    cdef public bytes boot                  # names the boot of the machine
    cdef readonly str health                # "OK" or "NOK - reason"
    cdef readonly int64_t health_at         # wall clock, ns
    cdef readonly str refused               # why nothing may be written; None: it may
    cdef readonly str shut                  # why nothing may be published; None: it may
    cdef public uint64_t log_hold_max_bytes     # that named cursors keep of a topic
    cdef public int64_t log_cursor_expiry       # ns without use after which one is gone
    cdef uint64_t own_series                # topics and channels that are shown by themselves
    cdef Sums gone[<int>SERIES]             # counters of what is gone and was not

    cdef int give_channel_policy(self, object topic, object channel) except -1
    cdef uint64_t answer_room(self, uint64_t wanted) noexcept
    cdef int tell(self, str text) except -1
    cdef int report(self, str name, error) except -1
