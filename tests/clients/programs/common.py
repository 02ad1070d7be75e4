"""Code shared by the client programs: their command line, and their ends of the two pipes.

A consumer writes one record for each message: a 32-bit length, then the message as NSQ frames it. A
producer reads records that contain bodies, and writes one line for each answered publish. Both exit
at the end of their standard input.
"""

import argparse
import ssl
import struct
import sys
from collections.abc import Iterator
from typing import Any

LENGTH = struct.Struct(">i")
HEADER = struct.Struct(">qH16s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    modes = parser.add_subparsers(dest="mode", required=True)
    consume = modes.add_parser("consume")
    publish = modes.add_parser("publish")
    for mode in (consume, publish):
        where = mode.add_mutually_exclusive_group(required=True)
        where.add_argument("--address", help="of an nsqd")
        if mode is consume:
            where.add_argument("--lookupds", help="their HTTP addresses, with commas")
        mode.add_argument("--topic", required=True)
        mode.add_argument("--heartbeat", type=int, default=30, help="seconds")
        mode.add_argument("--secret", help="for AUTH")
        mode.add_argument("--tls", action="store_true", help="believing any server")
        mode.add_argument("--codec", choices=["snappy", "deflate"])
    consume.add_argument("--channel", required=True)
    consume.add_argument("--rdy", type=int, default=1)
    consume.add_argument("--requeue", type=int, help="requeue every first attempt, so many ms")
    consume.add_argument("--touches", type=int, default=0, help="before finishing, 0.3 s apart")
    publish.add_argument("--batch", type=int, default=1)
    publish.add_argument("--defer", type=int, help="ms")
    return parser.parse_args()


def upgrades(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options for TLS and compression, which pynsq and gnsq share."""
    wanted: dict[str, Any] = {args.codec: True} if args.codec else {}
    if args.tls:
        wanted |= {"tls_v1": True, "tls_options": {"cert_reqs": ssl.CERT_NONE}}
    return wanted


def sources(args: argparse.Namespace) -> dict[str, Any]:
    """Return the consumer's sources as options that all libraries share. Lookupds are queried every
    second."""
    if args.lookupds:
        return {"lookupd_http_addresses": args.lookupds.split(","), "lookupd_poll_interval": 1}
    return {"nsqd_tcp_addresses": [args.address]}


def emit(timestamp: int, attempts: int, ident: bytes, body: bytes) -> None:
    out = sys.stdout.buffer
    out.write(LENGTH.pack(HEADER.size + len(body)))
    out.write(HEADER.pack(timestamp, attempts, ident))
    out.write(body)
    out.flush()


def answer(text: str) -> None:
    print(text, flush=True)


def bodies() -> Iterator[bytes]:
    """Yield the bodies to publish as they arrive."""
    while head := sys.stdin.buffer.read(LENGTH.size):
        yield sys.stdin.buffer.read(LENGTH.unpack(head)[0])


def batches(size: int) -> Iterator[list[bytes]]:
    """Yield the bodies in lists of `size`."""
    batch: list[bytes] = []
    for body in bodies():
        batch.append(body)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
