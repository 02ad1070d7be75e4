"""The record of actions: who did what, when and where, and the result.

Owns the latest actions of this process, a limited number in memory, and their log lines.
Independent of what an action does.
"""

import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from nsqcy.errors import HttpError
from nsqcy.http.router import Request
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.names import one_line

MAX_ENTRIES = 1000
DONE = "done"


class Entry(NamedTuple):
    """One action. time: nanoseconds since 1970. node: empty if it applies to all nodes. result:
    `done`, a warning, or the error. key: of messages; empty if it applies to all keys."""

    time: int
    user: str
    peer: str
    action: str
    topic: str
    channel: str
    node: str
    result: str
    key: str = ""


class Audit:
    """The latest actions. Thread-safe."""

    def __init__(
        self, log: Lines, user_of: Callable[[Request], str], clock: Callable[[], int]
    ) -> None:
        """clock: returns nanoseconds since 1970."""
        self._log = log
        self._user_of = user_of
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque(maxlen=MAX_ENTRIES)

    def add(self, request: Request, action: str, given: Mapping[str, Any], result: str) -> None:
        """Record an action. given: its arguments by name."""
        topic, channel, node = (str(given.get(each, "")) for each in ("topic", "channel", "node"))
        peer = request.peer.rpartition(":")[0].strip("[]")
        user = self._user_of(request)
        key = one_line(str(given.get("key", "")))
        entry = Entry(self._clock(), user, peer, action, topic, channel, node, result, key)
        with self._lock:
            self._entries.append(entry)
        target = "/".join(filter(None, (topic, channel))) + (f" key {key}" if key else "")
        events.action(
            self._log,
            target,
            user or "an unnamed user",
            action=action,
            topic=topic,
            channel=channel,
            node=node,
            user=user,
            peer=peer,
            result=result,
        )

    def latest(self) -> Sequence[Entry]:
        """Return the actions, the latest first."""
        with self._lock:
            return list(reversed(self._entries))


class Recorder(Protocol):
    @property
    def audit(self) -> Audit: ...


class Finished(Protocol):
    @property
    def cluster(self) -> Any: ...


App = TypeVar("App", bound=Recorder)
Result = TypeVar("Result", bound=Finished)
P = ParamSpec("P")


def audited(
    action: Callable[Concatenate[App, Request, P], Result],
) -> Callable[Concatenate[App, Request, P], Result]:
    """Record each call of an action and its result. The name is that of the argument `action` if
    there is one, otherwise the function's."""
    signature = inspect.signature(action)

    @wraps(action)
    def run(app: App, request: Request, /, *args: P.args, **named: P.kwargs) -> Result:
        given = signature.bind(app, request, *args, **named).arguments
        name = str(given.get("action") or action.__name__)
        try:
            done = action(app, request, *args, **named)
        except HttpError as error:
            app.audit.add(request, name, given, error.message)
            raise
        app.audit.add(request, name, given, done.cluster.warning("; ") or DONE)
        return done

    return run
