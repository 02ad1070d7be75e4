"""Scripted nsqd that accepts MPUB, DPUB, and LOG_PUB as in docs/PROTOCOL.md. The test decides the
outcome of each command."""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.fake_nsqd import MockNsqd, Peer

LOSE = "lose"  # the message is published, and the answer is lost with the connection
DROP = "drop"  # the connection ends before anything is published
Meddle = Callable[[str], str]


@dataclass(frozen=True)
class Taken:
    body: bytes
    headers: bytes = b""
    defer_ms: int = 0


class ChunkBroker:
    """`topics` contains the published messages, `asked` the commands. `meddle` returns the outcome
    of each command: success (""), LOSE, DROP, or an error."""

    def __init__(self, settings: dict[str, Any] | None = None, port: int = 0) -> None:
        self.topics: dict[str, list[Taken]] = {}
        self.asked: list[str] = []
        self.meddle: Meddle = lambda _line: ""
        self.silent_for = 0  # number of commands that are answered together with the next one
        self._owed = 0
        self._highest: dict[tuple[str, ...], int] = {}
        agreed = {"topic_log": 1, "headers": True} if settings is None else settings
        self._nsqd = MockNsqd(port, settings=agreed, script=self._script)

    @property
    def address(self) -> str:
        return self._nsqd.address

    @property
    def connections(self) -> int:
        return len(self._nsqd.links)

    def close(self) -> None:
        self._nsqd.close()

    def bodies(self, topic: str = "t") -> list[bytes]:
        return [each.body for each in self.topics.get(topic, [])]

    def said(self, verb: str) -> list[str]:
        return [line for line in self.asked if line.partition(" ")[0] == verb]

    def _script(self, peer: Peer, line: str, body: bytes) -> bool:
        verb, *words = line.split(" ")
        if verb == "LOG_EPOCHS":
            known = {int(part[2]) for part in self._highest if list(part[:2]) == words}
            peer.answer(json.dumps({"producer": words[1], "epochs": sorted(known)}).encode())
            return True
        if verb not in ("MPUB", "DPUB", "LOG_PUB"):
            return False
        self.asked.append(line)
        fate = self.meddle(line)
        if fate not in ("", LOSE, DROP):
            peer.error(fate)
            return True
        if fate != DROP:
            self._publish(peer, verb, words, body)
        if fate:
            peer.hung_up = True
        elif self.silent_for:
            self.silent_for -= 1
            self._owed += 1
        else:
            for _ in range(self._owed + 1):
                peer.answer()
            self._owed = 0
        return True

    def _publish(self, peer: Peer, verb: str, words: list[str], body: bytes) -> None:
        headers = bool(peer.identity.get("headers"))
        into = self.topics.setdefault(words[0], [])
        if verb == "DPUB":
            into.append(message(body, headers, int(words[1])))
            return
        if verb == "LOG_PUB":
            part = tuple(words[:-1])
            if int(words[-1]) <= self._highest.get(part, -1):
                return
            self._highest[part] = int(words[-1])
        into += [message(each, headers) for each in split(body)]


def split(body: bytes) -> list[bytes]:
    """Return the messages in an MPUB."""
    (count,) = struct.unpack_from(">I", body)
    at, found = 4, []
    for _ in range(count):
        (size,) = struct.unpack_from(">I", body, at)
        found.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    assert at == len(body)
    return found


def message(data: bytes, headers: bool, defer_ms: int = 0) -> Taken:
    if not headers:
        return Taken(data, b"", defer_ms)
    (size,) = struct.unpack_from(">H", data)
    return Taken(data[2 + size :], data[2 : 2 + size], defer_ms)
