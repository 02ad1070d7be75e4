# Messages that move from a channel to another topic, and back.

from libc.stdint cimport uint64_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.redelivery cimport Redelivery
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record


# Reasons for moving a message to another topic.
cdef enum TransferReason:
    OUT_OF_ATTEMPTS = 0         # the message is out of attempts
    TOO_OLD = 1
    REDRIVEN = 2                # the message returns to its origin
    REJECTED = 3                # by its consumer


cdef class Transfer(Consumer):
    """Holds messages that are being transferred to other topics until they have arrived."""
    cdef int take_over(self, Entry *entry, TransferReason reason, str client, str text) except -1
    cdef str send_back(self, Entry *entry, const Record *record, tuple targets)
    cdef int restore_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1
    cdef int go_on(self) except -1


cdef class DeadLettering(Redelivery):
    cdef readonly str dead_letter_topic     # "": none
    cdef object new_transfer                # called as new_transfer(window, channel)
    cdef Transfer transfer                  # None: nothing has been transferred yet
    cdef readonly uint64_t dead_lettered_count
    cdef uint64_t redriven_count
    cdef uint64_t exhausted_count           # out of attempts, without a dead-letter topic

    cdef int dead_letter(self, Entry *entry, TransferReason reason, str client,
                         str text=*) except -1
    cdef int dead_letter_timed_out(self, Entry *entry) except -1
    cdef Transfer make_transfer(self)
    cdef int return_transfer(self, Entry *entry) except -1
    cdef int add_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1
    cdef int drop_transfer(self, Entry *entry) except -1
    cdef int transferred(self, Entry *entry, str client) except -1
