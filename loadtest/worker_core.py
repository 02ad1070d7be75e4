"""A worker's topics and sessions without the worker process."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from nsqcy.base.core import IdSource
from nsqcy.broker.core import Shard
from nsqcy.channels.core import SchedulerState
from nsqcy.ipc.core import Mesh
from nsqcy.protocol.core import Session, SessionManager

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


def refuse(*_: object) -> NoReturn:
    raise NotImplementedError


def options(**other: Any) -> SimpleNamespace:
    """The daemon's options that the core reads."""
    values: dict[str, Any] = {
        "max_input_bytes": 256 << 20,
        "max_msg_size": 1 << 20,
        "max_body_size": 5 << 20,
        "max_rdy_count": 2500,
        "max_req_timeout": 3600 * SECOND,
        "max_defer_timeout": 0,
        "max_channel_consumers": 0,
        "max_topics": 0,
        "msg_timeout": 60 * SECOND,
        "output_buffer_timeout": 250 * MILLISECOND,
        "min_output_buffer_timeout": 25 * MILLISECOND,
        "max_output_buffer_timeout": 30 * SECOND,
        "max_output_buffer_size": 65536,
        "max_heartbeat_interval": 10**9 * MILLISECOND,
        "max_msg_timeout": 900 * SECOND,
        "max_deflate_level": 6,
        "topology_region": "",
        "topology_zone": "",
        "wants_auth": False,
        "deflate": True,
        "snappy": True,
        "tls_cert": "",
        "tls_required": 0,
    }
    return SimpleNamespace(**(values | other))


def make_core(
    scheduler: SchedulerState,
    options: SimpleNamespace,
    *,
    mesh: Mesh | None = None,
    index: int = 0,
    negotiate: Callable[..., object] = refuse,
    auth: Any = None,
    migrate: Callable[[Session, int], None] | None = None,
    log: Any = None,
    **shard: Any,
) -> SessionManager:
    """Return the manager of a shard's sessions.

    shard: other arguments of the shard; by default, it has no files
    """
    found = {"io": None, "data_path": "", "log": log} | shard
    source = IdSource(bytearray(8), index + 1)
    return SessionManager(
        shard=Shard(scheduler=scheduler, ids=source, **found),
        mesh=mesh,
        index=index,
        options=options,
        negotiate=negotiate,
        ask_placement=lambda key: None,
        migrate=migrate,
        auth=auth,
        log=log or SimpleNamespace(error=print, info=print, warn=print),
    )
