"""Options that can be changed while nsqd runs, and draining."""

from typing import Any

from nsqcy.config import durations
from nsqcy.errors import HttpError
from nsqcy.http import config_api
from nsqcy.http.parser import JSON, Fault, Head, Reply
from nsqcy.http.router import Request, Result, whole
from nsqcy.nsqd.http.context import Context
from nsqcy.nsqd.http.params import BOOLEANS
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqd.process_messages.master_verbs import (
    BeginUpgrade,
    ChangeOption,
    GetDrain,
    GetUpgrade,
    Reload,
    SetDrain,
)
from nsqcy.options.option import Option
from nsqcy.util.gotext import json_bytes

_SWITCH = {b"true": True, b"false": False}


def get_option(api: Context, request: Request) -> Result:
    return _show(api, _option(request))


def put_option(api: Context, request: Request) -> Result:
    body = request.body
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    if body.fault is Fault.TOO_BIG or not body.data:
        raise HttpError(413, "INVALID_VALUE")
    option = _option(request)
    if not option.runtime:
        raise HttpError(400, "INVALID_OPTION")
    try:
        value = config_api.read(option, bytes(body.data))
    except ValueError:
        raise HttpError(400, "INVALID_VALUE") from None
    api.backend.at_master(ChangeOption(option.name, value))
    return _show(api, option)


def get_drain(api: Context, request: Request) -> dict[str, Any]:
    return api.backend.at_master(GetDrain())


def put_drain(api: Context, request: Request) -> dict[str, Any]:
    """Start or stop draining: reject publishes, and exit when consumers have emptied all channels,
    or when other nodes have taken over the copied topics."""
    params = whole(request)
    on = _SWITCH.get(bytes(request.body.data).strip())
    if on is None:
        raise HttpError(400, "INVALID_VALUE (allowed: true, false)")
    hand_over = BOOLEANS.get(params.get("hand_over", ""), False)
    return api.backend.at_master(SetDrain(on, _limit(params), hand_over))


def reload(api: Context, request: Request) -> None:
    """Reload the configuration, as SIGHUP does."""
    whole(request)
    if not api.backend.at_master(Reload()):
        raise HttpError(400, "INVALID_CONFIGURATION (see nsqd's log)")


def get_upgrade(api: Context, request: Request) -> dict[str, Any]:
    return api.backend.at_master(GetUpgrade())


def begin_upgrade(api: Context, request: Request) -> dict[str, Any]:
    """Start an upgrade in place. `to` is the Python interpreter of the next version."""
    python = whole(request).get("to", "")
    if python and not _is_local(request):
        raise HttpError(403, "FORBIDDEN (to: allowed from the same machine)")
    return api.backend.at_master(BeginUpgrade(python))


def _is_local(request: Request) -> bool:
    return request.peer == "@" or request.peer.startswith(("127.", "[::1]:"))


def _option(request: Request) -> Option:
    option = config_api.find(NSQD, request.head.path.rpartition("/")[2])
    if option is None:
        raise HttpError(400, "INVALID_OPTION")
    return option


def _show(api: Context, option: Option) -> Result:
    value = getattr(api.options, option.name)
    return value if config_api.is_text(option) else Reply(200, json_bytes(value), JSON)


def value_limit(api: Context, head: Head) -> int:
    limit = api.options.max_msg_size
    if head.length > limit:
        raise HttpError(413, "INVALID_VALUE")
    return limit


def _limit(params: dict[str, str]) -> float | None:
    """Seconds."""
    text = params.get("timeout")
    if text is None:
        return None
    try:
        limit = durations.parse_duration(text)
    except ValueError:
        limit = 0
    if limit <= 0:
        raise HttpError(400, f"INVALID_TIMEOUT (allowed: more than 0; {durations.ALLOWED})")
    return limit / durations.SECOND
