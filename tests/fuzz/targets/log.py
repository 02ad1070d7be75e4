"""Log commands (docs/PROTOCOL.md) on a topic that keeps its log: whole and cut input have the same
answers, and no object remains.

`LOG_ID` in an input stands for the topic's log_id, which is the same in every core. The log_ids
must not differ, because their digits may be read as the length of a body.
"""

import random
import shutil
import tempfile
import zlib
from pathlib import Path
from unittest import mock

from fuzz.conversation import TURN, converse
from fuzz.targets.wire import negotiated, sound
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.core import BlockPool
from nsqcy.storage.io_faults import FaultyIoThread
from nsqcy.testing.wire_client import MAGIC, sized
from support.worker_core import RESPONSE, SECOND, Core, frames, log_pub, mpub

COVERS = [
    "broker/log_fetch.pyx",
    "broker/topic_log.pyx",
    "broker/topic_publishing.pyx",
    "protocol/publish_and_log_commands.pyx",
    "protocol/session.pyx",
    "storage/log.pyx",
    "storage/log_writer.pyx",
    "storage/segment_files.pyx",
    "broker/producers.py",
    "broker/named_cursors.py",
]
COMMANDS = [b"LOG_META t\n", b"LOG_META t 1000 9\n", b"LOG_SEEK t LOG_ID 1700000000000000000\n"]
COMMANDS += [b"LOG_FETCH t LOG_ID 1 9 100000 timestamp,id,defer,headers,body\n"]
COMMANDS += [b"LOG_FETCH t LOG_ID 2 3 1 body\n", b"LOG_CURSOR t LOG_ID me 3\n"]
COMMANDS += [b"LOG_EPOCHS t p\n", b"LOG_CURSOR t - me -\n", b"LOG_CURSOR t - me delete\n"]
COMMANDS += [log_pub("t", 1, [b"a", b"b"]), log_pub("u", 7, [b"c"], epoch=2, part=3)]
COMMANDS += [log_pub("t", 2, [b"a", b"b"]), log_pub("t", 1, [b"a", b"b", b"c"])]
OTHERS = [b"SUB t c\nRDY 9\n", b"PUB t\n" + sized(b"x"), b"DPUB t 40000\n" + sized(b"y")]
"""Commands that move the end of the log, and a consumer."""
WORDS = [
    b"LOG_ID",
    TURN,
    *(each.split(b" ")[0] + b" " for each in COMMANDS),
    b"18446744073709551615",
]
WORDS += [b"timestamp", b"headers", b"body", b"4294967295", b"-1", b" - ", b"delete\n"]

STORE = BlockPool(1 << 40)
"""Shared by all cores in turn: mapping its memory takes longer than running most inputs."""

__all__ = ["COVERS", "WORDS", "fresh", "one", "seeds", "sound"]


def seeds() -> list[bytes]:
    head = negotiated(topic_log=True)
    whole = b"".join(OTHERS) + TURN.join(COMMANDS)
    awaited = [negotiated(topic_log=True, durability=each) + whole for each in ("os", "fsync")]
    headed = negotiated(topic_log=True, headers=True) + log_pub("t", 1, [b"\0\7\1a\0\3xyzbody"])
    return [head + each for each in COMMANDS] + [head + whole, *awaited, headed + COMMANDS[3]]


def fresh(chance: random.Random) -> bytes:
    return chance.choice([TURN, *OTHERS, *COMMANDS])


def told(data: bytes, cuts: random.Random | None) -> list[tuple[int, bytes]]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    retained = Policies(TopicPolicy(retention_time=3600 * SECOND))
    try:
        with mock.patch("os.urandom", random.Random(1).randbytes):
            io = FaultyIoThread(stepped=True)
            core = Core(folder, policies=retained, io=io, pool=STORE)
            assert core.client().ask(mpub("t", [b"one", b"two", b"three"])) == (RESPONSE, b"OK")
            core.advance(2 * SECOND)
            topic = core.topic("t")
            assert topic is not None
            log_id = topic.log.log_id.hex().encode()
            answer = converse(core, MAGIC + data.replace(b"LOG_ID", log_id), cuts)
            core.close()
        return list(frames(answer))
    finally:
        shutil.rmtree(folder)


def one(data: bytes) -> None:
    whole = told(data, None)
    assert {kind for kind, _ in whole} <= {0, 1, 2}
    assert told(data, random.Random(zlib.crc32(data))) == whole
