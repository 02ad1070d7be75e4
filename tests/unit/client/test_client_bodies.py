"""Codecs, the arguments of handlers, and bodies that cannot be decoded."""

import asyncio
import builtins
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from nsqcy.client import aio, blocking, bodies
from nsqcy.client.bodies import Json, MessagePack, codec_of, decoder, decoding
from nsqcy.client.codec import Codec, Message
from nsqcy.client.common_interface import batched, batched_async, is_coroutine_function
from nsqcy.client.errors import DecodeError
from support.fake_nsqd import delivery

ADDRESS = "127.0.0.1:4150"  # no test connects to this address
PLAIN = {"id": 17, "name": "Zoë", "lines": [1, 2.5, None, True]}

every_face = pytest.mark.parametrize("face", [aio, blocking])


@dataclass
class Order:
    id: int
    name: str = ""


@dataclass
class Dated:
    at: datetime
    order: Order


class Upper:
    """A program's own codec."""

    def encode(self, value: str) -> bytes:
        return value.upper().encode()

    def decode(self, body: bytes) -> str:
        return body.decode().lower()


def received(body: bytes) -> Message:
    (message,), _ = Codec("nsqd:4150").feed(delivery(body))
    return message


def json_of(value: Any) -> Message:
    return received(Json().encode(value))


@pytest.fixture
def without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, "pydantic")
    monkeypatch.setattr(bodies, "_has_pydantic", bodies._has_pydantic.__wrapped__)


