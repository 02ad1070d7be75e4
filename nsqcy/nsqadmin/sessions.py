"""Who is logged in: a table in memory, bounded, that forgets with time.

Time is given. Called from several threads.
"""

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from nsqcy.users.user import User

SESSIONS_MOST = 1_000
KEY_BYTES = 32


class _Session(NamedTuple):
    user: User
    used: float


class Sessions:
    """Browsers that have logged in, by a key that only they have: here is but its hash."""

    def __init__(self, idle_most: float, clock: Callable[[], float]) -> None:
        """`idle_most`: seconds without use after which a session is over."""
        self._idle_most = idle_most
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()  # the last used one is last

    def begin(self, user: User) -> str:
        """The key of a new session. Beyond the most there may be, the longest unused one ends."""
        key = secrets.token_urlsafe(KEY_BYTES)
        with self._lock:
            self._sessions[_hash(key)] = _Session(user, self._clock())
            while len(self._sessions) > SESSIONS_MOST:
                self._sessions.popitem(last=False)
        return key

    def count(self) -> int:
        """Of those that are not over."""
        oldest = self._clock() - self._idle_most
        with self._lock:
            return sum(each.used >= oldest for each in self._sessions.values())

    def find(self, key: str) -> User | None:
        """The user of a session that is not over; this is a use of it."""
        hashed, now = _hash(key), self._clock()
        with self._lock:
            found = self._sessions.get(hashed)
            if found is None:
                return None
            if now - found.used > self._idle_most:
                del self._sessions[hashed]
                return None
            self._sessions[hashed] = found._replace(used=now)
            self._sessions.move_to_end(hashed)
            return found.user

    def end(self, key: str) -> None:
        with self._lock:
            self._sessions.pop(_hash(key), None)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
