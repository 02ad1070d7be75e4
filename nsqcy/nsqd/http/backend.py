"""The interface between the HTTP handlers and the rest of nsqd.

The engine, the rings and the control channel to the master are behind it; HTTP knows none of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nsqcy.http.pprof import Inspected
from nsqcy.nsqd.calls import Result
from nsqcy.nsqd.master.verbs import MasterVerb
from nsqcy.nsqd.stats.forms import Query
from nsqcy.nsqd.worker.topic_verbs import TopicVerb
from nsqcy.server.http_fastpath import Sink
from nsqcy.server.publisher import UNKNOWN as UNKNOWN

Message = bytes | memoryview
Done = Callable[[str | None], None]


class Backend(Inspected, Protocol):
    """`publish` is called from the loop and must not block; every other call is made in its own
    greenlet and may block.

    An exception is answered with 500 INTERNAL_ERROR; NOT_WRITTEN, from any process, with 503 and
    its text; and with 503 UNREACHABLE if a required worker is gone or does not answer.
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

        `done` is called exactly once, now or later, from the hub or from a greenlet: with None when
        accepted, with the durability of the request and the topic; with the reason if none was
        published (a TCP error with its code, unless it is E_PUB_FAILED); with UNKNOWN if the result
        is unknown. The bodies must not change after the call.
        """

    def sink(self, topic: str, headers: bytes = b"") -> Sink | None:
        """Return a fast path that publishes to the topic as `publish` does, for publishes that need
        neither a wait nor a delay; None if there is none."""

    def at_owner(self, verb: TopicVerb[Result]) -> Result:
        """Run a verb in the worker of its topic. Raises Refused."""

    def at_master(self, verb: MasterVerb[Result]) -> Result:
        """Run a verb in the master."""

    def policy(self, topic: str, channel: str) -> dict[str, Any]:
        """Return the policy of a topic or of one of its channels, with the origin of each value;
        neither needs to exist. No channel: ""."""

    def stats(self, query: Query) -> bytes:
        """Return the page of /stats in the requested format."""

    def metrics(self, accept: str, accept_encoding: str) -> tuple[str, bool, bytearray]:
        """Return the page of /metrics in a format that these headers accept: content type, whether
        it is compressed by gzip, and the page."""

    def health(self) -> str:
        """Return `OK`, or `NOK - ` and the reason."""

    def reasons(self) -> list[str]:
        """Return the reasons why nsqd is not ready for clients, one a line; empty if it is."""

    def live(self) -> str | None:
        """Return None if nsqd is alive, ready or not; otherwise the reason."""

    def info(self) -> dict[str, Any]:
        """Return the object of /info, with its keys in order."""
