"""Golden conversations, replayed whole, byte by byte and at random splits.

A file is read line by line: `>` is sent as it stands, `<` is expected, `#` is a comment. `\\n`,
`\\x00` and their like stand for bytes, `{topic}` for a name of this replay. An expected line is
`response`, `error` or `message` with the frame's exact data, or `eof`. In a message `{timestamp}`
stands for the eight bytes of a time near now, `{id:a}` for an id that is called `{a}` from there
on. Lines sent in a row go out as one write, cut as the replay wants it.
"""

import itertools
import random
import re
import struct
import time
from pathlib import Path

import pytest
from auth_server import AuthServer, grant
from daemon import Nsqd
from talk import ERROR, MESSAGE, RESPONSE, Conn, Frame, Message

HERE = Path(__file__).parent
KINDS = {"response": RESPONSE, "error": ERROR, "message": MESSAGE}
SPLITS = 50
Script = list[tuple[str, str]]


def read(path: Path) -> Script:
    """The lines of a conversation as (`>` or `<`, text), those sent in a row joined."""
    script: Script = []
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        side, text = line[0], line[2:]
        assert side in "<>" and line[1:2] in ("", " "), line
        if side == ">" and script and script[-1][0] == ">":
            script[-1] = (">", script[-1][1] + text)
        else:
            script.append((side, text))
    return script


def octets(text: str, names: dict[str, bytes]) -> bytes:
    """The bytes a line stands for."""
    raw = text.encode("latin-1").decode("unicode_escape").encode("latin-1")
    for name, value in names.items():
        raw = raw.replace(b"{" + name.encode() + b"}", value)
    return raw


def pieces(data: bytes, cut: str, chance: random.Random) -> list[bytes]:
    if cut == "whole":
        return [data]
    if cut == "bytes":
        return [data[at : at + 1] for at in range(len(data))]
    count = min(chance.randint(1, 6), len(data) - 1)
    cuts = [0, *sorted(chance.sample(range(1, len(data)), max(count, 0))), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(cuts)]


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
                for piece in pieces(octets(text, names), cut, chance):
                    conn.send(piece)
            elif text == "eof":
                conn.eof()
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


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_conversation(shared: Nsqd, topic: str, path: Path) -> None:
    replay_in_pieces(shared, path, topic)


@pytest.mark.parametrize("path", sorted(HERE.glob("auth/*.txt")), ids=lambda path: path.stem)
def test_guarded_conversation(
    guarded: Nsqd, auth_server: AuthServer, topic: str, path: Path
) -> None:
    """Any secret allows everything, but `publisher` subscribing."""
    auth_server.says("publisher", grant(permissions=["publish"]), identity="a", identity_url="b")
    replay_in_pieces(guarded, path, topic)
