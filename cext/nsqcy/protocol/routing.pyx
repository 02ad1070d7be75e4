"""Routing: which worker owns the topic of a command.

Caches the topic that was published to last, so that the next publish finds it immediately, and
counts the messages published to each topic. Knows nothing about the published data.
"""

cimport cython

from nsqcy.names import quote
from nsqcy.protocol.wire cimport name_is_valid, word_bytes


cdef class Routing(Forwarder):
    def __cinit__(self):
        self.pub_counts = {}

    @cython.final
    cdef bint take_topic(self, Word *name) except -1:
        """Set the topic that was published to last; if the name is invalid, change nothing and
        return False."""
        if self.same_topic(name):
            return True
        if not name_is_valid(name.at, name.length):
            return False
        self.note_counts()
        self.topic_key = word_bytes(name)
        self.topic = None
        self.topic_owner = -1
        self.may_publish_until = 0
        return True

    cdef int find_owner(self) except? -1:
        """Return the owner, as route() does, if the topic is not cached."""
        cdef int owner
        if self.topic_owner < 0:
            self.topic_owner = self.manager.owner_of(self.topic_key)
        owner = self.topic_owner
        if owner < 0:
            self.manager.ask(self, self.topic_key)
        elif owner != self.manager.index:
            if not self.manager.is_up(owner):
                self.manager.wait_for_peer(self)
                return -1
        elif self.topic is None or self.topic.gone:
            return self.find_topic()
        return owner

    cdef int find_topic(self) except? -1:
        if self.topic_key not in self.manager.shard.topics and not self.manager.may_create(self):
            return -1
        self.topic = self.manager.shard.find_or_create(self.topic_key)
        return NO_ROOM if self.topic is None else self.manager.index

    cdef Parsed bad_name(self, bytes prefix, Word *name) except RAISED:
        quoted = quote(word_bytes(name)).encode("utf-8", "surrogateescape")
        return self.fatal(b"%s %s is not valid" % (prefix, quoted))

    cdef bytes no_room(self, const char *command):
        """Return the error for a topic that cannot be created."""
        return b'E_BAD_TOPIC %s topic "%s" exceeds limit of %d topics' % (
            <bytes>command, self.topic_key, self.manager.options.max_topics)

    cdef int note_counts(self) except -1:
        """Move the count of the topic that was published to last into pub_counts."""
        if self.topic_count:
            name = self.topic_key.decode()
            self.pub_counts[name] = self.pub_counts.get(name, 0) + self.topic_count
            self.counted += self.topic_count
            self.topic_count = 0
        return 0

    cdef bint has_published(self) noexcept:
        return self.topic_count != 0 or len(self.pub_counts) != 0
