"""The control channel: the content of datagrams, calls and their answers, a peer that has
exited."""

import errno
import json
import os
import random
import socket
import struct
from collections import Counter, deque

import gevent
import gevent.event
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.process import ancillary, control
from nsqcy.process.control import (
    CALL,
    CHUNK,
    NOTIFY,
    REPLY,
    Answer,
    CallTimeout,
    Channel,
    ChannelClosed,
    ControlError,
    Decoder,
    Message,
    RemoteError,
    encode,
    is_out_of_descriptors,
)

# -- the format

HEADERS = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=20), max_size=4)
MESSAGES = st.builds(
    lambda kind, header, size: Message(kind, header, random.Random(size).randbytes(size)),
    st.sampled_from([CALL, REPLY, NOTIFY]),
    HEADERS,
    st.sampled_from([0, 1, CHUNK - 100, CHUNK, CHUNK + 1, 3 * CHUNK + 7]) | st.integers(0, 300),
)


@given(st.lists(MESSAGES, max_size=5))
def test_decoding_reverses_encoding(messages):
    decoder = Decoder()
    datagrams = [datagram for message in messages for datagram in encode(message)]
    assert all(len(datagram) <= CHUNK + 8 for datagram in datagrams)
    decoded = [decoder.feed(datagram) for datagram in datagrams]
    assert [message for message in decoded if message is not None] == messages


def test_the_bytes_of_a_datagram():
    (datagram,) = encode(Message(NOTIFY, {"method": "m", "args": {}}, b"blob"))
    header = b'{"method":"m","args":{}}'
    assert datagram == b"\x03\x00\x00\x00" + struct.pack("<I", len(header)) + header + b"blob"


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_decoded_or_refused(datagrams):
    decoder = Decoder()
    try:
        for datagram in datagrams:
            decoder.feed(datagram)
    except ControlError:
        pass
    decoder.close()


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 1), st.integers(0, 20)),
        max_size=6,
    )
)
def test_any_prefixes_are_decoded_or_refused(prefixes):
    decoder = Decoder()
    try:
        for kind, flags, fds, length in prefixes:
            message = decoder.feed(struct.pack("<BBHI", kind, flags, fds, length) + b'{"a":1}')
            assert message is None or isinstance(message.header, dict)
    except ControlError:
        pass


@pytest.mark.parametrize(
    ("datagrams", "text"),
    [
        ([b""], "a datagram of 0 bytes"),
        ([b"\x09" + b"\0" * 7], "unknown kind 9"),
        ([b"\x01\x02\0\0\0\0\0\0"], "a continuation chunk without"),
        ([b"\x01\x01\0\0\0\0\0\0", b"\x01\x00\0\0\0\0\0\0"], "inside another"),
        ([b"\x01\x01\0\0\0\0\0\0", b"\x02\x02\0\0\0\0\0\0"], "a continuation chunk without"),
        ([b"\x01\x00\0\0\x09\0\0\0{}"], "longer than its message"),
        ([b"\x01\x00\0\0\x02\0\0\0[]"], "not an object"),
        ([b"\x01\x00\0\0\x01\0\0\0["], "not JSON"),
        ([b"\x01\x00\0\0\x01\0\0\0\xff"], "not JSON"),
    ],
)
def test_what_is_refused(datagrams, text):
    decoder = Decoder()
    with pytest.raises(ControlError, match=text):
        for datagram in datagrams:
            decoder.feed(datagram)


def test_a_message_too_large_is_refused_on_both_sides(monkeypatch):
    monkeypatch.setattr(control, "MAX_MESSAGE", 2 * CHUNK)
    with pytest.raises(ValueError, match="at most"):
        encode(Message(NOTIFY, {}, b"x" * 3 * CHUNK))
    decoder = Decoder()
    with pytest.raises(ControlError, match="too large"):
        for flags in (1, 3, 3):
            decoder.feed(struct.pack("<BBHI", NOTIFY, flags, 0, 0) + b"x" * CHUNK)


