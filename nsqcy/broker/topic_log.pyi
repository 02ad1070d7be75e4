from collections.abc import Callable
from typing import Any

from nsqcy.broker.checkpoint import Checkpoints
from nsqcy.broker.peek import Peek
from nsqcy.storage.journal import NamedCursor

class TopicLog(Checkpoints):
    def cursor_facts(self) -> list[dict[str, Any]]: ...
    def set_cursor(
        self, name: str, log_id: bytes, seq: int, done: Callable[[str | None], object]
    ) -> None: ...
    def find_cursor(self, name: str) -> NamedCursor | None: ...
    def delete_cursor(self, name: str, done: Callable[[str | None], object]) -> bool: ...
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
