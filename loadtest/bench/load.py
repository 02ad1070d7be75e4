"""The load: producers and consumers in separate processes.

They send prepared bytes and parse received bytes as little as possible (C code counts and finishes
frames), so that the load costs less CPU time than the daemon under test. Each process reports when
it is ready, starts when all are ready, and returns a report.
"""

import ctypes
import errno
import gc
import json
import mmap
import multiprocessing
import select
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from loadtest.bench.daemon import Address, NotOffered
from loadtest.bench.encoded_socket import LAYERS, RECEIVE, EncodedSocket, secured
from nsqcy.protocol.wire import command, command_with_body, finish_all, mpub_body, skip_frames

RESPONSE, MESSAGE = 0, 2
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
HEARTBEAT = b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"
STAMPS = struct.Struct(">qq")  # in a body: due time and send time
FRAME = struct.Struct(">ii")  # size, excluding these 4 bytes, and type
LOG_WAIT = 60_000  # ms
COLUMNS = "timestamp,id,headers,body"
BLOCK_COUNT = struct.Struct("<40xI")  # number of records in a log block
NEGOTIATED = {"tls": "tls_v1", "snappy": "snappy", "deflate": "deflate"}  # keys in IDENTIFY
SHOWN = 100  # maximum bytes of a frame that an error shows
AT_ONCE = 64  # connections that a process opens at the same time
READABLE = 4096  # maximum connections to answer before new ones are opened
PATIENCE = 180.0  # time limit in seconds for each team member to get ready, or to finish
PR_SET_TIMERSLACK = 29

Report = dict[str, Any]
_context = multiprocessing.get_context("fork")
_ports = iter(range(10_000, 65_536))  # for this process's source address


# -- connections


def plain(address: Address) -> socket.socket:
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def connect(address: Address, way: str = "", **fields: Any) -> socket.socket:
    """Return a connection after IDENTIFY with these fields; plain, or with the encoding `way`: tls,
    snappy, deflate, tls+snappy or tls+deflate."""
    sock = plain(address)
    sock.sendall(b"  V2")
    ways = way.split("+") if way else []
    if not fields and not ways:
        return sock
    settings = fields | {NEGOTIATED[each]: True for each in ways}
    settings |= {"feature_negotiation": True} if ways else {}
    sock.sendall(command_with_body(b"IDENTIFY", (), json.dumps(settings).encode()))
    if not ways:
        expect(sock, OK)
        return sock
    offered = json.loads(frame(sock))
    if not all(offered[NEGOTIATED[each]] for each in ways):
        raise NotOffered(f"the daemon offers no {way}")
    for each in ways:
        if each == "tls":
            sock = secured(sock)
        else:
            sock = cast(socket.socket, EncodedSocket(sock, LAYERS[each]()))
        expect(sock, OK)
    return sock


def exactly(sock: socket.socket, n: int) -> bytes:
    got = b""
    while len(got) < n:
        part = sock.recv(n - len(got))
        if not part:
            raise RuntimeError(f"closed after {got!r}")
        got += part
    return got


def frame(sock: socket.socket) -> bytes:
    """Return the data of the next frame."""
    return exactly(sock, int.from_bytes(exactly(sock, 4), "big"))[4:]


def response(sock: socket.socket) -> bytearray:
    """Return the data of the next frame, a response that may be large."""
    size, kind = FRAME.unpack(exactly(sock, FRAME.size))
    data = bytearray(size - 4)
    left = memoryview(data)
    while left:
        left = left[sock.recv_into(left) :]
    if kind != RESPONSE:
        raise RuntimeError(f"unexpected answer {bytes(data[:SHOWN])!r}")
    return data


def expect(sock: socket.socket, answer: bytes) -> None:
    got = exactly(sock, len(answer))
    if got != answer:
        raise RuntimeError(f"unexpected answer {got!r}")


def producer(address: Address, way: str = "") -> socket.socket:
    return connect(address, way, heartbeat_interval=-1)


def consumer(
    address: Address, topic: str, channel: str, ready: int, way: str = ""
) -> socket.socket:
    return subscribe(connect(address, way), topic, channel, ready)


