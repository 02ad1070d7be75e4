# What readers see of the log of a topic.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter
from nsqcy.broker.log_reader cimport LogRead
from nsqcy.broker.retention cimport Retention


cdef class LogAccess(Retention):
    cdef tuple past                     # logs of earlier processes (storage.journal.Incarnation)
    cdef tuple missing                  # [first, end) of records in no file, as its start found
    cdef uint64_t log_first             # the first record of the log of this one
    cdef list reads                     # of its logs, that are under way; None: there was none
    cdef uint32_t polls                 # of which wait for more
    cdef bint hurried                   # what is in memory only is written before the next second

    cdef uint64_t stable_seq(self) except? 0
    cdef list logs(self)
    cdef bytes log_bounds(self, bytes log_id, uint64_t *first, uint64_t *end)
    cdef int64_t time_of(self, uint64_t seq) except? 0
    cdef object poll_log(self, Waiter waiter, uint64_t ticket, uint64_t after)
    cdef int answer_polls(self) except -1
    cdef object seek_log(self, Waiter waiter, uint64_t ticket, bytes log_id, int64_t time)
    cdef object fetch_log(self, Waiter waiter, uint64_t ticket, bytes log_id, uint64_t start,
                          uint64_t stop, uint64_t maximum, uint32_t columns)
    cdef LogRead begin_read(self, LogRead read)
