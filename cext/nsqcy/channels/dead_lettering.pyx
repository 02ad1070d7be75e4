"""Messages of a channel that are out of attempts or too old, or go back to where they came from.

Owns the decision where such a message goes, and what the channel counts of it. The transfer itself
is the mover's (nsqcy.broker.dead_letters).
"""

from libc.stdint cimport int64_t

from nsqcy.channels.events cimport DEAD_LETTER
from nsqcy.channels.inflight cimport Holding
from nsqcy.storage.entry cimport MOVING, NEVER, Deferred


cdef class Mover(Consumer):
    cdef int take_over(self, Entry *entry, MoveReason reason, str client) except -1:
        """Hold a message from now on, whose id and timestamp are known, and move it. `client`: who
        had it last."""
        raise NotImplementedError

    cdef int restore_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1:
        """The same of one that a start has found on its way, in the order of their numbers."""
        raise NotImplementedError

    cdef bint send_back(self, Entry *entry, const Record *record) except -1:
        """Hold a message from now on, and move it to where its headers say that it came from; not
        if they do not say."""
        raise NotImplementedError

    cdef int go_on(self) except -1:
        """Send what can be sent now."""
        raise NotImplementedError


cdef class DeadLettering(Redelivery):
    cdef int bury(self, Entry *entry, MoveReason reason, str client) except -1:
        """A message that nobody holds any more is delivered no more: it moves to the dead-letter
        topic, or is dropped if there is none."""
        if self.dead_letter_topic:
            return self.make_mover().take_over(entry, reason, client)
        self.exhausted_count += 1
        self.drop_entry(entry)
        return 0

    cdef int bury_timed_out(self, Entry *entry) except -1:
        cdef Holding *holding = <Holding *>entry.holding
        cdef str client = "" if holding.consumer == NULL else (<Consumer>holding.consumer).client_id
        self.no_longer_in_flight(entry)
        return self.bury(entry, OUT_OF_ATTEMPTS, client)

    cdef Mover make_mover(self):
        if self.mover is None:
            self.mover = self.window.new_mover(self)
            self.mover.channel = self
            self.mover.holding = self.new_holding(<void *>self.mover)
        return self.mover

    # -- what the mover holds --

    cdef int hold_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1:
        """Have the mover hold a message, behind those with smaller numbers."""
        if entry.round != self.round:
            self.pack(<Deferred *>entry)
        self.hold_seldom(self.mover.holding, entry, <int64_t>(NEVER + number))
        entry.state = MOVING
        entry.node.tag = reason
        self.table_add(entry)
        self.in_flight_count += 1
        self.mover.in_flight += 1
        self.touch_dirty()
        return 0

    cdef int give_back(self, Entry *entry) except -1:
        """What the mover held stays in this channel."""
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.queue_entry(entry, 0)
        return 0

    cdef int lose_move(self, Entry *entry) except -1:
        """What the mover held is damaged."""
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.drop_entry(entry)
        return 0

    cdef int moved(self, Entry *entry, str client) except -1:
        """What the mover held is where it belongs."""
        if self.events is not None and entry.node.tag != REDRIVEN:
            self.events.add(DEAD_LETTER, entry.id, entry.attempts, self.agenda.wall, 0,
                            self.agenda.wall - entry.timestamp, self.event_names, client)
        if entry.node.tag == REDRIVEN:
            self.redriven_count += 1
        else:
            self.dead_lettered_count += 1
        self.table_clear(self.table_find(entry.id))
        self.no_longer_in_flight(entry)
        self.drop_entry(entry)
        return 0
