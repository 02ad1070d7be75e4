"""Generators of fuzz inputs: almost valid commands and requests, and mutations of valid ones.

Every generator uses only the `Random` that it receives, so a seed identifies a test case.
"""

import json
import random
from typing import Any

from golden.script import conversations, octets, read
from nsqcy.testing.wire_client import MAGIC, batch, sized

# 1024 and 5242881 are close to limits of the daemon under attack.
EDGES = [0, 1, 2, 3, 4, 5, 1024, 1048576, 1048577, 5242880, 5242881]
EDGES += [0x7FFFFFFF, 0x80000000, 0xFFFFFFFB, 0xFFFFFFFF]
NUMBERS = [0, 1, 100, 2500, 2501, -1, 2**31, 2**63, 2**64, 10**30]
TOPICS = [b"fuzz1", b"fuzz2", b"fuzz3#ephemeral", b"a$", b""]
CHANNELS = [b"c", b"d#ephemeral", b"e:f"]

KEYS = ["client_id", "hostname", "user_agent", "feature_negotiation", "heartbeat_interval"]
KEYS += ["output_buffer_size", "output_buffer_timeout", "tls_v1", "snappy", "deflate"]
KEYS += ["deflate_level", "sample_rate", "msg_timeout", "topology_region", "topology_zone"]
KEYS += ["short_id", "long_id", "Heartbeat_Interval", "unknown", ""]
# These features are never negotiated here, because all subsequent data would be noise.
NOT_TRUE = {"tls_v1", "snappy", "deflate"}
ODD_JSON = [b"", b"{", b"null", b"[]", b"1e999", b'"x"', b"[" * 3000, b'{"a":' * 3000, b"{}}"]
ODD_JSON += [b'{"client_id":"\\ud800\\u0000"}', b'{"hostname":"\xff\xfe"}', b'{"a":NaN}']
ODD_JSON += [b'{"sample_rate":1,"sample_rate":99}', b"\xef\xbb\xbf{}", b'{"a":-0.0e-400}']


def edge(chance: random.Random) -> bytes:
    return chance.choice(EDGES).to_bytes(4, "big")


def wrongly_sized(body: bytes, chance: random.Random) -> bytes:
    """Return a body, usually after its length, sometimes after a nearly correct or absurd one."""
    kind = chance.randrange(8)
    if kind == 0:
        return edge(chance) + body
    if kind == 1:
        near = max(0, len(body) + chance.choice([-5, -4, -1, 1, 4]))
        return near.to_bytes(4, "big") + body
    return sized(body)


def json_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9)
    if kind == 0:
        return chance.choice([True, False, None])
    if kind <= 3:
        return chance.choice([*NUMBERS, 99, 1000, 60000, 16384, -(2**70)])
    if kind == 4:
        return chance.choice([0.5, -1.5, 1e300, float("inf"), float("nan")])
    if kind <= 6 or depth > 2:
        size = chance.choice([0, 1, 10, 3000])
        return "".join(
            chr(chance.choice([0, 34, 92, 97, 233, 0xD800, 0x1F600])) for _ in range(size)
        )
    if kind == 7:
        return [json_value(chance, depth + 1) for _ in range(chance.randint(0, 4))]
    return {chance.choice(KEYS): json_value(chance, depth + 1) for _ in range(chance.randint(0, 4))}