# -- the channel


class Peer:
    """A handler that records the received requests; `answers` has the answers by method."""

    def __init__(self, **answers):
        self.answers = answers
        self.notes = []
        self.hung = []

    def called(self, request):
        return self.answers[request.method](request)

    def notified(self, request):
        self.notes.append(request)

    def hung_up(self, reason):
        self.hung.append(reason)


@pytest.fixture
def ends():
    made = []

    def make(one=None, other=None):
        socks = ancillary.pair()
        handlers = one or Peer(), other or Peer()
        channels = [Channel(sock, it) for sock, it in zip(socks, handlers, strict=True)]
        for channel in channels:
            channel.start()
        made.extend(channels)
        return channels

    yield make
    for channel in made:
        channel.close()


def wait_until(condition):
    with gevent.Timeout(30):
        while not condition():
            gevent.sleep(0.001)


def test_a_call_and_its_answer(ends):
    left, right = ends(
        Peer(sub=lambda request: request.args["a"] - request.args["b"]),
        Peer(add=lambda request: request.args["a"] + request.args["b"]),
    )
    assert left.call("add", 30, a=1, b=2) == Answer(3)
    assert right.call("sub", 30, a=1, b=2) == Answer(-1)


def test_large_blobs_both_ways_at_once(ends):
    blob = random.Random(1).randbytes(3_000_000)
    left, right = ends(
        *[Peer(echo=lambda request: Answer("it", request.blob[::-1])) for _ in range(2)]
    )
    calls = [gevent.spawn(channel.call, "echo", 30, blob=blob) for channel in (left, right) * 3]
    gevent.joinall(calls, raise_error=True)
    assert all(call.value == Answer("it", blob[::-1]) for call in calls)


def test_answers_find_their_callers_in_any_order(ends):
    def wait(request):
        gevent.sleep(request.args["seconds"])
        return request.args["seconds"]

    left, _ = ends(Peer(), Peer(wait=wait))
    calls = [gevent.spawn(left.call, "wait", 30, seconds=each) for each in (0.03, 0.02, 0.01, 0)]
    gevent.joinall(calls, raise_error=True)
    assert [call.value.value for call in calls] == [0.03, 0.02, 0.01, 0]


def test_a_large_blob_moves_a_bounded_step_a_turn(ends, monkeypatch):
    """Even if the peer is fast, the hub does other work between its messages."""
    turn = 0
    sent, received = Counter(), Counter()
    under_way = deque()

    def count():
        nonlocal turn
        turn += 1

    def send(sock, data, fds):  # a socket that never fills up
        under_way.append(data)
        sent[turn] += len(data)

    def receive(sock, size):
        if not under_way:
            raise BlockingIOError
        received[turn] += len(under_way[0])
        return ancillary.Datagram(under_way.popleft(), [], False)

    watcher = gevent.get_hub().loop.prepare()
    watcher.start(count)
    peer = Peer()
    left, _ = ends(Peer(), peer)
    left.notify("first")
    wait_until(lambda: peer.notes)
    left._sock.send(b"never read, so that there is something to read")
    monkeypatch.setattr(ancillary, "send", send)
    monkeypatch.setattr(ancillary, "receive", receive)
    blob = random.Random(1).randbytes(5_000_000)
    left.notify("large", blob=blob)
    wait_until(lambda: len(peer.notes) == 2)
    watcher.stop()
    watcher.close()
    assert peer.notes[1].blob == blob
    for steps in (sent, received):
        assert sum(steps.values()) > len(blob)
        assert max(steps.values()) < 400_000


def test_requests_begin_in_the_order_they_were_sent(ends):
    heard = []

    class Hears(Peer):
        def called(self, request):
            heard.append(request.args["number"])

        notified = called

    left, _ = ends(Peer(), Hears())
    for number in range(0, 400, 2):
        left.notify("note", number=number)
        gevent.spawn(left.call, "call", 30, number=number + 1)
        gevent.sleep(0)
    wait_until(lambda: len(heard) == 400)
    assert heard == list(range(400))


