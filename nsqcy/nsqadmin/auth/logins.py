"""Users from --auth-file, authenticated by session cookie, token, or name and password.

Owns the users, their sessions and the related log lines. The log never contains secrets or unknown
names, because an unknown name may be a password typed into the wrong field. Without --auth-file
this module is unused, and NSQ's ACL header decides. Thread-safe.
"""

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address
from typing import NamedTuple, TypeGuard

from nsqcy.errors import ConfigError, HttpError, Stop
from nsqcy.http.authorization import basic
from nsqcy.http.parser import Head
from nsqcy.http.router import Request
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.users import credentials
from nsqcy.users.failures import Failures
from nsqcy.users.hashes import NOBODY
from nsqcy.users.user import User, Users

MAX_SESSIONS = 1_000
KEY_BYTES = 32


class _Session(NamedTuple):
    user: User
    used: float


class Sessions:
    """Sessions of logged-in browsers, by the hash of their secret key."""

    def __init__(self, max_idle: float, clock: Callable[[], float], *, renews: bool = True) -> None:
        """max_idle: seconds of inactivity after which a session ends; if sessions do not renew,
        their lifetime in seconds."""
        self._renews = renews
        self._max_idle = max_idle
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()  # least recently used first

    def begin(self, user: User) -> str:
        """Begin a session and return its key. At the limit, the least recently used session
        ends."""
        key = secrets.token_urlsafe(KEY_BYTES)
        with self._lock:
            self._sessions[_hash(key)] = _Session(user, self._clock())
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return key

    def count(self) -> int:
        """Return the number of active sessions."""
        oldest = self._clock() - self._max_idle
        with self._lock:
            return sum(each.used >= oldest for each in self._sessions.values())

    def find(self, key: str) -> User | None:
        """Return the user of an active session. Reset the idle time if sessions renew."""
        hashed, now = _hash(key), self._clock()
        with self._lock:
            found = self._sessions.get(hashed)
            if found is None:
                return None
            if now - found.used > self._max_idle:
                del self._sessions[hashed]
                return None
            if self._renews:
                self._sessions[hashed] = found._replace(used=now)
                self._sessions.move_to_end(hashed)
            return found.user

    def end(self, key: str) -> None:
        with self._lock:
            self._sessions.pop(_hash(key), None)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


COOKIE, OIDC_COOKIE = "nsqadmin_session", "nsqadmin_oidc"
MAX_VERIFIED = 1_000


class TooMany(HttpError):
    """Too many failed attempts. The next attempt is permitted in `wait` seconds."""

    def __init__(self, wait: float) -> None:
        super().__init__(429, "TOO_MANY_FAILURES")
        self.wait = wait


def read(path: str) -> tuple[Users, list[str]]:
    """Return the users in a file who may log in, and warnings. Raises ConfigError."""
    found, warnings = credentials.read(path)
    ours = {
        name: user for name, user in found.items() if user.role and (user.password or user.token)
    }
    if not ours:
        problem = "no user can log in: no user has both a role and a password or token"
        raise ConfigError(path, None, problem, "role = view or operate")
    return ours, warnings


