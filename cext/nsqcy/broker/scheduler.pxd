# Scheduler: decides the order of work in a turn of a worker.

from libc.stdint cimport int64_t

from nsqcy.broker.failed_reads cimport FailedReads


cdef class Scheduler(FailedReads):
    cdef readonly dict topics               # bytes name -> Topic
    cdef readonly dict closed               # (group, bytes name) -> Topic that is being drained
    cdef list ticking                       # topics whose tick is due
    cdef list checkpointing                 # topics still to check for a due checkpoint
    cdef int64_t checkpoint_period
    cdef int64_t next_checkpoint            # INT64_MAX: the ticks are frequent enough
    cdef int64_t next_hurry                 # earliest time
    cdef int64_t next_tick
    cdef int dispatched                     # records that channels delivered or skipped this turn

    cdef int begin(self, int64_t sync_timeout) except -1
    cdef int64_t turn(self) except? -1
    cdef int expire(self) except -1
    cdef bint dispatch(self) except -1
    cdef int gather(self) except -1
    cdef int compact(self) except -1

    cdef inline bint has_long_work(self) noexcept:
        """Return whether there is work that takes many turns, which is rare."""
        if self.gathering or self.compacting or self.journalling or self.scheduler.discarded \
                or self.reads or self.unsettled:
            return True
        return False

    cdef inline bint has_work(self) noexcept:
        """Return whether anything has become dirty since the turn ended."""
        if self.dirty_topics or self.scheduler.dirty_channels:
            return True
        return False

    cdef int go_on(self) except -1
    cdef int go_on_with_journals(self) except -1
    cdef int free_discarded(self) except -1
    cdef int read_on(self) except -1
    cdef int64_t write_hurried(self) except? -1
    cdef int do_periodic(self) except -1
    cdef list all_topics(self)
    cdef int tick(self) except -1
    cdef int tick_on(self) except -1
    cdef int begin_checkpoints(self) except -1
    cdef int go_on_with_checkpoints(self) except -1
