"""Uses other parts of gnsq's API. Arguments: ADDRESS TOPIC HTTP-ADDRESS."""

import logging
import random
import sys
import warnings
from importlib import import_module
from typing import Any

import gevent
import gnsq

ADDRESS, TOPIC, HTTP = sys.argv[1:]
HOME = gnsq.__name__
batch, giveup, queue = (import_module(f"{HOME}.contrib.{n}") for n in ("batch", "giveup", "queue"))
logging.disable()
warnings.simplefilter("ignore")


def handled(count: int, **options: Any) -> None:
    """Publish this number of messages, and handle them in a consumer."""
    consumer = gnsq.Consumer(TOPIC, "c", ADDRESS, max_backoff_duration=0, **options)
    web.multipublish(TOPIC, [b"%d" % number for number in range(count)])
    consumer.start(block=False)
    with gevent.Timeout(20):
        while web.stats(topic=TOPIC)["topics"][0]["depth"] or not done():
            gevent.sleep(0.01)
    consumer.close()
    consumer.join()


def done() -> bool:
    channels = web.stats(topic=TOPIC)["topics"][0]["channels"]
    return all(not each["depth"] and not each["in_flight_count"] for each in channels)


host, port = HTTP.split(":")
web = gnsq.NsqdHTTPClient(host, int(port))
print(web.ping(), web.publish(TOPIC, b"x"), gnsq.NsqdHTTPClient.from_url(f"http://{HTTP}"))
web.create_channel(TOPIC, "c")
web.empty_channel(TOPIC, "c")
try:
    web.delete_topic("unheard-of")
except gnsq.errors.NSQHttpError:
    print("refused")
print(issubclass(gnsq.errors.NSQHttpError, gnsq.errors.NSQException))

sizes: list[int] = []
handler = batch.BatchHandler(
    4, lambda messages: sizes.append(len(messages)), timeout=0.05, spawn=gevent.spawn
)
handled(8, message_handler=handler, max_in_flight=8)
print(sum(sizes), max(sizes) <= 4)


def fails(messages: list[Any]) -> None:
    if any(message.attempts == 1 for message in messages):
        raise KeyError("no")
    again.extend(message.body for message in messages)


again: list[bytes] = []
handled(3, message_handler=batch.BatchHandler(3, fails, timeout=0.05), max_in_flight=3)
print(sorted(again))

messages = queue.QueueHandler()
taken: list[bytes] = []


def take() -> None:
    for message in messages:
        taken.append(message.body)
        message.finish()


gevent.spawn(take)
handled(5, message_handler=messages, max_in_flight=2)
print(sorted(taken))

message = gnsq.Message(7, 3, b"0123456789abcdef", b"body")
print(message.timestamp, message.attempts, message.id, message.body)
message.on_requeue.connect(lambda sender, **about: print(about), weak=False)
message.requeue(5, backoff=False)
try:
    message.finish()
except gnsq.errors.NSQException as error:
    print(error)


def forward(message: Any) -> None:
    giveup.NsqdGiveupHandler(f"{TOPIC}.buried", ["x"], lambda host: web)(None, message)


forward(message)
print(web.stats(topic=f"{TOPIC}.buried")["topics"][0]["depth"])

for text in (b"E_INVALID why", b"E_FIN_FAILED FIN x failed", b"E_NEW", b"E_MPUB_FAILED x"):
    error = gnsq.errors.make_error(text)
    print(type(error).__name__, error.args, error.fatal)
timer = gnsq.BackoffTimer(ratio=2, max_interval=9, min_interval=0.5)
random.seed(1)
print([timer.failure().get_interval() for _ in range(5)], timer.is_reset())
print([timer.success().get_interval() for _ in range(6)], timer.is_reset(), timer.reset().c)
