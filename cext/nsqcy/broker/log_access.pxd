# Readers' access to a topic's log.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter
from nsqcy.broker.log_reader cimport LogRead
from nsqcy.broker.retention cimport Retention


cdef class LogAccess(Retention):
    cdef tuple past                     # logs of earlier processes (storage.journal.Incarnation)
    cdef tuple missing                  # [first, end) of records missing from all files at startup
    cdef uint64_t log_first             # first record of this process's log
    cdef list reads                     # reads in progress; None before the first one
    cdef uint32_t polls                 # reads waiting for new records
    cdef bint hurried                   # write memory-only records before the next tick

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
