"""What the HTTP handlers need from the rest of nsqd, as types.

The engine, the rings and the control channel to the master are behind it; HTTP knows none of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nsqcy.config.options import Value
from nsqcy.http.pprof import Inspected
from nsqcy.http.router import Limits
from nsqcy.nsqd.calls import Result
from nsqcy.nsqd.stats.forms import Query
from nsqcy.nsqd.worker.topic_verbs import TopicVerb
from nsqcy.server.http_fastpath import Sink
from nsqcy.server.publisher import UNKNOWN as UNKNOWN

Message = bytes | memoryview
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

    def at_owner(self, verb: TopicVerb[Result]) -> Result:
        """Run a verb where its topic lives; raises Refused."""

    def policy(self, topic: str, channel: str) -> dict[str, Any]:
        """What holds for a topic, or for one of its channels, and who has said so; both need not
        exist. No channel: ""."""

    def set_policy(self, topic: str, channel: str, values: dict[str, Any] | None) -> None:
        """Set keys, or take them back (a key's None, or None for all); it holds everywhere, and
        outlives nsqd, when this returns. Raises BadPolicy."""

    def forget_policies(self, topic: str, channel: str = "") -> None:
        """Drop the policies of a deleted topic and its channels, or of one channel."""

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
