from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, final, type_check_only

from nsqcy.client.mailbox import Mailbox
from nsqcy.errors import NsqError

@type_check_only
class FlowControl(Protocol):
    @property
    def calm(self) -> bool: ...
    def result(self, outcome: int) -> None: ...
    def delay_of(self, attempts: int) -> int: ...
    @property
    def keeps_dead_letters(self) -> bool: ...
    def keep(self, message: Message, reason: str) -> None: ...

OK_FRAME: tuple[int, bytes]

class AlreadyAnswered(NsqError):
    """The message has already been finished or requeued."""

class ProtocolError(NsqError):
    """nsqd sent data that violates NSQ's protocol. The connection is closed."""

class Message:
    """A message that nsqd has delivered: finish or requeue it, once.

    If the connection is lost, the answer is dropped and nsqd redelivers the message.
    """

    def __init__(self, *args: object, **kwargs: object) -> None: ...
    @property
    def id(self) -> bytes:
        """16 hexadecimal digits, unique per nsqd."""

    @property
    def body(self) -> bytes:
        """Content of the message, as published."""

    @property
    def timestamp(self) -> int:
        """Publish time according to nsqd's clock, in nanoseconds since 1970."""

    @property
    def attempts(self) -> int:
        """Number of deliveries, including this one."""

    @property
    def nsqd_address(self) -> str:
        """`host:port` of the nsqd that delivered the message."""

    @property
    def topic(self) -> str:
        """The topic from which the message was delivered."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers; empty unless the consumer has the `headers` option."""

    def finish(self) -> None:
        """Finish the message: report to nsqd that it has been processed. Raises AlreadyAnswered."""

    def requeue(
        self, delay: float | None = None, *, time_ms: int | None = None, backoff: bool = True
    ) -> None:
        """Requeue the message: nsqd redelivers it after `delay` seconds or `time_ms` milliseconds.

        Without either, the delay is the consumer's `requeue_delay`, which grows with the attempts.
        With `backoff`, the consumer slows down. Raises AlreadyAnswered, and ValueError for a delay
        that is negative or not a number.
        """

    def dead_letter(self, reason: str = "") -> None:
        """Move the message to the dead-letter topic of the channel's policy, with this reason.

        nsqd does this at once; the message is always in exactly one topic. A consumer with the
        option `dead_letter_topic` publishes the message there instead, and then finishes it. If the
        policy has no topic, nsqd requeues the message, and `on_error` gets its error. Raises
        AlreadyAnswered, and Error if the nsqd has no dead letters and the consumer no topic.
        """

    def touch(self) -> None:
        """Restart the message's timeout. Raises AlreadyAnswered."""

    def enable_async(self) -> None:
        """Announce that the message will be answered after its handler has returned."""

    def is_async(self) -> bool:
        """Return whether `enable_async` was called."""

    def has_responded(self) -> bool:
        """Return whether the message was finished or requeued."""

    def is_lost(self) -> bool:
        """Return whether the message's connection is closed: nsqd redelivers the message, unless it
        has received the answer."""

class Headered(Message): ...

@final
class Codec:
    address: str
    topic: str
    dead_letters: bool
    touched: bool
    in_flight: int
    delivered: int
    wake: Callable[[], object] | None
    flow: FlowControl | None
    mailbox: Mailbox | None
    def __new__(cls, address: str, longest: int = 0) -> Codec: ...
    def expect_headers(self) -> None: ...
    def feed(
        self, data: bytes, maximum: int = -1
    ) -> tuple[list[Message], list[tuple[int, bytes]]]: ...
    def rest(self) -> bytes: ...
    def take(self) -> bytes: ...
    @property
    def pending(self) -> int: ...
    def write(self, command: bytes) -> None: ...
    def settle(self, message: Message, outcome: int, delay: int, line: bytes | None) -> None: ...
    def publish(self, head: bytes, body: bytes) -> None: ...
    def close(self) -> None: ...

class Publish:
    """A publish that is waiting for nsqd's response. The producer's `on_retry` receives this
    object."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def head(self) -> bytes: ...
    @property
    def body(self) -> bytes:
        """The body of the command: a message, or a batch of messages."""

    @property
    def waiter(self) -> Any: ...
    deadline: float
    tries: int
    error: NsqError | None
    is_abandoned: bool
    route: bytes | None
    def __init__(
        self, topic: str, head: bytes, body: bytes, waiter: Any, deadline: float = ...
    ) -> None: ...
    def done(self, error: NsqError | None) -> None: ...
    def is_awaited(self) -> bool: ...

def finish(messages: Iterable[Message]) -> None:
    """Finish several messages with one write per nsqd. Raises AlreadyAnswered."""

def message_body(data: object) -> bytes: ...
def headered_body(data: object, headers: Mapping[str, str] | None) -> bytes: ...
def headered_mpub_body(messages: Iterable[object], headers: Mapping[str, str] | None) -> bytes: ...
def mpub_body(messages: Iterable[object]) -> bytes: ...
