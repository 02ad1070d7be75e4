# A client as seen by a channel, a topic and the log.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from nsqcy.channels.inflight cimport InFlightList
from nsqcy.channels.ready_ring cimport RingPlace
from nsqcy.storage.block cimport Block
from nsqcy.storage.entry cimport Entry
from nsqcy.storage.record cimport Record
from nsqcy.storage.record_window cimport RecordWindow


cdef class Waiter:
    """Receiver of the results of publishes and log queries."""
    cdef int publish_done(self, uint64_t ticket, str error) except -1
    cdef int log_answered(self, uint64_t ticket, bytes answer, bytes error) except -1


cdef class Consumer(Waiter):
    """A client as its channel sees it: a ready count and a destination for messages."""
    cdef object channel             # the Channel
    cdef InFlightList *in_flight_list
    cdef RingPlace ring_place
    cdef bint waiting               # in the ring of ready consumers
    cdef readonly uint32_t ready_count
    cdef readonly int64_t in_flight
    cdef public int64_t msg_timeout         # ns
    cdef public bint asked_timeout          # the client requested it
    cdef public uint32_t sample_rate
    cdef readonly uint8_t locality
    cdef readonly uint64_t message_count
    cdef readonly uint64_t finish_count
    cdef readonly uint64_t requeue_count
    cdef public str client_id

    cdef bint has_room(self) noexcept
    cdef int64_t usual_timeout(self) noexcept
    cdef bint send_message(self, RecordWindow window, Block *block, Record *record,
                           uint16_t attempts) except -1
    cdef int on_channel_gone(self) except -1


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
