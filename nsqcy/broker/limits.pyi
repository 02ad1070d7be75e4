from nsqcy.broker.fan_out import FanOut

class Limits(FanOut):
    @property
    def dropped_count(self) -> int: ...
