"""Which worker gets the next connection, and what happens if none can accept it."""

import errno
import json
import os
import socket

import gevent
import pytest

from nsqcy.net.listeners import bind
from nsqcy.nsqd.master import stalled_probes
from nsqcy.nsqd.master.stalled_probes import StalledProbes
from nsqcy.process import acceptor
from nsqcy.process.acceptor import Acceptor
from nsqcy.process.handoff import Accepted
from nsqcy.util import descriptors
from support.gevent_hub import Lines, wait_until


class Worker:
    """A target that accepts `room` sockets."""

    def __init__(self, room=1000, load=0, lagging=False):
        self.room = room
        self.base = load
        self.is_lagging = lagging
        self.is_full = False
        self.taken = []

    def lagging(self):
        return self.is_lagging

    def full(self):
        return self.is_full

    def load(self):
        return self.base + len(self.taken)

    def send(self, item):
        if len(self.taken) >= self.room:
            return False
        self.taken.append(item)
        return True


class Front:
    """An acceptor with one listener, and its clients."""

    def __init__(self, kind="tcp"):
        self.listener = bind("127.0.0.1:0", kind)
        self.lines = Lines()
        self.failures = []
        self.acceptor = Acceptor([self.listener], self.lines, self.failures.append, StalledProbes())
        self.sockets = []

    def connect(self, count=1):
        for _ in range(count):
            where = ("127.0.0.1", self.listener.port)
            self.sockets.append(socket.create_connection(where, timeout=30))

    def close(self):
        self.acceptor.close()
        for sock in self.sockets:
            sock.close()


@pytest.fixture
def front():
    made = Front()
    yield made
    made.close()


def test_ties_go_round(front):
    workers = [Worker() for _ in range(3)]
    for number, worker in enumerate(workers):
        front.acceptor.add(number, worker)
    front.connect(9)
    wait_until(lambda: sum(len(worker.taken) for worker in workers) == 9)
    assert [len(worker.taken) for worker in workers] == [3, 3, 3]


def test_the_least_loaded_first_and_the_lagging_last(front):
    busy, idle, lagging = Worker(load=10), Worker(room=4), Worker(room=1, lagging=True)
    for number, worker in enumerate((busy, idle, lagging)):
        front.acceptor.add(number, worker)
    front.connect(6)
    wait_until(lambda: len(busy.taken) == 2)
    assert (len(idle.taken), len(lagging.taken)) == (4, 0)


def test_a_full_worker_makes_room_for_others_and_for_the_backlog(front):
    worker = Worker(room=2)
    front.acceptor.add(0, worker)
    front.connect(5)
    wait_until(lambda: len(worker.taken) == 2)
    gevent.sleep(0.01)
    worker.room = 10
    front.acceptor.resume()
    wait_until(lambda: len(worker.taken) == 5)


def test_a_full_worker_is_tried_again_also_when_nobody_says_so(front):
    worker = Worker(room=0)
    front.acceptor.add(0, worker)
    front.connect(2)
    gevent.sleep(0.01)
    worker.room = 10
    wait_until(lambda: len(worker.taken) == 2)


def test_nothing_is_accepted_without_a_worker(front):
    worker = Worker()
    front.acceptor.add(0, worker)
    front.acceptor.remove(0)
    front.connect(3)
    gevent.sleep(0.01)
    front.acceptor.add(0, worker)
    wait_until(lambda: len(worker.taken) == 3)


def test_what_comes_back_is_given_to_another(front):
    first, second = Worker(), Worker()
    front.acceptor.add(0, first)
    front.connect(3)
    wait_until(lambda: len(first.taken) == 3)
    front.acceptor.remove(0)
    front.acceptor.give(first.taken)
    front.acceptor.add(1, second)
    assert second.taken == first.taken


def test_a_refused_socket_is_tried_again_after_a_pause(front):
    worker = Worker()
    front.acceptor.add(0, worker)
    front.connect()
    wait_until(lambda: worker.taken)
    item = worker.taken.pop()
    worker.is_full = True
    front.acceptor.refused(item)
    front.connect()
    assert worker.taken == []
    wait_until(lambda: len(worker.taken) == 2)
    assert worker.taken[0] is item


def test_what_a_full_worker_refuses_goes_to_the_others_at_once(front):
    """Without a pause, and although the full worker is the least loaded."""
    full, second, third = Worker(), Worker(load=10), Worker(load=20)
    front.acceptor.add(0, full)
    front.acceptor.add(1, second)
    front.acceptor.add(2, third)
    front.connect(3)
    wait_until(lambda: len(full.taken) == 3)
    items, full.taken, full.is_full = full.taken, [], True
    for item in items:
        front.acceptor.refused(item)
    assert (full.taken, second.taken, front.acceptor.pauses) == ([], items, 0)
    front.connect(2)
    wait_until(lambda: len(second.taken) == 5)
    (line,) = front.lines.all
    assert line.startswith("open files: 1 of 3 workers have reached the limit of ")
    full.is_full = False
    front.connect()
    wait_until(lambda: full.taken)


