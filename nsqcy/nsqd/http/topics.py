"""HTTP handlers that create, delete, empty, pause and seek topics and channels, pause and empty
keys, and describe a topic's log."""

import re

from nsqcy import names
from nsqcy.daemon.topic_params import topic_and_channel
from nsqcy.errors import HttpError
from nsqcy.http.parser import JSON, Reply
from nsqcy.http.router import Request, required, whole
from nsqcy.nsqd.http.context import Context
from nsqcy.nsqd.http.params import BOOLEANS, any_topic, topic_of
from nsqcy.nsqd.process_messages import positions
from nsqcy.nsqd.process_messages import topic_verbs as verbs
from nsqcy.nsqd.process_messages.master_verbs import ForgetPolicies
from nsqcy.nsqd.process_messages.peek import MAX_KEY
from nsqcy.util.gotext import json_bytes

MAX_LISTED = 1000

_LIMIT = re.compile(r"[0-9]{1,5}", re.ASCII)


def create_topic(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.CreateTopic(topic_of(request.params)))


def delete_topic(api: Context, request: Request) -> None:
    topic = any_topic(request)
    api.backend.at_owner(verbs.DeleteTopic(topic))
    api.backend.at_master(ForgetPolicies(topic))


def empty_topic(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.EmptyTopic(topic_of(whole(request))))


def pause_topic(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.PauseTopic(any_topic(request), True))


def unpause_topic(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.PauseTopic(any_topic(request), False))


def topic_log(api: Context, request: Request) -> Reply:
    topic, at = any_topic(request), request.params.get("at")
    place = None if at is None else _place("AT", at)
    return Reply(200, json_bytes(api.backend.at_owner(verbs.DescribeLog(topic, place))), JSON)


def create_channel(api: Context, request: Request) -> Reply | None:
    topic, channel = topic_and_channel(request)
    start = request.params.get("start")
    if start is not None:
        return _seek(api, topic, channel, "START", start, create=True)
    api.backend.at_owner(verbs.CreateChannel(topic, channel))
    return None


def seek_channel(api: Context, request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    to = required(request.params, "to")
    return _seek(api, topic, channel, "TO", to, create=False)


def delete_channel(api: Context, request: Request) -> None:
    topic, channel = topic_and_channel(request)
    api.backend.at_owner(verbs.DeleteChannel(topic, channel))
    api.backend.at_master(ForgetPolicies(topic, channel))


def empty_channel(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.EmptyChannel(*topic_and_channel(request)))


def pause_channel(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.PauseChannel(*topic_and_channel(request), True))


def unpause_channel(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.PauseChannel(*topic_and_channel(request), False))


def pause_key(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.PauseKey(*topic_and_channel(request), key_of(request), True))


def unpause_key(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.PauseKey(*topic_and_channel(request), key_of(request), False))


def empty_key(api: Context, request: Request) -> None:
    api.backend.at_owner(verbs.EmptyKey(*topic_and_channel(request), key_of(request)))


def list_keys(api: Context, request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    params = request.params
    if not api.options.may_peek:  # keys are parts of messages
        raise HttpError(403, "PEEK_NOT_ALLOWED (consumers need AUTH here: see --peek-without-auth)")
    limit = _LIMIT.fullmatch(params.get("limit", "100"))
    if limit is None or not 1 <= int(limit[0]) <= MAX_LISTED:
        raise HttpError(400, f"INVALID_LIMIT (allowed: 1 to {MAX_LISTED})")
    key = key_of(request) if "key" in params else ""
    only = []
    for name in ("blocked", "paused"):
        if params.get(name, "false") not in BOOLEANS:
            raise HttpError(400, f"INVALID_{name.upper()} (allowed: true, false, 1 or 0)")
        only.append(BOOLEANS[params.get(name, "false")])
    search = params.get("search", "")
    verb = verbs.ListKeys(topic, channel, int(limit[0]), key, search, *only)
    return Reply(200, json_bytes(api.backend.at_owner(verb)), JSON)


def key_of(request: Request) -> str:
    """Return the key of messages that the request names; bytes that are not UTF-8 are surrogates.
    Raises HttpError."""
    key = required(request.params, "key")
    if not 1 <= len(key.encode("utf-8", "surrogateescape")) <= MAX_KEY:
        raise HttpError(400, f"INVALID_KEY (allowed: 1 to {MAX_KEY} bytes)")
    return key


def _seek(api: Context, topic: str, channel: str, param: str, text: str, *, create: bool) -> Reply:
    place = _place(param, text)
    if names.is_ephemeral(channel) or names.is_ephemeral(topic):
        text = f"INVALID_{param}: ephemeral topics and channels have no log positions"
        raise HttpError(400, text)
    found = api.backend.at_owner(verbs.SeekChannel(topic, channel, place, create))
    return Reply(200, json_bytes({"seq": found}), JSON)


def _place(param: str, text: str) -> positions.Place:
    try:
        return positions.parse(text)
    except ValueError:
        raise HttpError(400, f"INVALID_{param} (allowed: {positions.ALLOWED})") from None
