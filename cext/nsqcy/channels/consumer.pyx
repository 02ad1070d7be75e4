"""The interfaces through which channels and topics reach a client.

A Consumer receives the messages of one channel; a Waiter gets the outcome of a publish or of a log
command. Owns the counters that /stats shows of a client. Knows neither connections nor how a
message is sent: sessions implement both.
"""


cdef class Waiter:
    cdef int publish_done(self, uint64_t ticket, str error) except -1:
        """The publish behind `ticket` was accepted (error is None) or failed."""
        raise NotImplementedError

    cdef int log_answered(self, uint64_t ticket, bytes answer, bytes error) except -1:
        """Take the answer to the query with this ticket, or its error."""
        raise NotImplementedError


cdef class Consumer(Waiter):
    cdef bint has_room(self) noexcept:
        """Whether a message can be sent now without holding too much unsent output."""
        return True

    cdef int64_t usual_timeout(self) noexcept:
        """The message timeout of clients that did not ask for one."""
        return self.msg_timeout

    cdef bint send_message(self, RecordWindow window, Block *block, Record *record,
                           uint16_t attempts) except -1:
        """Put one message frame into the output; whether there is room for another."""
        raise NotImplementedError

    cdef int on_channel_gone(self) except -1:
        """The channel was deleted under the consumer."""
        raise NotImplementedError

    def counters(self):
        """Return the statistics of the client, as /stats shows them."""
        raise NotImplementedError
