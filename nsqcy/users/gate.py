"""What stands before the routes of a daemon with a file of users: who is nobody, or may not do what
he asks for, is told so before his body is read.

Somebody says who he is with a token, as Bearer or as the password of Basic, or by his certificate.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nsqcy.gotext import json_bytes
from nsqcy.lines import Lines
from nsqcy.users.failures import Failures
from nsqcy.users.known import Known
from nsqcy.users.user import User
from nsqcy.web.authorization import basic, bearer
from nsqcy.web.http_protocol import JSON, PLAIN, Head, Reply
from nsqcy.web.router import Need, Request, Route

if TYPE_CHECKING:  # nsqlookupd has no quotas
    from nsqcy._quota import Quota

UNAUTHORIZED, FORBIDDEN, TOO_MANY = "UNAUTHORIZED", "FORBIDDEN", "TOO_MANY_FAILURES"
QUOTA_REACHED = "QUOTA_REACHED"
SECOND = 1_000_000_000


class Gate:
    """Refuses; the log has who was refused, and never what he has shown."""

    def __init__(
        self,
        known: Known,
        realm: str,
        log: Lines,
        clock: Callable[[], int] = time.monotonic_ns,
        quota: "Callable[[User], Quota | None]" = lambda user: None,
    ) -> None:
        """quota: a user's, if he has one."""
        self._known = known
        self._quota = quota
        self._clock = clock
        self._challenge = ("WWW-Authenticate", f'Bearer realm="{realm}"')
        self._log = log
        self._failures = Failures(lambda: clock() / SECOND)

    def admits(self, route: Route, head: Head, certificate_names: Sequence[str]) -> bool:
        """Whether there is no refusal, and will be none until the file changes; nothing is counted,
        and nothing is logged."""
        user = self._user(head, certificate_names)
        if user is None or not may(user, route.need, head.params or {}):
            return False
        quota = self._quota(user) if route.need is Need.PUBLISH else None
        return quota is None or not quota.limits_publishes()

    def refusal(
        self, route: Route, head: Head, peer: str, certificate_names: Sequence[str]
    ) -> Reply | None:
        """What is answered instead of by the route; None: let him in."""
        if route.need is Need.NOTHING:
            return None
        user = self._user(head, certificate_names)
        if user is None:
            return self._unknown(route, head, peer)
        if may(user, route.need, head.params or {}):
            return self._over_quota(user, route, peer)
        self._log.warn(
            f"http: {user.name} may not {route.method} {route.path} ({peer})",
            event="http_forbidden",
            user=user.name,
            method=route.method,
            path=route.path,
            peer=peer,
        )
        return _reply(route, 403, FORBIDDEN)

    def charge(self, request: Request, messages: int, size: int) -> None:
        """Whoever was let in publishes so many messages of so many bytes."""
        user = self._user(request.head, request.certificate_names)
        quota = None if user is None else self._quota(user)
        if quota is not None:
            quota.pay(self._clock(), messages, size)

    def _over_quota(self, user: User, route: Route, peer: str) -> Reply | None:
        quota = self._quota(user) if route.need is Need.PUBLISH else None
        if quota is None:
            return None
        now = self._clock()
        wait = quota.wait(now)
        if not wait:
            return None
        if quota.is_news(now):
            self._log.warn(
                f"AUTH: user {user.name} publishes more than its quota, and is refused",
                event="quota_reached",
                user=user.name,
                client=peer,
            )
        return _reply(route, 429, QUOTA_REACHED, ("Retry-After", str(-(-wait // SECOND))))

    def _user(self, head: Head, certificate_names: Sequence[str]) -> User | None:
        token = bearer(head) or basic(head)[1]
        user = None
        if token:
            user = self._known.of_token(token.encode("utf-8", "surrogateescape"))
        return user or self._known.of_certificate(certificate_names)

    def _unknown(self, route: Route, head: Head, peer: str) -> Reply:
        if not head.header("Authorization"):
            return _reply(route, 401, UNAUTHORIZED, self._challenge)
        address = peer.rpartition(":")[0]
        wait = self._failures.wait(address)
        if wait:
            return _reply(route, 429, TOO_MANY, ("Retry-After", str(int(wait) + 1)))
        self._failures.add(address)
        self._log.warn(
            f"http: no user has what {peer} has shown", event="http_unauthorized", peer=peer
        )
        return _reply(route, 401, UNAUTHORIZED, self._challenge)


def may(user: User, need: Need, params: dict[str, str]) -> bool:
    """Without the name of a topic nothing happens to any: that is for the route to say."""
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
    return user.may_administer(topic)


def _reply(route: Route, status: int, code: str, *headers: tuple[str, str]) -> Reply:
    if route.plain:
        return Reply(status, code.encode(), PLAIN, nsq=False, headers=list(headers))
    return Reply(status, json_bytes({"message": code}), JSON, headers=list(headers))
