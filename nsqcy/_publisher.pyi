from collections.abc import Callable, Sequence

from nsqcy._channel import Waiter
from nsqcy._http import Sink
from nsqcy._session import Home, Transport

UNKNOWN: str

class Callback(Waiter): ...

class AnswerTransport(Transport):
    def __new__(cls) -> AnswerTransport: ...

class TopicSink(Sink): ...

class Publisher:
    def __init__(self, home: Home) -> None: ...
    @property
    def home(self) -> Home: ...
    def publish(
        self,
        key: bytes,
        bodies: Sequence[bytes | memoryview],
        delay_ms: int,
        durability: str,
        done: Callable[[str | None], None],
    ) -> None: ...
    def sink(self, key: bytes, enter: Callable[[], object]) -> TopicSink: ...
    def placed(self, key: bytes) -> None: ...
