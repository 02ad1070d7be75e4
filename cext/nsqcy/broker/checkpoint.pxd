# A snapshot of a topic's journal, made over as many turns as it takes.

from nsqcy.broker.channel cimport Channel
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
