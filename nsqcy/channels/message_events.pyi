from nsqcy.base.quantile import Latency
from nsqcy.channels.inflight import InFlight

class MessageEvents(InFlight):
    @property
    def latency(self) -> Latency | None: ...
