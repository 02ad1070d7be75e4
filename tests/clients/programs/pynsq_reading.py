"""Handles messages in all ways that a pynsq reader offers. Arguments: ADDRESS TOPIC."""

import asyncio
import sys
from typing import Any

import nsq

ADDRESS, TOPIC = sys.argv[1:]
BODIES = [
    b"true", b"false", b"raises", b"coroutine", b"coroutine false", b"later", b"requeued",
    b"invalid", b"hopeless", b"touched",
]  # fmt: skip
# Number of log entries: the publish, first and second deliveries, and giving up on "hopeless".
WANTED = 1 + 10 + 5 + 1
log: list[str] = []
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)


def write(line: str) -> None:
    log.append(line)
    if len(log) == WANTED:
        loop.call_later(0.05, loop.stop)


def note(what: str, message: Any) -> None:
    write(f"{message.body.decode()} {message.attempts} {what}")


async def coroutine(good: bool) -> bool:
    await asyncio.sleep(0)
    return good


def later(message: Any) -> None:
    assert message.is_async() and not message.has_responded()
    message.on("finish", lambda message: note("answered", message))
    message.finish()
    try:
        message.finish()
    except AssertionError:
        pass
    else:
        raise RuntimeError("twice")


class Reader(nsq.Reader):
    def validate_message(self, message: Any) -> bool:
        if message.body == b"invalid":
            note("invalid", message)
        return bool(message.body != b"invalid")

    def giving_up(self, message: Any) -> None:
        note("given up", message)


def handle(message: Any) -> Any:
    if message.body != b"later":
        note("handled", message)
    if message.body == b"hopeless":
        return False
    if message.attempts > 1:
        return True
    if message.body == b"raises":
        raise KeyError("no")
    if message.body.startswith(b"coroutine"):
        return coroutine(message.body == b"coroutine")
    if message.body == b"later":
        message.enable_async()
        loop.call_soon(later, message)
    if message.body == b"requeued":
        message.requeue(delay=0, backoff=False)
    if message.body == b"touched":
        message.touch()
    return message.body != b"false"


def answered(conn: Any, data: Any) -> None:
    write(f"published {data!r} {conn.id == ADDRESS}")
    assert list(writer.conns) == [ADDRESS]


def publish() -> None:
    if writer.conns and reader.conns:
        writer.mpub(TOPIC, BODIES, callback=answered)
    else:
        loop.call_later(0.01, publish)


reader = Reader(
    topic=TOPIC,
    channel="c",
    message_handler=handle,
    nsqd_tcp_addresses=[ADDRESS],
    max_in_flight=20,
    max_tries=2,
    max_backoff_duration=0.01,
    requeue_delay=0,
)
writer = nsq.Writer([ADDRESS])
publish()
nsq.run()
print(reader.name, reader.topic, reader.channel, reader.max_in_flight, reader.is_starved())
print("\n".join(sorted(log)))