def test_a_handler_that_fails_tells_the_caller(ends):
    def fail(request):
        raise ValueError("no such thing")

    left, _ = ends(Peer(), Peer(fail=fail, odd=lambda request: object()))
    with pytest.raises(RemoteError, match="no such thing"):
        left.call("fail", 30)
    with pytest.raises(RemoteError, match="not JSON serializable"):
        left.call("odd", 30)
    with pytest.raises(RemoteError, match="unknown"):
        left.call("unknown", 30)


@pytest.mark.parametrize(
    ("error", "unreachable"),
    [
        (ChannelClosed("gone"), True),
        (CallTimeout("silent"), True),
        (RemoteError("further on", unreachable=True), True),
        (RemoteError("a bug"), False),
        (ValueError("a bug"), False),
    ],
)
def test_a_forwarded_error_shows_whether_a_peer_was_unreachable(ends, error, unreachable):
    def fail(request):
        raise error

    left, _ = ends(Peer(), Peer(fail=fail))
    with pytest.raises(RemoteError, match=str(error)) as raised:
        left.call("fail", 30)
    assert control.is_unreachable(raised.value) is unreachable


def test_an_unanswered_call_times_out_and_its_late_answer_is_dropped(ends):
    go = gevent.event.Event()

    def slow(request):
        go.wait()
        reader, writer = os.pipe()
        os.close(writer)
        return Answer("late", b"", (reader,))

    left, _ = ends(Peer(), Peer(slow=slow, quick=lambda request: "here"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CallTimeout):
        left.call("slow", 0.01)
    go.set()
    assert left.call("quick", 30).value == "here"
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before)


def test_descriptors_travel(ends):
    reader, writer = os.pipe()

    def write(request):
        for fd in request.fds:
            os.write(fd, b"through a descriptor")
        return Answer(len(request.fds), b"", request.fds)

    left, _ = ends(Peer(), Peer(write=write))
    answer = left.call("write", 30, fds=[writer, os.dup(writer)])
    assert answer.value == 2
    assert os.read(reader, 100) == b"through a descriptor" * 2
    ancillary.close_all(answer.fds)
    assert os.read(reader, 100) == b""  # all copies of the write end are closed
    os.close(reader)


@pytest.mark.parametrize("limited", ["sender", "receiver"])
def test_lost_descriptors_fail_only_their_message(ends, monkeypatch, limited):
    """A process that runs out of descriptors, or has too many in transit, keeps its channel."""
    before = len(os.listdir("/proc/self/fd"))
    send, receive = ancillary.send, ancillary.receive

    def refuse(sock, data, fds=()):
        if fds:
            raise OSError(errno.ETOOMANYREFS, "too many references")
        send(sock, data)

    def lose(sock, size):
        datagram = receive(sock, size)
        ancillary.close_all(datagram.fds)
        return datagram._replace(fds=[], cut=bool(datagram.fds))

    def duplicate(request):
        return Answer(None, b"", (os.dup(1),))

    took = []
    peer = Peer(take=lambda request: took.append(request.fds), give=duplicate, say=lambda _: "here")
    left, _ = ends(Peer(), peer)
    at_most = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(ancillary, *(("send", refuse) if limited == "sender" else ("receive", lose)))
        for method, fds in (("take", [os.dup(1)]), ("give", [])):
            with pytest.raises(RemoteError, match="Too many open files") as raised:
                left.call(method, 30, fds=fds)
            assert is_out_of_descriptors(raised.value) and not raised.value.unreachable
        assert left.call("say", 30).value == "here"
    left.call("take", 30, fds=[os.dup(1)])
    assert [len(fds) for fds in took] == [1]
    ancillary.close_all(took[0])
    assert before <= len(os.listdir("/proc/self/fd")) == at_most