def test_a_socket_that_all_workers_refuse_waits(front):
    first, second = Worker(), Worker(load=10)
    front.acceptor.add(0, first)
    front.acceptor.add(1, second)
    front.connect()
    wait_until(lambda: first.taken)
    first.is_full = True
    front.acceptor.refused(first.taken.pop())
    second.is_full = True
    front.acceptor.refused(second.taken.pop())
    assert (first.taken, second.taken, front.acceptor.pauses) == ([], [], 1)
    wait_until(lambda: first.taken)
    assert front.lines.all[-1] == "TCP: accept: Too many open files in a worker; pausing"


def test_with_only_the_reserve_left_clients_wait_in_the_backlog(front, monkeypatch):
    """Each socket that a worker accepts permits one more, however often the acceptor resumes."""
    worker = Worker()
    front.acceptor.add(0, worker)
    monkeypatch.setattr(acceptor, "PAUSE", 60.0)  # only `resume` continues
    monkeypatch.setattr(descriptors, "first_reserved", lambda: 0)
    front.connect(3)
    wait_until(lambda: worker.taken)
    for taken in (1, 2):
        for _ in range(3):
            front.acceptor.resume()
            gevent.sleep(0.01)
        assert len(worker.taken) == taken
        worker.taken[-1].sock.close()
        front.acceptor.resume()
        wait_until(lambda: len(worker.taken) > taken)  # noqa: B023
    worker.taken[-1].sock.close()
    monkeypatch.setattr(descriptors, "first_reserved", lambda: 1 << 20)
    front.connect(2)
    front.acceptor.resume()
    wait_until(lambda: len(worker.taken) == 5)
    assert front.lines.all == []


def test_nothing_is_accepted_or_passed_on_during_a_rest(front):
    worker = Worker()
    front.acceptor.add(0, worker)
    front.acceptor.rest()
    front.connect(2)
    returned = Accepted(front.sockets[0].dup(), "tcp", "peer", "local")
    front.acceptor.give([returned])
    front.acceptor.refused(returned._replace(peer="refused"))
    front.acceptor.resume()
    gevent.sleep(0.05)
    assert worker.taken == []
    front.acceptor.end_rest()
    wait_until(lambda: len(worker.taken) == 4)
    assert [item.peer for item in worker.taken[:2]] == ["peer", "refused"]


def test_the_next_program_passes_on_what_is_held(front):
    front.acceptor.rest()
    client, ours = socket.socketpair()
    front.sockets.append(client)
    front.acceptor.give([Accepted(ours, "tcp", "peer", "local")])
    front.acceptor.pauses = 3
    dumped = json.loads(json.dumps(front.acceptor.dump(os.dup)))
    ours.close()
    front.acceptor._held.clear()
    front.acceptor.restore(dumped)
    worker = Worker()
    front.acceptor.add(0, worker)
    assert worker.taken == []
    front.acceptor.end_rest()
    (item,) = worker.taken
    assert item[1:] == ("tcp", "peer", "local")
    item.sock.send(b"alive")
    item.sock.close()
    assert (client.recv(10), front.acceptor.pauses) == (b"alive", 3)


class Failing:
    """A listening socket whose accept fails `failures` times."""

    def __init__(self, sock, code, failures):
        self.sock = sock
        self.code = code
        self.failures = failures
        self.calls = 0

    def fileno(self):
        return self.sock.fileno()

    def close(self):
        self.sock.close()

    def accept(self):
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise OSError(self.code, "so it is")
        return self.sock.accept()


def failing(front, code, failures):
    sock = Failing(front.listener.sock, code, failures)
    listener = front.listener._replace(sock=sock)
    front.acceptor = Acceptor([listener], front.lines, front.failures.append)
    worker = Worker()
    front.acceptor.add(0, worker)
    front.connect()
    return sock, worker


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_out_of_descriptors_pauses_and_says_so_once(front, code):
    sock, worker = failing(front, code, 3)
    wait_until(lambda: worker.taken)
    assert sock.calls <= 5  # the acceptor does not busy-loop
    assert front.lines.all == ["TCP: accept: so it is; pausing"]
    assert front.failures == []


class Manual(Acceptor):
    """An acceptor whose pauses a test ends."""

    def _start_timer(self, seconds):
        self.waits = [*getattr(self, "waits", []), seconds]