def consumer_at(
    source: str, address: Address, topic: str, channel: str, ready: int
) -> socket.socket:
    """Return a consumer with this loopback address: each address has its own ports."""
    sock = _from(source, address)
    sock.sendall(b"  V2")
    return subscribe(sock, topic, channel, ready)


def _from(source: str, address: Address) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Without a port, bind() searches all used ports, and connect() all even ones: with more than
    # 10,000 connections, that takes longer than everything else.
    for port in _ports:
        try:
            sock.bind((source, port))
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    sock.connect(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def subscribe(sock: socket.socket, topic: str, channel: str, ready: int) -> socket.socket:
    sock.sendall(command(b"SUB", topic.encode(), channel.encode()))
    while (answer := frame(sock)) == b"_heartbeat_":
        sock.sendall(b"NOP\n")
    if answer != b"OK":
        raise RuntimeError(f"unexpected answer {answer!r}")
    if ready:
        sock.sendall(command(b"RDY", b"%d" % ready))
    return sock


def pub(topic: str, body: bytes) -> bytes:
    return command_with_body(b"PUB", (topic.encode(),), body)


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    return command_with_body(b"MPUB", (topic.encode(),), mpub_body(bodies))


# -- processes


class Team:
    """Processes that start together. `tally` has one counter per process, which all of them can
    read."""

    def __init__(self, size: int) -> None:
        self.tally = memoryview(mmap.mmap(-1, 8 * max(1, size))).cast("q")
        self._members: list[tuple[Any, Any]] = []
        self._ready = 0

    def add(self, work: Callable[..., Callable[[], Report]], *args: Any) -> None:
        """Start a process: `work(*args, team, index)` prepares, and returns the function to run
        when all are ready."""
        ours, theirs = _context.Pipe()
        index = len(self._members)
        process = _context.Process(
            target=_member, args=(theirs, work, args, self, index), daemon=True
        )
        process.start()
        theirs.close()
        self._members.append((process, ours))

    def ready(self) -> None:
        for _, pipe in self._members[self._ready :]:
            _receive(pipe)
        self._ready = len(self._members)

    def go(self) -> None:
        for _, pipe in self._members:
            pipe.send("go")

    def check(self) -> None:
        """Raise RuntimeError if a member has failed."""
        for process, pipe in self._members:
            if pipe.poll():
                _receive(pipe)
            elif not process.is_alive():
                raise RuntimeError("a process of the load has ended")

    def reports(self) -> list[Report]:
        """Return the reports of members that finish, in the order in which the members were
        added."""
        found = [_receive(pipe) for _, pipe in self._members]
        for process, _ in self._members:
            process.join()
        return found

    def run(self) -> list[Report]:
        self.go()
        return self.reports()

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *_: object) -> None:
        for process, _ in self._members:
            process.kill()
            process.join()


def _receive(pipe: Any) -> Report:
    if not pipe.poll(PATIENCE):
        raise RuntimeError(f"nothing was heard of the load for {PATIENCE:.0f} s")
    report: Report = pipe.recv()
    if "error" in report:
        raise RuntimeError(report["error"])
    return report


def _member(pipe: Any, work: Any, args: Any, team: Team, index: int) -> None:
    try:
        run = work(*args, team, index)
        gc.freeze()
        gc.disable()
        pipe.send({})
        pipe.recv()
        started, cpu = time.monotonic(), time.process_time()
        report = {"started": started, "ended": 0.0, **run()}
        report["ended"] = report["ended"] or time.monotonic()
        report["cpu"] = time.process_time() - cpu
        pipe.send(report)
    except Exception:
        pipe.send({"error": traceback.format_exc()})


# -- producers


