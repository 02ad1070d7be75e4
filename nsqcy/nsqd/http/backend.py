"""What the HTTP handlers need from the rest of nsqd, as types.

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

    def at_master(self, verb: MasterVerb[Result]) -> Result:
        """Run a verb in the master."""

    def policy(self, topic: str, channel: str) -> dict[str, Any]:
        """What holds for a topic, or for one of its channels, and who has said so; both need not
        exist. No channel: ""."""

    def stats(self, query: Query) -> bytes:
        """The page of /stats in the form asked for."""

    def metrics(self, accept: str, accept_encoding: str) -> tuple[str, bool, bytearray]:
        """The page of /metrics in a form that these headers accept: the type of its content,
        whether it is compressed by gzip, and the page."""

    def health(self) -> str:
        """`OK`, or `NOK - ` and the reason."""

    def reasons(self) -> list[str]:
        """Why nsqd is not ready for clients, a line each; nothing if it is."""

    def live(self) -> str | None:
        """None if nsqd lives, ready or not; else what is wrong."""

    def info(self) -> dict[str, Any]:
        """The object of /info, keys in its order."""
