"""The load: producers and consumers in processes of their own.

They send bytes made beforehand and look at what they receive only as far as they must (frames are
counted and finished in C), so that a generator costs less than the daemon it drives. Each says
when it is ready, starts when all are, and returns a report.
"""

import ctypes
import mmap
import multiprocessing
import select
import socket
import struct
import time
import traceback
from collections.abc import Callable
from typing import Any

from loadtest.bench.daemon import Address
from nsqcy._wire import command, command_with_body, finish_all, mpub_body, skip_frames

RESPONSE, MESSAGE = 0, 2
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
HEARTBEAT = b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"
STAMP = struct.Struct(">q")
RECEIVE = 1 << 20
PR_SET_TIMERSLACK = 29

Report = dict[str, Any]
_context = multiprocessing.get_context("fork")


# -- connections


def connect(address: Address, identify: str = "") -> socket.socket:
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    if identify:
        sock.sendall(command_with_body(b"IDENTIFY", (), identify.encode()))
        expect(sock, OK)
    return sock


def expect(sock: socket.socket, answer: bytes) -> None:
    got = b""
    while len(got) < len(answer):
        part = sock.recv(len(answer) - len(got))
        if not part:
            raise RuntimeError(f"closed after {got!r}")
        got += part
    if got != answer:
        raise RuntimeError(f"unexpected answer {got!r}")


def producer(address: Address) -> socket.socket:
    return connect(address, '{"heartbeat_interval": -1}')


def consumer(address: Address, topic: str, channel: str, ready: int) -> socket.socket:
    sock = connect(address)
    sock.sendall(command(b"SUB", topic.encode(), channel.encode()))
    expect(sock, OK)
    if ready:
        sock.sendall(command(b"RDY", b"%d" % ready))
    return sock


def pub(topic: str, body: bytes) -> bytes:
    return command_with_body(b"PUB", (topic.encode(),), body)


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    return command_with_body(b"MPUB", (topic.encode(),), mpub_body(bodies))


# -- processes


class Team:
    """Processes that start together. `tally` has one counter for each, which all can read."""

    def __init__(self, size: int) -> None:
        self.tally = memoryview(mmap.mmap(-1, 8 * max(1, size))).cast("q")
        self._members: list[tuple[Any, Any]] = []

    def add(self, work: Callable[..., Callable[[], Report]], *args: Any) -> None:
        """`work(*args, team, index)` prepares, and returns what runs when all are ready."""
        ours, theirs = _context.Pipe()
        index = len(self._members)
        process = _context.Process(
            target=_member, args=(theirs, work, args, self, index), daemon=True
        )
        process.start()
        theirs.close()
        self._members.append((process, ours))

    def ready(self) -> None:
        for _, pipe in self._members:
            _receive(pipe)

    def go(self) -> None:
        for _, pipe in self._members:
            pipe.send("go")

    def reports(self) -> list[Report]:
        """What the members that end have reported, in the order in which they were added."""
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
    report: Report = pipe.recv()
    if "error" in report:
        raise RuntimeError(report["error"])
    return report


def _member(pipe: Any, work: Any, args: Any, team: Team, index: int) -> None:
    try:
        run = work(*args, team, index)
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
    address: Address, one: bytes, each: int, commands: int, depth: int, team: Team, index: int
) -> Callable[[], Report]:
    """One connection that keeps `depth` commands unanswered. `each`: messages of a command."""
    sock = producer(address)
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
    address: Address, one: bytes, commands: int, connections: int, team: Team, index: int
) -> Callable[[], Report]:
    """Connections that each send the next command when the last one is answered."""
    socks = {sock.fileno(): sock for sock in (producer(address) for _ in range(connections))}
    poll = select.epoll()
    for fd in socks:
        poll.register(fd, select.EPOLLIN)
    send = {fd: sock.send for fd, sock in socks.items()}
    recv = {fd: sock.recv for fd, sock in socks.items()}

    def run() -> Report:
        left = commands - connections
        answered = 0
        for fd in socks:
            send[fd](one)
        while answered < commands:
            for fd, _ in poll.poll():
                if recv[fd](64) != OK:
                    raise RuntimeError("a publish failed")
                answered += 1
                if left > 0:
                    left -= 1
                    send[fd](one)
        return {"messages": commands}

    return run


