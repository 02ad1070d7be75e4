"""AUTH with the users file, on the hub: by token, or by the name in a verified certificate.

If auth servers are configured, they check the clients that are not in the file. This module sends
no queries, and none of its texts contains a client's secret.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import gevent

from nsqcy.ipc.core import Quota
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.auth.authorizations import Authorization
from nsqcy.protocol.core import Session
from nsqcy.users.credentials import Known
from nsqcy.users.quotas import Quotas
from nsqcy.users.user import PUBLISH, SUBSCRIBE, User

TTL = 60  # seconds for which permissions granted at connect time remain valid
_MARK = b"user "  # no auth server response begins with this


class UserGrant:
    """One of a user's permissions, for all topics and channels on which the file grants it."""

    __slots__ = ("_permission", "_user")

    def __init__(self, user: User, permission: str) -> None:
        self._user = user
        self._permission = permission

    def covers(self, permission: str, topic: str, channel: str) -> bool:
        if permission != self._permission:
            return False
        if permission == PUBLISH:
            return self._user.may_publish(topic)
        return self._user.may_subscribe(topic, channel)


def authorization(user: User, quota: Quota | None = None) -> Authorization:
    """Return a user's TCP permissions and quota."""
    held = [name for name in (PUBLISH, SUBSCRIBE) if getattr(user, name)]
    return Authorization(
        source=_MARK + user.name.encode(),
        ttl=TTL,
        identity=user.name,
        identity_url="",
        grants=tuple(UserGrant(user, name) for name in held),
        quota=quota,
    )


class Asked(Protocol):
    """Queries auth servers."""

    def ask(self, session: Session) -> None: ...
    def restore(self, source: bytes) -> Authorization: ...


class FileAuthorizer:
    """Authorizes a client by its token in the file, then by its certificate in the file, then by
    its secret at the auth servers."""

    def __init__(
        self,
        known: Known,
        quotas: Quotas,
        servers: Asked | None,
        enter: Callable[[], object],
        log: Lines,
    ) -> None:
        """enter: called before each call to a session, outside a turn."""
        self._known = known
        self._quotas = quotas
        self._servers = servers
        self._enter = enter
        self._log = log
        self._asking: deque[Session] = deque()
        # Sessions call ask() in the middle of a turn, where they cannot receive the result.
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(lambda: gevent.spawn(self._answer))

    def ask(self, session: Session) -> None:
        """Look up the client's permissions. Calls the session's authorized() or auth_failed()
        later."""
        self._asking.append(session)
        self._wake.send()

    def of_certificate(self, names: Iterable[str]) -> Authorization | None:
        """Return the permissions of a client that has not sent AUTH."""
        user = self._known.of_certificate(names)
        return None if user is None else self._authorization(user)

    def restore(self, source: bytes) -> Authorization:
        """Return the authorization of a client that a different worker has authorized. The file may
        have changed since then."""
        if source.startswith(_MARK):
            name = source[len(_MARK) :].decode()
            return self._authorization(self._known.users.get(name) or User(name))
        assert self._servers is not None
        return self._servers.restore(source)

    def _authorization(self, user: User) -> Authorization:
        return authorization(user, self._quotas.of(user))

    def _answer(self) -> None:
        while self._asking:
            session = self._asking.popleft()
            if not session.closed:
                self._tell(session)

    def _tell(self, session: Session) -> None:
        user = None if session.secret is None else self._known.of_token(session.secret)
        user = user or self._known.of_certificate(session.certificate_names)
        if user is None and session.secret is not None and self._servers is not None:
            self._servers.ask(session)
            return
        self._enter()
        if user is not None:
            session.authorized(self._authorization(user))
            return
        reason = "no user in the --auth-file matches"
        events.auth_refused(self._log, client=session.remote_address, error=reason)
        session.auth_failed()
