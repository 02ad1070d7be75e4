"""/pub and /mpub: the messages to publish, and the response that follows.

The fast path handles the requests that `pub_short` permits; `pub` handles all others.
"""

import re
from collections.abc import Callable, Sequence

from nsqcy import names
from nsqcy.base import headers as message_headers
from nsqcy.broker.topic_host import DRAINING
from nsqcy.config.policies import DURABILITIES
from nsqcy.errors import HttpError
from nsqcy.http.parser import PLAIN, Body, Fault, Head, Reply
from nsqcy.http.router import EXITING, Later, Request, json_error
from nsqcy.nsqd.http.backend import UNKNOWN, Message
from nsqcy.nsqd.http.context import Context
from nsqcy.nsqd.http.params import BOOLEANS, topic_of
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.server.body_batch import BadBody, BodyBatch, split_binary, split_text
from nsqcy.server.http_fastpath import Sink

OK = Reply(200, b"OK", PLAIN, logged=False)

TOO_MANY_TOPICS = "TOO_MANY_TOPICS"

# Publish errors and their HTTP responses.
_REFUSALS = (
    (re.compile("E_BAD_MESSAGE .* message too big (.*)"), 413, "MSG_TOO_BIG {}"),
    (re.compile("E_BAD_MESSAGE .* message too small (.*)"), 400, "MSG_TOO_SMALL {}"),
    (re.compile("E_BAD_TOPIC.*"), 400, TOO_MANY_TOPICS),
    (re.compile(DRAINING), 503, "DRAINING"),
    (re.compile("too few copies: (.*)"), 503, "TOO_FEW_COPIES {}"),
    (re.compile("((?:topic|channel) .* is full .*)"), 503, "FULL {}"),
)


class Publish(Later):
    """The result of /pub and /mpub: messages to publish before the response.

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
            return json_error(status, message.format(*found.groups()), logged=False)
    return EXITING


def pub_limit(api: Context, head: Head) -> int:
    if head.length > api.options.max_msg_size:
        raise HttpError(413, "MSG_TOO_BIG")
    return api.options.max_msg_size


def pub(api: Context, request: Request) -> Publish:
    body = request.body
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    if body.fault is Fault.TOO_BIG:
        raise HttpError(413, "MSG_TOO_BIG")
    if not body.data:
        raise HttpError(400, "MSG_EMPTY")
    params = request.params
    topic = topic_of(params)
    durability = _durability(params)
    try:
        delay_ms = _delay_ms(params, api.options)
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
        raise HttpError(413, "BODY_TOO_BIG")
    params = Request(head, Body(b"")).params
    topic_of(params)
    # A chunked binary body may exceed the option, because NSQ does not limit it at all.
    return 2 * limit if head.chunked and _is_binary(params) else limit


def mpub(api: Context, request: Request) -> Publish:
    params = request.params
    topic = topic_of(params)
    durability = _durability(params)
    value = params.get("binary", "")
    if "binary" in params and value not in BOOLEANS:
        api.log.warn(f"deprecated value '{value}' used for /mpub binary param")
    try:
        messages = _messages(api.options, _is_binary(params), request.body)
        headers = _headers(request.head) if request.head.nsq_headers else b""
        return Publish(api, topic, messages, 0, durability, headers)
    except BadBody as bad:
        return Publish(api, topic, error=HttpError(413, bad.code))
    except HttpError as error:
        return Publish(api, topic, error=error)


def _messages(options: NsqdOptions, binary: bool, body: Body) -> BodyBatch:
    if body.fault is Fault.TOO_BIG:
        raise HttpError(413, "BODY_TOO_BIG")
    if binary:  # the lengths in the body reveal that it is truncated
        return split_binary(body.data, options.max_msg_size, options.max_body_size)
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    return split_text(body.data, options.max_msg_size)


def _is_binary(params: dict[str, str]) -> bool:
    value = params.get("binary")
    return value is not None and BOOLEANS.get(value, True)


def _delay_ms(params: dict[str, str], options: NsqdOptions) -> int:
    text = params.get("defer")
    if text is None:
        return 0
    digits = text[1:] if text[:1] in ("+", "-") else text
    # int() would also accept underscores, spaces and digits from other scripts.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 4300):
        raise HttpError(400, "INVALID_DEFER")
    delay = int(text)
    maximum = options.max_defer_timeout or options.max_req_timeout
    if not 0 <= delay * 1_000_000 <= maximum:
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
    """Return the headers for the message, or for all messages."""
    try:
        return message_headers.encode(head.nsq_headers)
    except ValueError as error:
        raise HttpError(400, f"INVALID_HEADERS ({error})") from None