def forbid(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make imports of this package fail."""
    load = builtins.__import__

    def load_others(name: str, *about: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return load(name, *about, **more)

    monkeypatch.setattr(builtins, "__import__", load_others)


# -- codecs


def test_json_is_compact_utf_8() -> None:
    assert Json().encode(PLAIN) == '{"id":17,"name":"Zoë","lines":[1,2.5,null,true]}'.encode()
    assert Json().decode(Json().encode(PLAIN)) == PLAIN


def test_messagepack_has_bytes_and_keys_of_all_types() -> None:
    pytest.importorskip("msgpack")
    value = PLAIN | {"raw": b"\xff\x00", 5: "five"}
    assert MessagePack().decode(MessagePack().encode(value)) == value


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_values_of_classes(name: Any) -> None:
    pytest.importorskip("pydantic")
    pytest.importorskip("msgpack")
    codec = codec_of(name)
    value = Dated(datetime(2026, 1, 2, tzinfo=UTC), Order(17, "Zoë"))
    body = codec.encode([value])
    assert codec.decode(body) == [
        {"at": "2026-01-02T00:00:00Z", "order": {"id": 17, "name": "Zoë"}}
    ]
    decoded = decoder(codec, list[Dated])
    assert decoded is not None and decoded(received(body)) == [value]


def test_strict_models_accept_json_text() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model(
        "Strict", __config__=pydantic.ConfigDict(strict=True), at=(datetime, ...)
    )
    decoded = decoder("json", model)
    assert decoded is not None
    assert decoded(received(b'{"at":"2026-01-02T00:00:00Z"}')).at.year == 2026


@pytest.mark.usefixtures("without_pydantic")
def test_dataclasses_are_encoded_without_pydantic() -> None:
    assert json.loads(Json().encode({"all": [Order(17)]})) == {"all": [{"id": 17, "name": ""}]}
    with pytest.raises(TypeError, match="the codec cannot encode datetime"):
        Json().encode(Dated(datetime(2026, 1, 2), Order(17)))


@pytest.mark.parametrize("value", [b"x", bytearray(b"x"), {"raw": b"x"}, Order, object()])
def test_what_json_cannot_encode(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Json().encode(value)


@pytest.mark.parametrize("value", [float("nan"), "\ud800"])
def test_what_is_not_json(value: Any) -> None:
    with pytest.raises(ValueError):
        Json().encode(value)


def test_what_messagepack_cannot_encode() -> None:
    pytest.importorskip("msgpack")
    with pytest.raises(ValueError):
        MessagePack().encode(1 << 64)


def test_messagepack_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, "msgpack")
    with pytest.raises(ImportError, match=r'requires msgpack: pip install "nsqcy\[msgpack\]"'):
        codec_of("msgpack")


@every_face
def test_codecs_are_checked(face: Any) -> None:
    with pytest.raises(ValueError, match=r'codec "yaml" is unknown \(allowed: json, msgpack\)'):
        face.Producer(ADDRESS, codec="yaml")
    for codec in (object(), Upper, 5):
        with pytest.raises(TypeError, match="not an object with encode and decode methods"):
            face.Consumer("t", "c", ADDRESS, codec=codec)


# -- producers


@every_face
def test_a_producer_encodes(face: Any) -> None:
    producer = face.Producer(ADDRESS, codec=Upper())
    assert producer._body("a", None) == b"A"
    assert producer._several(["a", "b"], None).endswith(b"\0\0\0\1A\0\0\0\1B")
    with pytest.raises(TypeError, match="a message is bytes, not dict"):
        face.Producer(ADDRESS)._body({}, None)


def test_batches_are_measured_when_encoded() -> None:
    async def values() -> AsyncIterator[int]:
        for value in (1, 22, 3):
            yield value

    async def collect() -> list[list[bytes]]:
        return [each async for each in batched_async(values(), 9, 3, Json().encode)]

    assert list(batched([1, 22, 3], 9, 3, Json().encode)) == [[b"1", b"22"], [b"3"]]
    assert asyncio.run(collect()) == [[b"1", b"22"], [b"3"]]


# -- handlers


def plain(value):  # type: ignore[no-untyped-def]
    return value


def with_message(value, message):  # type: ignore[no-untyped-def]
    return value, message.body


def typed(order: Order) -> Order:
    return order


def typed_with_message(order: Order, message: Message) -> tuple[Order, bytes]:
    return order, message.body


def with_a_default(order: Order, retries: int = 3) -> Order:
    return order


def anything(*values: Any) -> Any:
    return values


class Handling:
    def __call__(self, order: Order) -> Order:
        return order

    def method(self, order: Order) -> Order:
        return order


BODY = b'{"id":17}'


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (plain, {"id": 17}),
        (with_message, ({"id": 17}, BODY)),
        (typed, Order(17)),
        (typed_with_message, (Order(17), BODY)),
        (with_a_default, Order(17)),
        (anything, ({"id": 17},)),
        (Handling(), Order(17)),
        (Handling().method, Order(17)),
        (dict, {"id": 17}),  # has no signature
    ],
)
def test_what_a_handler_gets(handler: Callable[..., Any], result: Any) -> None:
    pytest.importorskip("pydantic")
    assert decoding(handler, "json")(received(BODY)) == result


def test_a_coroutine_function_remains_one() -> None:
    async def handle(order: dict, message: Message) -> tuple[Any, bytes]:  # type: ignore[type-arg]
        await asyncio.sleep(0)
        return order, message.body

    pytest.importorskip("pydantic")
    handler = decoding(handle, "json")
    assert is_coroutine_function(handler)
    assert asyncio.run(handler(received(BODY))) == ({"id": 17}, BODY)


def test_a_handler_of_messages_is_unchanged() -> None:
    def handle(message: Message) -> None: ...

    assert decoding(handle, "json") is handle


def text_annotation(order: "Order") -> Order:
    return order


def unknown_annotation(order: "Ordr") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_annotations_may_be_text() -> None:
    pytest.importorskip("pydantic")
    assert decoding(text_annotation, "json")(received(BODY)) == Order(17)
    with pytest.raises(TypeError, match="an unknown annotation: name 'Ordr'"):
        decoding(unknown_annotation, "json")


def swapped(message: Message, order: Order) -> None: ...
def three(order: Any, message: Message, more: int) -> None: ...
def none() -> None: ...
def other(order: Any, database: dict) -> None: ...  # type: ignore[type-arg]


@every_face
@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (swapped, r"must accept a value, or a value and a Message: \(message: "),
        (three, "must accept a value, or a value and a Message"),
        (none, r"must accept a value, or a value and a Message: \(\)"),
        (other, "second parameter must be a Message"),
    ],
)
def test_handlers_that_cannot_be_called(face: Any, handler: Callable[..., Any], error: str) -> None:
    with pytest.raises(TypeError, match=error):
        face.Consumer("t", "c", ADDRESS, message_handler=handler, codec="json")


@pytest.mark.usefixtures("without_pydantic")
def test_types_require_pydantic() -> None:
    with pytest.raises(
        TypeError, match=r'Order requires pydantic: pip install "nsqcy\[pydantic\]"'
    ):
        decoding(typed, "json")
    assert decoding(plain, "json")(received(BODY)) == {"id": 17}


# -- bodies that cannot be decoded


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"id":"x"}', b"[" * 100_000])
def test_undecodable_bodies(body: bytes) -> None:
    pytest.importorskip("pydantic")
    with pytest.raises(DecodeError, match=r"of message [0-9a-f]{16}: .") as e:
        decoding(typed, "json")(received(body))
    assert e.value.__cause__ is not None and "\n" not in str(e.value)


def test_an_error_without_text() -> None:
    class Failing(Upper):
        def decode(self, body: bytes) -> str:
            raise KeyError

    with pytest.raises(DecodeError, match=r": KeyError$"):
        decoding(plain, Failing())(received(b"x"))


def test_errors_of_the_handler_are_its_own() -> None:
    def fail(value: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        decoding(fail, "json")(received(BODY))


@every_face
def test_decode(face: Any) -> None:
    assert face.Consumer("t", "c", ADDRESS, codec="json").decode(received(BODY)) == {"id": 17}
    with pytest.raises(DecodeError):
        face.Consumer("t", "c", ADDRESS, codec="json").decode(received(b"{"))
    with pytest.raises(TypeError, match="requires a consumer with the codec option"):
        face.Consumer("t", "c", ADDRESS).decode(received(BODY))
