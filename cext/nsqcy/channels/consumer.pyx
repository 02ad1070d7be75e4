"""The interfaces through which channels and topics reach a client.

A Consumer receives the messages of one channel; a Waiter receives the outcome of a publish or of a
log command. Owns the counters of a client in /stats. Knows nothing about connections or how a
message is sent: sessions implement both.
"""


cdef class Waiter:
    cdef int publish_done(self, uint64_t ticket, str error) except -1:
        """Handle the result of the publish with this ticket: accepted (error is None) or failed."""
        raise NotImplementedError

    cdef int log_answered(self, uint64_t ticket, bytes answer, bytes error) except -1:
        """Handle the result of the query with this ticket, or its error."""
        raise NotImplementedError


cdef class Consumer(Waiter):
    cdef bint has_room(self) noexcept:
        """Return whether a message can be sent now, because there is not too much unsent output."""
        return True

    cdef int64_t usual_timeout(self) noexcept:
        """Set the message timeout for clients that did not request one."""
        return self.msg_timeout

    cdef bint send_message(self, RecordWindow window, Block *block, Record *record,
                           uint16_t attempts) except -1:
        """Append one message frame to the output; return whether there is room for another."""
        raise NotImplementedError

    cdef int on_channel_gone(self) except -1:
        """Handle the deletion of the consumer's channel."""
        raise NotImplementedError

    def counters(self):
        """Return the statistics of the client, as /stats shows them."""
        raise NotImplementedError
