# Answers in the order of their commands.
#
#   command ──► take_ticket() ──► [ OK ][ waiting ][ OK ][ error ]     answers outstanding
#                                    │ first in line and known
#                                    ▼
#                                 output

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from nsqcy.ipc.mesh cimport StreamEnd
from nsqcy.protocol.connection cimport RAISED, Connection, Parsed
from nsqcy.protocol.session_manager cimport SessionManager


cdef enum:
    MAX_TICKETS = 4096         # maximum outstanding answers; further commands wait
    MAX_FORWARDED = 1048576    # maximum bytes of unanswered forwarded commands


# A pending answer.
ctypedef struct Ticket:
    uint8_t state               # TicketState
    const char *command         # a static name: PUB, MPUB, DPUB
    uint32_t forwarded          # bytes counted against MAX_FORWARDED
    void *text                  # owned bytes: a response, or the text of an error frame

cdef enum TicketState:
    WAITING = 0
    ANSWERED = 1                # text NULL: OK
    FAILED = 2                  # text: the error; the session ends with it
    REFUSED = 3                 # text: the error; the session continues
    RELAYED = 4                 # its frame was already relayed


cdef class AnswerQueue(Connection):
    """The answers of a session."""
    cdef SessionManager manager
    cdef Ticket *tickets
    cdef uint32_t ticket_first
    cdef uint32_t ticket_count
    cdef uint32_t ticket_room
    cdef uint64_t ticket_base       # number of the first ticket
    cdef uint32_t unanswered        # dropped tickets; they may already have been answered
    cdef size_t forwarded
    cdef int line_owner             # owner of the topics of all outstanding answers; -1: none
    cdef bytes line_key             # the topic, if it is owned here
    cdef StreamEnd relaying         # one of its message frames is partly written
    cdef bytearray aside            # frames waiting for the end of that frame

    cdef inline void touch_dirty(self) noexcept:
        """Schedule a flush of the transport for the end of the turn."""
        if not self.dirty:
            self.become_dirty()

    cdef void become_dirty(self) noexcept

    cdef inline bint is_crammed(self) noexcept:
        """Return whether too many answers are waiting for the client to read them."""
        cdef size_t waiting = self.output.end - self.output.start
        if self.aside is not None:
            waiting += len(self.aside)
        return waiting > self.max_answers

    cdef int put_frame(self, int type, const uint8_t *data, size_t n) except -1
    cdef int put_ok(self) except -1
    cdef int put_aside(self, int type, const uint8_t *data, size_t n) except -1
    cdef int respond(self, const uint8_t *data, size_t n) except -1
    cdef Parsed fatal(self, bytes text) except RAISED
    cdef uint64_t take_ticket(self, const char *command, size_t forwarded) except? 0
    cdef int answer(self, uint64_t ticket, TicketState state, bytes text) except -1
    cdef int call_tickets(self) except -1
    cdef void drop_tickets(self) noexcept
    cdef bint can_pipeline(self) noexcept
    cdef Parsed invalid_state(self, const char *command) except RAISED
    cdef int log_error(self, bytes text) except -1
    cdef uint64_t take_silent_ticket(self) except? 0
    cdef int await_owner(self) except -1
