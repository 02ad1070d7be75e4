"""Bodies as values: the option `codec` of consumers and producers.

Owns the codecs, the conversion to the type that a handler declares, and which arguments a handler
gets. Independent of connections and answers: to the consumer, a body that cannot be decoded
looks like a handler that raises DecodeError.
"""

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from nsqcy.client.codec import Message
from nsqcy.client.common_interface import is_coroutine_function
from nsqcy.client.errors import DecodeError
from nsqcy.names import printable, quote

UNTYPED = (inspect.Parameter.empty, Any, object)  # annotations that accept every value
BINARY = (bytes, bytearray, memoryview)


@runtime_checkable
class BodyCodec(Protocol):
    """Converts values to bodies and back. Both methods may raise any exception."""

    def encode(self, value: Any, /) -> bytes:
        """Return the body for a value."""

    def decode(self, body: bytes, /) -> Any:
        """Return the value of a body."""


Codec = Literal["json", "msgpack"] | BodyCodec


class Json:
    """Compact JSON in UTF-8."""

    def encode(self, value: Any) -> bytes:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
        )
        return text.encode()

    def decode(self, body: bytes) -> Any:
        return json.loads(body)


class MessagePack:
    """MessagePack, which can also contain bytes."""

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError:
            text = 'codec "msgpack" requires msgpack: pip install "nsqcy[msgpack]"'
            raise ImportError(text) from None
        self._pack = functools.partial(msgpack.packb, default=_plain)
        # Accept keys of all types, because packb() does.
        self._unpack = functools.partial(msgpack.unpackb, strict_map_key=False)

    def encode(self, value: Any) -> bytes:
        try:
            body: bytes = self._pack(value)
        except OverflowError as error:  # an integer of more than 64 bits
            raise ValueError(str(error)) from None
        return body

    def decode(self, body: bytes) -> Any:
        return self._unpack(body)


CODECS: dict[str, Callable[[], BodyCodec]] = {"json": Json, "msgpack": MessagePack}


def codec_of(codec: Codec) -> BodyCodec:
    """Return the codec with this name, or the program's own. Raises ValueError for an unknown name,
    TypeError for an object without the methods, and ImportError for a missing package."""
    if isinstance(codec, str):
        if codec not in CODECS:
            raise ValueError(f"codec {quote(codec)} is unknown (allowed: {', '.join(CODECS)})")
        return CODECS[codec]()
    if isinstance(codec, type) or not isinstance(codec, BodyCodec):
        raise TypeError(f"codec {codec!r} is not an object with encode and decode methods")
    return codec


def encoder(codec: Codec | None) -> Callable[[Any], bytes] | None:
    """Return the function that encodes a producer's values; None without a codec."""
    return None if codec is None else codec_of(codec).encode


def decoder(codec: Codec | None, kind: Any = Any) -> Callable[[Message], Any] | None:
    """Return the function that decodes a message's body to a value of type `kind`; None without a
    codec. The function raises DecodeError."""
    if codec is None:
        return None
    decode = _decode(codec_of(codec), kind)

    def decoded(message: Message) -> Any:
        try:
            return decode(message.body)
        except Exception as error:
            (reason, *_) = str(error).splitlines() or [type(error).__name__]
            text = f"cannot decode the body of message {printable(message.id)}: {reason}"
            raise DecodeError(printable(text)) from error

    return decoded


def decoding(handler: Callable[..., Any], codec: Codec) -> Callable[[Message], Any]:
    """Return a handler of messages that passes their values to `handler`.

    The handler gets the decoded body, converted to the type of its first parameter. A second
    parameter without a default gets the Message. A handler whose first parameter is a Message
    is returned unchanged. Raises TypeError for other parameters.
    """
    kind, takes_message = _parameters(handler)
    if _is_message(kind):
        return handler
    decoded = decoder(codec, kind)
    assert decoded is not None

    def arguments(message: Message) -> tuple[Any, ...]:
        value = decoded(message)
        return (value, message) if takes_message else (value,)

    async def decode_and_await(message: Message) -> Any:
        return await handler(*arguments(message))

    def decode_and_call(message: Message) -> Any:
        return handler(*arguments(message))

    return decode_and_await if is_coroutine_function(handler) else decode_and_call


def handler_of(handler: Callable[..., Any] | None, codec: Codec | None) -> Any:
    """Return the handler of messages for the handler that the program has passed, if any."""
    return handler if handler is None or codec is None else decoding(handler, codec)


def _parameters(handler: Callable[..., Any]) -> tuple[Any, bool]:
    """Return the type of a handler's first parameter, and whether a second one gets the Message."""
    try:
        signature = inspect.signature(handler, eval_str=True)
    except ValueError:  # some compiled functions have no signature
        return Any, False
    except NameError as error:
        raise TypeError(f"message_handler has an unknown annotation: {error}") from None
    one, two = _accepts(signature, 1), _accepts(signature, 2)
    kind, second, *_ = (*(each.annotation for each in signature.parameters.values()), Any, Any)
    if not (one or two) or (_is_message(kind) and not one):
        raise TypeError(
            f"message_handler must accept a value, or a value and a Message: {signature}"
        )
    if not (one or second in UNTYPED or _is_message(second)):
        raise TypeError(f"message_handler's second parameter must be a Message: {signature}")
    return kind, not one


def _accepts(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _is_message(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)


def _decode(codec: BodyCodec, kind: Any) -> Callable[[bytes], Any]:
    """Return the function that decodes a body to this type. Raises TypeError."""
    if kind in UNTYPED:
        return codec.decode
    if not _has_pydantic():
        raise TypeError(
            f"converting bodies to {inspect.formatannotation(kind)} requires pydantic: "
            'pip install "nsqcy[pydantic]", or annotate the parameter with Any'
        )
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    if isinstance(codec, Json):
        return adapter.validate_json  # strict models accept dates and similar types as JSON text
    return lambda body: adapter.validate_python(codec.decode(body))


def _plain(value: Any) -> Any:
    """Return the replacement for a value that a format cannot represent. Raises TypeError and
    ValueError."""
    if not isinstance(value, BINARY):  # pydantic would convert it to text
        if _has_pydantic():
            from pydantic_core import to_jsonable_python

            return to_jsonable_python(value)
        if is_dataclass(value) and not isinstance(value, type):
            return {each.name: getattr(value, each.name) for each in fields(value)}
    raise TypeError(f"the codec cannot encode {type(value).__name__}")


@functools.cache  # a failed import is slow
def _has_pydantic() -> bool:
    try:
        import pydantic  # noqa: F401
    except ImportError:
        return False
    return True
