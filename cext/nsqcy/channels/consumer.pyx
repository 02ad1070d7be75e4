"""The interfaces through which channels and topics reach a client.

A Consumer receives the messages of one channel; a Waiter receives the outcome of a publish or of a
log command. Owns the counters of a client in /stats. Independent of connections and of how a
message is sent: sessions implement these interfaces. A Transfer is the consumer that moves messages
to other topics.
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


cdef class Transfer(Consumer):
    cdef int take_over(self, Entry *entry, TransferReason reason, str client, str text) except -1:
        """Add a message with a known id and timestamp, and move it. `client`: the message's last
        consumer; `text`: the consumer's reason."""
        raise NotImplementedError

    cdef int restore_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1:
        """Add a message whose transfer was in progress at the last exit; call this in
        transfer-number order."""
        raise NotImplementedError

    cdef str send_back(self, Entry *entry, const Record *record, tuple targets):
        """Add a message, and move it to the origin named in its headers. Return None, or the reason
        for a failure.

        targets: patterns of the topics to which it may be moved; None: all
        """
        raise NotImplementedError

    cdef int go_on(self) except -1:
        """Send all messages that can be sent now."""
        raise NotImplementedError
