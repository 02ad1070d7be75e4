# Messages that move from a channel to another topic, and back.

from libc.stdint cimport uint64_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.redelivery cimport Redelivery
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record


# Why a message moves to another topic.
cdef enum TransferReason:
    OUT_OF_ATTEMPTS = 0         # it was delivered as often as may be
    TOO_OLD = 1
    REDRIVEN = 2                # back to where it came from


cdef class Transfer(Consumer):
    """Holds the messages that move from its channel to other topics, until they are there."""
    cdef int take_over(self, Entry *entry, TransferReason reason, str client) except -1
    cdef bint send_back(self, Entry *entry, const Record *record) except -1
    cdef int restore_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1
    cdef int go_on(self) except -1


cdef class DeadLettering(Redelivery):
    cdef readonly str dead_letter_topic     # "": none
    cdef Transfer transfer                  # None: nothing has moved yet
    cdef readonly uint64_t dead_lettered_count
    cdef uint64_t redriven_count
    cdef uint64_t exhausted_count           # out of attempts, and no topic for them

    cdef int dead_letter(self, Entry *entry, TransferReason reason, str client) except -1
    cdef int dead_letter_timed_out(self, Entry *entry) except -1
    cdef Transfer make_transfer(self)
    cdef int return_transfer(self, Entry *entry) except -1
    cdef int add_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1
    cdef int drop_transfer(self, Entry *entry) except -1
    cdef int transferred(self, Entry *entry, str client) except -1
