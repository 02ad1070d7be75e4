"""CPU cost of `POST /pub` on keep-alive connections, over the in-memory backend of the tests.

    PYTHONPATH=. python loadtest/http_pub.py [--connections 50] [--requests 100000]

Prints requests per second and the server's CPU microseconds a request, user and system.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
BODY = b"x" * 200
REQUEST = (
    b"POST /pub?topic=bench HTTP/1.1\r\nHost: 127.0.0.1:4151\r\nUser-Agent: bench\r\n"
    b"Accept: */*\r\nContent-Length: 200\r\n\r\n" + BODY
)


def one_round(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.sendall(REQUEST)
    for sock in sockets:
        answer = sock.recv(4096)
        if not answer.endswith(b"OK"):
            raise RuntimeError(f"unexpected answer {answer!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--requests", type=int, default=100_000)
    args = parser.parse_args()

    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "http_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert server.stdin is not None and server.stdout is not None
    port = int(server.stdout.readline())
    process = psutil.Process(server.pid)
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(args.connections)]
    for _ in range(100):
        one_round(sockets)

    before, start = process.cpu_times(), time.perf_counter()
    rounds = args.requests // args.connections
    for _ in range(rounds):
        one_round(sockets)
    seconds, after = time.perf_counter() - start, process.cpu_times()
    count = rounds * args.connections
    user = (after.user - before.user) / count * 1e6
    system = (after.system - before.system) / count * 1e6
    print(
        f"{count / seconds:.0f} requests/s, {user:.1f} us user + {system:.1f} us system a request"
    )
    server.stdin.close()
    server.wait()


if __name__ == "__main__":
    main()
