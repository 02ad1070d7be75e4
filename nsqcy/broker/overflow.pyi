from nsqcy.broker.checkpoint import Checkpoints

class OverflowLog(Checkpoints):
    @property
    def oldest_pending(self) -> int: ...
