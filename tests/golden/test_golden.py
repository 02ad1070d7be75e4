"""Golden conversations, replayed whole, byte by byte and at random splits.

An expected line (see script.py) is `response`, `error` or `message` with the frame's exact data, or
`eof`. In a message, `{timestamp}` stands for the eight bytes of a time near now. `{id:a}` stands
for an id; `{a}` refers to it afterwards. Each replay cuts the sent bytes in its own way.
"""

import contextlib
import random
import re
import struct
import time
from pathlib import Path

import pytest

from golden.script import Script, conversations, octets, pieces, read
from nsqcy.testing.wire_client import ERROR, MESSAGE, RESPONSE, Conn, Frame, Message
from support.fake_auth_server import AuthServer, grant
from support.nsqd_process import Nsqd

KINDS = {"response": RESPONSE, "error": ERROR, "message": MESSAGE}
SPLITS = 50


def check(frame: Frame, text: str, names: dict[str, bytes]) -> None:
    kind, _, data = text.partition(" ")
    assert frame.kind == KINDS[kind], (frame, text)
    if kind != "message":
        assert frame.data == octets(data, names)
        return
    message = Message.parse(frame.data)
    if name := re.search(r"\{id:(\w+)\}", data):
        names[name[1]] = message.id
        data = data.replace(name[0], "{" + name[1] + "}")
    if "{timestamp}" in data:
        assert abs(message.timestamp - time.time_ns()) < 600 * 10**9
        names["timestamp"] = struct.pack(">q", message.timestamp)
    assert frame.data == octets(data, names)


def replay(daemon: Nsqd, script: Script, topic: str, cut: str, seed: int) -> None:
    chance = random.Random(seed)
    names = {"topic": topic.encode()}
    with Conn(daemon.address, magic=b"") as conn:
        for side, text in script:
            if side == ">":
                # In a cut conversation, the last pieces may arrive after nsqd has closed the
                # connection, so nsqd answers them with an RST.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    for piece in pieces(octets(text, names), cut, chance):
                        conn.send(piece)
            elif text == "eof":
                conn.eof(reset=cut != "whole")
            else:
                check(conn.frame(), text, names)


def replay_in_pieces(daemon: Nsqd, path: Path, topic: str) -> None:
    script = read(path)
    replay(daemon, script, topic + "-w", "whole", 0)
    replay(daemon, script, topic + "-b", "bytes", 0)
    for seed in range(SPLITS):
        try:
            replay(daemon, script, f"{topic}-{seed}", "random", seed)
        except BaseException as failure:
            failure.add_note(f"split with seed {seed}")
            raise


@pytest.mark.parametrize("path", conversations(), ids=lambda path: path.stem)
def test_conversation(shared: Nsqd, topic: str, path: Path) -> None:
    replay_in_pieces(shared, path, topic)


@pytest.mark.parametrize("path", conversations("auth"), ids=lambda path: path.stem)
def test_guarded_conversation(
    guarded: Nsqd, auth_server: AuthServer, topic: str, path: Path
) -> None:
    """Every secret permits everything, except that `publisher` may not subscribe."""
    auth_server.says("publisher", grant(permissions=["publish"]), identity="a", identity_url="b")
    replay_in_pieces(guarded, path, topic)