def paced(
    address: Address, topic: str, size: int, rate: int, count: int, team: Team, index: int
) -> Callable[[], Report]:
    """Publishes single messages by the clock, answered or not; each carries when it was sent."""
    sock = producer(address)
    one = bytearray(pub(topic, bytes(size)))
    at = len(one) - size
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def run() -> Report:
        late = []
        answered = 0
        start = time.monotonic_ns()
        step = 1_000_000_000 // rate
        for number in range(count):
            due = start + number * step
            now = time.monotonic_ns()
            if now < due:
                time.sleep((due - now) / 1e9)
                now = time.monotonic_ns()
            late.append(now - due)
            STAMP.pack_into(one, at, now)
            sock.sendall(one)
            if number % 512 == 511:
                answered += len(sock.recv(RECEIVE))
        # Closed with answers unread, a connection would take what the daemon has not read with it.
        expect(sock, (OK * count)[answered:])
        return {"messages": count, "late": late}

    return run


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
) -> Callable[[], Report]:
    """A consumer that finishes everything, until all consumers (`slots` of the tally) together had
    `total`. `timed`: size of the bodies, when they begin with when they were sent."""
    sock = consumer(address, topic, "bench", 0)
    sock.settimeout(0.05)
    room = memoryview(bytearray(2 * RECEIVE))
    stamps = struct.Struct(f">34xq{timed - 8}x") if timed else None

    def run() -> Report:
        have = 0
        last = time.monotonic()
        latencies: list[int] = []
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
            lines, used, count = finish_all(room[:have])
            if count:
                sock.sendall(lines)
                last = now / 1e9
                team.tally[index] += count
                if stamps:
                    latencies += [now - sent for (sent,) in stamps.iter_unpack(room[:used])]
            elif have >= 8:
                used = other_frame(sock, bytes(room[:have]))
            room[: have - used] = room[used:have]
            have -= used
        return {"messages": team.tally[index], "ended": last, "latencies": latencies}

    return run


def deferring(
    address: Address, topic: str, total: int, every: int, team: Team, index: int
) -> Callable[[], Report]:
    """A consumer that takes `total` messages, puts one in `every` off for an hour and finishes the
    rest."""
    sock = consumer(address, topic, "bench", 0)
    room = memoryview(bytearray(2 * RECEIVE))
    line = len(b"FIN 0123456789abcdef\n")

    def run() -> Report:
        have = taken = put_off = 0
        sock.sendall(command(b"RDY", b"2500"))
        while taken < total:
            have += sock.recv_into(room[have:])
            lines, used, count = finish_all(room[:have])
            start = 0
            for number in range(-(taken + 1) % every, count, every):
                at = number * line
                sock.sendall(lines[start:at] + b"REQ %s 3600000\n" % lines[at + 4 : at + 20])
                start = at + line
                put_off += 1
            if count:
                sock.sendall(lines[start:])
            elif have >= 8:
                used = other_frame(sock, bytes(room[:have]))
            taken += count
            room[: have - used] = room[used:have]
            have -= used
        return {"messages": taken, "put_off": put_off}

    return run


def one_each(
    address: Address, topics: list[str], body: bytes, team: Team, index: int
) -> Callable[[], Report]:
    """One message to each topic."""
    sock = producer(address)

    def run() -> Report:
        for start in range(0, len(topics), 100):
            part = topics[start : start + 100]
            sock.sendall(b"".join(pub(topic, body) for topic in part))
            expect(sock, OK * len(part))
        return {"messages": len(topics)}

    return run


def other_frame(sock: socket.socket, data: bytes) -> int:
    """Something else than a message: a heartbeat is answered, an incomplete frame waits."""
    if data.startswith(HEARTBEAT):
        sock.sendall(b"NOP\n")
        return len(HEARTBEAT)
    if data[4:8] == MESSAGE.to_bytes(4, "big") or HEARTBEAT.startswith(data):
        return 0
    raise RuntimeError(f"unexpected frame {data[:100]!r}")


# -- idle connections


def idle(
    address: Address, topic: str, connections: int, seconds: float, team: Team, index: int
) -> Callable[[], Report]:
    """Subscribed connections that answer heartbeats and do nothing else."""
    socks = {}
    poll = select.epoll()
    for _ in range(connections):
        sock = consumer(address, topic, "bench", 1)
        sock.setblocking(False)
        socks[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)

    def run() -> Report:
        lost = beats = 0
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for fd, _ in poll.poll(left):
                data = socks[fd].recv(4096)
                if not data:
                    poll.unregister(fd)
                    lost += 1
                    continue
                for _ in range(data.count(HEARTBEAT)):
                    socks[fd].sendall(b"NOP\n")
                    beats += 1
        return {"messages": 0, "lost": lost, "beats": beats}

    return run
