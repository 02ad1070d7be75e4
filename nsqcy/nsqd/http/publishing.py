"""/pub and /mpub: the messages to publish, and the response that follows.

The fast path handles the requests that `pub_short` permits; `pub` handles all others.
"""

import re
from collections.abc import Callable, Sequence

from nsqcy import names
from nsqcy.base.core import encode_headers
from nsqcy.broker.core import DRAINING
from nsqcy.config.durations import MILLISECOND
from nsqcy.config.policies import DURABILITIES
from nsqcy.config.publish_limits import PublishLimits, publish_limits
from nsqcy.errors import HttpError
from nsqcy.http.parser import PLAIN, Body, Fault, Head, Reply
from nsqcy.http.router import EXITING, Later, Request, json_error
from nsqcy.nsqd.http.backend import UNKNOWN, Message
from nsqcy.nsqd.http.context import Context
from nsqcy.nsqd.http.params import BOOLEANS, topic_of
from nsqcy.server.core import BadBody, BodyBatch, split_binary, split_text
from nsqcy.server.http_fastpath import Sink

OK = Reply(200, b"OK", PLAIN, logged=False)

MSG_TOO_BIG = "MSG_TOO_BIG"
TOO_MANY_TOPICS = "TOO_MANY_TOPICS"

OF_POLICY = "max_msg_size of the topic's policy"
DEFER_OPTIONS = "--max-defer-timeout or --max-req-timeout"

# Publish errors and their HTTP responses.
_REFUSALS = (
    (re.compile("E_BAD_MESSAGE .* message too big (.*)"), 413, MSG_TOO_BIG + " {}"),
    (re.compile("E_BAD_MESSAGE .* message too small (.*)"), 400, "MSG_TOO_SMALL {}"),
    (re.compile("E_INVALID DPUB timeout .*"), 400, "INVALID_DEFER"),
    (re.compile("E_BAD_TOPIC.*"), 400, TOO_MANY_TOPICS),
    (re.compile(DRAINING), 503, "DRAINING"),
    (re.compile("too few copies: (.*)"), 503, "TOO_FEW_COPIES {}"),
    (re.compile("((?:topic|channel) .* is full .*)"), 503, "FULL {}"),
)


