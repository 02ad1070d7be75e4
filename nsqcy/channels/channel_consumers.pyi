from collections.abc import Sequence

from nsqcy.channels.consumer import Consumer
from nsqcy.channels.message_events import MessageEvents

class ChannelConsumers(MessageEvents):
    @property
    def consumers(self) -> Sequence[Consumer]: ...
