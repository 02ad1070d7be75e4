from collections.abc import Callable, Sequence

from nsqcy.channels.consumer import Waiter
from nsqcy.protocol.connection import Transport
from nsqcy.protocol.session_manager import SessionManager
from nsqcy.server.body_batch import BodyBatch
from nsqcy.server.http_fastpath import Sink

NO_ROOM: str
UNKNOWN: str

class Callback(Waiter): ...

class AnswerTransport(Transport):
    def __new__(cls) -> AnswerTransport: ...

class TopicSink(Sink): ...

class Publisher:
    def __init__(self, manager: SessionManager) -> None: ...
    @property
    def manager(self) -> SessionManager: ...
    def publish(
        self,
        key: bytes,
        bodies: Sequence[bytes | memoryview] | BodyBatch,
        delay_ms: int,
        durability: str,
        done: Callable[[str | None], None],
        headers: bytes = b"",
    ) -> None: ...
    def publish_once(
        self,
        key: bytes,
        chunk: tuple[bytes, int, int],
        messages: Sequence[tuple[bytes, bytes]],
        durability: str,
        done: Callable[[str | None], None],
    ) -> None: ...
    def sink(self, key: bytes, enter: Callable[[], object], headers: bytes = b"") -> TopicSink: ...
    def placed(self, key: bytes) -> None: ...