class Logins:
    """The users, their sessions, and failed attempts to log in."""

    def __init__(
        self,
        path: str,
        session_time: float,
        log: Lines,
        clock: Callable[[], float],
    ) -> None:
        """session_time: seconds of inactivity after which a session ends. Raises ConfigError."""
        self._path = path
        self._log = log
        self._users, warnings = read(path)
        for each in warnings:
            log.warn(each)
        self._sessions = Sessions(session_time, clock)
        # Users of a log-in provider, who are not in the file. Their sessions do not renew, so that
        # the provider must confirm their roles again.
        self._external = Sessions(session_time, clock, renews=False)
        self._failures = Failures(clock)
        # Checking a password is expensive, so passwords are checked one at a time, and a verified
        # password is cached under a keyed hash that is useless outside this process.
        self._checking = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._verified: dict[bytes, User] = {}

    def reload(self) -> None:
        """Reload the file. On failure, log the error and keep the previous users."""
        try:
            found, warnings = read(self._path)
        except Stop as stop:
            events.users_refused(self._log, error=str(stop))
            return
        for each in warnings:
            self._log.warn(each)
        self._users = found
        events.users_reloaded(self._log, users=len(found))

    # Authentication

    def user(self, head: Head) -> User | None:
        """Return the requesting user without expensive checks: only verified passwords count."""
        return self._of_session(head) or self._of_authorization(head)

    def admit(self, request: Request) -> User | None:
        """Return the requesting user; None if there are no credentials. Raises HttpError if they
        are wrong."""
        head = request.head
        user = self.user(head)
        if user is not None or not head.header("Authorization"):
            return user
        address = address_of(request)
        name, password = basic(head)
        if name:
            return self._check(name, password, address)
        raise self._failed("with a token", address)

    def enter(self, request: Request, name: str, password: str) -> str:
        """Log a user in and return the key of the session. Raises HttpError."""
        user = self._check(name, password, address_of(request))
        return self._begin(request, user, self._sessions)

    def enter_external(self, request: Request, user: User) -> str:
        """Log in a user that a log-in provider has authenticated, and return the session's key."""
        return self._begin(request, user, self._external)

    def refuse_external(self, request: Request, reason: str) -> None:
        """Log that a log-in with the provider has failed."""
        whose = f"with OpenID Connect ({reason!r})"
        events.login_failed(self._log, whose, peer=address_of(request))

    def _begin(self, request: Request, user: User, sessions: Sessions) -> str:
        events.login(self._log, user=user.name, role=user.role, peer=address_of(request))
        return sessions.begin(user)

    def sessions(self) -> int:
        """Return the number of active sessions."""
        return self._sessions.count() + self._external.count()

    def leave(self, head: Head) -> None:
        if key := cookie(head):
            self._sessions.end(key)
            self._external.end(key)

    def _of_session(self, head: Head) -> User | None:
        key = cookie(head)
        if not key:
            return None
        return self._current(self._sessions.find(key)) or self._external.find(key)

    def _of_authorization(self, head: Head) -> User | None:
        scheme, _, text = head.header("Authorization").partition(" ")
        if scheme.lower() == "bearer":
            return self._of_token(text.strip())
        name, password = basic(head)
        return self._current(self._verified.get(self._fingerprint(name, password)))

    def _current(self, user: User | None) -> User | None:
        """Return the user from the current file, with its current role; None if the user's secrets
        have changed or the user has been removed."""
        now = self._users.get(user.name) if user else None
        if user is None or now is None:
            return None
        return now if (now.password, now.token) == (user.password, user.token) else None

    def _of_token(self, text: str) -> User | None:
        """Return the user with this token. Compares all tokens, so that the time is constant."""
        found = [each for each in self._users.values() if each.token and each.token.is_of(text)]
        return found[0] if found else None

    def _check(self, name: str, password: str, address: str) -> User:
        """Return the user with this name if the password or token is correct. Raises HttpError.

        A failure is counted before the next attempt begins, so that simultaneous attempts do not
        exceed the limit.
        """
        with self._checking:
            if wait := self._failures.wait(address):
                raise TooMany(wait)
            user = self._users.get(name)
            if not _is_right(user, password):
                raise self._failed(f"as {user.name}" if user else "as an unknown user", address)
        if len(self._verified) >= MAX_VERIFIED:
            self._verified = {}
        self._verified[self._fingerprint(name, password)] = user
        return user

    def _fingerprint(self, name: str, password: str) -> bytes:
        text = f"{name}:{password}".encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, "sha256")

    def _failed(self, whose: str, address: str) -> HttpError:
        """Count and log a failed attempt; return the error for the client."""
        if wait := self._failures.add(address):
            return TooMany(wait)
        events.login_failed(self._log, whose, peer=address)
        return HttpError(401, "UNAUTHORIZED")


def _is_right(user: User | None, password: str) -> TypeGuard[User]:
    """Return whether this is the user's password or token. Takes the same time for an unknown
    user."""
    secret = user.password if user else None
    by_password = (secret or NOBODY).is_of(password) and secret is not None
    by_token = user is not None and user.token is not None and user.token.is_of(password)
    return by_password or by_token


def cookie(head: Head, wanted: str = COOKIE) -> str:
    """Return the value of a cookie, by default the session key; empty if there is none."""
    for part in head.header("Cookie").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""


def address_of(request: Request) -> str:
    """Return the address under which failed attempts are counted: the peer's IP, or the last
    X-Forwarded-For address if the peer is a proxy on this machine. The header is not trusted from
    other peers."""
    peer = request.peer.rpartition(":")[0].strip("[]")
    seen = request.head.header("X-Forwarded-For").rpartition(",")[2].strip()
    if not seen:
        return peer
    try:
        return str(ip_address(seen)) if ip_address(peer).is_loopback else peer
    except ValueError:
        return peer
