from nsqcy.channels.consumer import Consumer
from nsqcy.channels.redelivery import Redelivery

class Transfer(Consumer): ...

class DeadLettering(Redelivery):
    @property
    def dead_letter_topic(self) -> str: ...
    @property
    def dead_lettered_count(self) -> int: ...
