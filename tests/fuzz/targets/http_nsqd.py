"""HTTP of nsqd: with and without the fast path for publishes, the same pieces of input have the
same answers and effects."""

import random
import zlib
from itertools import pairwise

from fuzz.garbage import HEADERS, METHODS, PATHS, a_request
from support.http_core import same_both_ways

COVERS = [
    "server/http_fastpath.pyx",
    "server/publisher.pyx",
    "http/server.py",
    "http/parser.py",
    "http/router.py",
]
COVERS += [
    "server/http_mpub_body.pyx",
    "nsqd/http/api.py",
    "nsqd/http/publishing.py",
    "nsqd/http/settings.py",
]
WORDS = [b"\r\n", b"\r\n\r\n", b"HTTP/1.1\r\n", b"HTTP/1.0\r\n", b"Content-Length: ", b"0\r\n\r\n"]
WORDS += [b"Transfer-Encoding: chunked\r\n", b"X-Nsq-a: b\r\n", b"POST /pub?topic=a HTTP/1.1\r\n"]
WORDS += [method + b" " for method in METHODS if method] + [each for each in PATHS if len(each) > 2]
WORDS += [each for each in HEADERS if 2 < len(each) < 60]


def seeds() -> list[bytes]:
    chance = random.Random(7)
    publish = b"POST /pub?topic=a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
    headed = publish.replace(b"Host: h", b"X-Nsq-Trace: 1\r\nHost: h")
    chunks = b"POST /pub?topic=b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks += b"3\r\nabc\r\n0\r\n\r\n"
    lines = b"POST /mpub?topic=c HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\na\nb\nc"
    binary = lines.replace(b"=c", b"=c&binary=true").replace(b"5\r\n\r\na\nb\nc", b"9\r\n\r\n")
    binary += b"\0\0\0\1\0\0\0\1x"
    return [publish * 3, headed * 2 + publish, chunks + lines, binary, *_short(chance)]


def _short(chance: random.Random) -> list[bytes]:
    requests = [a_request(chance) for _ in range(60)]
    return [each for each in requests if len(each) < 600]


def fresh(chance: random.Random) -> bytes:
    return chance.choice([*HEADERS[:-1], seeds()[0][:64], b"X: y\r\n"])[:200]


def one(data: bytes) -> None:
    chance = random.Random(zlib.crc32(data))
    cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(0, 4)))
    same_both_ways(data[start:end] for start, end in pairwise([0, *cuts, len(data)]))
