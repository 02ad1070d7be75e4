"""nsqd's V2 protocol: whole and split input produce the same responses, without leaks."""

import json
import random
import zlib

from fuzz.conversation import TURN, told
from fuzz.garbage import GOLDEN, KEYS, a_command
from nsqcy.testing.wire_client import MAGIC, MESSAGE, batch, sized

COVERS = [
    "protocol/wire.pyx",
    "protocol/session.pyx",
    "protocol/connection.pyx",
    "protocol/auth.pyx",
    "protocol/forwarding_and_migration.pyx",
    "protocol/publish_and_log_commands.pyx",
    "base/headers.pyx",
    "nsqd/worker/negotiate.py",
    "util/gojson.py",
]
COMMANDS = [b"IDENTIFY", b"AUTH", b"SUB", b"PUB", b"MPUB", b"DPUB", b"RDY", b"FIN", b"REQ"]
COMMANDS += [b"TOUCH", b"CLS", b"NOP"]
WORDS = [word + b" " for word in COMMANDS] + [word + b"\n" for word in COMMANDS]
WORDS += [f'"{key}":'.encode() for key in [*KEYS, "headers", "durability", "topic_log"]]
WORDS += [b"#ephemeral", b"0123456789abcdef", b'"feature_negotiation":true', b"true", b"\xff\xff"]
CONSUME = b"SUB a c\nRDY 9\nMPUB a\n" + batch([b"one", b"two", b"three", b"four"]) + TURN
# The ids are the same in every core without other clients.
IDS = [data[10:26] for kind, data in told(MAGIC + CONSUME, None) if kind == MESSAGE]
WORDS += [TURN, CONSUME, *IDS, *(b"FIN " + each + b"\n" for each in IDS)]
WITH_BODIES = (b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB", b"LOG_PUB")


def negotiated(**wanted: object) -> bytes:
    text = json.dumps({"feature_negotiation": True, **wanted}).encode()
    return b"IDENTIFY\n" + sized(text)


def answered() -> bytes:
    """Return every kind of answer to a message, each of them twice."""
    one, two, three, four = IDS
    once = b"FIN %b\nREQ %b 0\nREQ %b 500\nTOUCH %b\n" % (one, two, three, four)
    return once + TURN + once + b"RDY 0\nCLS\n" + TURN + b"NOP\nFIN %b\n" % four


def seeds() -> list[bytes]:
    publish = b"SUB a c\nRDY 9\nPUB a\n" + sized(b"\0\7\1a\0\3xyzbody")
    return [
        *(each.removeprefix(MAGIC)[:2000] for each in GOLDEN),
        negotiated(headers=True) + publish,
        negotiated(durability="fsync", sample_rate=99) + publish,
        negotiated(heartbeat_interval=1000, msg_timeout=1000) + publish,
        CONSUME + answered(),
        negotiated(sample_rate=50, output_buffer_size=-1, client_id="x") + CONSUME + answered(),
    ]


def fresh(chance: random.Random) -> bytes:
    ident = chance.choice(IDS)
    answers = [b"FIN %b\n", b"TOUCH %b\n", b"REQ %b 0\n", b"REQ %b 2000\n"]
    some = [TURN, CONSUME, b"RDY 1\n", chance.choice(answers) % ident]
    return chance.choice([*some, a_command(chance)[:400]])


def sound(data: bytes) -> bytes:
    """Reduce each announced body length to the number of bytes that are left."""
    result, at = bytearray(data), 0
    while (end := result.find(b"\n", at)) >= 0:
        word = bytes(result[at:end]).split(b" ")[0]
        at = end + 1
        if word in WITH_BODIES and at + 4 <= len(result):
            size = min(int.from_bytes(result[at : at + 4], "big"), len(result) - at - 4)
            result[at : at + 4] = size.to_bytes(4, "big")
            at += 4 + size
    return bytes(result)


def one(data: bytes) -> None:
    whole = told(MAGIC + data, None)
    assert {kind for kind, _ in whole} <= {0, 1, 2}
    assert told(MAGIC + data, random.Random(zlib.crc32(data))) == whole
