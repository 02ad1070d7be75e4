"""Answers in the order of their commands.

An answer that is not known yet (because a publish is waiting for the log or was forwarded) takes a
ticket, and all later answers wait. Heartbeats and messages do not wait. Does not know any command
by name.
"""

cimport cython
from libc.stdlib cimport free, malloc

from nsqcy.base.debug cimport NSQCY_DEBUG
from nsqcy.protocol.connection cimport STOPPED
from nsqcy.protocol.wire cimport BY_REFERENCE, ERROR, RESPONSE, Output

from nsqcy.broker.topic_host import UNKNOWN as _UNKNOWN
from nsqcy.logging import events


cdef extern from "Python.h":
    void Py_INCREF(object)
    void Py_XDECREF(void *)
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t n)


cdef const char *SILENT = b""           # command of a ticket whose answer is not sent

cdef Py_ssize_t live_answers = 0        # strings that tickets own


def live():
    """Return the number of waiting answers; zero in a release build."""
    return {"answers": live_answers}


cdef inline void drop_answer(Ticket *ticket) noexcept:
    global live_answers
    if ticket.text != NULL:
        Py_XDECREF(ticket.text)
        ticket.text = NULL
        if NSQCY_DEBUG:
            live_answers -= 1


@cython.no_gc_clear
cdef class AnswerQueue(Connection):
    def __dealloc__(self):
        self.drop_tickets()
        free(self.tickets)

    # -- the session manager's lists --

    cdef void become_dirty(self) noexcept:
        self.dirty = True
        self.manager.dirty.append(self)

    cdef void wake(self) noexcept:
        """Schedule resume() for this turn."""
        if not self.resumable:
            self.resumable = True
            self.manager.resumable.append(self)

    # -- frames --

    @cython.final
    cdef int put_frame(self, int type, const uint8_t *data, size_t n) except -1:
        if self.closed:
            return 0
        if self.relaying is not None:
            self.put_aside(type, data, n)
        else:
            self.output.put_frame(type, data, n)
        self.touch_dirty()
        return 0

    @cython.final
    cdef int put_ok(self) except -1:
        if self.closed or self.relaying is not None:
            return self.put_frame(RESPONSE, b"OK", 2)
        self.output.put_ok()
        self.touch_dirty()
        return 0

    cdef int put_aside(self, int type, const uint8_t *data, size_t n) except -1:
        """Queue a frame until the current message frame from another worker is complete."""
        cdef Output aside = Output()
        aside.put_frame(type, data, n)
        if self.aside is None:
            self.aside = bytearray()
        self.aside += aside.buffer[:aside.end]
        return 0

    cdef int respond(self, const uint8_t *data, size_t n) except -1:
        """Answer a command: immediately if no earlier command is unanswered."""
        if self.ticket_count == 0:
            return self.put_frame(RESPONSE, data, n)
        self.take_ticket(NULL, 0)
        self.answer(self.ticket_base + self.ticket_count - 1, ANSWERED,
                    PyBytes_FromStringAndSize(<const char *>data, n))
        return 0

    cdef Parsed fatal(self, bytes text) except RAISED:
        """Answer with a fatal error in its turn, execute no more commands, then end the session."""
        self.log_error(text)
        if not self.ticket_count:
            self.await_owner()
        if self.ticket_count:
            self.take_ticket(NULL, 0)
            self.stopping = True
            self.answer(self.ticket_base + self.ticket_count - 1, FAILED, text)
        else:
            self.put_frame(ERROR, text, len(text))
            self.stop()
        return STOPPED

    cdef Parsed invalid_state(self, const char *command) except RAISED:
        return self.fatal(b"E_INVALID cannot %s in current state" % command)

    cdef int await_owner(self) except -1:
        """If another worker owns the client's channel, take a ticket that this owner answers."""
        return 0

    cdef int log_error(self, bytes text) except -1:
        """Log an error that is sent to the client."""
        cdef str shown = text.decode("utf-8", "replace")
        events.client_error(self.manager.log, client=self.remote_address, error=shown)
        return 0

    # -- tickets --

    cdef uint64_t take_ticket(self, const char *command, size_t forwarded) except? 0:
        """Take a place in the queue of answers; return its number."""
        cdef Ticket *grown
        cdef Ticket *ticket
        cdef uint32_t i
        if self.ticket_count == self.ticket_room:
            grown = <Ticket *>malloc((2 * self.ticket_room + 8) * sizeof(Ticket))
            if grown == NULL:
                raise MemoryError()
            for i in range(self.ticket_count):
                grown[i] = self.tickets[(self.ticket_first + i) % self.ticket_room]
            free(self.tickets)
            self.tickets = grown
            self.ticket_first = 0
            self.ticket_room = 2 * self.ticket_room + 8
        ticket = &self.tickets[(self.ticket_first + self.ticket_count) % self.ticket_room]
        ticket.state = WAITING
        ticket.command = command
        ticket.forwarded = <uint32_t>forwarded
        ticket.text = NULL
        self.forwarded += forwarded
        self.ticket_count += 1
        return self.ticket_base + self.ticket_count - 1

    cdef uint64_t take_silent_ticket(self) except? 0:
        """Take a ticket for an answer that is not sent to the client."""
        return self.take_ticket(SILENT, 0)

    cdef int answer(self, uint64_t number, TicketState state, bytes text) except -1:
        """Set the answer of a ticket; send all known answers at the front of the queue."""
        global live_answers
        cdef Ticket *ticket
        if self.closed or number < self.ticket_base \
                or number >= self.ticket_base + self.ticket_count:
            return 0
        ticket = &self.tickets[
            (self.ticket_first + <uint32_t>(number - self.ticket_base)) % self.ticket_room]
        ticket.state = state
        if text is not None:
            Py_INCREF(text)
            ticket.text = <void *>text
            if NSQCY_DEBUG:
                live_answers += 1
        if number == self.ticket_base:
            self.call_tickets()
        return 0

    cdef int call_tickets(self) except -1:
        cdef Ticket ticket
        cdef bytes text
        while self.ticket_count:
            ticket = self.tickets[self.ticket_first]
            if ticket.state == WAITING:
                break
            self.ticket_first = (self.ticket_first + 1) % self.ticket_room
            self.ticket_count -= 1
            self.ticket_base += 1
            self.forwarded -= ticket.forwarded
            text = None
            if ticket.text != NULL:
                text = <bytes>ticket.text
                drop_answer(&ticket)
            if ticket.state == FAILED or ticket.state == REFUSED:
                self.put_frame(ERROR, text, len(text))
                if self.lenient or ticket.state == REFUSED:
                    continue
                self.drop_tickets()
                self.stop()
                return 0
            if ticket.command == SILENT or ticket.state == RELAYED:
                continue
            if text is None:
                self.put_ok()
            elif len(text) >= BY_REFERENCE and self.relaying is None:
                self.output.put_whole(RESPONSE, text)
                self.touch_dirty()
            else:
                self.put_frame(RESPONSE, text, len(text))
        if self.blocked and (self.ticket_count == 0 or self.can_pipeline()):
            self.wake()
        elif self.ticket_count == 0 and self.stopping:
            self.touch_dirty()
        return 0

    cdef void drop_tickets(self) noexcept:
        cdef uint32_t i
        for i in range(self.ticket_count):
            drop_answer(&self.tickets[(self.ticket_first + i) % self.ticket_room])
        self.ticket_base += self.ticket_count
        self.unanswered += self.ticket_count
        self.ticket_count = 0

    cdef bint can_pipeline(self) noexcept:
        return self.ticket_count < MAX_TICKETS and self.forwarded < MAX_FORWARDED

    cdef int publish_done(self, uint64_t number, str error) except -1:
        cdef Ticket *ticket
        cdef bytes command
        if error is None:
            return self.answer(number, ANSWERED, None)
        if self.closed or number < self.ticket_base:
            return 0
        if error is _UNKNOWN:
            self.drop_tickets()
            self.stop()
            return 0
        ticket = &self.tickets[
            (self.ticket_first + <uint32_t>(number - self.ticket_base)) % self.ticket_room]
        command = ticket.command
        return self.answer(number, FAILED, b"E_%s_FAILED %s failed %s" % (
            command, command, error.encode("utf-8", "surrogateescape")))
