"""Handles messages in all ways that a gnsq consumer offers. Arguments: ADDRESS TOPIC."""

import logging
import sys
from typing import Any

import gevent
import gnsq

ADDRESS, TOPIC = sys.argv[1:]
BODIES = [b"good", b"raises", b"requeue", b"later", b"hopeless", b"twice"]
logging.disable()
log: list[str] = []


def note(what: str, message: Any) -> None:
    log.append(f"{message.body.decode()} {message.attempts} {what}")


def later(message: Any) -> None:
    assert message.is_async()
    message.touch()
    message.finish()
    note("answered", message)


consumer = gnsq.Consumer(
    TOPIC, "c", [ADDRESS], max_in_flight=10, max_tries=2, max_backoff_duration=0
)
try:
    consumer.start()
except RuntimeError as error:
    print(error)


@consumer.on_message.connect
def handle(sender: Any, message: Any) -> None:
    assert sender is consumer
    note("handled", message)
    if message.body == b"hopeless":
        raise gnsq.errors.NSQRequeueMessage()
    if message.attempts > 1:
        return
    if message.body == b"raises":
        raise KeyError("no")
    if message.body == b"requeue":
        message.requeue(time_ms=0, backoff=False)
        assert message.has_responded()
    if message.body == b"later":
        message.enable_async()
        gevent.spawn(later, message)
    if message.body == b"twice":
        message.finish()
        message.finish()


@consumer.on_giving_up.connect
def giving_up(sender: Any, message: Any) -> None:
    note("given up", message)


@consumer.on_exception.connect
def failed(sender: Any, message: Any, error: Exception) -> None:
    note(f"failed {error!r}", message)


@consumer.on_finish.connect
def finished(sender: Any, message_id: bytes) -> None:
    log.append(f"finished {len(message_id)}")


@consumer.on_requeue.connect
def requeued(sender: Any, message_id: bytes, timeout: int) -> None:
    log.append(f"requeued {len(message_id)} {timeout}")


@consumer.on_close.connect
def closed(sender: Any) -> None:
    log.append("closed")


producer = gnsq.Producer(ADDRESS)
producer.start()
print(producer.multipublish(TOPIC, BODIES))
producer.close()
consumer.start(block=False)
with gevent.Timeout(20):
    while sum(line.startswith("finished") for line in log) < len(BODIES):
        gevent.sleep(0.01)
print(consumer.is_running, consumer.is_starved)
consumer.close()
consumer.join()
print(consumer.is_running, consumer.topic, consumer.channel, consumer.max_tries)
print("\n".join(sorted(log)))

for address in ((), "127.0.0.1:1"):
    try:
        gnsq.Consumer(TOPIC, "c", address)
        print("made")
    except ValueError:
        print("no address")
try:
    gnsq.Consumer(TOPIC, "c", {"127.0.0.1:1": 1})
except TypeError:
    print("no list")
