"""Data paths of earlier builds: written once and kept, with the expected results at
startup.

`python tests/support/older_data.py ARCHIVE.tar.gz` writes an archive with the nsqd from this tree.
It contains two data paths, `stopped` (a clean exit) and `killed` (SIGKILL to all processes), and
`expected.json`.
"""

import json
import shutil
import sys
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from nsqcy.client import Consumer, Producer
from nsqcy.testing import Nsqd, nsqd

YEARS = 10 * 365 * 24 * 3600  # seconds: no message becomes due before this data is read
OPTIONS: dict[str, Any] = {
    "max_bytes_per_file": 65536,
    "max_defer_timeout": "200000h",
    "max_req_timeout": "200000h",
    "mem_queue_size": 1000,
    "sync_timeout": "100ms",
    "workers": 2,
}
# ns; due times are compared in whole seconds, because the clocks are read one after the other
SECOND = 1_000_000_000
LIVES = ("stopped", "killed")


def start(data_path: Path, **options: Any) -> Nsqd:
    return nsqd(data_path=str(data_path), **OPTIONS | options)


def call(daemon: Nsqd, method: str, path: str, body: bytes | None = None) -> Any:
    request = Request(f"http://{daemon.http_address}{path}", body, method=method)
    with urlopen(request) as answer:
        text = answer.read()
    return json.loads(text) if text[:1] in (b"{", b"[") else None


def bodies(topic: str, count: int) -> list[bytes]:
    return [f"{topic} {number} ".encode().ljust(100, b".") for number in range(count)]


def fill(daemon: Nsqd) -> None:
    """Publish, consume, requeue, defer, bury, pause, and set policies."""
    policies: dict[str, dict[str, Any]] = {
        "/topic/config?topic=synced": {"durability": "fsync"},
        "/topic/config?topic=kept": {"retention_bytes": 100 << 20},
        "/channel/config?topic=dying&channel=c": {"max_attempts": 1, "dead_letter_topic": "dead"},
    }
    for path, policy in policies.items():
        call(daemon, "PUT", path, json.dumps(policy).encode())
    channels = {"plain": "cd", "synced": "cd", "kept": "cd", "dying": "c", "dead": "c", "bare": ""}
    for topic, names in channels.items():
        call(daemon, "POST", f"/topic/create?topic={topic}")
        for name in names:
            call(daemon, "POST", f"/channel/create?topic={topic}&channel={name}")
    with Producer(daemon.tcp_address) as producer:
        for topic in channels.keys() - {"dead"}:
            producer.publish_all(topic, bodies(topic, 2000 if topic == "plain" else 100))
            producer.publish(topic, b"later", defer=YEARS * 1000)
        producer.publish("synced", b"x" * 200_000)
    for topic in ("plain", "synced", "kept"):
        answer_some(daemon, topic)
    with Consumer("dying", "c", daemon.tcp_address, max_in_flight=1) as consumer:
        for _ in range(3):
            taken(consumer).requeue(0, backoff=False)
    while stats_of(daemon)["dead"]["c"]["depth"] != 3:
        pass
    call(daemon, "POST", "/channel/pause?topic=plain&channel=d")
    call(daemon, "POST", "/topic/pause?topic=bare")


def answer_some(daemon: Nsqd, topic: str) -> None:
    """Of 40 messages, finish 20, requeue 15 immediately, and defer 5."""
    with Consumer(topic, "c", daemon.tcp_address, max_in_flight=40) as consumer:
        messages = [taken(consumer) for _ in range(40)]
        for message in messages[:20]:
            message.finish()
        for message in messages[20:35]:
            message.requeue(0, backoff=False)
        for message in messages[35:]:
            message.requeue(YEARS, backoff=False)


def taken(consumer: Consumer) -> Any:
    message = consumer.get(60)
    assert message is not None, "no message within a minute"
    return message


def stats_of(daemon: Nsqd) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the depth, deferred count and pause state of each channel, by topic. The topic's own
    values are under ''."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for topic in call(daemon, "GET", "/stats?format=json&include_clients=false")["topics"]:
        channels = found[topic["topic_name"]] = {"": shown(topic)}
        for channel in topic["channels"]:
            channels[channel["channel_name"]] = shown(channel)
    return found


def shown(stats: dict[str, Any]) -> dict[str, Any]:
    return {key: stats.get(key, 0) for key in ("depth", "deferred_count", "paused")}


def describe(daemon: Nsqd) -> dict[str, Any]:
    """Return everything that a client can read from a data path. Consume all messages except
    deferred ones."""
    stats = stats_of(daemon)
    found: dict[str, Any] = {"stats": stats, "channels": {}, "policies": {}}
    for topic, channels in sorted(stats.items()):
        if channels[""]["paused"]:
            call(daemon, "POST", f"/topic/unpause?topic={topic}")
        found["policies"][topic] = call(daemon, "GET", f"/topic/config?topic={topic}")
        for channel in sorted(channels.keys() - {""}) or ["new"]:
            query = f"topic={topic}&channel={channel}"
            call(daemon, "POST", f"/channel/create?{query}")
            call(daemon, "POST", f"/channel/unpause?{query}")
            count = stats_of(daemon)[topic][channel]["depth"]
            policy = call(daemon, "GET", f"/channel/config?{query}")
            found["policies"][f"{topic}/{channel}"] = policy
            found["channels"][f"{topic}/{channel}"] = consume(daemon, topic, channel, count)
            deferred = call(daemon, "GET", f"/channel/deferred?{query}")["deferred"]
            # In a new channel, a delay begins now. Ids may have to be read first.
            known = channel in channels
            found["channels"][f"{topic}/{channel}"]["deferred"] = [
                [each["seq"], each["attempts"], each["due"] // SECOND if known else None]
                for each in deferred
            ]
    return found


def consume(daemon: Nsqd, topic: str, channel: str, count: int) -> dict[str, Any]:
    """Return a digest of all messages with their ids, times and attempts."""
    with Consumer(topic, channel, daemon.tcp_address, max_in_flight=100) as consumer:
        lines = []
        for _ in range(count):
            message = taken(consumer)
            line = f"{message.id!r} {message.timestamp} {message.attempts} "
            lines.append(line.encode() + message.body)
            message.finish()
    digest = sha256(b"\n".join(sorted(lines)))
    return {"count": count, "digest": digest.hexdigest()}


def unpack(archive: Path, folder: Path) -> dict[str, Any]:
    """Extract the data paths; return the expected results, by their names."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return expected


def write(archive: Path) -> None:
    expected = {}
    with tempfile.TemporaryDirectory() as name, tarfile.open(archive, "w:gz") as tar:
        folder = Path(name)
        for life in LIVES:
            data = folder / life
            data.mkdir()
            with start(data, durability="memory" if life == "stopped" else "fsync") as daemon:
                fill(daemon)
                daemon.stop() if life == "stopped" else daemon.kill()
            shutil.copytree(data, folder / "copy")
            with start(folder / "copy") as daemon:
                expected[life] = describe(daemon)
            shutil.rmtree(folder / "copy")
            tar.add(data, life)
        file = folder / "expected.json"
        file.write_text(json.dumps(expected, indent=1, sort_keys=True))
        tar.add(file, file.name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
