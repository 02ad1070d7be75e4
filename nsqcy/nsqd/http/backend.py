"""The interface between the HTTP handlers and the rest of nsqd.

It hides the engine, the rings and the control channel to the master from HTTP.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nsqcy.config.publish_limits import PublishLimits
from nsqcy.http.parser import Bytes
from nsqcy.http.pprof import Inspected
from nsqcy.nsqd.process_calls import Result
from nsqcy.nsqd.process_messages.master_verbs import MasterVerb
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.process_messages.topic_verbs import TopicVerb
from nsqcy.server.core import UNKNOWN as UNKNOWN
from nsqcy.server.core import BodyBatch
from nsqcy.server.http_fastpath import Sink

Message = bytes | memoryview
Done = Callable[[str | None], None]


class Backend(Inspected, Protocol):
    """`publish` is called from the loop and must not block. Every other call runs in its own
    greenlet and may block.

    If a call raises an exception, the HTTP response is 500 INTERNAL_ERROR. For NOT_WRITTEN from any
    process, it is 503 with that text; if a required worker has exited or does not answer, it is 503
    UNREACHABLE.
    """

    def publish(
        self,
        topic: str,
        bodies: Sequence[Message] | BodyBatch,
        delay_ms: int,
        durability: str,
        done: Done,
        headers: bytes = b"",
    ) -> None:
        """Publish all of `bodies`, each with these headers, and create the topic if necessary.
        Without bodies, only create the topic.

        `done` is called exactly once, now or later, from the hub or from a greenlet. Its argument
        is None if the messages were accepted with the durability that the request and the topic
        require; UNKNOWN if the result is unknown; or the reason if no message was published (a TCP
        error with its code, unless the code is E_PUB_FAILED). The bodies must not change after the
        call.
        """

    def limits_of(self, topic: str) -> PublishLimits:
        """Return the publish limits of a topic, which need not exist."""

    def sink(self, topic: str, headers: bytes = b"") -> Sink | None:
        """Return a fast path, with the effect of `publish`, for publishes to the topic that need
        neither a wait nor a delay. None if there is no fast path."""

    def at_owner(self, verb: TopicVerb[Result]) -> Result:
        """Run a verb in the topic's worker. Raises Refused."""

    def at_master(self, verb: MasterVerb[Result]) -> Result:
        """Run a verb in the master."""

    def policy(self, topic: str, channel: str) -> dict[str, Any]:
        """Return the policy of a topic or channel, with the origin of each value. Neither the topic
        nor the channel needs to exist. `channel` is "" for the topic's policy."""

    def stats(self, query: Query) -> Bytes:
        """Return the /stats page in the requested format."""

    def metrics(self, accept: str, accept_encoding: str) -> tuple[str, bool, Bytes]:
        """Return the /metrics page in a format that these headers accept: its content type, whether
        it is gzip-compressed, and the page itself."""

    def health(self) -> str:
        """Return `OK`, or `NOK - ` and the reason."""

    def reasons(self) -> list[str]:
        """Return the reasons why nsqd is not ready for clients, one per line; empty if it is
        ready."""

    def live(self) -> str | None:
        """Return None if nsqd is alive, even if it is not ready; otherwise, return the reason."""

    def info(self) -> dict[str, Any]:
        """Return the /info object, with its keys in order."""
