# Messages that move from a channel to another topic, and back.

from libc.stdint cimport uint64_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.redelivery cimport Redelivery
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record


# Why a message moves to another topic.
cdef enum MoveReason:
    OUT_OF_ATTEMPTS = 0         # it was delivered as often as may be
    TOO_OLD = 1
    REDRIVEN = 2                # back to where it came from


cdef class Mover(Consumer):
    """Holds the messages that move from its channel to other topics, until they are there."""
    cdef int take_over(self, Entry *entry, MoveReason reason, str client) except -1
    cdef bint send_back(self, Entry *entry, const Record *record) except -1
    cdef int restore_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1
    cdef int go_on(self) except -1


cdef class DeadLettering(Redelivery):
    cdef readonly str dead_letter_topic     # "": none
    cdef Mover mover                        # None: nothing has moved yet
    cdef readonly uint64_t dead_lettered_count
    cdef uint64_t redriven_count
    cdef uint64_t exhausted_count           # out of attempts, and no topic for them

    cdef int bury(self, Entry *entry, MoveReason reason, str client) except -1
    cdef int bury_timed_out(self, Entry *entry) except -1
    cdef Mover make_mover(self)
    cdef int give_back(self, Entry *entry) except -1
    cdef int hold_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1
    cdef int lose_move(self, Entry *entry) except -1
    cdef int moved(self, Entry *entry, str client) except -1