def an_identity(chance: random.Random) -> bytes:
    """Return the body of an IDENTIFY: known keys with values of any type, or something other than
    an object."""
    if chance.random() < 0.2:
        return chance.choice(ODD_JSON)
    wanted = {key: json_value(chance) for key in chance.sample(KEYS, chance.randint(0, 6))}
    wanted |= dict.fromkeys(NOT_TRUE & wanted.keys(), False)
    if chance.random() < 0.5:
        wanted["feature_negotiation"] = True
    text = json.dumps(wanted, ensure_ascii=chance.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def identify(chance: random.Random) -> bytes:
    line = chance.choice([b"IDENTIFY\n"] * 6 + [b"IDENTIFY\r\n", b"IDENTIFY x y\n", b"IDENTIFY \n"])
    return line + wrongly_sized(an_identity(chance), chance)


def some_messages(chance: random.Random) -> bytes:
    """Return the messages of an MPUB after their count. The count or a size may be wrong."""
    sizes = [0, 1, 1, 2, 10, 300, 1023, 20_000]
    bodies = [
        chance.randbytes(chance.choice(sizes)) for _ in range(chance.choice([0, 1, 2, 5, 50]))
    ]
    count = len(bodies).to_bytes(4, "big")
    if chance.random() < 0.15:
        count = chance.choice([edge(chance), (len(bodies) + 1).to_bytes(4, "big")])
    messages = b"".join(
        wrongly_sized(body, chance) if chance.random() < 0.1 else sized(body) for body in bodies
    )
    return count + messages + chance.choice([b""] * 9 + [b"\0\0\0"])


def mpub(chance: random.Random) -> bytes:
    topic = chance.choice(TOPICS)
    line = chance.choice([b"MPUB " + topic + b"\n"] * 8 + [b"MPUB\n", b"MPUB " + topic + b" x\n"])
    return line + wrongly_sized(some_messages(chance), chance)


def a_command(chance: random.Random) -> bytes:
    topic = chance.choice(TOPICS)
    ident = b"%016x" % chance.getrandbits(63)
    number = b"%d" % chance.choice(NUMBERS)
    body = chance.randbytes(chance.choice([1, 10, 300, 70_000]))
    return chance.choice(
        [
            b"NOP\n",
            b"CLS\n",
            b"SUB " + topic + b" " + chance.choice(CHANNELS) + b"\n",
            b"RDY " + number + b"\n",
            b"FIN " + ident + b"\n",
            b"REQ " + ident + b" " + number + b"\n",
            b"TOUCH " + ident + b"\n",
            b"PUB " + topic + b"\n" + sized(body),
            b"DPUB " + topic + b" " + number + b"\n" + sized(body),
            b"MPUB " + topic + b"\n" + batch([body[:40]] * chance.randint(0, 20)),
            identify(chance),
            mpub(chance),
            b"AUTH\n" + sized(b"secret"),
            chance.randbytes(chance.randint(1, 200)) + b"\n",
        ]
    )


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return the data with some bytes flipped, removed or repeated, or replaced with extreme
    numbers."""
    result = bytearray(data)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5, 20])):
        at = chance.randrange(len(result) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del result[at : at + chance.randint(1, 20)]
        elif kind == 2:
            result[at:at] = result[at : at + chance.randint(1, 50)]
        elif kind == 3:
            result[at : at + 4] = edge(chance)
        else:
            result[at:at] = chance.randbytes(chance.randint(1, 30))
    return bytes(result)


def consume(chance: random.Random) -> bytes:
    """Return the commands of a consumer that publishes its own messages, some of them large."""
    topic = chance.choice(TOPICS[:3])
    size = chance.choice([10, 20_000, 70_000])
    publish = b"PUB " + topic + b"\n" + sized(chance.randbytes(size))
    ready = b"RDY %d\n" % chance.choice([1, 100])
    return b"SUB " + topic + b" c\n" + ready + publish * chance.randint(1, 5)


def some_commands(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randint(0, 2000))
    first = consume(chance) if chance.random() < 0.3 else b""
    commands = b"".join(a_command(chance) for _ in range(chance.randint(1, 12)))
    return MAGIC + first + mutated(commands, chance)


def some_identities(chance: random.Random) -> bytes:
    """Return an IDENTIFY followed by commands, which nsqd reads according to the negotiated
    features."""
    behind = b"".join(a_command(chance) for _ in range(chance.randint(0, 3)))
    return MAGIC + mutated(identify(chance), chance) + behind


def some_batches(chance: random.Random) -> bytes:
    batches = b"".join(mpub(chance) for _ in range(chance.randint(1, 4)))
    return MAGIC + (mutated(batches, chance) if chance.random() < 0.5 else batches)


def _sent(path: Any) -> bytes:
    return b"".join(octets(text, {"topic": b"fuzz1"}) for side, text in read(path) if side == ">")


GOLDEN = [_sent(path) for path in conversations()]


def a_golden_one(chance: random.Random) -> bytes:
    """Return one or two consecutive golden conversations, with mutations."""
    first, second = chance.choice(GOLDEN), chance.choice([b"", *GOLDEN])
    return mutated(first + second.removeprefix(MAGIC), chance)


CONVERSATIONS = {
    "commands": some_commands,
    "identify": some_identities,
    "mpub": some_batches,
    "golden": a_golden_one,
}

PATHS = [b"/ping", b"/info", b"/stats", b"/stats?format=json", b"/stats?format=json&topic=fuzz1"]
PATHS += [
    b"/pub?topic=fuzz1",
    b"/pub?topic=fuzz1&defer=1000",
    b"/pub?topic=fuzz2&defer=" + b"9" * 20,
]
PATHS += [b"/mpub?topic=fuzz2", b"/mpub?topic=fuzz2&binary=true", b"/mpub?topic=fuzz1&binary=maybe"]
PATHS += [b"/topic/create?topic=fuzz1", b"/topic/delete?topic=fuzz2", b"/topic/pause?topic=fuzz1"]
PATHS += [b"/channel/create?topic=fuzz1&channel=c", b"/channel/empty?topic=%ff&channel=%"]
PATHS += [b"/channel/delete?topic=fuzz1&channel=c", b"/../pub?topic=..", b"//pub", b"*", b""]
PATHS += [
    b"http://elsewhere/ping",
    b"/pub?topic=fuzz1;topic=fuzz2",
    b"/pub?topic=%00",
    b"/\xff\x00",
]
METHODS = [b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"PATCH", b"get", b"G T", b""]
HEADERS = [
    b"",
    b"Connection: close\r\n",
    b"Connection: keep-alive, close\r\n",
    b"Expect: 100-continue\r\n",
    b"X: " + b"y" * 9000 + b"\r\n",
    b"X: a\r\n folded\r\n",
    b"X : space\r\n",
    b"X: a\nY: b\r\n",
    b"X\r\n",
    b"X: \0\r\n",
    b"Host: y\r\n",
    b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: +1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"A: b\r\n" * 300,
]


def chunked(body: bytes, chance: random.Random) -> bytes:
    result = bytearray()
    while body:
        size = chance.randint(1, len(body))
        extension = chance.choice([b""] * 8 + [b";x=y", b";" + b"x" * 5000, b" "])
        end = chance.choice([b"\r\n"] * 15 + [b"\n"])
        result += b"%x" % size + extension + b"\r\n" + body[:size] + end
        body = body[size:]
    return bytes(result) + b"0\r\n" + chance.choice([b""] * 5 + [b"Trailer: x\r\n"]) + b"\r\n"


def a_request(chance: random.Random) -> bytes:
    path = chance.choice([*PATHS, b"/" + b"x" * chance.choice([1, 5000, 100_000])])
    bodies = [b"", b"x", b"a\nb\nc", some_messages(chance), chance.randbytes(3000)]
    body = chance.choice(bodies)
    version = chance.choice([b"1.1"] * 6 + [b"1.0", b"1.9", b"2.0", b"0.9", b"1"])
    head = chance.choice(METHODS) + b" " + path + b" HTTP/" + version + b"\r\nHost: x\r\n"
    head += chance.choice(HEADERS)
    if chance.random() < 0.3:
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, chance)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def some_requests(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randint(0, 2000))
    requests = b"".join(a_request(chance) for _ in range(chance.randint(1, 4)))
    return mutated(requests, chance) if chance.random() < 0.6 else requests