@pytest.fixture
def manual(front):
    """An acceptor whose process has no descriptors left."""
    sock = Failing(front.listener.sock, errno.EMFILE, 1 << 30)
    acceptor = front.acceptor = Manual(
        [front.listener._replace(sock=sock)], front.lines, front.failures.append
    )
    acceptor.add(0, Worker())
    front.connect()
    return acceptor, sock


def test_pauses_grow_while_no_descriptors_are_left(front, manual):
    acceptor, sock = manual
    for attempts in range(1, 8):
        wait_until(lambda attempts=attempts: sock.calls == attempts)
        assert len(acceptor.waits) == acceptor.pauses == attempts
        acceptor._pause_over()
    assert acceptor.waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert front.lines.all == ["TCP: accept: so it is; pausing"]


def test_a_worker_without_descriptors_gets_one_try_per_pause(front):
    worker = Worker()
    acceptor = front.acceptor = Manual([front.listener], front.lines, front.failures.append)
    acceptor.add(0, worker)
    front.connect(3)
    wait_until(lambda: len(worker.taken) == 3)
    worker.is_full = True
    for attempt in range(1, 4):
        refused, worker.taken = worker.taken, []
        for item in refused:
            acceptor.refused(item)
            acceptor.resume()
        assert worker.taken == [] and acceptor.pauses == attempt
        acceptor._pause_over()
        assert len(worker.taken) == 3
    assert acceptor.waits == [0.1, 0.2, 0.4]
    assert front.lines.all == ["TCP: accept: Too many open files in a worker; pausing"]


def test_a_pause_ends_after_its_time(front):
    """Each pause has a new timer, because libev fires a restarted timer immediately."""
    started = []

    class Watched(Acceptor):
        def _start_timer(self, seconds):
            super()._start_timer(seconds)
            started.append(self._timer)

    sock = Failing(front.listener.sock, errno.EMFILE, 2)
    listener = front.listener._replace(sock=sock)
    front.acceptor = Watched([listener], front.lines, front.failures.append)
    worker = Worker()
    front.acceptor.add(0, worker)
    front.connect()
    wait_until(lambda: worker.taken)
    assert len({id(timer) for timer in started}) == len(started) == 2


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EPROTO, errno.EINTR])
def test_trouble_of_one_connection_is_passed_over(front, code):
    _, worker = failing(front, code, 3)
    wait_until(lambda: worker.taken)
    assert front.lines.all == front.failures == []


def test_a_listener_that_is_broken_is_reported(front):
    failing(front, errno.EBADF, 1)
    wait_until(lambda: front.failures)
    assert front.failures[0] == "TCP: accept: so it is"


def test_closing_says_so_and_ends_what_nobody_took(front):
    worker = Worker(room=0)
    front.acceptor.add(0, worker)
    front.connect()
    wait_until(lambda: front.acceptor._held)
    front.acceptor.close()
    front.acceptor.close()
    assert front.sockets[0].recv(1) == b""
    assert front.lines.all == [f"TCP: closing {front.listener.text}"]


@pytest.fixture
def web():
    made = Front("http")
    yield made
    made.close()


def answer(front, request):
    front.connect()
    front.sockets[-1].sendall(request)
    front.sockets[-1].setblocking(False)

    def closed():
        try:
            parts.append(front.sockets[-1].recv(4096))
        except BlockingIOError:
            return False
        return not parts[-1]

    parts = []
    wait_until(closed)
    return b"".join(parts)


@pytest.mark.parametrize("path", [b"/live", b"/ready?x=1"])
def test_probes_are_answered_while_all_workers_hang(web, path):
    workers = [Worker(lagging=True) for _ in range(2)]
    for number, worker in enumerate(workers):
        web.acceptor.add(number, worker)
    got = answer(web, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
    assert got.startswith(b"HTTP/1.1 503 ")
    assert got.endswith(b"\r\n\r\nworker 0 does not answer\nworker 1 does not answer")
    assert not workers[0].taken and not workers[1].taken


def test_a_worker_gets_everything_else(web):
    hung = Worker(lagging=True)
    web.acceptor.add(0, hung)
    request = b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n"
    web.connect()
    web.sockets[-1].sendall(request)
    wait_until(lambda: hung.taken)
    assert hung.taken[0].sock.recv(4096) == request
    hung.is_lagging = False
    web.connect()
    web.sockets[-1].sendall(b"GET /live HTTP/1.1\r\n\r\n")
    wait_until(lambda: len(hung.taken) == 2)


def test_a_client_that_sends_nothing_reaches_a_worker(web, monkeypatch):
    monkeypatch.setattr(stalled_probes, "REQUEST_TIMEOUT", 0.01)
    hung = Worker(lagging=True)
    web.acceptor.add(0, hung)
    web.connect()
    wait_until(lambda: hung.taken)