def test_a_handler_without_descriptors_tells_the_caller(ends):
    def fail(request):
        raise OSError(errno.ENFILE, "Too many open files in system", "/proc/self/statm")

    left, _ = ends(Peer(), Peer(fail=fail))
    with pytest.raises(RemoteError) as raised:
        left.call("fail", 30)
    assert is_out_of_descriptors(raised.value) and not is_out_of_descriptors(RemoteError("other"))


def test_calls_fail_and_the_handler_is_notified_once_when_the_peer_leaves(ends):
    peer = Peer()
    left, right = ends(peer, Peer(hang=lambda request: gevent.sleep(1000)))
    calls = [gevent.spawn(left.call, "hang", None) for _ in range(3)]
    gevent.sleep(0.01)
    right.close()
    gevent.joinall(calls, timeout=30)
    assert all(isinstance(call.exception, ChannelClosed) for call in calls)
    wait_until(lambda: peer.hung)
    assert peer.hung == ["the peer is gone"]
    left.notify("nobody")
    with pytest.raises(ChannelClosed):
        left.call("nobody", 30)


def test_what_a_peer_said_before_it_went_is_heard(ends):
    peer = Peer()
    left, right = ends(peer, Peer())
    for number in range(100):
        right.notify("last words", number=number)
    right.close()
    left.drain()
    gevent.sleep(0)
    assert [note.args["number"] for note in peer.notes] == list(range(100))


def test_what_a_peer_said_is_heard_also_when_it_went_with_something_unread(ends):
    peer = Peer()
    ours, theirs = ancillary.pair()
    channel = Channel(ours, peer)
    theirs.send(next(encode(Message(NOTIFY, {"method": "last", "args": {}}))))
    channel.notify("never read")
    theirs.close()
    channel.drain()
    gevent.sleep(0)
    assert [note.method for note in peer.notes] == ["last"]
    assert peer.hung == ["the peer is gone"]


def test_a_peer_that_speaks_nonsense_is_hung_up_on(ends):
    ours, theirs = ancillary.pair()
    peer = Peer()
    channel = Channel(ours, peer)
    channel.start()
    theirs.send(b"nonsense")
    wait_until(lambda: peer.hung)
    assert channel.closed
    theirs.close()


@pytest.mark.parametrize(
    "header",
    [{}, {"method": 1, "args": {}}, {"method": "m", "args": []}, {"id": [], "value": 1}],
)
@pytest.mark.parametrize("kind", [CALL, NOTIFY, REPLY])
def test_odd_headers_do_not_break_more_than_the_channel(kind, header):
    ours, theirs = ancillary.pair()
    peer = Peer()
    channel = Channel(ours, peer)
    channel.start()
    theirs.send(next(encode(Message(kind, header))))
    theirs.close()
    wait_until(lambda: peer.hung)
    assert len(peer.hung) == 1


def test_a_peer_that_never_reads_is_given_up(monkeypatch):
    monkeypatch.setattr(control, "MAX_QUEUED", 100)
    ours, theirs = ancillary.pair()
    peer = Peer()
    channel = Channel(ours, peer)
    channel.start()
    for _ in range(2000):
        channel.notify("note", blob=b"x" * 1000)
    wait_until(lambda: peer.hung)
    assert peer.hung == ["the send queue is full"]
    theirs.close()


def test_what_does_not_fit_waits_and_arrives(ends):
    ours, theirs = ancillary.pair()
    channel = Channel(ours, Peer())
    channel.start()
    for number in range(3000):
        channel.notify("note", number=number)
    peer = Peer()
    other = Channel(theirs, peer)
    other.start()
    wait_until(lambda: len(peer.notes) == 3000)
    assert [note.args["number"] for note in peer.notes] == list(range(3000))
    channel.close()
    other.close()


