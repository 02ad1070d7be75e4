"""A worker's topics and sessions without the worker process: no log, no negotiation."""

from types import SimpleNamespace
from typing import NoReturn

from nsqcy.base.ids import IdSource
from nsqcy.broker.shard import Shard
from nsqcy.channels.scheduler_state import SchedulerState
from nsqcy.ipc.mesh import Mesh
from nsqcy.protocol.session_manager import SessionManager
from nsqcy.storage.block_pool import BlockPool

SECOND = 1_000_000_000


def refuse(*_: object) -> NoReturn:
    raise NotImplementedError


def make_core(
    msg_timeout: int = 60 * SECOND, mesh: Mesh | None = None, index: int = 0
) -> SessionManager:
    options = SimpleNamespace(
        max_input_bytes=1 << 30,
        max_msg_size=1 << 20,
        max_body_size=5 << 20,
        max_rdy_count=2500,
        max_req_timeout=3600 * SECOND,
        max_defer_timeout=0,
        max_channel_consumers=0,
        msg_timeout=msg_timeout,
        output_buffer_timeout=SECOND // 4,
        tls_required=0,
    )
    scheduler = SchedulerState(
        BlockPool(1 << 40), mem_queue_size=1 << 40, max_msg_timeout=900 * SECOND
    )
    shard = Shard(scheduler=scheduler, ids=IdSource(bytearray(8), index), io=None, data_path="")
    return SessionManager(
        shard=shard,
        mesh=mesh,
        index=index,
        options=options,
        negotiate=refuse,
        ask_placement=refuse,
        log=SimpleNamespace(error=print, info=print, warn=print),
    )
