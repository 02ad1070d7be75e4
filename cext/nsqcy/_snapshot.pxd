# A snapshot of a topic's journal, made over as many turns as it takes.

from libc.stdint cimport uint64_t

from nsqcy._channel cimport Channel
from nsqcy._log cimport Log, log_done


cdef class Snapshot:
    cdef Log log
    cdef list channels              # whose entries it has; those that have gone are in the deltas
    cdef Py_ssize_t packed          # so many of them have been walked
    cdef list deltas                # what has happened meanwhile that must not be forgotten
    cdef readonly bint records_wait     # it has to be there before any record that follows
    cdef bint tells_class           # of the topic's durability, which has changed
    cdef list waiters               # called when it is in place, or is not
    cdef uint64_t next_seq          # of the topic, when it was begun
    cdef uint64_t told_seq          # what of chunks lies before it is in this; 0: nothing new

    # Pack so many entries; returns what is left of the budget, more than 0 at the end only.
    cdef int step(self, int budget) except -1
    cdef bint is_complete(self) noexcept
    cdef int write_entries(self, Channel channel) except -1
    cdef int end(self, log_done done, void *arg) except -1
    cdef int give_up(self) except -1
