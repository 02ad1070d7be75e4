from collections.abc import Mapping

from nsqcy.broker.topic import Topic
from nsqcy.broker.topic_host import TopicHost

class Scheduler(TopicHost):
    @property
    def topics(self) -> Mapping[bytes, Topic]: ...
    def settle(self) -> None: ...
    def run_turn(self, now: int, wall: int) -> int: ...
