"""AUTH and permissions.

The worker that has the socket decides what a client may do, based on the response of an auth
server, a users file, or the client's certificate. The far end of a stream does not check
permissions again. Responses expire: after that, a command blocks until an auth server has responded
again. Uses topics only by name.
"""

cdef enum:
    MAX_SECRET = 16384          # bytes

cdef const char *AUTH = b"AUTH"


cdef class Authorizer(Connection):
    def __cinit__(self):
        self.guarded = self.manager.auth is not None
        self.certificate_names = ()
        self.auth_identity = self.auth_identity_url = ""

    # -- the command --

    cdef Parsed auth(self, int count, size_t *used, const uint8_t *rest, size_t left) except RAISED:
        cdef int32_t size
        cdef int64_t maximum
        if self.state != INIT:
            return self.invalid_state(b"AUTH")
        if count != 1:
            return self.fatal(b"E_INVALID AUTH invalid number of parameters")
        if left < 4:
            return self.body_missing(4 - left, b"E_BAD_BODY AUTH failed to read body size")
        size = <int32_t>load_be32(rest)
        maximum = self.maximum_body(size, MAX_SECRET)
        if size > maximum:
            return self.fatal(b"E_BAD_BODY AUTH body too big %d > %d" % (size, maximum))
        if size <= 0:
            return self.fatal(b"E_BAD_BODY AUTH invalid body size %d" % size)
        if left - 4 < <size_t>size:
            return self.body_missing(4 + size - left, b"E_BAD_BODY AUTH failed to read body")
        used[0] += 4 + size
        if self.authorization is not None:
            return self.fatal(b"E_INVALID AUTH already set")
        if self.manager.auth is None:
            return self.fatal(b"E_AUTH_DISABLED AUTH disabled")
        self.secret = PyBytes_FromStringAndSize(<const char *>rest + 4, size)
        self.auth_ticket = self.take_ticket(AUTH, 0)
        self.line_owner = -1
        self.ask_auth()
        return NEXT

    cdef int ask_auth(self) except -1:
        """Query an auth server; commands that need its response wait for it."""
        self.auth_asked = True
        self.manager.auth.ask(self)
        return 0

    def tls_facts(self):
        """Return the facts for an auth server: whether the connection is encrypted, and the common
        name of the client's certificate."""
        if self.tls is None:
            return False, ""
        return True, self.tls["common_name"]

    def authorized(self, authorization not None):
        """Handle an auth server's response for an open session; resume waiting commands."""
        cdef bint first = self.authorization is None
        self.auth_asked = False
        self.last_command = self.manager.scheduler.now
        if first and not authorization.grants:
            self.refuse_auth(b"E_UNAUTHORIZED AUTH no authorizations found")
            return
        if first and not self.admit(authorization.quota):
            self.refuse_auth(self.no_place(authorization.quota))
            return
        self.adopt_authorization(
            authorization, self.manager.scheduler.now + <int64_t>authorization.ttl * SECOND)
        if first:
            self.answer(self.auth_ticket, ANSWERED, authorization.response)
        elif self.blocked:
            self.wake()

    def auth_failed(self):
        """Handle the lack of a usable response from any auth server."""
        self.auth_asked = False
        self.last_command = self.manager.scheduler.now
        if self.authorization is None:
            self.refuse_auth(b"E_AUTH_FAILED AUTH failed")
        elif not self.stopping:
            self.fatal(b"E_AUTH_FAILED AUTH failed")

    cdef int refuse_auth(self, bytes text) except -1:
        """Answer AUTH with an error."""
        self.log_error(text)
        return self.answer(self.auth_ticket, FAILED, text)

    # -- limits --

    cdef int64_t maximum_body(self, int64_t size, int64_t ours) noexcept:
        """Return the limit to report for a body of this size: --max-body-size, as in NSQ's error
        text, if NSQ would also refuse the body."""
        cdef int64_t configured = self.manager.max_body_size
        return configured if size > configured else min(configured, ours)

    cdef int set_limits(self) except -1:
        """Apply small limits until the client has authenticated."""
        cdef bint before = self.unauthenticated
        self.unauthenticated = self.barred or (self.guarded and self.authorization is None)
        if before and not self.unauthenticated:
            self.manager.unauthenticated.hold(self, self.address, 0)
        self.max_answers = MAX_UNAUTHENTICATED_ANSWERS if self.unauthenticated else MAX_ANSWERS
        return 0

    # -- permission --

    cdef Parsed recognize(self, const char *command) except RAISED:
        """Authorize a client by its certificate, without AUTH; NEXT if that suffices."""
        authorization = None
        if self.certificate_names:
            authorization = self.manager.auth.of_certificate(self.certificate_names)
        if authorization is None:
            return self.fatal(b"E_AUTH_FIRST AUTH required before " + <bytes>command)
        if not self.admit(authorization.quota):
            return self.fatal(self.no_place(authorization.quota))
        self.adopt_authorization(
            authorization, self.manager.scheduler.now + <int64_t>authorization.ttl * SECOND)
        return NEXT

    cdef int adopt_authorization(self, authorization, int64_t expires) except -1:
        self.authorization = authorization
        self.set_limits()
        self.auth_expires = expires
        self.may_publish_until = 0
        self.authed = True
        self.auth_identity = authorization.identity
        self.auth_identity_url = authorization.identity_url
        if authorization.quota is not self.quota:
            # A client that is already counted stays connected, even if its new quota is lower.
            self.forget_quota()
            self.quota = authorization.quota
            if self.quota is not None:
                self.quota.join()
        return 0

    cdef Parsed authorize(self, const char *command, bytes topic, bytes channel) except RAISED:
        """Check whether the client may use a topic and channel; NEXT if it may.

        The names are valid. An empty channel stands for a publish to the current topic, None for
        reading its log.
        """
        cdef Parsed parsed
        if self.auth_asked:
            return BLOCKED
        if self.authorization is None:
            parsed = self.recognize(command)
            if parsed != NEXT:
                return parsed
        if self.manager.scheduler.now >= self.auth_expires:
            self.ask_auth()
            return BLOCKED
        if channel is None:
            permitted = self.authorization.permits_log(topic.decode())
        else:
            permitted = self.authorization.permits(topic.decode(), channel.decode())
        if not permitted:
            return self.fatal(b'E_UNAUTHORIZED AUTH failed for %s on "%s" "%s"' % (
                <bytes>command, topic, channel or b""))
        if channel == b"" and (self.quota is None or not self.quota.limits_publishes()):
            self.may_publish_until = self.auth_expires
        return NEXT

    # -- user quota --

    cdef bint admit(self, Quota quota) except -1:
        """Return whether the user may open another connection; if so, count the connection."""
        if quota is not None and quota is not self.quota:
            if not quota.enter():
                return False
            self.quota = quota
        return True

    cdef bytes no_place(self, Quota quota):
        return b"E_AUTH_FAILED AUTH failed: user %s has reached its max_connections of %d" % (
            quota.user.encode(), quota.max_connections)

    cdef int look_again(self) except -1:
        """Retry a publish that is waiting for quota."""
        self.quota_due = 0
        self.quota.end_wait(self.manager.scheduler.now)
        self.wake()
        return 0

    cdef int quota_changed(self) except -1:
        """Handle a change to the quota of the client's user."""
        return self.look_again() if self.quota_due else 0

    cdef int forget_quota(self) except -1:
        """Stop counting the connection and waiting for quota."""
        if self.quota is None:
            return 0
        if self.quota_due:
            self.look_again()
        self.quota.leave()
        self.quota = None
        return 0
