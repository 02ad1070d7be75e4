"""What stands before the routes of a daemon with a file of users: who is nobody, or may not do what
he asks for, is told so before his body is read.

Somebody says who he is with a token, as Bearer or as the password of Basic, or by his certificate.
"""

import time
from collections.abc import Callable, Sequence

from nsqcy.gotext import json_bytes
from nsqcy.lines import Lines
from nsqcy.users.failures import Failures
from nsqcy.users.known import Known
from nsqcy.users.user import User
from nsqcy.web.authorization import basic, bearer
from nsqcy.web.http_protocol import JSON, PLAIN, Head, Reply
from nsqcy.web.router import Need, Route

UNAUTHORIZED, FORBIDDEN, TOO_MANY = "UNAUTHORIZED", "FORBIDDEN", "TOO_MANY_FAILURES"


class Gate:
    """Refuses; the log has who was refused, and never what he has shown."""

    def __init__(
        self,
        known: Known,
        realm: str,
        log: Lines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known = known
        self._challenge = ("WWW-Authenticate", f'Bearer realm="{realm}"')
        self._log = log
        self._failures = Failures(clock)

    def admits(self, route: Route, head: Head, certificate_names: Sequence[str]) -> bool:
        """Whether there is no refusal; nothing is counted, and nothing is logged."""
        user = self._user(head, certificate_names)
        return user is not None and may(user, route.need, head.params or {})

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
            return None
        self._log.warn(
            f"http: {user.name} may not {route.method} {route.path} ({peer})",
            event="http_forbidden",
            user=user.name,
            method=route.method,
            path=route.path,
            peer=peer,
        )
        return _reply(route, 403, FORBIDDEN)

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
