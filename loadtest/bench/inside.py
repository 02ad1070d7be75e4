"""A worker's sessions and topics in one process with their load, so that valgrind can count
instructions.

    valgrind --tool=callgrind --toggle-collect='*on_readable*' --toggle-collect='*end_turn*' \\
        python -m loadtest.bench.inside sub 40000

The counts are the same in every run, whatever else the machine is doing: run it with two different
numbers of messages, and divide the difference between the counts by the difference between these
numbers.
"""

import socket
import struct
import sys

import gevent

from loadtest.bench import load
from loadtest.bench.worker_core import make_core
from nsqcy.protocol.wire import finish_all
from nsqcy.server.transport import Loop, accept_socket

BATCH = 200


def make_loop() -> Loop:
    loop = Loop(make_core(), gevent.get_hub())
    loop.start()
    return loop


def client(loop: Loop) -> socket.socket:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    theirs.setblocking(False)
    ours.setblocking(False)
    accept_socket(loop, theirs.detach(), "127.0.0.1:1")
    ours.sendall(b"  V2")
    return ours


def turn() -> None:
    gevent.get_hub().loop.run(nowait=True, once=True)


def receive(sock: socket.socket, wanted: int) -> bytes:
    """Run turns and receive output: `wanted` bytes, or all there is if `wanted` is 0."""
    got = b""
    idle = 0
    while idle < 4:
        turn()
        try:
            part = sock.recv(1 << 20)
        except BlockingIOError:
            idle += 1
            continue
        idle = 0
        got += part
        if wanted and len(got) >= wanted:
            break
    return got


def publish(loop: Loop, messages: int) -> None:
    sock = client(loop)
    batch = load.mpub("bench", [b"x" * 200] * BATCH)
    for _ in range(messages // BATCH):
        sock.sendall(batch)
        answer = receive(sock, 10)
        assert answer == load.OK, answer
    sock.close()


def consume(loop: Loop, messages: int) -> None:
    socks = [client(loop), client(loop)]
    for sock in socks:
        sock.sendall(b"SUB bench bench\n")
        assert receive(sock, 10) == load.OK
        sock.sendall(b"RDY 2500\n")
    done = [0, 0]
    rest = [b"", b""]
    while sum(done) < messages:
        for i, sock in enumerate(socks):
            data = rest[i] + receive(sock, 1)
            lines, used, count = finish_all(data)
            rest[i] = data[used:]
            done[i] += count
            sock.sendall(lines)
    for sock in socks:
        receive(sock, 0)
        sock.close()
    print(f"consumers got {done[0]} and {done[1]} messages")


def main() -> None:
    what, messages = sys.argv[1], int(sys.argv[2])
    loop = make_loop()
    if what == "single":
        sock = client(loop)
        one = b"PUB bench\n" + struct.pack(">i", 200) + b"x" * 200
        for _ in range(messages // 100):
            sock.sendall(one * 100)
            receive(sock, 1000)
        return
    publish(loop, messages)
    if what == "sub":
        consume(loop, messages)


if __name__ == "__main__":
    main()
