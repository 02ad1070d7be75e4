from collections.abc import Callable
from typing import final

from nsqcy.base.core import Percentiles
from nsqcy.channels.events import Events
from nsqcy.storage.block_pool import BlockPool

class SchedulerState:
    now: int
    wall: int
    mem_queue_size: int
    max_msg_timeout: int
    topology_aware: bool
    publish_once: Callable[..., None] | None
    @property
    def percentiles(self) -> Percentiles: ...
    @property
    def events(self) -> Events | None: ...
    def __init__(
        self,
        pool: BlockPool,
        *,
        mem_queue_size: int,
        max_msg_timeout: int,
        topology_aware: bool = False,
        percentiles: Percentiles | None = None,
        events: Events | None = None,
        seed: int = 1,
    ) -> None: ...

@final
class Discarded: ...
