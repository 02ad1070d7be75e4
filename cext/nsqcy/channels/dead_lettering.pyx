"""A channel's messages that are out of attempts, too old or redriven.

Decides where such a message is sent, and owns the channel's counters for such messages. A Transfer
sends the message (implemented by nsqcy.broker.dead_letter_transfer).
"""

from libc.stdint cimport int64_t

from nsqcy.channels.events cimport DEAD_LETTER
from nsqcy.channels.inflight cimport InFlightList
from nsqcy.storage.entry cimport TRANSFERRING, NEVER, Deferred


cdef class Transfer(Consumer):
    cdef int take_over(self, Entry *entry, TransferReason reason, str client, str text) except -1:
        """Add a message with a known id and timestamp, and move it. `client`: its last consumer;
        `text`: the consumer's reason."""
        raise NotImplementedError

    cdef int restore_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1:
        """Add a message whose transfer was in progress at the last exit; call this in
        transfer-number order."""
        raise NotImplementedError

    cdef str send_back(self, Entry *entry, const Record *record, tuple targets):
        """Add a message, and move it to the origin named in its headers. Return None, or why not.

        targets: patterns of the topics to which it may be moved; None: all
        """
        raise NotImplementedError

    cdef int go_on(self) except -1:
        """Send all messages that can be sent now."""
        raise NotImplementedError


cdef class DeadLettering(Redelivery):
    cdef int dead_letter(self, Entry *entry, TransferReason reason, str client,
                         str text="") except -1:
        """Transfer a message that no consumer holds to the dead-letter topic; drop the message if
        there is no such topic."""
        if self.dead_letter_topic:
            return self.make_transfer().take_over(entry, reason, client, text)
        self.exhausted_count += 1
        self.drop_entry(entry)
        return 0

    cdef int dead_letter_timed_out(self, Entry *entry) except -1:
        cdef InFlightList *in_flight_list = <InFlightList *>entry.in_flight_list
        cdef str client = ""
        if in_flight_list.consumer != NULL:
            client = (<Consumer>in_flight_list.consumer).client_id
        self.no_longer_in_flight(entry)
        return self.dead_letter(entry, OUT_OF_ATTEMPTS, client)

    cdef Transfer make_transfer(self):
        if self.transfer is None:
            self.transfer = self.new_transfer(self.window, self)
            self.transfer.channel = self
            self.transfer.in_flight_list = self.new_in_flight_list(<void *>self.transfer)
        return self.transfer

    # -- messages in transfer --

    cdef int add_transfer(self, Entry *entry, TransferReason reason, uint64_t number) except -1:
        """Add a message to the transfer, after those with smaller numbers."""
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.list_add_uninlined(self.transfer.in_flight_list, entry, <int64_t>(NEVER + number))
        entry.state = TRANSFERRING
        entry.node.tag = reason
        self.table_add(entry)
        self.in_flight_count += 1
        self.transfer.in_flight += 1
        self.touch_dirty()
        return 0

    cdef int return_transfer(self, Entry *entry) except -1:
        """Return a message in transfer to the channel's queue."""
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.queue_entry(entry, 0)
        return 0

    cdef int drop_transfer(self, Entry *entry) except -1:
        """Drop a message in transfer whose record is damaged."""
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.drop_entry(entry)
        return 0

    cdef int transferred(self, Entry *entry, str client) except -1:
        """Drop a message that the target topic has accepted, and count it."""
        if self.events is not None and entry.node.tag != REDRIVEN:
            self.events.add(DEAD_LETTER, entry.id, entry.attempts, self.scheduler.wall, 0,
                            self.scheduler.wall - entry.timestamp, self.event_names, client)
        if entry.node.tag == REDRIVEN:
            self.redriven_count += 1
        else:
            self.dead_lettered_count += 1
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.drop_entry(entry)
        return 0
