"""Sockets passed between processes, along with data about them."""

import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.process import ancillary, handoff
from nsqcy.process.handoff import Accepted, HandoffError, Receiver, Sender, decode, encode
from nsqcy.util import descriptors
from support.gevent_hub import wait_until

ADDRESSES = st.text(st.characters(codec="utf-8"), max_size=60)


@given(st.integers(1, 2**63 - 1), st.sampled_from(handoff.KINDS), ADDRESSES, ADDRESSES)
def test_decoding_reverses_encoding(number, kind, peer, local):
    assert decode(encode(number, kind, peer, local)) == (number, kind, peer, local)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data):
    try:
        number, kind, _, _ = decode(data)
    except HandoffError:
        return
    assert number >= 0 and kind in handoff.KINDS


class Ends:
    """A sender, a receiver that is not started, and the outcomes of the sockets."""

    def __init__(self):
        ours, self.theirs = ancillary.pair()
        self.refused = []
        self.room = 0
        self.adopted = []
        self.sender = Sender(ours, self._taken, self.refused.append)
        self.receiver = Receiver(self.theirs, self._adopt)
        self.clients = []

    def _taken(self):
        self.room += 1

    def _adopt(self, fd, kind, peer, local):
        self.adopted.append((kind, peer, local))
        with socket.socket(fileno=fd) as sock:
            sock.send(b"adopted")

    def accepted(self, number):
        client, sock = socket.socketpair()
        self.clients.append(client)
        return Accepted(sock, "http", f"peer {number}", "local")

    def close(self):
        self.receiver.close()
        for item in self.sender.close():
            item.sock.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.close()


def test_sockets_arrive_with_their_addresses_and_our_copies_are_closed(ends):
    items = [ends.accepted(number) for number in range(50)]
    ends.receiver.start()
    assert all(ends.sender.send(item) for item in items)
    wait_until(lambda: ends.sender.pending == 0)
    assert ends.adopted == [("http", f"peer {number}", "local") for number in range(50)]
    assert all(item.sock.fileno() == -1 for item in items)
    assert all(client.recv(100) == b"adopted" for client in ends.clients)
    assert ends.room > 0


def test_a_receiver_that_takes_none_fills_up_and_empties(ends):
    items = [ends.accepted(number) for number in range(handoff.MAX_PENDING + 1)]
    sent = [ends.sender.send(item) for item in items]
    assert sent.count(True) == ends.sender.pending <= handoff.MAX_PENDING
    assert not sent[-1]
    ends.receiver.start()
    wait_until(lambda: ends.sender.pending == 0)
    assert ends.sender.send(items[-1])
    wait_until(lambda: len(ends.adopted) == sent.count(True) + 1)


def test_what_was_never_taken_comes_back(ends):
    items = [ends.accepted(number) for number in range(5)]
    for item in items:
        ends.sender.send(item)
    # The receiver takes two sockets and dies.
    for _ in range(2):
        ends.receiver._take(ancillary.receive(ends.theirs, 4096))
    ends.theirs.close()
    back = ends.sender.close()
    assert back == items[2:]
    assert not ends.sender.send(items[4])
    for item in back:
        item.sock.close()


def test_refused_when_the_receiver_may_open_no_more(ends, monkeypatch):
    item = ends.accepted(1)
    ends.sender.send(item)
    datagram = ancillary.receive(ends.theirs, 4096)
    ancillary.close_all(datagram.fds)
    ends.receiver._take(datagram._replace(fds=[], cut=True))
    wait_until(lambda: ends.refused)
    assert ends.refused == [item]
    assert item.sock.fileno() >= 0
    assert ends.adopted == []
    item.sock.close()


def test_the_reserve_of_descriptors_is_not_for_clients(ends, monkeypatch):
    items = [ends.accepted(number) for number in range(2)]
    monkeypatch.setattr(descriptors, "first_reserved", lambda: 0)
    ends.sender.send(items[0])
    ends.receiver.start()
    wait_until(lambda: ends.refused)
    assert ends.refused == items[:1] and ends.adopted == []
    monkeypatch.undo()
    for item in items:
        ends.sender.send(item)
    wait_until(lambda: len(ends.adopted) == 2)


def test_nothing_is_adopted_once_the_sender_is_gone(ends):
    ends.sender.send(ends.accepted(1))
    for item in ends.sender.close():
        item.sock.close()
    ends.receiver.start()
    wait_until(lambda: ends.receiver.closed)
    assert ends.adopted == []
    assert ends.clients[0].recv(1) == b""


def test_a_malformed_hand_over_leaks_no_descriptor(ends):
    reader, writer = os.pipe()
    datagram = ancillary.Datagram(b"short", [os.dup(writer)], False)
    with pytest.raises(HandoffError):
        ends.receiver._take(datagram)
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_the_next_program_continues_with_what_was_not_taken(ends):
    for number in range(3):
        assert ends.sender.send(ends.accepted(number))
    ends.receiver._sock.recv(1)  # the receiver takes one, and acknowledges it later
    dumped = json.loads(json.dumps(ends.sender.dump(os.dup)))
    before, ends.sender = ends.sender, None
    sock = socket.socket(fileno=dumped["fd"])
    sock.setblocking(False)
    ends.sender = Sender(sock, ends._taken, ends.refused.append)
    ends.sender.restore(dumped)
    for item in before.close():
        item.sock.close()
    assert ends.sender.pending == 3
    ends.theirs.send(handoff._NUMBER.pack(1 << 1))
    wait_until(lambda: ends.sender.pending == 2)
    assert ends.sender.send(ends.accepted(3))
    assert list(ends.sender._pending) == [2, 3, 4]
    back = ends.sender.close()
    assert [item.peer for item in back] == ["peer 1", "peer 2", "peer 3"]
    for item in back:
        item.sock.send(b"alive")
        item.sock.close()
    assert [client.recv(10) for client in ends.clients[1:]] == [b"alive"] * 3
