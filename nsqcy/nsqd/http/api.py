"""nsqd's HTTP API: the routes, their parameters, and what each of them does.

Knows no connection: only heads, bodies and the `Backend`.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from nsqcy import names
from nsqcy.base import headers as message_headers
from nsqcy.broker.topic_host import DRAINING
from nsqcy.config import durations
from nsqcy.config.policies import DURABILITIES, RATE
from nsqcy.daemon.topic_params import names_of_channel, topic_and_channel, valid_topic
from nsqcy.errors import NOT_WRITTEN, HttpError
from nsqcy.http import config_api, pprof, router
from nsqcy.http.parser import JSON, PLAIN, Body, Fault, Head, Reply, parse_query
from nsqcy.http.router import (
    EXITING,
    Gate,
    Later,
    Need,
    Request,
    Result,
    Route,
    Router,
    ignored,
    json_error,
    required,
    whole,
)
from nsqcy.logging.types import Lines
from nsqcy.nsqd.calls import Refusal, Refused
from nsqcy.nsqd.http import mpub as bodies
from nsqcy.nsqd.http import policy_values
from nsqcy.nsqd.http.backend import UNKNOWN, Backend, Message
from nsqcy.nsqd.master.verbs import ChangeOption, ForgetPolicies, GetDrain, SetDrain, SetPolicy
from nsqcy.nsqd.options import NSQD, NsqdOptions
from nsqcy.nsqd.stats.forms import Query
from nsqcy.nsqd.worker import peek, positions
from nsqcy.nsqd.worker import topic_verbs as verbs
from nsqcy.options.option import Option
from nsqcy.process.control import is_unreachable
from nsqcy.server.http_fastpath import Sink
from nsqcy.util.gotext import json_bytes


class Publish(Later):
    """What /pub and /mpub return: to be published, and answered when that is done.

    With `error` there is nothing to publish: the topic is created, then the request refused.
    """

    __slots__ = (
        "_answer",
        "_backend",
        "_reply",
        "bodies",
        "delay_ms",
        "durability",
        "headers",
        "topic",
    )

    def __init__(
        self,
        api: "Api",
        topic: str,
        bodies: Sequence[Message] = (),
        delay_ms: int = 0,
        durability: str = "memory",
        headers: bytes = b"",
        error: HttpError | None = None,
    ) -> None:
        self._backend = api.backend
        self._reply = OK
        if error is not None:
            self._reply = json_error(error.status, error.message, logged=False)
        self.topic = topic
        self.bodies = bodies
        self.delay_ms = delay_ms
        self.durability = durability
        self.headers = headers

    def begin(self, answer: Callable[[Reply | None], None]) -> None:
        self._answer = answer
        self._backend.publish(
            self.topic,
            self.bodies,
            self.delay_ms,
            self.durability,
            self._published,
            self.headers,
        )

    def publishes(self) -> tuple[int, int]:
        return len(self.bodies), sum(map(len, self.bodies))

    def _published(self, reason: str | None) -> None:
        if reason is None:
            self._answer(self._reply)
        else:
            self._answer(None if reason == UNKNOWN else _refusal(reason))


def tls_required(https_port: int) -> Reply:
    """What plain HTTP is answered where TLS is required, blanks and all."""
    body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port
    return Reply(403, body, JSON, logged=False)


OK = Reply(200, b"OK", PLAIN, logged=False)


TOO_MANY_TOPICS = "TOO_MANY_TOPICS"

# What a publish is refused with, and the answer over HTTP.
_REFUSALS = (
    (re.compile("E_BAD_MESSAGE .* message too big (.*)"), 413, "MSG_TOO_BIG {}"),
    (re.compile("E_BAD_MESSAGE .* message too small (.*)"), 400, "MSG_TOO_SMALL {}"),
    (re.compile("E_BAD_TOPIC.*"), 400, TOO_MANY_TOPICS),
    (re.compile(DRAINING), 503, "DRAINING"),
    (re.compile("((?:topic|channel) .* is full .*)"), 503, "FULL {}"),
)


def _refusal(reason: str) -> Reply:
    for pattern, status, message in _REFUSALS:
        if found := pattern.fullmatch(reason):
            return json_error(status, message.format(*found.groups()), logged=False)
    return EXITING


MOST_POLICY = 64 << 10  # bytes of the body that sets one

# Parameters


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def _topic(params: dict[str, str]) -> str:
    return valid_topic(params, "INVALID_TOPIC")


def _delay_ms(params: dict[str, str], options: NsqdOptions) -> int:
    text = params.get("defer")
    if text is None:
        return 0
    digits = text[1:] if text[:1] in ("+", "-") else text
    # int() would take more: underscores, blanks, digits of other scripts.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 4300):
        raise HttpError(400, "INVALID_DEFER")
    delay = int(text)
    most = options.max_defer_timeout or options.max_req_timeout
    if not 0 <= delay * 1_000_000 <= most:
        raise HttpError(400, "INVALID_DEFER")
    return delay


def _durability(params: dict[str, str]) -> str:
    value = params.get("durability")
    if value is None:
        return "memory"
    if value not in DURABILITIES:
        raise HttpError(400, f"INVALID_DURABILITY (allowed: {', '.join(DURABILITIES)})")
    return value


def _headers(head: Head) -> bytes:
    """The headers of the message, or of all messages."""
    try:
        return message_headers.encode(head.nsq_headers)
    except ValueError as error:
        raise HttpError(400, f"INVALID_HEADERS ({error})") from None


# Publishing


def _pub_limit(api: "Api", head: Head) -> int:
    if head.length > api.options.max_msg_size:
        raise HttpError(413, "MSG_TOO_BIG")
    return api.options.max_msg_size


def pub(api: "Api", request: Request) -> Publish:
    body = request.body
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    if body.fault is Fault.TOO_BIG:
        raise HttpError(413, "MSG_TOO_BIG")
    if not body.data:
        raise HttpError(400, "MSG_EMPTY")
    params = request.params
    topic = _topic(params)
    durability = _durability(params)
    try:
        delay_ms = _delay_ms(params, api.options)
        headers = _headers(request.head) if request.head.nsq_headers else b""
        return Publish(api, topic, (body.data,), delay_ms, durability, headers)
    except HttpError as error:
        return Publish(api, topic, error=error)


def _pub_short(api: "Api", head: Head) -> tuple[Sink, Reply] | None:
    params = head.params
    if params is None or params.keys() != {"topic"} or not names.is_valid_name(params["topic"]):
        return None
    try:
        sink = api.backend.sink(params["topic"], _headers(head))
    except HttpError:
        return None
    return None if sink is None else (sink, OK)


def _is_binary(params: dict[str, str]) -> bool:
    value = params.get("binary")
    return value is not None and _BOOLEANS.get(value, True)


def _mpub_limit(api: "Api", head: Head) -> int:
    limit = api.options.max_body_size
    if head.length > limit:
        raise HttpError(413, "BODY_TOO_BIG")
    params = Request(head, Body(b"")).params
    _topic(params)
    # A chunked binary body may be larger than the option says; NSQ has no limit there at all.
    return 2 * limit if head.chunked and _is_binary(params) else limit


def mpub(api: "Api", request: Request) -> Publish:
    params = request.params
    topic = _topic(params)
    durability = _durability(params)
    value = params.get("binary", "")
    if "binary" in params and value not in _BOOLEANS:
        api.log.warn(f"deprecated value '{value}' used for /mpub binary param")
    try:
        messages = _messages(api.options, _is_binary(params), request.body)
        headers = _headers(request.head) if request.head.nsq_headers else b""
        return Publish(api, topic, messages, 0, durability, headers)
    except bodies.BadBody as bad:
        return Publish(api, topic, error=HttpError(413, bad.code))
    except HttpError as error:
        return Publish(api, topic, error=error)


def _messages(options: NsqdOptions, binary: bool, body: Body) -> Sequence[Message]:
    if body.fault is Fault.TOO_BIG:
        raise HttpError(413, "BODY_TOO_BIG")
    if binary:  # what is missing of a cut body shows in its own lengths
        return bodies.split_binary(body.data, options.max_msg_size, options.max_body_size)
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    return bodies.split_text(body.data, options.max_msg_size)


# Topics and channels


def create_topic(api: "Api", request: Request) -> None:
    api.backend.at_owner(verbs.CreateTopic(_topic(request.params)))


def delete_topic(api: "Api", request: Request) -> None:
    topic = _any_topic(request)
    api.backend.at_owner(verbs.DeleteTopic(topic))
    api.backend.at_master(ForgetPolicies(topic))


def empty_topic(api: "Api", request: Request) -> None:
    api.backend.at_owner(verbs.EmptyTopic(_topic(whole(request))))


def pause_topic(api: "Api", request: Request) -> None:
    api.backend.at_owner(verbs.PauseTopic(_any_topic(request), True))


def unpause_topic(api: "Api", request: Request) -> None:
    api.backend.at_owner(verbs.PauseTopic(_any_topic(request), False))


def _any_topic(request: Request) -> str:
    """An invalid name is a topic that does not exist."""
    topic = required(whole(request), "topic")
    if not names.is_valid_name(topic):
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def create_channel(api: "Api", request: Request) -> Reply | None:
    topic, channel = topic_and_channel(request)
    start = request.params.get("start")
    if start is not None:
        return _seek(api, topic, channel, "START", start, create=True)
    api.backend.at_owner(verbs.CreateChannel(topic, channel))
    return None


def seek_channel(api: "Api", request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    to = required(request.params, "to")
    return _seek(api, topic, channel, "TO", to, create=False)


def _seek(api: "Api", topic: str, channel: str, param: str, text: str, *, create: bool) -> Reply:
    place = _place(param, text)
    if names.is_ephemeral(channel) or names.is_ephemeral(topic):
        raise HttpError(400, f"INVALID_{param}: what is ephemeral keeps no place in a log")
    found = api.backend.at_owner(verbs.SeekChannel(topic, channel, place, create))
    return Reply(200, json_bytes({"seq": found}), JSON)


def _place(param: str, text: str) -> positions.Place:
    try:
        return positions.parse(text)
    except ValueError:
        raise HttpError(400, f"INVALID_{param}: allowed are {positions.ALLOWED}") from None


def topic_log(api: "Api", request: Request) -> Reply:
    topic, at = _any_topic(request), request.params.get("at")
    place = None if at is None else _place("AT", at)
    return Reply(200, json_bytes(api.backend.at_owner(verbs.DescribeLog(topic, place))), JSON)


def delete_channel(api: "Api", request: Request) -> None:
    topic, channel = topic_and_channel(request)
    api.backend.at_owner(verbs.DeleteChannel(topic, channel))
    api.backend.at_master(ForgetPolicies(topic, channel))


def empty_channel(api: "Api", request: Request) -> None:
    api.backend.at_owner(verbs.EmptyChannel(*topic_and_channel(request)))


def pause_channel(api: "Api", request: Request) -> None:
    api.backend.at_owner(verbs.PauseChannel(*topic_and_channel(request), True))


def unpause_channel(api: "Api", request: Request) -> None:
    api.backend.at_owner(verbs.PauseChannel(*topic_and_channel(request), False))


def deferred(api: "Api", request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    params = request.params
    limit = _LIMIT.fullmatch(params.get("limit", "100"))
    if limit is None or not 1 <= int(limit[0]) <= LISTED_MOST:
        raise HttpError(400, f"INVALID_LIMIT (allowed: 1 to {LISTED_MOST})")
    after = None
    if "after" in params:
        place = _PLACE.fullmatch(params["after"])
        if place is None:
            raise HttpError(400, "INVALID_AFTER (allowed: what an answer has said is next)")
        after = int(place[1]), int(place[2])
    found = api.backend.at_owner(verbs.ListDeferred(topic, channel, int(limit[0]), after))
    return Reply(200, json_bytes(found), JSON)


LISTED_MOST = 1000
_LIMIT = re.compile(r"[0-9]{1,5}", re.ASCII)
_PLACE = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,19})", re.ASCII)
_MESSAGE_ID = re.compile(r"[0-9a-f]{16}")


def peek_channel(api: "Api", request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    return _peek(api, topic, channel, peek.parse(request.params, of_channel=True))


def peek_topic(api: "Api", request: Request) -> Reply:
    topic = _any_topic(request)
    return _peek(api, topic, "", peek.parse(request.params, of_channel=False))


def _peek(api: "Api", topic: str, channel: str, look: peek.Look) -> Reply:
    if not api.options.may_peek:
        raise HttpError(403, "PEEK_NOT_ALLOWED (consumers need AUTH here: see --peek-without-auth)")
    return Reply(200, api.backend.at_owner(verbs.Peek(topic, channel, look)), JSON)


def redrive(api: "Api", request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    limit = _COUNT.fullmatch(request.params.get("limit", "0"))
    if limit is None or ("limit" in request.params and int(limit[0]) == 0):
        raise HttpError(400, "INVALID_LIMIT (allowed: a number of messages, not 0)")
    found = api.backend.at_owner(verbs.Redrive(topic, channel, int(limit[0])))
    return Reply(200, json_bytes({"redriven": found}), JSON)


_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)


def cancel_message(api: "Api", request: Request) -> None:
    topic, channel = topic_and_channel(request)
    id = _MESSAGE_ID.fullmatch(required(request.params, "id"))
    if id is None:
        raise HttpError(400, "INVALID_ID (allowed: 16 hexadecimal digits)")
    api.backend.at_owner(verbs.CancelMessage(topic, channel, int(id[0], 16)))


def set_rate(api: "Api", request: Request) -> None:
    """A short form of PUT /channel/config."""
    topic, channel = topic_and_channel(request)
    text = required(request.params, "rate")
    api.backend.at_owner(verbs.FindChannel(topic, channel))
    try:
        rate = RATE.kind.parse(text)
        _set_policy(api, topic, channel, {RATE.name: rate})
    except (ValueError, policy_values.BadPolicy):
        raise HttpError(400, f"INVALID_RATE {names.quote(text)} (allowed: {_RATES})") from None


_RATES = f"{RATE.kind.allowed}: {RATE.rule.text if RATE.rule else 'any'}"


# Policies


def get_topic_policy(api: "Api", request: Request) -> Reply:
    return _policy(api, _topic(whole(request)))


def put_topic_policy(api: "Api", request: Request) -> Reply:
    return _put_policy(api, request, _topic(request.params))


def delete_topic_policy(api: "Api", request: Request) -> Reply:
    topic = _topic(whole(request))
    _set_policy(api, topic, "", None)
    return _policy(api, topic)


def get_channel_policy(api: "Api", request: Request) -> Reply:
    return _policy(api, *topic_and_channel(request))


def put_channel_policy(api: "Api", request: Request) -> Reply:
    return _put_policy(api, request, *names_of_channel(request.params))


def delete_channel_policy(api: "Api", request: Request) -> Reply:
    topic, channel = topic_and_channel(request)
    _set_policy(api, topic, channel, None)
    return _policy(api, topic, channel)


def _set_policy(api: "Api", topic: str, channel: str, values: dict[str, Any] | None) -> None:
    """Set keys, or drop them (a key's None, or None for all); raises BadPolicy."""
    name = f"{topic}/{channel}" if channel else topic
    if values is not None:
        policy_values.read_all(name, values, api.options)
    api.backend.at_master(SetPolicy(name, values))


def _policy(api: "Api", topic: str, channel: str = "") -> Reply:
    return Reply(200, json_bytes(api.backend.policy(topic, channel)), JSON)


def _policy_limit(api: "Api", head: Head) -> int:
    if head.length > MOST_POLICY:
        raise HttpError(413, "BODY_TOO_BIG")
    return MOST_POLICY


def _put_policy(api: "Api", request: Request, topic: str, channel: str = "") -> Reply:
    body = request.body
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    if body.fault is Fault.TOO_BIG:
        raise HttpError(413, "BODY_TOO_BIG")
    try:
        _set_policy(api, topic, channel, policy_values.parse(bytes(body.data)))
    except policy_values.BadPolicy as bad:
        raise HttpError(400, f"INVALID_CONFIG {bad}") from None
    return _policy(api, topic, channel)


# The whole


def ping(api: "Api", request: Request) -> str:
    health = api.backend.health()
    if health != "OK":
        raise HttpError(500, health)
    return health


def ready(api: "Api", request: Request) -> str:
    """Whether to send clients here."""
    reasons = api.backend.reasons()
    if reasons:
        raise HttpError(503, "\n".join(reasons))
    return "OK"


def live(api: "Api", request: Request) -> str:
    """Whether to leave nsqd alone; one that is not ready need not be killed."""
    problem = api.backend.live()
    if problem is not None:
        raise HttpError(503, problem)
    return "OK"


def info(api: "Api", request: Request) -> dict[str, Any]:
    return api.backend.info()


def _option(request: Request) -> Option:
    option = config_api.find(NSQD, request.head.path.rpartition("/")[2])
    if option is None:
        raise HttpError(400, "INVALID_OPTION")
    return option


def get_option(api: "Api", request: Request) -> Result:
    return _show(api, _option(request))


def _show(api: "Api", option: Option) -> Result:
    value = getattr(api.options, option.name)
    return value if config_api.is_text(option) else Reply(200, json_bytes(value), JSON)


def _value_limit(api: "Api", head: Head) -> int:
    limit = api.options.max_msg_size
    if head.length > limit:
        raise HttpError(413, "INVALID_VALUE")
    return limit


def put_option(api: "Api", request: Request) -> Result:
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


def get_drain(api: "Api", request: Request) -> dict[str, Any]:
    return api.backend.at_master(GetDrain())


def put_drain(api: "Api", request: Request) -> dict[str, Any]:
    """Refuse publishes, and exit when consumers have emptied what is here; or no more."""
    params = whole(request)
    on = _SWITCH.get(bytes(request.body.data).strip())
    if on is None:
        raise HttpError(400, "INVALID_VALUE: allowed are true and false")
    return api.backend.at_master(SetDrain(on, _limit(params)))


_SWITCH = {b"true": True, b"false": False}


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
        raise HttpError(400, f"INVALID_TIMEOUT: allowed is {durations.ALLOWED}, and more than 0")
    return limit / durations.SECOND


def stats(api: "Api", request: Request) -> Reply:
    params = whole(request)
    query = Query(
        json=params.get("format") == "json",
        topic=params.get("topic", ""),
        channel=params.get("channel", ""),
        include_clients=_BOOLEANS.get(params.get("include_clients", ""), True),
        include_mem=_BOOLEANS.get(params.get("include_mem", ""), True),
        ledger=_BOOLEANS.get(params.get("ledger", ""), False),
    )
    return Reply(200, api.backend.stats(query), JSON if query.json else PLAIN)


def metrics(api: "Api", request: Request) -> Reply:
    """For Prometheus, which asks every few seconds."""
    head = request.head
    content_type, is_compressed, page = api.backend.metrics(
        head.header("Accept"), head.header("Accept-Encoding")
    )
    headers = [("Content-Encoding", "gzip")] if is_compressed else []
    return Reply(200, page, content_type, nsq=False, headers=headers, logged=False)


# Looking into a running nsqd, beside the pages of pprof


def debug_block_rate(api: "Api", request: Request) -> None:
    """There is nothing it could set: what blocks is not counted."""
    form = parse_query(bytes(request.body.data).decode("latin-1")) or {}
    text = form.get("rate", request.params.get("rate", ""))
    if not _DECIMAL.fullmatch(text):
        reason = f"strconv.Atoi: parsing {names.quote(text)}: invalid syntax"
        raise HttpError(400, f"invalid block rate : {reason}")


_DECIMAL = re.compile(r"[+-]?[0-9]+")


def _form_limit(api: "Api", head: Head) -> int:
    return 4096


def debug_free(api: "Api", request: Request) -> None:
    api.backend.inspect("free")


ROUTES = (
    Route("GET", "/ping", ping, plain=True, need=Need.NOTHING),
    Route("GET", "/ready", ready, plain=True, logged=False, need=Need.NOTHING),
    Route("GET", "/live", live, plain=True, logged=False, need=Need.NOTHING),
    Route("GET", "/info", info, need=Need.KNOWN),
    Route("GET", "/stats", stats, body=ignored, need=Need.KNOWN),
    Route("GET", "/metrics", metrics, plain=True, logged=False, need=Need.KNOWN),
    Route(
        "POST",
        "/pub",
        pub,
        body=_pub_limit,
        logged=False,
        inline=True,
        short=_pub_short,
        need=Need.PUBLISH,
    ),
    Route("POST", "/mpub", mpub, body=_mpub_limit, logged=False, inline=True, need=Need.PUBLISH),
    Route("POST", "/topic/create", create_topic, need=Need.ADMIN),
    Route("POST", "/topic/delete", delete_topic, body=ignored, need=Need.ADMIN),
    Route("POST", "/topic/empty", empty_topic, body=ignored, need=Need.ADMIN),
    Route("POST", "/topic/pause", pause_topic, body=ignored, need=Need.ADMIN),
    Route("POST", "/topic/unpause", unpause_topic, body=ignored, need=Need.ADMIN),
    Route("GET", "/topic/log", topic_log, need=Need.SUBSCRIBE),
    Route("GET", "/topic/config", get_topic_policy, need=Need.KNOWN),
    Route("PUT", "/topic/config", put_topic_policy, body=_policy_limit, need=Need.ADMIN),
    Route("DELETE", "/topic/config", delete_topic_policy, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/create", create_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/seek", seek_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/delete", delete_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/empty", empty_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/pause", pause_channel, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/unpause", unpause_channel, body=ignored, need=Need.ADMIN),
    Route("GET", "/channel/deferred", deferred, need=Need.SUBSCRIBE),
    Route("GET", "/channel/peek", peek_channel, need=Need.SUBSCRIBE),
    Route("GET", "/topic/peek", peek_topic, need=Need.SUBSCRIBE),
    Route("POST", "/channel/redrive", redrive, body=ignored, need=Need.ADMIN),
    Route("POST", "/message/cancel", cancel_message, body=ignored, need=Need.ADMIN),
    Route("POST", "/channel/rate", set_rate, body=ignored, need=Need.ADMIN),
    Route("GET", "/config/drain", get_drain, need=Need.KNOWN),
    Route("PUT", "/config/drain", put_drain, body=_value_limit),
    Route("GET", "/channel/config", get_channel_policy, need=Need.KNOWN),
    Route("PUT", "/channel/config", put_channel_policy, body=_policy_limit, need=Need.ADMIN),
    Route("DELETE", "/channel/config", delete_channel_policy, body=ignored, need=Need.ADMIN),
    Route("GET", "/config/:opt", get_option),
    Route("PUT", "/config/:opt", put_option, body=_value_limit),
    *pprof.routes("/debug/pprof/", lambda api: api.backend),
    Route("PUT", "/debug/setblockrate", debug_block_rate, body=_form_limit, plain=True, local=True),
    Route("POST", "/debug/freememory", debug_free, plain=True, local=True),
)


# Of a verb; 404 for what is not found.
_REFUSED_STATUS: dict[Refusal, int] = {
    "CHANNEL_EXISTS": 409,
    "NOT_READ": 503,
    "TOO_MANY_TOPICS": 400,
}


class Api(router.Api):
    """The handlers' surroundings."""

    router = Router(ROUTES)
    reads_headers = frozenset((b"accept", b"accept-encoding", b"authorization"))

    def __init__(
        self, backend: Backend, options: NsqdOptions, log: Lines, gate: Gate | None = None
    ) -> None:
        super().__init__(options, log, gate)
        self.backend = backend
        self.options = options

    def refusal(self, error: Exception) -> HttpError | None:
        if isinstance(error, Refused):
            return HttpError(_REFUSED_STATUS.get(error.code, 404), error.code)
        if str(error) == NOT_WRITTEN:
            return HttpError(503, NOT_WRITTEN)
        return HttpError(503, "UNREACHABLE") if is_unreachable(error) else None
