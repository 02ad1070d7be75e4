from typing import Any, final

from nsqcy._channel import Channel
from nsqcy._topic import Shard, Topic

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
    def topic(self, topic: Topic) -> None: ...
    def channel(self, channel: Channel) -> None: ...
    def take(self) -> list[bytes]: ...
    def summed(self) -> dict[str, dict[str, Any]]: ...
