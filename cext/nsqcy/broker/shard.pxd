# The topics of one worker, and the order of their work in a turn.

from libc.stdint cimport int64_t

from nsqcy.channels.scheduler_state cimport SchedulerState
from nsqcy.broker.topic cimport Topic
from nsqcy.broker.topic_host cimport TopicHost
from nsqcy.storage.block_pool cimport BlockPool
from nsqcy.storage.io cimport FileCalls, IoThread
from nsqcy.storage.log cimport Log


cdef class Shard:
    cdef readonly TopicHost host
    cdef readonly SchedulerState scheduler
    cdef readonly BlockPool pool
    cdef readonly IoThread io
    cdef readonly str data_path
    cdef dict log_options
    cdef readonly object policies           # nsqcy.config.policies.Policies, or None
    cdef object has_room                    # callable: whether a topic may be created; or None
    cdef object failures                    # nsqcy.storage.write_failures.WriteFailures, or None
    cdef readonly dict topics               # bytes name -> Topic
    cdef readonly dict closed               # (group, bytes name) -> Topic that is being drained
    cdef dict unloaded                      # key -> _Unloaded: topics that could not be restored
    cdef public object on_loaded            # called with the key of a topic that was restored late
    cdef public int64_t hold_new            # ns; maximum hold of a new topic; 0: none
    cdef public bint announce_new           # a held topic's publishes wait for announced()
    cdef str full                           # why writes are refused: the disk is nearly full
    cdef readonly str hung                  # ... or an operation does not return
    cdef list ticking                       # topics whose tick is due
    cdef list checkpointing                 # topics still to check for a due checkpoint
    cdef int64_t checkpoint_period
    cdef int64_t next_checkpoint            # INT64_MAX: the ticks are frequent enough
    cdef int64_t next_hurry                 # earliest time
    cdef int64_t next_tick
    cdef int dispatched                     # records that channels delivered or skipped this turn

    cdef Topic find(self, bytes key)
    cdef Topic find_or_create(self, bytes key)
    cdef Topic make_topic(self, bytes key)
    cdef Log make_log(self, str name, FileCalls files, str directory)
    cdef list all_topics(self)
    cdef int64_t turn(self) except? -1
    cdef int expire(self) except -1
    cdef bint dispatch(self) except -1

    cdef inline bint has_long_work(self) noexcept:
        """Return whether there is work that takes many turns, which is rare."""
        cdef TopicHost host = self.host
        if host.gathering or host.compacting or host.journalling or self.scheduler.discarded \
                or host.reads or host.unsettled:
            return True
        return False

    cdef inline bint has_work(self) noexcept:
        """Return whether anything has become dirty since the turn ended."""
        if self.host.dirty_topics or self.scheduler.dirty_channels:
            return True
        return False

    cdef int go_on(self) except -1
    cdef int gather(self) except -1
    cdef int compact(self) except -1
    cdef int go_on_with_journals(self) except -1
    cdef int free_discarded(self) except -1
    cdef int read_on(self) except -1
    cdef int64_t write_hurried(self) except? -1
    cdef int do_periodic(self) except -1
    cdef int tick(self) except -1
    cdef int tick_on(self) except -1
    cdef int begin_checkpoints(self) except -1
    cdef int go_on_with_checkpoints(self) except -1
    cdef int read_again(self) except -1
    cdef int load_again(self, bytes key) except -1
