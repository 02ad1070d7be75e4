"""A client's codec: the messages are the same for any split of the bytes; each is answered
once."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcy.client.codec import (
    AlreadyAnswered,
    Codec,
    Message,
    ProtocolError,
    Publish,
    finish,
    mpub_body,
)
from nsqcy.client.codec import message_body as body_of
from nsqcy.errors import NsqError
from support.runs import runs

RESPONSE, ERROR, MESSAGE = 0, 1, 2
FINISHED, REQUEUED, FAILED = 0, 1, 2
ID = b"0123456789abcdef"
MAX_ANSWER = 1 << 20


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">iI", len(data) + 4, kind) + data


def delivery(
    body: bytes = b"hello", *, ident: bytes = ID, attempts: int = 1, timestamp: int = 42
) -> bytes:
    return frame(MESSAGE, struct.pack(">qH16s", timestamp, attempts, ident) + body)


class Wakes:
    """A codec that counts its requests for a flush."""

    def __init__(self, longest: int = 0) -> None:
        self.codec = Codec("nsqd:4150", longest)
        self.count = 0
        self.codec.wake = self.wake

    def wake(self) -> None:
        self.count += 1

    def message(self, data: bytes | None = None) -> Message:
        (message,), frames = self.codec.feed(data or delivery())
        assert frames == []
        return message


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


class Flow:
    """Records the calls that it receives, and the pending output at each call."""

    def __init__(self, codec: Codec, calm: bool = True) -> None:
        self.codec = codec
        self.calm = calm
        self.told: list[int] = []
        self.then: Callable[[], None] = lambda: None

    def result(self, outcome: int) -> None:
        self.told.append(outcome)
        self.then()

    def delay_of(self, attempts: int) -> int:
        return 1000 * attempts

    def keep(self, message: Message, reason: str) -> bool:
        return False


# -- frames in


Told = tuple[list[tuple[int, int, bytes, bytes]], list[tuple[int, bytes]]]


def told(codec: Codec, pieces: list[bytes]) -> Told:
    messages, others = [], []
    for piece in pieces:
        some, frames = codec.feed(piece)
        messages += [(each.timestamp, each.attempts, each.id, each.body) for each in some]
        others += frames
    return messages, others


idents = st.text("0123456789abcdef", min_size=16, max_size=16).map(str.encode)
stamps = st.integers(-(2**63), 2**63 - 1)
deliveries = st.builds(
    lambda timestamp, attempts, ident, body: (timestamp, attempts, ident, body),
    stamps,
    st.integers(0, 65535),
    idents,
    st.binary(max_size=200),
)
answers = st.tuples(
    st.sampled_from([RESPONSE, ERROR, 3, 0xFFFFFFFF]),
    st.sampled_from([b"OK", b"", b"E_FIN_FAILED x", b"_heartbeat_"]) | st.binary(max_size=50),
)


@pytest.mark.slow
@given(st.lists(deliveries | answers, max_size=12), st.data())
@settings(max_examples=runs(60), deadline=None)
def test_frames_are_the_same_however_they_are_cut(
    sent: list[tuple[int, int, bytes, bytes] | tuple[int, bytes]], data: st.DataObject
) -> None:
    text = b"".join(
        frame(*each)
        if len(each) == 2
        else frame(MESSAGE, struct.pack(">qH16s", *each[:3]) + each[3])
        for each in sent
    )
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    messages = [each for each in sent if len(each) == 4]
    others = [each for each in sent if len(each) == 2]
    for way in ([text], pieces, [text[i : i + 1] for i in range(len(text))]):
        codec = Codec("nsqd:4150")
        assert told(codec, way) == (messages, others)
        assert codec.in_flight == len(messages)
        assert codec.rest() == b""


def test_a_long_frame_costs_its_length_once() -> None:
    size, piece = 32 << 20, 1 << 10
    codec = Codec("nsqd:4150")
    head = delivery(b"")[4:]
    assert codec.feed(struct.pack(">i", len(head) + size) + head) == ([], [])
    for _ in range(size // piece - 1):
        codec.feed(bytes(piece))
    (message,), _ = codec.feed(bytes(piece))
    assert message.body == bytes(size)


def test_attempts_are_not_signed(wakes: Wakes) -> None:
    assert wakes.message(delivery(attempts=40000)).attempts == 40000


def test_a_message_has_its_fields_and_its_nsqd(wakes: Wakes) -> None:
    message = wakes.message(delivery(b"b", timestamp=7, attempts=2))
    assert (message.id, message.body, message.timestamp, message.attempts) == (ID, b"b", 7, 2)
    assert message.nsqd_address == "nsqd:4150"
    assert not message.is_async() and not message.has_responded()
    message.enable_async()
    assert message.is_async()
    assert ID.decode() in repr(message)


def test_one_frame_at_a_time_and_the_rest_as_it_came() -> None:
    codec = Codec("nsqd:4150")
    text = frame(RESPONSE, b"OK") + frame(RESPONSE, b"{}") + b"\x16\x03\x01layer"
    assert codec.feed(text, 1) == ([], [(RESPONSE, b"OK")])
    assert codec.feed(b"", 1) == ([], [(RESPONSE, b"{}")])
    assert codec.rest() == b"\x16\x03\x01layer"
    assert codec.rest() == b""


@pytest.mark.parametrize("size", [0, 1, 3, -1, 0x7FFFFFFF + 1])
def test_sizes_no_frame_has(size: int) -> None:
    with pytest.raises(ProtocolError, match=r"nsqd:4150 announced a frame of \d+ bytes"):
        Codec("nsqd:4150").feed(struct.pack(">I", size & 0xFFFFFFFF))


@pytest.mark.parametrize("cut", [4, 5, 12])
def test_an_http_server_is_told_from_an_nsqd(cut: int) -> None:
    codec = Codec("web:4151")
    with pytest.raises(ProtocolError, match="unexpected HTTP response from web:4151"):
        codec.feed(b"HTTP/1.1 400"[:cut])


@pytest.mark.parametrize("kind", [RESPONSE, ERROR, 7])
def test_only_messages_are_long(kind: int) -> None:
    """If the announced size is not allowed, the frame is rejected without waiting for its body."""
    for way in (8, 1):
        codec = Codec("nsqd:4150")
        head = struct.pack(">iI", MAX_ANSWER + 1, kind)
        with pytest.raises(ProtocolError, match="announced a frame of 1048577 bytes"):
            for at in range(0, 8, way):
                codec.feed(head[at : at + way])
    assert Codec("").feed(struct.pack(">iI", MAX_ANSWER, kind)) == ([], [])


def test_the_longest_message_that_is_wanted() -> None:
    wakes = Wakes(10)
    assert wakes.message(delivery(b"0123456789")).body == b"0123456789"
    answer = b"much longer than a message may be, and a fine answer still"
    assert wakes.codec.feed(frame(RESPONSE, answer)) == ([], [(RESPONSE, answer)])
    with pytest.raises(ProtocolError, match="41 bytes, 4 to 40 are allowed"):
        wakes.codec.feed(delivery(b"0123456789x")[:8])


def test_headers() -> None:
    wakes = Wakes(10)
    assert wakes.message(delivery(b"0123456789")).headers == {}
    wakes.codec.expect_headers()
    message = wakes.message(delivery(b"\0\5\1a\0\1v0123456789"))
    assert (message.body, message.headers) == (b"0123456789", {"a": "v"})
    assert message.headers is message.headers
    assert wakes.message(delivery(b"\0\0x")).headers == {}
    maximum = b"\x10\0\1a\x0f\xfc" + bytes(4092)
    assert len(wakes.message(delivery(maximum + b"0123456789")).headers["a"]) == 4092
    with pytest.raises(ProtocolError, match="4 to 4138 are allowed"):
        wakes.codec.feed(delivery(maximum + b"0123456789x")[:8])


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\2x", b"\x10\1" + bytes(4097)])
def test_headers_that_are_cut_or_too_long(wakes: Wakes, data: bytes) -> None:
    wakes.codec.expect_headers()
    with pytest.raises(ProtocolError, match="bytes of headers"):
        wakes.codec.feed(delivery(data))


@pytest.mark.parametrize("length", [0, 1, 25])
def test_a_message_without_its_header(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"a message of {length} bytes"):
        Codec("nsqd:4150").feed(frame(MESSAGE, bytes(length)))


@given(st.lists(st.binary(max_size=60), max_size=10))
@settings(max_examples=runs(60), deadline=None)
def test_garbage_is_refused_or_read(pieces: list[bytes]) -> None:
    codec = Codec("nsqd:4150", 1000)
    try:
        for piece in pieces:
            codec.feed(piece)
    except NsqError:
        pass
    assert len(codec.rest()) <= sum(map(len, pieces))


def test_an_id_that_is_no_text(wakes: Wakes) -> None:
    message = wakes.message(delivery(ident=b"\xff" * 16))
    assert "\\xff" in repr(message)
    message.finish()
    for again in (message.finish, message.touch):
        with pytest.raises(AlreadyAnswered, match=r"message \\xff"):
            again()


# -- commands out


def test_it_asks_to_be_emptied_when_it_was_empty(wakes: Wakes) -> None:
    codec = wakes.codec
    codec.write(b"")
    assert wakes.count == 0 and codec.take() == b""
    codec.write(b"NOP\n")
    assert (wakes.count, codec.pending) == (1, 4)
    codec.publish(b"PUB t\n", b"body")
    wakes.message().finish()
    assert wakes.count == 1
    assert codec.take() == b"NOP\nPUB t\n\0\0\0\4bodyFIN " + ID + b"\n"
    assert codec.pending == 0
    wakes.message().touch()
    assert (wakes.count, codec.take()) == (2, b"TOUCH " + ID + b"\n")


def test_a_large_buffer_is_released_and_allocated_again(wakes: Wakes) -> None:
    for _ in range(2):
        for _ in range(20):
            wakes.codec.publish(b"PUB t\n", bytes(60_000))
        assert len(wakes.codec.take()) == 20 * 60_010


def test_a_large_body_is_not_copied(wakes: Wakes) -> None:
    """Large bodies keep their position in the output; the data between two of them is one piece."""
    codec, bodies = wakes.codec, [bytes(1 << 16), bytes(1 << 20)]
    for body in bodies:
        codec.publish(b"PUB t\n", b"small")
        codec.publish(b"PUB t\n", body)
    codec.write(b"NOP\n")
    small = b"PUB t\n\0\0\0\5smallPUB t\n"
    sizes = [b"\0\1\0\0", b"\0\x10\0\0"]
    assert codec.pending == 2 * (len(small) + 4) + (1 << 16) + (1 << 20) + 4
    for body, size in zip(bodies, sizes, strict=True):
        assert codec.take() == small + size
        assert codec.take() is body
    assert (codec.take(), codec.take(), codec.pending) == (b"NOP\n", b"", 0)
    codec.publish(b"PUB t\n", bodies[0])
    codec.close()
    assert (codec.take(), codec.pending) == (b"", 0)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda m: m.finish(), b"FIN %b\n"),
        (lambda m: m.requeue(0), b"REQ %b 0\n"),
        (lambda m: m.requeue(1.5), b"REQ %b 1500\n"),
        (lambda m: m.requeue(0.0004), b"REQ %b 0\n"),
        (lambda m: m.requeue(time_ms=1500), b"REQ %b 1500\n"),
        (lambda m: m.requeue(delay=2, time_ms=3), b"REQ %b 3\n"),
        (lambda m: m.requeue(time_ms=2**53), b"REQ %b 9007199254740992\n"),
        (lambda m: m.requeue(), b"REQ %b 0\n"),  # without a consumer, there is no default delay
    ],
)
def test_answers(wakes: Wakes, answer: Callable[[Message], None], text: bytes) -> None:
    message = wakes.message()
    answer(message)
    assert wakes.codec.take() == text % ID
    assert message.has_responded()
    assert wakes.codec.in_flight == 0


@pytest.mark.parametrize("delay", [-0.001, -1, float("nan"), float("inf"), 1e300])
def test_a_delay_that_is_none(wakes: Wakes, delay: float) -> None:
    message = wakes.message()
    with pytest.raises(ValueError, match="cannot be requeued"):
        message.requeue(delay)
    with pytest.raises(ValueError, match="cannot be requeued"):
        message.requeue(time_ms=-1 if delay < 0 else 2**64)
    assert not message.has_responded()
    message.finish()


@pytest.mark.case("CL-028")
def test_an_answer_is_given_once(wakes: Wakes) -> None:
    for first in (Message.finish, Message.requeue):
        message = wakes.message()
        first(message)
        wakes.codec.take()
        for second in (Message.finish, Message.requeue, Message.touch):
            with pytest.raises(AlreadyAnswered, match=ID.decode()):
                second(message)
    assert wakes.codec.take() == b""
    assert wakes.codec.in_flight == 0


def test_a_message_is_lost_with_its_connection(wakes: Wakes) -> None:
    message = wakes.message()
    assert not message.is_lost()
    wakes.codec.close()
    assert message.is_lost()
    message.finish()
    assert wakes.codec.take() == b""


@pytest.mark.case("CL-032")
def test_touch_answers_nothing(wakes: Wakes) -> None:
    message = wakes.message()
    message.touch()
    message.touch()
    assert wakes.codec.take() == b"TOUCH " + ID + b"\nTOUCH " + ID + b"\n"
    assert not message.has_responded() and wakes.codec.in_flight == 1


def test_many_are_finished_at_once() -> None:
    one, other = Wakes(), Wakes()
    messages = [each.message() for each in (one, other, one)]
    finish(messages)
    assert one.codec.take() == b"FIN %b\n" % ID * 2
    assert (one.count, other.count) == (1, 1)
    with pytest.raises(AlreadyAnswered):
        finish(messages)


def test_the_first_that_is_answered_ends_it() -> None:
    one, other = Wakes(), Wakes()
    first, answered, last = one.message(), other.message(), one.message()
    answered.finish()
    with pytest.raises(AlreadyAnswered):
        finish([first, answered, last])
    assert first.has_responded() and not last.has_responded()
    assert one.codec.take() == b"FIN %b\n" % ID
    with pytest.raises(TypeError):
        finish([last, ID])  # type: ignore[list-item]
    assert one.codec.take() == b"FIN %b\n" % ID


# -- flow control is notified first


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (lambda m: m.finish(), FINISHED),
        (lambda m: m.requeue(), FAILED),
        (lambda m: m.requeue(backoff=False), REQUEUED),
    ],
)
def test_flow_control_speaks_before_the_answer(
    wakes: Wakes, answer: Callable[[Message], None], outcome: int
) -> None:
    codec = wakes.codec
    flow = Flow(codec, calm=False)
    flow.then = lambda: codec.write(b"RDY 0\n")
    codec.flow = flow
    answer(wakes.message())
    assert flow.told == [outcome]
    assert codec.take().startswith(b"RDY 0\n")


def test_a_calm_flow_is_not_told_of_a_success(wakes: Wakes) -> None:
    flow = wakes.codec.flow = Flow(wakes.codec)
    wakes.message().finish()
    assert flow.told == []
    wakes.message(delivery(attempts=3)).requeue()
    assert flow.told == [FAILED]
    assert wakes.codec.take() == b"FIN %b\nREQ %b 3000\n" % (ID, ID)


def test_the_flow_may_close_the_connection(wakes: Wakes) -> None:
    flow = wakes.codec.flow = Flow(wakes.codec, calm=False)
    flow.then = wakes.codec.close
    for answer in (Message.finish, Message.requeue):
        answer(wakes.message())
    assert wakes.codec.take() == b""


# -- closed


def test_nothing_is_sent_on_a_closed_connection(wakes: Wakes) -> None:
    codec = wakes.codec
    flow = codec.flow = Flow(codec, calm=False)
    messages = [wakes.message() for _ in range(3)]
    codec.write(b"NOP\n")
    codec.feed(b"\0\0")
    wakes.count = 0
    codec.close()
    assert (codec.take(), codec.in_flight, codec.rest()) == (b"", 0, b"")
    messages[0].touch()
    messages[0].finish()
    messages[1].requeue()
    codec.write(b"NOP\n")
    codec.publish(b"PUB t\n", b"x")
    assert (codec.take(), codec.in_flight, wakes.count, flow.told) == (b"", 0, 0, [])
    with pytest.raises(AlreadyAnswered):
        messages[1].finish()


# -- objects created directly


@pytest.mark.parametrize("call", ["finish", "requeue", "touch"])
def test_a_message_that_no_connection_has_delivered(call: str) -> None:
    with pytest.raises(TypeError, match="created by the connection"):
        Message()
    message = Message.__new__(Message)
    with pytest.raises(TypeError, match="not a Message that a connection has delivered"):
        getattr(message, call)()
    with pytest.raises(TypeError, match="not a Message that a connection has delivered"):
        finish([message])
    with pytest.raises(TypeError, match="not a Message that a connection has delivered"):
        _ = message.nsqd_address


# -- bodies


@pytest.mark.parametrize("data", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_types_accepted_as_a_message(data: object) -> None:
    body = body_of(data)
    assert body == b"x" and type(body) is bytes


@pytest.mark.parametrize("data", ["x", 1, None, [b"x"]])
def test_types_rejected_as_a_message(data: object) -> None:
    with pytest.raises(TypeError, match="a message is bytes, not"):
        body_of(data)
    with pytest.raises(TypeError, match="a message is bytes, not"):
        mpub_body([b"x", data])


def test_no_message_is_empty() -> None:
    with pytest.raises(ValueError, match="cannot be empty"):
        body_of(b"")
    with pytest.raises(ValueError, match="cannot be empty"):
        mpub_body([b"x", b""])
    with pytest.raises(ValueError, match="there are no messages"):
        mpub_body([])


def test_mpub_is_a_count_and_sized_bodies() -> None:
    assert mpub_body((b"a", bytearray(b"bc"))) == b"\0\0\0\2\0\0\0\1a\0\0\0\2bc"
    assert mpub_body(each for each in [b"a"]) == b"\0\0\0\1\0\0\0\1a"


def test_a_publish_holds_what_it_was_made_of() -> None:
    publish = Publish("t", b"PUB t\n", b"x", None)
    assert (publish.topic, publish.head, publish.body) == ("t", b"PUB t\n", b"x")
    assert (publish.deadline, publish.tries, publish.error) == (float("inf"), 0, None)
