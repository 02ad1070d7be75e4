# Routing: which worker owns the topic of a command.

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp

from nsqcy.broker.topic cimport Topic
from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.forwarding cimport Forwarder
from nsqcy.protocol.wire cimport Word


cdef enum:
    NO_ROOM = -2                # no owner: the topic does not exist and may not be created


cdef class Routing(Forwarder):
    """The topic that a client publishes to, and its owner."""
    cdef Topic topic                # the topic that was published to last
    cdef bytes topic_key
    cdef int topic_owner            # -1: unknown yet
    cdef uint64_t topic_count       # messages published to it that are not yet in pub_counts
    cdef readonly dict pub_counts
    cdef uint64_t counted           # all published messages, excluding topic_count

    cdef inline bint same_topic(self, Word *name) noexcept:
        """Return whether `name` is the topic that was published to last (and therefore valid)."""
        cdef bytes key = self.topic_key
        return (key is not None and <size_t>len(key) == name.length
                and memcmp(<const char *>key, name.at, name.length) == 0)

    cdef inline int route(self) except? -1:
        """Return the worker that owns the current topic, and set self.topic if it is this worker.

        -1: the owner is not known yet, or down. NO_ROOM: this worker would own it, but has no room.
        """
        if self.topic is not None and not self.topic.gone:
            return self.topic_owner
        return self.find_owner()

    cdef inline bint may_join(self, int owner) noexcept:
        """Return whether a publish may be executed before outstanding answers arrive.

        It may not if too many are outstanding, or if one of them may be an error that the owner (or
        the topic, if it is here) does not know about: nothing is executed after such an error.
        """
        if self.ticket_count == 0:
            return True
        if not self.can_pipeline():
            return False
        if self.lenient:
            return True
        if owner != self.line_owner:
            return False
        return owner != self.manager.index or self.topic_key is self.line_key

    cdef bint take_topic(self, Word *name) except -1
    cdef int find_owner(self) except? -1
    cdef int find_topic(self) except? -1
    cdef Parsed bad_name(self, bytes prefix, Word *name) except RAISED
    cdef bytes no_room(self, const char *command)
    cdef int note_counts(self) except -1
