# AUTH and permissions.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from nsqcy.ipc.core cimport Quota
from nsqcy.protocol.connection cimport RAISED, Connection, Parsed


cdef class Authorizer(Connection):
    """A client's authorization, and its user's quota."""
    cdef bint guarded               # the client needs authorization
    cdef bint auth_asked            # a query to an auth server is pending
    cdef uint64_t auth_ticket       # secret from the AUTH command
    cdef readonly bytes secret      # never to be logged
    cdef readonly object authorization
    cdef readonly bint authed       # as shown in /stats
    cdef readonly str auth_identity
    cdef readonly str auth_identity_url
    cdef public tuple certificate_names  # names from its verified certificate
    cdef int64_t auth_expires
    cdef int64_t may_publish_until  # for the topic of the latest publish
    cdef Quota quota                # the user's quota; None: no quota

    cdef inline bint may_publish(self) noexcept:
        """Return whether the last result of authorize() is still valid."""
        return self.manager.scheduler.now < self.may_publish_until

    cdef Parsed auth(self, int count, size_t *used, const uint8_t *rest, size_t left) except RAISED
    cdef int set_limits(self) except -1
    cdef int64_t maximum_body(self, int64_t size, int64_t ours) noexcept
    cdef int ask_auth(self) except -1
    cdef int refuse_auth(self, bytes text) except -1
    cdef Parsed recognize(self, const char *command) except RAISED
    cdef bint admit(self, Quota quota) except -1
    cdef bytes no_place(self, Quota quota)
    cdef int adopt_authorization(self, authorization, int64_t expires) except -1
    cdef Parsed authorize(self, const char *command, bytes topic, bytes channel) except RAISED
    cdef int look_again(self) except -1
    cdef int quota_changed(self) except -1
    cdef int forget_quota(self) except -1
