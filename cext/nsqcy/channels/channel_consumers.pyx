"""The consumers of a channel.

Owns the list of consumers, the ring of consumers with room, and their message timeout. Knows
nothing about their output or input.
"""

from nsqcy.channels.ready_ring cimport enter_ring, init_place, init_ring, leave_ring


cdef class ChannelConsumers(MessageEvents):
    def __cinit__(self):
        self.consumers = []
        init_ring(&self.ready)

    cdef int add_consumer(self, Consumer consumer) except -1:
        consumer.in_flight_list = self.new_in_flight_list(<void *>consumer)
        consumer.channel = self
        self.give_timeout(consumer)
        init_place(&consumer.ring_place, <void *>consumer)
        self.consumers.append(consumer)
        return 0

    cdef void remove_consumer(self, Consumer consumer) noexcept:
        """Handle a client that left; its messages stay in flight until their deadlines."""
        cdef InFlightList *in_flight_list = consumer.in_flight_list
        if consumer.waiting:
            consumer.waiting = False
            leave_ring(&consumer.ring_place)
        consumer.in_flight_list = NULL
        consumer.channel = None
        if in_flight_list != NULL:
            in_flight_list.consumer = NULL
            if in_flight_list.count == 0:
                self.free_in_flight_list(in_flight_list)
        try:
            self.consumers.remove(consumer)
        except ValueError:
            pass
        self.touch_dirty()

    cdef void give_timeout(self, Consumer consumer) noexcept:
        if not consumer.asked_timeout:
            consumer.msg_timeout = self.msg_timeout or consumer.usual_timeout()

    cdef void check_ready(self, Consumer consumer) noexcept:
        """Add the consumer to its ring or remove it, depending on its ready count."""
        cdef bint ready = (
            consumer.channel is self and consumer.in_flight < consumer.ready_count
            and consumer.has_room())
        if ready == consumer.waiting:
            return
        consumer.waiting = ready
        if ready:
            enter_ring(&self.ready, consumer.locality, &consumer.ring_place)
            self.touch_dirty()
        else:
            leave_ring(&consumer.ring_place)
