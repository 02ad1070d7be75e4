"""What the HTTP handlers need from the rest of nsqd, as types.

The engine, the rings and the control channel to the master are behind it; HTTP knows none of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from nsqcy.config.options import Value
from nsqcy.http.pprof import Inspected
from nsqcy.http.router import Limits
from nsqcy.nsqd.stats.forms import Query
from nsqcy.nsqd.worker.peek import Look
from nsqcy.nsqd.worker.positions import Place
from nsqcy.server.http_fastpath import Sink
from nsqcy.server.publisher import UNKNOWN as UNKNOWN

Message = bytes | memoryview
Outcome = Literal["ok", "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"]
Cancelled = Outcome | Literal["MESSAGE_NOT_FOUND", "NOT_WRITTEN"]
Upcoming = dict[str, Any] | Literal["TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"]
Peeked = bytes | Literal["TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "NOT_READ"]
Redriven = int | Literal["TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"]
Sought = int | Literal["TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "CHANNEL_EXISTS"]
Done = Callable[[str | None], None]


class Backend(Inspected, Protocol):
    """`publish` is called from the loop and must not block; each other call is made in a greenlet
    of its own and may.  An exception is answered with 500 INTERNAL_ERROR; one that says
    NOT_WRITTEN, from whichever process, with 503 and that; and with 503 UNREACHABLE if a worker
    that is needed is gone, or does not answer.
    """

    def publish(
        self,
        topic: str,
        bodies: Sequence[Message],
        delay_ms: int,
        durability: str,
        done: Done,
        headers: bytes = b"",
    ) -> None:
        """Publish all of `bodies`, each with these headers, creating the topic; no bodies only
        create it.

        `done` is called exactly once, at once or later, from the hub or from a greenlet: with None
        when accepted, as durable as this and as the topic promises; with the reason when none of
        them is there (an error of TCP with its code, if it is not E_PUB_FAILED); with UNKNOWN when
        nobody can say.  The bodies never change after the call.
        """

    def sink(self, topic: str, headers: bytes = b"") -> Sink | None:
        """Where bodies can be published to the topic as `publish` does it, when that needs neither
        a wait nor a delay; None if there is no such thing."""

    def create_topic(self, name: str) -> bool:
        """Whether it is there now: there may be too many."""

    # The next three answer whether there is such a topic.
    def delete_topic(self, name: str) -> bool: ...
    def empty_topic(self, name: str) -> bool: ...
    def pause_topic(self, name: str, paused: bool) -> bool:
        """The new state is in `nsqd.dat` when this returns."""

    def create_channel(self, topic: str, channel: str) -> Outcome: ...
    def find_channel(self, topic: str, channel: str) -> Outcome:
        """Whether there is such a channel."""

    def delete_channel(self, topic: str, channel: str) -> Outcome: ...
    def empty_channel(self, topic: str, channel: str) -> Outcome: ...
    def pause_channel(self, topic: str, channel: str, paused: bool) -> Outcome: ...

    def seek_channel(self, topic: str, channel: str, place: Place, *, create: bool) -> Sought:
        """Have a channel go on at a place in its topic's log, or create one there. The sequence
        number that it begins with, or why not."""

    def deferred(
        self, topic: str, channel: str, limit: int, after: tuple[int, int] | None
    ) -> Upcoming:
        """The next deferred messages of a channel and the place to go on behind, or why not."""

    def peek(self, topic: str, channel: str, look: Look) -> Peeked:
        """A page of messages as JSON, of a channel or with "" of what the topic has for itself; or
        why not."""

    def redrive(self, topic: str, channel: str, limit: int) -> Redriven:
        """Send messages of a channel back to where they came from, so many at most (0: all)."""

    def cancel_message(self, topic: str, channel: str, id: int) -> Cancelled:
        """Drop a deferred message; `ok` when that is written down."""

    def topic_log(self, topic: str, at: Place | None) -> dict[str, Any] | None:
        """What is known of a topic's log, and which message is at a place; None if there is no such
        topic."""

    def policy(self, topic: str, channel: str) -> dict[str, Any]:
        """What holds for a topic, or for one of its channels, and who has said so; both need not
        exist. No channel: ""."""

    def set_policy(self, topic: str, channel: str, values: dict[str, Any] | None) -> None:
        """Set keys, or take them back (a key's None, or None for all); it holds everywhere, and
        outlives nsqd, when this returns. Raises BadPolicy."""

    def stats(self, query: Query) -> bytes:
        """The page of /stats in the form asked for."""

    def metrics(self, accept: str, accept_encoding: str) -> tuple[str, bool, bytearray]:
        """The page of /metrics in a form that these headers accept: the type of its content,
        whether it is compressed by gzip, and the page."""

    def change_option(self, name: str, value: Value) -> None:
        """Change an option in every process; `Api.options` has the new value when this returns."""

    def drain(self, on: bool, limit: float | None) -> dict[str, Any]:
        """Begin to drain, with a limit in seconds, or end it; its state. No publish is accepted
        any more when this returns, or all are again."""

    def drain_state(self) -> dict[str, Any]:
        """The object of /config/drain."""

    def health(self) -> str:
        """`OK`, or `NOK - ` and the reason."""

    def reasons(self) -> list[str]:
        """Why nsqd is not ready for clients, a line each; nothing if it is."""

    def live(self) -> str | None:
        """None if nsqd lives, ready or not; else what is wrong."""

    def info(self) -> dict[str, Any]:
        """The object of /info, keys in its order."""


class Options(Limits, Protocol):
    """The options HTTP reads beside those of its connections.  Durations are nanoseconds."""

    @property
    def max_msg_size(self) -> int: ...
    @property
    def max_body_size(self) -> int: ...
    @property
    def max_req_timeout(self) -> int: ...
    @property
    def max_defer_timeout(self) -> int: ...
    @property
    def may_peek(self) -> bool:
        """Whether messages may be looked at over HTTP, which knows of no AUTH."""
