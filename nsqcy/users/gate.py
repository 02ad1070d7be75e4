"""Authentication and authorization of HTTP requests to a daemon with a users file.

Rejects a request before its body is read. A user authenticates with a token, as Bearer or as the
password of Basic, or with a client certificate.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsqcy.http.authorization import basic, bearer
from nsqcy.http.parser import JSON, PLAIN, Head, Reply
from nsqcy.http.router import Handler, Later, Need, Request, Result, Route
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.users.credentials import Known
from nsqcy.users.failures import Failures
from nsqcy.users.user import User
from nsqcy.util.gotext import json_bytes

if TYPE_CHECKING:  # nsqlookupd has no quotas
    from nsqcy.ipc.core import Quota

UNAUTHORIZED, FORBIDDEN, TOO_MANY = "UNAUTHORIZED", "FORBIDDEN", "TOO_MANY_FAILURES"
QUOTA_REACHED = "QUOTA_REACHED"
SECOND = 1_000_000_000


class Gate:
    """Rejects unauthorized requests. Logs the user or the address, never the credentials."""

    def __init__(
        self,
        known: Known,
        realm: str,
        log: Lines,
        clock: Callable[[], int] = time.monotonic_ns,
        quota: "Callable[[User], Quota | None]" = lambda user: None,
    ) -> None:
        """`quota` returns a user's quota, or None if the user has none."""
        self._known = known
        self._quota = quota
        self._clock = clock
        self._challenge = ("WWW-Authenticate", f'Bearer realm="{realm}"')
        self._log = log
        self._failures = Failures(lambda: clock() / SECOND)

    def admits(self, route: Route, head: Head, certificate_names: Sequence[str]) -> bool:
        """Return whether requests like this one are admitted until the file changes.

        Does not count or log anything.
        """
        user = self._user(head, certificate_names)
        if user is None or not may(user, route.need, head.params or {}):
            return False
        return self._rate(user, route) is None

    def admit(
        self, route: Route, head: Head, peer: str, certificate_names: Sequence[str]
    ) -> Route | Reply:
        """Return the route to take, or the reply that rejects the request."""
        if route.need is Need.NOTHING:
            return route
        user = self._user(head, certificate_names)
        if user is None:
            return self._unknown(route, head, peer)
        if may(user, route.need, head.params or {}):
            if route.reads_user:
                route = replace(route, handler=_with_user(route.handler, user))
            return self._within_quota(user, route, peer)
        events.http_forbidden(
            self._log, user=user.name, method=route.method, path=route.path, peer=peer
        )
        return _reply(route, 403, FORBIDDEN)

    def _within_quota(self, user: User, route: Route, peer: str) -> Route | Reply:
        """Return the route and charge publishes to the quota, or return the reply if the quota is
        used up."""
        quota = self._rate(user, route)
        if quota is None:
            return route
        now = self._clock()
        wait = quota.wait(now)
        if not wait:
            return replace(route, handler=self._charged(route.handler, quota))
        quota.refuse_publish()
        if quota.is_news(now):
            events.quota_reached(self._log, user=user.name, client=peer)
        return _reply(route, 429, QUOTA_REACHED, ("Retry-After", str(-(-wait // SECOND))))

    def _rate(self, user: User, route: Route) -> "Quota | None":
        """Return the quota that limits the user's publishes on this route, if any."""
        quota = self._quota(user) if route.need is Need.PUBLISH else None
        return quota if quota is not None and quota.limits_publishes() else None

    def _charged(self, handler: Handler, quota: "Quota") -> Handler:
        def handle(api: Any, request: Request) -> Result:
            result = handler(api, request)
            if isinstance(result, Later):
                quota.pay(self._clock(), *result.publishes())
            return result

        return handle

    def _user(self, head: Head, certificate_names: Sequence[str]) -> User | None:
        token = bearer(head) or basic(head)[1]
        user = None
        if token:
            user = self._known.of_token(token.encode("utf-8", "surrogateescape"))
        return user or self._known.of_certificate(certificate_names)

    def _unknown(self, route: Route, head: Head, peer: str) -> Reply:
        if not head.header("Authorization"):
            return _reply(route, 401, UNAUTHORIZED, self._challenge)
        wait = self._failures.add(peer.rpartition(":")[0])
        if wait:
            return _reply(route, 429, TOO_MANY, ("Retry-After", str(int(wait) + 1)))
        events.http_unauthorized(self._log, peer=peer)
        return _reply(route, 401, UNAUTHORIZED, self._challenge)


def may(user: User, need: Need, params: dict[str, str]) -> bool:
    """Return whether the user has a permission. The route itself rejects a missing topic."""
    topic = params.get("topic")
    if need is Need.KNOWN:
        return True
    if need is Need.ADMIN_OF_ALL:
        return user.may_administer_all
    if topic is None:
        return True
    if need is Need.PUBLISH:
        return user.may_publish(topic)
    if need is Need.SUBSCRIBE:
        return user.may_operate or user.may_subscribe(topic, params.get("channel", ""))
    if need is Need.SUBSCRIBE_ALL:
        return user.may_operate or user.may_subscribe(topic, "")
    return user.may_administer(topic)


def _with_user(handler: Handler, user: User) -> Handler:
    def handle(api: Any, request: Request) -> Result:
        request.user = user
        return handler(api, request)

    return handle


def _reply(route: Route, status: int, code: str, *headers: tuple[str, str]) -> Reply:
    if route.plain:
        return Reply(status, code.encode(), PLAIN, nsq=False, headers=list(headers))
    return Reply(status, json_bytes({"message": code}), JSON, headers=list(headers))
