"""Scripted nsqd with logs in memory. A test triggers retention, crashes and disk failures, which
take effect immediately. Blocks are built only from the text of docs/PROTOCOL.md."""

import json
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nsqcy.base.core import crc32c
from support.fake_nsqd import Link, MockNsqd, Peer

COLUMNS = ["timestamp", "id", "defer", "headers", "body"]
SECOND = 1_000_000_000


@dataclass
class Record:
    body: bytes
    timestamp: int = 1_700_000_000 * SECOND
    id: int = 0x18A39F5CBE6691E0
    defer: int = 0
    headers: bytes = b""

    @property
    def damaged(self) -> bool:
        return self.id == 0


@dataclass
class FakeLog:
    log_id: str
    first_seq: int = 1
    records: list[Record] = field(default_factory=list)

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.records)

    def let_go(self, count: int) -> None:
        """Retention."""
        del self.records[:count]
        self.first_seq += count

    def cut(self, end: int) -> None:
        """Crash: lose the messages from position `end` on."""
        del self.records[end - self.first_seq :]


class FakeTopic:
    """The logs of a topic, oldest first."""

    def __init__(self, log_id: str, count: int = 0) -> None:
        self.logs = [FakeLog(log_id)]
        self.kept = True
        self.publish(count)

    def publish(self, *what: int | bytes) -> None:
        """Publish messages. A number n stands for n generated messages."""
        for each in what:
            for body in [each] if isinstance(each, bytes) else self._bodies(each):
                log = self.logs[-1]
                seq = log.next_seq
                log.records.append(Record(body, (1_700_000_000 + seq) * SECOND, 0xABC000 + seq))

    def _bodies(self, count: int) -> list[bytes]:
        start = self.logs[-1].next_seq
        return [b"%d" % seq for seq in range(start, start + count)]

    def begin(self, log_id: str) -> None:
        """Another incarnation."""
        self.logs.append(FakeLog(log_id, self.logs[-1].next_seq))


