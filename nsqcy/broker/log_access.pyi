from collections.abc import Callable

from nsqcy.broker.peek import Peek
from nsqcy.broker.retention import Retention

class LogAccess(Retention):
    def log_meta(self) -> bytes: ...
    @property
    def log_bytes(self) -> int: ...
    def seq_at(self, time: int) -> int | None: ...
    def peek(
        self,
        channel: str,
        state: str,
        limit: int,
        after: tuple[int, int] | None,
        max_body: int,
        done: Callable[[str | None], object],
    ) -> Peek: ...
