"""Messages in a topic or channel: list, view, redrive, cancel."""

import re

from nsqcy.daemon.topic_params import topic_and_channel
from nsqcy.errors import HttpError
from nsqcy.http.parser import JSON, Reply
from nsqcy.http.router import Request, required
from nsqcy.nsqd.http.context import Context
from nsqcy.nsqd.http.params import any_topic
from nsqcy.nsqd.process_messages import peek
from nsqcy.nsqd.process_messages import topic_verbs as verbs
from nsqcy.util.gotext import json_bytes

MAX_LISTED = 1000

_LIMIT = re.compile(r"[0-9]{1,5}", re.ASCII)

_PLACE = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,19})", re.ASCII)

_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)

_MESSAGE_ID = re.compile(r"[0-9a-f]{16}")


def deferred(api: Context, request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    params = request.params
    limit = _LIMIT.fullmatch(params.get("limit", "100"))
    if limit is None or not 1 <= int(limit[0]) <= MAX_LISTED:
        raise HttpError(400, f"INVALID_LIMIT (allowed: 1 to {MAX_LISTED})")
    after = None
    if "after" in params:
        place = _PLACE.fullmatch(params["after"])
        if place is None:
            raise HttpError(400, "INVALID_AFTER (allowed: the value of next in a response)")
        after = int(place[1]), int(place[2])
    found = api.backend.at_owner(verbs.ListDeferred(topic, channel, int(limit[0]), after))
    return Reply(200, json_bytes(found), JSON)


def peek_channel(api: Context, request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    return _peek(api, topic, channel, peek.parse(request.params, of_channel=True))


def peek_topic(api: Context, request: Request) -> Reply:
    topic = any_topic(request)
    return _peek(api, topic, "", peek.parse(request.params, of_channel=False))


def redrive(api: Context, request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    limit = _COUNT.fullmatch(request.params.get("limit", "0"))
    if limit is None or ("limit" in request.params and int(limit[0]) == 0):
        raise HttpError(400, "INVALID_LIMIT (allowed: a positive number of messages)")
    targets = None if request.user is None else request.user.publishable
    if "id" in request.params:
        if "limit" in request.params:
            raise HttpError(400, "INVALID_LIMIT (not allowed with id)")
        id = _message_id(request)
        api.backend.at_owner(verbs.TakeOut(topic, channel, id, drop=False, targets=targets))
        found = 1
    else:
        found = api.backend.at_owner(verbs.Redrive(topic, channel, int(limit[0]), targets))
    return Reply(200, json_bytes({"redriven": found}), JSON)


def cancel_message(api: Context, request: Request) -> None:
    topic, channel = topic_and_channel(request)
    api.backend.at_owner(verbs.CancelMessage(topic, channel, _message_id(request)))


def delete_message(api: Context, request: Request) -> None:
    topic, channel = topic_and_channel(request)
    api.backend.at_owner(verbs.TakeOut(topic, channel, _message_id(request), drop=True))


def _message_id(request: Request) -> int:
    id = _MESSAGE_ID.fullmatch(required(request.params, "id"))
    if id is None:
        raise HttpError(400, "INVALID_ID (allowed: 16 hexadecimal digits)")
    return int(id[0], 16)


def _peek(api: Context, topic: str, channel: str, look: peek.Look) -> Reply:
    if not api.options.may_peek:
        raise HttpError(403, "PEEK_NOT_ALLOWED (consumers need AUTH here: see --peek-without-auth)")
    return Reply(200, api.backend.at_owner(verbs.Peek(topic, channel, look)), JSON)
