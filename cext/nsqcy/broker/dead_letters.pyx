"""Moves of messages from a channel to another topic, each in exactly one place over crashes.

Owns the numbers of moves, their order and what is tried again. Knows neither the journal nor who
owns the other topic: `topic.journal_move` and `agenda.publish_once` do.
"""

from hashlib import blake2b

import os

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t

from nsqcy.channels.channel cimport Channel
from nsqcy.channels.dead_lettering cimport REDRIVEN, MoveReason, Mover
from nsqcy.channels.checkpoint_entries cimport Packing
from nsqcy.storage.block cimport LOADING, UNREADABLE, Block
from nsqcy.storage.entry cimport Deferred, Entry, move_number
from nsqcy.storage.record cimport RECORD_DELAYED, Record, is_spoiled, record_body, record_headers
from nsqcy.storage.record_window cimport RecordWindow

from nsqcy.broker import dead_letter_headers as dead_letters
from nsqcy.storage.journal import MoveRun


cdef enum:
    SENT_AT_ONCE = 64           # in one turn

cdef int64_t REST = 1000000000  # after a failure

cdef tuple REASONS = ("attempts", "expired")        # by MoveReason


BACK = "-"                      # in the place of a topic: where its headers say


cdef bytes own_headers(const Record *record):
    cdef uint16_t length
    cdef const uint8_t *headers = record_headers(record, &length)
    return headers[:length] if length else b""


def producer_of(str topic not None, str channel not None):
    """What the moves of a channel are published as."""
    return blake2b(f"{topic}/{channel}".encode(), digest_size=16).hexdigest().encode()


cdef class Moves(Mover):
    def __init__(self, RecordWindow window not None, Channel source not None):
        self.window = window
        self.topic = window
        self.source = source
        self.runs = []
        self.clients = {}
        self.untold = set()
        self.telling = set()
        self.next_number = 1
        self.client_id = ""

    # -- messages come in --

    cdef int take_over(self, Entry *entry, MoveReason reason, str client) except -1:
        return self.begin(entry, reason, client, self.source.dead_letter_topic)

    cdef bint send_back(self, Entry *entry, const Record *record) except -1:
        if dead_letters.origin_of(own_headers(record)) is None:
            return False
        self.begin(entry, REDRIVEN, "", BACK)
        return True

    cdef int begin(self, Entry *entry, MoveReason reason, str client, str target) except -1:
        cdef uint64_t number = self.next_number
        cdef Block *block = entry.block
        if not self.begun or self.runs[len(self.runs) - 1].target != target:
            # What a crash may have made us forget must not have the number of another message.
            self.begun = True
            epoch = int.from_bytes(os.urandom(8), "little")
            self.runs.append(MoveRun(number, epoch, target))
        self.next_number += 1
        self.source.hold_move(entry, reason, number)
        if client:
            self.clients[number] = client
        self.untold.add(number)
        if block.data != NULL and not block.flags & LOADING:
            self.tell(entry)
        return 0

    cdef int restore_move(self, Entry *entry, MoveReason reason, uint64_t number) except -1:
        self.next_number = max(self.next_number, number + 1)
        return self.source.hold_move(entry, reason, number)

    def restore_runs(self, runs):
        """What the numbers mean that a start has found; those that follow are greater."""
        self.runs = list(runs)
        self.next_number = max(run.first for run in runs) + 1

    cdef object run_of(self, uint64_t number):
        """The run (nsqcy.storage.journal.MoveRun) that a move belongs to."""
        for run in reversed(self.runs):
            if run.first <= number:
                return run

    # -- the journal --

    cdef int tell(self, Entry *entry) except -1:
        """Have the journal know of a move, if a start would find the message."""
        cdef uint64_t number = move_number(entry)
        cdef Packing packing = Packing()
        packing.add(<const Deferred *>entry, 0)
        packed, _ = packing.take()
        self.untold.discard(number)
        if not packed:
            return 0
        self.telling.add(number)
        if not self.topic.journal_move(
                self.source.name, entry.seq, packed, self.run_of(number),
                self.is_delayed(entry), lambda error: self.told(number, error)):
            self.telling.discard(number)
        return 0

    cdef bint is_delayed(self, const Entry *entry) noexcept:
        return (<Record *>(entry.block.data + entry.offset)).attributes & RECORD_DELAYED

    def told(self, uint64_t number, error):
        self.telling.discard(number)
        if error is not None:
            self.untold.add(number)
            self.rests_until = self.source.agenda.now + REST
        self.source.touch_dirty()

    # -- messages go out --

    cdef int go_on(self) except -1:
        cdef Entry *entry
        cdef Block *block
        cdef Record *record
        cdef uint64_t number
        cdef int budget = SENT_AT_ONCE
        while not self.sending and self.holding.first != NULL \
                and self.source.agenda.now >= self.rests_until:
            if budget == 0:
                self.source.touch_dirty()
                break
            budget -= 1
            entry = self.holding.first
            number = move_number(entry)
            block = entry.block
            if number in self.telling:
                break
            if block.data == NULL or block.flags & LOADING:
                if not block.flags & UNREADABLE:
                    self.window.load(block)
                    break
                self.source.lose_move(entry)
                continue
            record = <Record *>(block.data + entry.offset)
            if is_spoiled(record, entry.seq):
                self.source.lose_move(entry)
                continue
            if number in self.untold:
                self.tell(entry)
            if number not in self.telling:
                self.send(entry, record)
        return 0

    cdef int send(self, Entry *entry, const Record *record) except -1:
        cdef uint64_t number = move_number(entry)
        cdef bytes own = own_headers(record)
        while len(self.runs) > 1 and self.runs[1].first <= number:
            self.runs.pop(0)        # it is over
        run = self.runs[0]
        target = run.target
        if entry.node.tag == REDRIVEN:
            origin = dead_letters.origin_of(own)
            target = origin.topic
            headers = dead_letters.addressed(origin)
        else:
            headers = self.headers_of(entry, record, own)
        self.sending = True
        self.source.agenda.publish_once(
            target.encode(), (producer_of(self.topic.name, self.source.name), run.epoch, number),
            headers, record_body(record)[:record.body_length], self.topic.durability,
            lambda error: self.sent(number, error))
        return 0

    cdef bytes headers_of(self, const Entry *entry, const Record *record, bytes own):
        return dead_letters.headers_of(
            own, topic=self.topic.name, channel=self.source.name,
            id=record.id, attempts=entry.attempts, first_time=record.timestamp,
            client=self.clients.get(move_number(entry), ""), reason=REASONS[entry.node.tag])

    def sent(self, uint64_t number, error):
        """A move was accepted (error is None), or was not, or nobody knows."""
        cdef Entry *entry = NULL if self.source.gone else self.holding.first
        self.sending = False
        if self.source.gone:
            return
        self.source.touch_dirty()
        if error == dead_letters.NO_CHANNEL and entry != NULL and entry.node.tag == REDRIVEN:
            self.source.give_back(entry)
            return
        if error is not None:
            self.rests_until = self.source.agenda.now + REST
            return
        client = self.clients.pop(number, "")
        if entry != NULL and move_number(entry) == number:
            self.topic.journal_moved(self.source.name, entry.seq)
            self.source.moved(entry, client)
