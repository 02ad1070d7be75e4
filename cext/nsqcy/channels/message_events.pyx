"""Reports about a channel's in-flight messages.

Decides which reports are kept: events for the events topic, the latency from publish to finish, and
the ages of finished messages. Does not change messages.
"""

from libc.stdint cimport int32_t, uint32_t

from nsqcy.channels.consumer cimport Consumer
from nsqcy.channels.events cimport FINISH
from nsqcy.channels.inflight cimport InFlightList


cdef class MessageEvents(InFlight):
    cdef void report_to(self, Events events, bytes names) noexcept:
        """From now on, report message events."""
        self.events = events
        self.event_names = names
        self.watched = True

    cdef void report(self, EventKind kind, const Entry *entry) noexcept:
        """Report an event for a message that is still in flight. Only for watched channels."""
        cdef InFlightList *in_flight_list = <InFlightList *>entry.in_flight_list
        # Milliseconds modulo 2^32, as in touch().
        cdef int64_t held = <int32_t>(
            <uint32_t>(self.scheduler.now // 1000000) - <uint32_t>entry.node.tag)
        cdef str client = ""
        if self.events is None:
            return
        if in_flight_list.consumer != NULL:
            client = (<Consumer>in_flight_list.consumer).client_id
        self.events.add(kind, entry.id, entry.attempts, self.scheduler.wall, held * 1000000,
                        self.scheduler.wall - entry.timestamp, self.event_names, client)

    cdef void report_finish(self, const Entry *entry) noexcept:
        if self.latency is not None:
            # The clock may have been set back since the publish.
            self.latency.add(max(<int64_t>0, self.scheduler.wall - entry.timestamp),
                             self.scheduler.now)
        self.report(FINISH, entry)
