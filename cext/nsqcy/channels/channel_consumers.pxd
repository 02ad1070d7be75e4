# The consumers of a channel, and the turns that they take.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.inflight cimport InFlightList
from nsqcy.channels.message_events cimport MessageEvents
from nsqcy.channels.ready_ring cimport ReadyRing
from nsqcy.storage.entry cimport Entry


cdef class ChannelConsumers(MessageEvents):
    cdef readonly list consumers
    cdef ReadyRing ready
    cdef int64_t msg_timeout                # ns, default for consumers; 0: the server's default
    cdef uint64_t taken[3]                  # deliveries by locality

    cdef void give_timeout(self, Consumer consumer) noexcept
    cdef int add_consumer(self, Consumer consumer) except -1
    cdef void remove_consumer(self, Consumer consumer) noexcept
    cdef void check_ready(self, Consumer consumer) noexcept

    cdef inline void count_down(self, Consumer consumer) noexcept:
        """Handle the end of a message that was in flight to a consumer."""
        consumer.in_flight -= 1
        if not consumer.waiting:
            self.check_ready(consumer)

    cdef inline void no_longer_in_flight(self, Entry *entry) noexcept:
        """Remove the message from the consumer's list and the counters (the caller owns the
        table)."""
        cdef void *consumer = (<InFlightList *>entry.in_flight_list).consumer
        if consumer != NULL:
            self.count_down(<Consumer>consumer)
        self.list_remove(entry)
        self.in_flight_count -= 1