def test_descriptors_of_a_message_never_sent_are_closed():
    ours, theirs = ancillary.pair()
    channel = Channel(ours, Peer())
    channel.start()
    while not channel._queue:
        channel.notify("fill", blob=b"x" * 10_000)
    reader, writer = os.pipe()
    channel.notify("late", fds=[writer])
    channel.close()
    theirs.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_descriptors_beside_a_request_that_is_refused_are_closed():
    ours, theirs = ancillary.pair()
    peer = Peer()
    channel = Channel(ours, peer)
    channel.start()
    reader, writer = os.pipe()
    ancillary.send(theirs, next(encode(Message(CALL, {}, b"", (writer,)))), [writer])
    os.close(writer)
    wait_until(lambda: peer.hung)
    theirs.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_json_in_the_header_is_compact():
    (datagram,) = encode(Message(CALL, {"id": 1, "args": {"a": [1, 2]}}))
    assert json.loads(datagram[8:]) == {"id": 1, "args": {"a": [1, 2]}}
    assert b" " not in datagram[8:]


# -- rest, and the next program


def restored(channel):
    """Return a channel that continues with the state of one that rests."""
    dumped = json.loads(json.dumps(channel.dump(lambda fd: fd)))
    sock = socket.socket(fileno=os.dup(dumped["fd"]))
    sock.setblocking(False)
    return Channel(sock, channel._handler), dumped


def test_held_requests_are_handled_when_it_resumes(ends):
    peer = Peer(echo=lambda request: Answer(request.args["n"], request.blob))
    left, right = ends(Peer(), peer)
    right.hold_requests()
    left.notify("note", n=1)
    call = gevent.spawn(left.call, "echo", 30, n=2, blob=b"b")
    wait_until(lambda: len(right._held) == 2)
    assert not peer.notes and not call.ready()
    assert right.activity == ""
    right.resume()
    assert call.get() == Answer(2, b"b")
    assert [note.args for note in peer.notes] == [{"n": 1}]


def test_held_requests_are_handled_by_the_next_program(ends):
    reading, writing = os.pipe()
    received = []

    def take(request):
        received.append((request.args, request.blob))
        with os.fdopen(request.fds[0], "wb") as file:
            file.write(b"written")
        return "taken"

    left, right = ends(Peer(), Peer(take=take))
    right.hold_requests()
    call = gevent.spawn(left.call, "take", 30, n=1, blob=b"\xff\0", fds=[writing])
    wait_until(lambda: right._held)
    kept = []
    dumped = right.dump(lambda fd: kept.append(fd) or fd)
    assert sorted(kept) == sorted([right._sock.fileno(), *right._held[0][0].fds])
    successor, dumped = restored(right)
    right._held.clear()
    right.close()
    successor.start()
    successor.restore(dumped)
    assert call.get() == Answer("taken")
    assert received == [({"n": 1}, b"\xff\0")]
    assert os.read(reading, 100) == b"written"
    os.close(reading)
    successor.close()


def test_an_answer_for_the_program_before_answers_no_other_call(ends):
    hold = gevent.event.Event()

    def slow(request):
        hold.wait()
        return "late"

    left, right = ends(Peer(), Peer(slow=slow, quick=lambda request: "right"))
    call = gevent.spawn(left.call, "slow", 30)
    wait_until(lambda: right._serving)
    left.give_up_calls()
    with pytest.raises(ChannelClosed):
        call.get()
    successor, dumped = restored(left)
    left.close()
    successor.restore(dumped)
    successor.start()
    hold.set()
    assert successor.call("quick", 30) == Answer("right")
    successor.close()


