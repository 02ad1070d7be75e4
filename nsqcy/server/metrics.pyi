from collections.abc import Callable
from typing import Any, TypeVar, final

from nsqcy.broker.shard import Shard

_Result = TypeVar("_Result")

TOPIC_NAMES: tuple[str, ...]
CHANNEL_NAMES: tuple[str, ...]

def bounds(what: str) -> tuple[float, ...]: ...

@final
class Exposition:
    def __new__(
        cls,
        shard: Shard,
        limit: int,
        topic_names: tuple[str, ...],
        ages_name: str,
        channel_names: tuple[str, ...],
    ) -> Exposition: ...
    def go_on(self, maximum: int) -> bool: ...
    def size(self, family: int) -> int: ...
    def take(self, family: int, put: Callable[[memoryview], _Result]) -> _Result: ...
    def summed(self) -> dict[str, dict[str, Any]]: ...