class Publish(Later):
    """Result of parsing /pub and /mpub: messages to publish before the response.

    With `error`, no message is published: the topic is created, then the request is rejected.
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
        api: Context,
        topic: str,
        bodies: Sequence[Message] | BodyBatch = (),
        delay_ms: int = 0,
        durability: str = "memory",
        headers: bytes = b"",
        error: HttpError | None = None,
    ) -> None:
        self._backend = api.backend
        self._reply = OK
        if error is not None:
            self._reply = json_error(error.status, error.message, logged=False, limit=error.limit)
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
        if isinstance(self.bodies, BodyBatch):
            return self.bodies.count, self.bodies.total
        return len(self.bodies), sum(map(len, self.bodies))

    def _published(self, reason: str | None) -> None:
        if reason is None:
            self._answer(self._reply)
        else:
            self._answer(None if reason == UNKNOWN else _refusal(reason))


def _refusal(reason: str) -> Reply:
    for pattern, status, message in _REFUSALS:
        if found := pattern.fullmatch(reason):
            limit = f"{reason.rpartition(' > ')[2]} ({OF_POLICY})" if status == 413 else ""
            return json_error(status, message.format(*found.groups()), logged=False, limit=limit)
    return EXITING


def pub_limit(api: Context, head: Head) -> int:
    limit = api.options.max_msg_size
    if head.length > limit or head.chunked:
        limit = _limits(api, head.params).max_msg_size
    if head.length > limit:
        raise _too_big(api, limit)
    return limit


def _limits(api: Context, params: dict[str, str] | None) -> PublishLimits:
    """Return the limits of the topic in the query; without a topic, the default limits."""
    topic = params and params.get("topic")
    if not topic or not names.is_valid_name(topic):
        return publish_limits(api.options)
    return api.backend.limits_of(topic)


def _too_big(api: Context, limit: int) -> HttpError:
    option = "--max-msg-size" if limit == api.options.max_msg_size else OF_POLICY
    return HttpError(413, MSG_TOO_BIG, limit=f"{limit} ({option})")


def pub(api: Context, request: Request) -> Publish:
    body = request.body
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    if body.fault is Fault.TOO_BIG:
        raise _too_big(api, _limits(api, request.head.params).max_msg_size)
    if not body.data:
        raise HttpError(400, "MSG_EMPTY")
    params = request.params
    topic = topic_of(params)
    durability = _durability(params)
    try:
        delay_ms = _delay_ms(api, params)
        headers = _headers(request.head) if request.head.nsq_headers else b""
        return Publish(api, topic, (body.data,), delay_ms, durability, headers)
    except HttpError as error:
        return Publish(api, topic, error=error)


def pub_short(api: Context, head: Head) -> tuple[Sink, Reply] | None:
    params = head.params
    if params is None or params.keys() != {"topic"} or not names.is_valid_name(params["topic"]):
        return None
    try:
        sink = api.backend.sink(params["topic"], _headers(head))
    except HttpError:
        return None
    return None if sink is None else (sink, OK)


def mpub_limit(api: Context, head: Head) -> int:
    limit = api.options.max_body_size
    if head.length > limit:
        raise _body_too_big(limit)
    params = Request(head, Body(b"")).params
    topic_of(params)
    # A chunked binary body may be twice as large, because NSQ does not limit it at all.
    return 2 * limit if head.chunked and _is_binary(params) else limit


def mpub(api: Context, request: Request) -> Publish:
    params = request.params
    topic = topic_of(params)
    durability = _durability(params)
    value = params.get("binary", "")
    if "binary" in params and value not in BOOLEANS:
        api.log.warn(f"deprecated value '{value}' used for /mpub binary param")
    try:
        messages = _messages(api, params, request.body)
        headers = _headers(request.head) if request.head.nsq_headers else b""
        return Publish(api, topic, messages, 0, durability, headers)
    except BadBody as bad:
        error = HttpError(413, bad.code)
        if bad.code == MSG_TOO_BIG:
            error = _too_big(api, _limits(api, params).max_msg_size)
        return Publish(api, topic, error=error)
    except HttpError as error:
        return Publish(api, topic, error=error)


def _body_too_big(limit: int) -> HttpError:
    return HttpError(413, "BODY_TOO_BIG", limit=f"{limit} (--max-body-size)")


def _messages(api: Context, params: dict[str, str], body: Body) -> BodyBatch:
    if body.fault is Fault.TOO_BIG:
        raise _body_too_big(api.options.max_body_size)
    usual = api.options.max_msg_size
    try:
        return _split(api, params, body, usual)
    except BadBody:
        raised = _limits(api, params).max_msg_size
        if raised <= usual:
            raise
        return _split(api, params, body, raised)


def _split(api: Context, params: dict[str, str], body: Body, limit: int) -> BodyBatch:
    if _is_binary(params):  # the lengths in the body reveal that it is truncated
        return split_binary(body.data, limit, api.options.max_body_size)
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    return split_text(body.data, limit)


def _is_binary(params: dict[str, str]) -> bool:
    value = params.get("binary")
    return value is not None and BOOLEANS.get(value, True)


def _delay_ms(api: Context, params: dict[str, str]) -> int:
    text = params.get("defer")
    if text is None:
        return 0
    digits = text[1:] if text[:1] in ("+", "-") else text
    # int() would also accept underscores, spaces and digits from other scripts.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 4300):
        raise HttpError(400, "INVALID_DEFER")
    delay = int(text)
    maximum = _limits(api, params).max_defer_timeout
    if not 0 <= delay * MILLISECOND <= maximum:
        usual = maximum == publish_limits(api.options).max_defer_timeout
        option = DEFER_OPTIONS if usual else "max_defer_timeout of the topic's policy"
        limit = f"{maximum // MILLISECOND} ms ({option})"
        raise HttpError(400, "INVALID_DEFER", limit=limit)
    return delay


def _durability(params: dict[str, str]) -> str:
    value = params.get("durability")
    if value is None:
        return "memory"
    if value not in DURABILITIES:
        raise HttpError(400, f"INVALID_DURABILITY (allowed: {', '.join(DURABILITIES)})")
    return value


def _headers(head: Head) -> bytes:
    """Return the headers for the message, or for all messages."""
    try:
        return encode_headers(head.nsq_headers)
    except ValueError as error:
        raise HttpError(400, f"INVALID_HEADERS ({error})") from None
