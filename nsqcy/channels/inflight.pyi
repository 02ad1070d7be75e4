from nsqcy.channels.deferral import Deferral

class InFlight(Deferral):
    @property
    def in_flight_count(self) -> int: ...