def pipelined(
    address: Address,
    one: bytes,
    each: int,
    commands: int,
    depth: int,
    team: Team,
    index: int,
    open: Callable[[Address], socket.socket] = producer,
) -> Callable[[], Report]:
    """One connection that keeps `depth` commands unanswered. `each`: messages per command."""
    sock = open(address)
    several = memoryview(one * depth)
    room = bytearray(10 * depth)

    def run() -> Report:
        sent = answered = have = 0
        while answered < commands:
            more = min(depth - (sent - answered), commands - sent)
            if more > 0 and (more >= depth // 4 or more == commands - sent):
                sock.sendall(several[: more * len(one)])
                sent += more
            have += sock.recv_into(memoryview(room)[have:])
            used, count = skip_frames(memoryview(room)[:have], RESPONSE)
            if count == 0 and have >= 10:
                raise RuntimeError(f"unexpected answer {bytes(room[:have])!r}")
            room[: have - used] = room[used:have]
            have -= used
            answered += count
        return {"messages": commands * each}

    return run


def waiting(
    address: Address,
    ones: list[bytes],
    each: int,
    commands: int,
    connections: int,
    team: Team,
    index: int,
    open: Callable[[Address], socket.socket] = producer,
) -> Callable[[], Report]:
    """Connections that each send the next command after the response "OK" to the previous one. They
    share `ones`, commands with `each` messages."""
    socks = {sock.fileno(): sock for sock in (open(address) for _ in range(connections))}
    poll = select.epoll()
    for fd in socks:
        poll.register(fd, select.EPOLLIN)
    send = {
        fd: partial(sock.sendall, ones[place % len(ones)])
        for place, (fd, sock) in enumerate(socks.items())
    }
    recv = {fd: sock.recv for fd, sock in socks.items()}

    def run() -> Report:
        left = commands - connections
        answered = 0
        for fd in socks:
            send[fd]()
        while answered < commands:
            for fd, _ in poll.poll():
                if not recv[fd](512).endswith(b"OK"):
                    raise RuntimeError("a publish failed")
                answered += 1
                if left > 0:
                    left -= 1
                    send[fd]()
        return {"messages": commands * each}

    return run


plainly = partial(waiting, open=plain)  # waits for responses to HTTP requests, given as bytes


def paced(
    address: Address,
    topic: str,
    size: int,
    rate: int,
    count: int,
    team: Team,
    index: int,
    open: Callable[[Address], socket.socket] = producer,
) -> Callable[[], Report]:
    """Publish single messages on a schedule, without waiting for responses. Each message contains
    its due time and its send time; late messages are sent immediately, so that stalls count."""
    maximum = 256
    sock = open(address)
    one = pub(topic, bytes(size))
    several = bytearray(one * maximum)
    view = memoryview(several)
    at = len(one) - size
    wake_precisely()

    def run() -> Report:
        late = []
        answered = 0
        step = 1_000_000_000 / rate
        start = time.monotonic_ns()
        sent = 0
        while sent < count:
            now = time.monotonic_ns()
            part = min(int((now - start) / step) + 1, count) - sent
            if part <= 0:
                time.sleep((start + sent * step - now) / 1e9)
                continue
            part = min(part, maximum)
            for place in range(part):
                due = start + int((sent + place) * step)
                STAMPS.pack_into(several, place * len(one) + at, due, now)
                late.append(now - due)
            sock.sendall(view[: part * len(one)])
            if sent // 512 < (sent + part) // 512:
                answered += drop_answers(sock)
            sent += part
        # Closing a connection with unread responses would also drop data that the daemon has not
        # read yet.
        exactly(sock, len(OK) * count - answered)
        return {"messages": count, "late": late}

    return run


def wake_precisely() -> None:
    """Have sleeps of this process end without the usual slack of 50 µs."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def drop_answers(sock: socket.socket) -> int:
    """Discard received responses; return the number of bytes."""
    ready, _, _ = select.select([sock], [], [], 0)
    return len(sock.recv(RECEIVE)) if ready else 0


# -- consumers


def finishing(
    address: Address,
    topic: str,
    ready: int,
    total: int,
    slots: slice,
    timed: int,
    team: Team,
    index: int,
    open: Callable[[Address, str, str, int], socket.socket] = consumer,
    channel: str = "bench",
) -> Callable[[], Report]:
    """A consumer that finishes all messages, until all consumers (`slots` in the tally) together
    have received `total`. `timed`: size of the bodies, if they begin with timestamps."""
    sock = open(address, topic, channel, 0)
    sock.settimeout(0.05)
    room = memoryview(bytearray(2 * RECEIVE))
    stamps = struct.Struct(f">34xqq{timed - 16}x") if timed else None

    def run() -> Report:
        have = 0
        first = last = time.monotonic()
        latencies: list[int] = []
        since_due: list[int] = []
        sock.sendall(command(b"RDY", b"%d" % ready))
        while sum(team.tally[slots]) < total:
            try:
                n = sock.recv_into(room[have:])
            except TimeoutError:
                continue
            if n == 0:
                raise RuntimeError("the connection was closed")
            have += n
            now = time.monotonic_ns()
            used = n
            while used and have:  # messages may follow a heartbeat
                lines, used, count = finish_all(room[:have])
                if count:
                    sock.sendall(lines)
                    last = now / 1e9
                    if not team.tally[index]:
                        first = last
                    team.tally[index] += count
                    if stamps:
                        for due, sent in stamps.iter_unpack(room[:used]):
                            latencies.append(now - sent)
                            since_due.append(now - due)
                elif have >= 8:
                    used = other_frame(sock, bytes(room[: min(have, SHOWN)]))
                room[: have - used] = room[used:have]
                have -= used
        return {
            "messages": team.tally[index],
            "first": first,
            "ended": last,
            "latencies": latencies,
            "since_due": since_due,
        }

    return run


def log_reader(address: Address) -> socket.socket:
    return connect(address, heartbeat_interval=-1, topic_log=True)


def log_of(sock: socket.socket, topic: str, seq: int) -> dict[str, Any]:
    """Wait until a topic's log has been written beyond `seq`, which takes a second for durability
    class memory; return its metadata."""
    sock.sendall(command(b"LOG_META", topic.encode(), b"%d" % LOG_WAIT, b"%d" % seq))
    found: dict[str, Any] = json.loads(response(sock))
    return found


def reading(
    address: Address, topic: str, total: int, slots: slice, team: Team, index: int
) -> Callable[[], Report]:
    """A reader that fetches a topic's log repeatedly, until the consumers (`slots` in the tally)
    have received `total`."""
    sock = log_reader(address)
    log = log_of(sock, topic, 0)

    def run() -> Report:
        messages = 0
        seq = log["first_seq"]
        while sum(team.tally[slots]) < total:
            place = f"{topic} {log['log_id']} {seq} {log['next_seq']} {1 << 20} {COLUMNS}"
            sock.sendall(b"LOG_FETCH " + place.encode() + b"\n")
            count = BLOCK_COUNT.unpack_from(response(sock))[0]
            messages += count
            seq += count
            if seq >= log["next_seq"]:
                seq = log["first_seq"]
        return {"messages": messages}

    return run


@contextmanager
def _polled(socks: list[socket.socket]) -> Iterator[select.epoll]:
    with select.epoll() as poll:
        for sock in socks:
            poll.register(sock.fileno(), select.EPOLLIN)
        yield poll


def crowd(
    address: Address,
    places: list[tuple[str, str]],
    ready: int,
    total: int,
    slots: slice,
    timed: int,
    team: Team,
    index: int,
    open: Callable[[Address, str, str, int], socket.socket] = consumer,
) -> Callable[[], Report]:
    """Many consumers in one process, each with its own topic and channel; otherwise like
    `finishing`."""
    socks = [open(address, topic, channel, ready) for topic, channel in places]
    by_number = {sock.fileno(): sock for sock in socks}
    stamps = struct.Struct(f">34xqq{timed - 16}x") if timed else None

    def run() -> Report:
        rests: dict[int, bytes] = {}
        since_due: list[int] = []
        last = time.monotonic()
        with _polled(socks) as poll:
            while sum(team.tally[slots]) < total:
                for fd, _ in poll.poll(0.05):
                    sock = by_number[fd]
                    received = sock.recv(65536)
                    if not received:
                        raise RuntimeError("a connection was closed")
                    now = time.monotonic_ns()
                    data = rests.pop(fd, b"") + received
                    used = len(data)
                    while used and data:
                        lines, used, count = finish_all(data)
                        if count:
                            sock.sendall(lines)
                            last = now / 1e9
                            team.tally[index] += count
                            if stamps:
                                since_due += [now - s[0] for s in stamps.iter_unpack(data[:used])]
                        elif len(data) >= 8:
                            used = other_frame(sock, data[:SHOWN])
                        data = data[used:]
                    if data:
                        rests[fd] = data
        return {"messages": team.tally[index], "ended": last, "since_due": since_due}

    return run


def one_each(
    address: Address, topics: list[str], body: bytes, team: Team, index: int
) -> Callable[[], Report]:
    """Publish one message to each topic."""
    sock = producer(address)

    def run() -> Report:
        for start in range(0, len(topics), 100):
            part = topics[start : start + 100]
            sock.sendall(b"".join(pub(topic, body) for topic in part))
            expect(sock, OK * len(part))
        return {"messages": len(topics)}

    return run


def other_frame(sock: socket.socket, data: bytes) -> int:
    """Handle data that is not a complete message: answer a heartbeat, keep an incomplete frame."""
    if data.startswith(HEARTBEAT):
        sock.sendall(b"NOP\n")
        return len(HEARTBEAT)
    if data[4:8] == MESSAGE.to_bytes(4, "big") or HEARTBEAT.startswith(data):
        return 0
    raise RuntimeError(f"unexpected frame {data!r}")


# -- idle connections


def idle(
    address: Address, topic: str, connections: int, seconds: float, team: Team, index: int
) -> Callable[[], Report]:
    """Subscribed connections that answer heartbeats and do nothing else."""
    crowd = _Idle()
    for _ in range(connections):
        crowd.add(consumer(address, topic, "bench", 1))

    def run() -> Report:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            crowd.answer(left)
        return {"messages": 0, "lost": crowd.lost, "beats": crowd.beats}

    return run


def arriving(
    address: Address, topic: str, connections: int, beats: int, team: Team, index: int
) -> Callable[[], Report]:
    """Like `idle`, but the connections are opened while the others answer heartbeats, at most
    AT_ONCE at the same time, until the tally's last counter is set. This member's counters, at
    `index` and `beats`, are its connections and its heartbeats."""
    crowd = _Idle()
    source = f"127.0.1.{index + 1}"
    first = b"  V2" + command(b"SUB", topic.encode(), b"bench") + command(b"RDY", b"1")

    def run() -> Report:
        opened = 0
        while not team.tally[-1]:
            room = min(AT_ONCE - (opened - crowd.subscribed), connections - opened)
            crowd.answer(0.0 if room else 0.05)
            for _ in range(room):
                sock = _from(source, address)
                sock.sendall(first)  # the kernel has accepted it, and keeps this for nsqd
                crowd.add(sock)
                opened += 1
            team.tally[index] = crowd.subscribed
            team.tally[beats] = crowd.beats
        return {"messages": 0, "lost": crowd.lost, "beats": crowd.beats}

    return run


class _Idle:
    """Connections that answer heartbeats."""

    def __init__(self) -> None:
        self.subscribed = self.lost = self.beats = 0
        self._socks: dict[int, socket.socket] = {}
        self._poll = select.epoll()

    def add(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socks[sock.fileno()] = sock
        self._poll.register(sock.fileno(), select.EPOLLIN)

    def answer(self, wait: float) -> None:
        """Answer heartbeats; wait at most this number of seconds for the first one."""
        for fd, _ in self._poll.poll(wait, READABLE):
            try:
                self._receive(self._socks[fd])
            except ConnectionError:
                self._socks.pop(fd).close()
                self.lost += 1

    def _receive(self, sock: socket.socket) -> None:
        data = sock.recv(4096)
        if not data:
            raise ConnectionError
        beats, answers = data.count(HEARTBEAT), data.count(OK)
        if len(data) != beats * len(HEARTBEAT) + answers * len(OK):
            raise RuntimeError(f"unexpected answer {data[:SHOWN]!r}")
        self.subscribed += answers
        if beats:
            sock.sendall(b"NOP\n" * beats)
            self.beats += beats