class LogBroker:
    """An nsqd with `topics`, which a test changes freely. `asked` contains the received commands.

    `spoil` may change each block, `refuse` answers a command with an error.
    """

    def __init__(self, port: int = 0, settings: dict[str, Any] | None = None) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.asked: list[str] = []
        self.cursors: dict[tuple[str, str], tuple[str, int]] = {}
        self.spoil: Callable[[bytearray], None] | None = None
        self.refuse: Callable[[str], str] | None = None
        self.max_records = 1 << 20  # per block
        self.silent = False  # nsqd hangs: it accepts connections and commands, but does not answer
        self._waiting: list[tuple[Link, FakeTopic, list[str]]] = []
        every = {"instance": uuid.uuid4().hex, "topic_log": 1}
        self._settings = every if settings is None else settings
        self._nsqd = MockNsqd(port, settings=self._settings, script=self._script)

    @property
    def address(self) -> str:
        return self._nsqd.address

    @property
    def port(self) -> int:
        return self._nsqd.port

    def close(self) -> None:
        self._nsqd.close()

    def hang_up(self) -> None:
        """Close every connection, and continue to listen."""
        for link in self._nsqd.links:
            link.close()

    @property
    def is_asked(self) -> bool:
        """Return whether a client is waiting for more messages in a topic."""
        return bool(self._waiting)

    def answer_waiting(self) -> None:
        """Answer the clients that are waiting for more messages in a topic. There must be new
        messages."""
        for link, topic, words in self._waiting:
            with link:
                link.answer(self.log_meta(topic, words[0]))
        self._waiting.clear()

    def said(self, verb: str) -> list[str]:
        return [line for line in self.asked if line.startswith(verb)]

    def _script(self, peer: Peer, line: str, _body: bytes) -> bool:
        assert isinstance(peer, Link)
        verb, *words = line.split(" ")
        self.asked.append(line)
        if self.silent:
            return True
        refusal = self.refuse(line) if self.refuse is not None else ""
        if refusal:
            peer.error(refusal, close=not refusal.startswith("E_LOG_"))
            return True
        if not verb.startswith("LOG_"):
            return False
        topic = self.topics.get(words[0])
        if topic is None:
            peer.error("E_LOG_NO_TOPIC", close=False)
            return True
        answer = getattr(self, verb.lower())(topic, *words)
        if answer is None:
            self._waiting.append((peer, topic, words))
        if isinstance(answer, str):
            peer.error(answer, close=False)
        elif answer is not None:
            peer.answer(answer)
        return True

    def log_meta(self, topic: FakeTopic, name: str, *wait: str) -> bytes | None:
        if wait and topic.logs[-1].next_seq <= int(wait[1]):
            return None  # until `answer_waiting`
        last = topic.logs[-1]
        meta = {
            "topic": name,
            "log_id": last.log_id,
            "first_seq": last.first_seq,
            "next_seq": last.next_seq,
            "bytes": sum(len(each.body) for log in topic.logs for each in log.records),
            "retention": {"time": 0, "bytes": 0} if topic.kept else None,
            "incarnations": [
                {"log_id": log.log_id, "first_seq": log.first_seq, "next_seq": log.next_seq}
                for log in topic.logs
            ],
            "cursors": [],
        }
        return json.dumps(meta).encode()

    def log_seek(self, topic: FakeTopic, _name: str, log_id: str, stamp: str) -> bytes | str:
        for log in topic.logs:
            if log.log_id == log_id:
                before = sum(each.timestamp < int(stamp) for each in log.records)
                return json.dumps({"seq": log.first_seq + before}).encode()
        return "E_LOG_ID " + " ".join(log.log_id for log in topic.logs)

    def log_cursor(self, _topic: FakeTopic, name: str, log_id: str, cursor: str, seq: str) -> bytes:
        self.cursors[name, cursor] = log_id, int(seq)
        return json.dumps({"name": cursor, "log_id": log_id, "seq": int(seq)}).encode()

    def log_fetch(
        self,
        topic: FakeTopic,
        _name: str,
        log_id: str,
        start: str,
        end: str,
        maximum: str,
        columns: str,
    ) -> bytes | str:
        found = [log for log in topic.logs if log.log_id == log_id]
        if not found:
            return "E_LOG_ID " + " ".join(log.log_id for log in topic.logs)
        log = found[0]
        first, last = int(start), min(int(end), log.next_seq, int(start) + self.max_records)
        if first < log.first_seq:
            return f"E_LOG_GONE {log.first_seq}"
        if first >= last:
            return f"E_LOG_RANGE {log.next_seq}"
        records = log.records[first - log.first_seq : last - log.first_seq]
        while len(records) > 1 and sum(len(each.body) for each in records) > int(maximum):
            records = records[: len(records) // 2]
        data = block(log_id, first, records, columns.split(","))
        if self.spoil is not None:
            self.spoil(data)
        return bytes(data)


def block(log_id: str, base_seq: int, records: list[Record], columns: list[str]) -> bytearray:
    parts = b""
    for name in COLUMNS:
        if name not in columns:
            continue
        if name in ("headers", "body"):
            texts = [getattr(each, name) for each in records]
            ends = [sum(map(len, texts[:count])) for count in range(len(texts) + 1)]
            parts += struct.pack(f"<{len(ends)}I", *ends) + b"".join(texts)
        else:
            kind = "Q" if name == "id" else "q"
            values = [getattr(each, name) for each in records]
            parts += struct.pack(f"<{len(values)}{kind}", *values)
        parts += bytes(-len(parts) % 8)
    bits = sum(1 << COLUMNS.index(name) for name in columns)
    flags = int(any(each.damaged for each in records))
    rest = struct.pack(
        "<16sQIIIIQ",
        bytes.fromhex(log_id),
        base_seq,
        len(records),
        flags,
        bits,
        0,
        64 + len(parts),
    )
    data = bytearray(b"SQCYBLK\0" + struct.pack("<II", 1, 0) + rest + parts)
    seal(data)
    return data


def seal(data: bytearray) -> None:
    """Return the checksum of a block."""
    data[12:16] = struct.pack("<I", crc32c(bytes(data[16:])))
