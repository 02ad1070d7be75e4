"""The connection of a client, without the protocol that it speaks.

Holds what was negotiated, the output and the flags by which a session waits for its turn. A
transport and the session manager drive it by its virtual methods, which Session implements. Knows
neither commands nor topics.
"""

from nsqcy.base.heap cimport HEAP_NOWHERE
from nsqcy.channels.ready_ring cimport ANYWHERE


cdef class Transport:
    cdef int flush(self) except -1:
        """Send what the output holds, as far as it goes; call session.after_flush()."""
        raise NotImplementedError

    cdef int watch_input(self, bint on) except -1:
        """Whether input is wanted."""
        raise NotImplementedError

    cdef int close(self) except -1:
        raise NotImplementedError

    cdef int abandon(self) except -1:
        """Let go of the peer without a word: another worker has it now."""
        raise NotImplementedError

    cdef int upgrade(self, identity) except -1:
        """From here on speak what was negotiated; session.upgrade_done() says when."""
        raise NotImplementedError

    cdef int read_on(self) except -1:
        """Go on with input that was received and not decoded yet."""
        return 0

    cdef int rest(self) except -1:
        """Give back memory that is of no use now."""
        return 0


cdef class Connection(Consumer):
    def __cinit__(self):
        self.output = Output()
        self.user_agent = self.topology_region = self.topology_zone = ""
        self.locality = ANYWHERE
        self.output_buffer_size = 16384
        self.reading = True
        self.timer.node.index = HEAP_NOWHERE
        self.timer.owner = <void *>self

    def __init__(self):
        raise TypeError(f"{type(self).__name__} is a layer of Session and not made by itself")

    # -- for the transport --

    cdef int feed(self, const uint8_t *data, size_t n) except -1:
        """Execute the complete commands in these bytes and those before; keep the rest."""
        raise NotImplementedError

    cdef int end_of_input(self) except -1:
        """The peer has sent its last byte: answer what is complete, then end."""
        raise NotImplementedError

    cdef int after_flush(self) except -1:
        """The transport has sent what it could."""
        raise NotImplementedError

    # -- for the session manager --

    cdef int resume(self) except -1:
        """Continue: what parsing waited for may be there."""
        raise NotImplementedError

    cdef int on_timer(self) except -1:
        """The timer has expired."""
        raise NotImplementedError

    cdef int set_timer(self) except -1:
        """Set the timer to the next time at which something is due."""
        raise NotImplementedError

    cdef void wake(self) noexcept:
        """Have resume() called in this turn."""

    cdef int check_appetite(self) except -1:
        """Decide whether more input is read."""
        raise NotImplementedError

    cdef bint has_published(self) noexcept:
        """Whether the client has published to any topic."""
        return False

    cdef int quota_changed(self) except -1:
        """The quota of the client's user has changed."""
        return 0

    # -- the end --

    cdef int stop(self) except -1:
        """Execute nothing more; close when all output has been sent."""
        raise NotImplementedError

    cdef int close(self) except -1:
        """End now."""
        raise NotImplementedError