def test_what_keeps_a_channel_from_resting(ends):
    hold = gevent.event.Event()
    left, right = ends(Peer(), Peer(wait=lambda request: hold.wait()))
    assert (left.activity, right.activity) == ("", "")
    call = gevent.spawn(left.call, "wait", 30)
    wait_until(lambda: right._serving)
    assert left.activity == "1 calls are not answered"
    assert right.activity == "1 requests are being handled"
    hold.set()
    call.get()
    wait_until(lambda: right.activity == "")
    assert left.activity == ""
    left.notify("note", blob=b"x" * 10_000_000)
    assert left.activity == "messages are not sent"
    right._reader.stop()
    wait_until(lambda: right._read_batch() or right.activity == "a message is incomplete")
    right._reader.start(right._readable)
    wait_until(lambda: not left.activity and not right.activity)
    left.close()
    assert left.activity == "the channel is closed"


def test_calls_that_are_given_up_fail_as_unreachable(ends):
    hold = gevent.event.Event()
    left, right = ends(Peer(), Peer(wait=lambda request: hold.wait(), add=lambda request: 1))
    call = gevent.spawn(left.call, "wait", 30)
    wait_until(lambda: right._serving)
    left.give_up_calls()
    for failing in (call.get, lambda: left.call("add", 30)):
        with pytest.raises(ChannelClosed) as caught:
            failing()
        assert control.is_unreachable(caught.value)
    left.resume()
    hold.set()
    assert left.call("add", 30) == Answer(1)


def test_the_last_reports_of_a_peer_are_handled_although_requests_are_held(ends):
    peer = Peer()
    left, right = ends(Peer(), peer)
    right.hold_requests()
    left.notify("last", n=1)
    left.close()
    wait_until(lambda: peer.hung)
    wait_until(lambda: peer.notes)
    assert [note.args for note in peer.notes] == [{"n": 1}]


def test_held_requests_of_a_peer_that_is_drained_are_handled(ends):
    peer = Peer()
    left, right = ends(Peer(), peer)
    right.hold_requests()
    right._reader.stop()
    left.notify("last", n=1)
    right.drain()
    right.close()
    wait_until(lambda: peer.notes)


# -- a channel that another one takes over


def test_held_requests_are_sent_when_the_channel_is_released(ends):
    peer = Peer(echo=lambda request: request.args["text"])
    left, right = ends(Peer(answer=lambda request: 1), peer)
    left.withhold()
    answer = gevent.spawn(left.call, "echo", 30, text="a")
    gevent.sleep(0)
    left.notify("note")
    assert right.call("answer", 30) == Answer(1)  # answers are not held
    assert not answer.ready() and not peer.notes
    left.release()
    assert answer.get() == Answer("a")
    wait_until(lambda: [each.method for each in peer.notes] == ["note"])


def test_another_channel_takes_over_what_is_held(ends):
    old, _ = ends(Peer(), Peer(wait=lambda request: gevent.sleep(30)))
    peer = Peer(echo=lambda request: os.read(request.fds[0], 10).decode())
    new, _ = ends(Peer(), peer)
    lost = gevent.spawn(old.call, "wait", 30)
    gevent.sleep(0)
    old.withhold()
    read, write = os.pipe()
    os.write(write, b"text")
    held = gevent.spawn(old.call, "echo", 30, fds=[read])
    late = gevent.spawn(old.call, "echo", 0.001)
    gevent.sleep(0)
    old.notify("note")
    with pytest.raises(CallTimeout):
        late.get()
    new.take_over(old)
    old.close()
    assert held.get() == Answer("text")
    with pytest.raises(ChannelClosed):
        lost.get()
    wait_until(lambda: [each.method for each in peer.notes] == ["note"])
    os.close(write)


def test_a_closed_channel_takes_nothing_over(ends):
    old, _ = ends()
    new, _ = ends()
    old.withhold()
    held = gevent.spawn(old.call, "echo", None)
    gevent.sleep(0)
    new.close()
    new.take_over(old)
    with pytest.raises(ChannelClosed):
        held.get()


def test_descriptors_of_held_requests_are_closed(ends):
    left, _ = ends()
    left.withhold()
    read, write = os.pipe()
    left.notify("note", fds=[read])
    left.close()
    os.close(write)
    with pytest.raises(OSError):
        os.fstat(read)
