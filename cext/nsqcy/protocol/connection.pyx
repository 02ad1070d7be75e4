"""A client's connection, independent of the protocol.

Owns the negotiated options, the output and the scheduling flags of a session. A transport and the
session manager call its virtual methods, which Session implements. Knows nothing about commands or
topics.
"""

from nsqcy.base.heap cimport HEAP_NOWHERE
from nsqcy.channels.ready_ring cimport ANYWHERE


# What IDENTIFY sets by name: whatever a session takes from the IDENTIFY itself, from the worker that
# has the socket, or from the worker that had it.
NEGOTIATED = (
    "client_id",
    "hostname",
    "user_agent",
    "topology_region",
    "topology_zone",
    "msg_timeout",
    "asked_timeout",
    "sample_rate",
    "output_buffer_size",
    "output_buffer_timeout",
    "topic_log",
    "limits",
    "headers",
    "dead_letters",
    "goodbye",
)


cdef dict negotiated(source):
    """Return what IDENTIFY has set in a session, or sets with an identity, by name."""
    return {name: getattr(source, name) for name in NEGOTIATED}


cdef class Transport:
    cdef int flush(self) except -1:
        """Send as much output as possible, then call session.after_flush()."""
        raise NotImplementedError

    cdef int watch_input(self, bint on) except -1:
        """Enable or disable input."""
        raise NotImplementedError

    cdef int close(self) except -1:
        raise NotImplementedError

    cdef int abandon(self) except -1:
        """Release the peer without notifying it, because another worker has it now."""
        raise NotImplementedError

    cdef int upgrade(self, identity) except -1:
        """Switch to the negotiated encoding; calls session.upgrade_done() when done."""
        raise NotImplementedError

    cdef int read_on(self) except -1:
        """Continue with input that was received but not yet decoded."""
        return 0

    cdef int rest(self) except -1:
        """Release memory that is not needed at present."""
        return 0


cdef class ClosedTransport(Transport):
    """The transport of a closed session: does nothing."""

    cdef int flush(self) except -1:
        return 0

    cdef int watch_input(self, bint on) except -1:
        return 0

    cdef int close(self) except -1:
        return 0

    cdef int abandon(self) except -1:
        return 0


cdef Transport CLOSED = ClosedTransport()


cdef class Share:
    pass


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
        raise TypeError(f"{type(self).__name__} is a layer of Session, not created by itself")

    # -- for the transport --

    cdef int feed(self, const uint8_t *data, size_t n) except -1:
        """Execute complete commands in the kept and the new bytes; keep the rest."""
        raise NotImplementedError

    cdef int end_of_input(self) except -1:
        """Handle the end of input: answer complete commands, then end."""
        raise NotImplementedError

    cdef int after_flush(self) except -1:
        """Handle the end of a send: the transport has sent as much as it could."""
        raise NotImplementedError

    # -- for the session manager --

    cdef int resume(self) except -1:
        """Continue parsing, because the awaited event may have happened."""
        raise NotImplementedError

    cdef int on_timer(self) except -1:
        """Handle the expiry of the timer."""
        raise NotImplementedError

    cdef int set_timer(self) except -1:
        """Set the timer to the next due time."""
        raise NotImplementedError

    cdef void wake(self) noexcept:
        """Schedule resume() for this turn."""

    cdef int set_limits(self) except -1:
        """Apply small limits until the client has authenticated."""
        raise NotImplementedError

    cdef int check_appetite(self) except -1:
        """Decide whether to read more input."""
        raise NotImplementedError

    cdef bint has_published(self) noexcept:
        """Return whether the client has published to any topic."""
        return False

    cdef int quota_changed(self) except -1:
        """Handle a change to the quota of the client's user."""
        return 0

    # -- the end --

    cdef int drop_if_silent(self, int64_t since) except -1:
        """End the connection if it has much unfinished input and has sent nothing since then."""
        raise NotImplementedError

    cdef int stop(self) except -1:
        """Execute no more commands; close once all output has been sent."""
        raise NotImplementedError

    cdef int wind_down(self) except -1:
        """End the connection because nsqd exits: execute no more commands, and answer those that
        have been executed. Consumers stay."""
        raise NotImplementedError

    cdef int close(self) except -1:
        """End the connection now."""
        raise NotImplementedError

    cdef int detach(self) except -1:
        """Release the transport of a closed session. They refer to each other, and only a garbage
        collection would free them."""
        self.transport = CLOSED
        return 0
