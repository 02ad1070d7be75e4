"""Request and reply: a client publishes a question, and waits for its answer.

    nsqcy up                      # in another terminal
    python examples/request_reply.py

A request contains its client's reply topic, and expires when the client no longer waits for the
answer.
"""

import os
import threading
import uuid
from concurrent.futures import Future

from nsqcy import Consumer, Message, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
producer = Producer(TCP, headers=True)


def answer(message: Message) -> None:
    """Answer one request. It is finished only after its reply has been published."""
    square = int(message.body) ** 2
    request = {"request": message.headers["request"]}
    producer.publish(message.headers["reply-to"], b"%d" % square, headers=request)


class Client:
    """Sends requests from any number of threads. One topic receives all replies for the process."""

    def __init__(self) -> None:
        self._topic = f"replies-{uuid.uuid4().hex}#ephemeral"
        self._waiting: dict[str, Future[bytes]] = {}
        ready = threading.Event()
        self._replies = Consumer(
            self._topic,
            "client#ephemeral",
            TCP,
            message_handler=self._receive,
            on_ready=lambda connection: ready.set(),
            headers=True,
        )
        self._replies.start()
        ready.wait(10)

    def ask(self, topic: str, question: bytes, timeout: float) -> bytes:
        """Return the answer. Raises TimeoutError if there is none after `timeout` seconds."""
        request = uuid.uuid4().hex
        reply = self._waiting[request] = Future()
        headers = {
            "reply-to": self._topic,
            "request": request,
            "ttl": str(int(timeout * 1000)),  # ms
        }
        try:
            producer.publish(topic, question, headers=headers)
            return reply.result(timeout)
        finally:
            del self._waiting[request]

    def _receive(self, message: Message) -> None:
        reply = self._waiting.get(message.headers["request"])
        if reply is not None and not reply.done():  # neither late nor a duplicate
            reply.set_result(message.body)

    def close(self) -> None:
        self._replies.close()


with producer, Consumer("squares", "server", TCP, message_handler=answer, headers=True):
    client = Client()
    for number in (3, 12):
        print(f"{number} squared is {client.ask('squares', b'%d' % number, 10).decode()}")
    try:
        client.ask("nobody-listens", b"1", 0.2)
    except TimeoutError:
        print("no answer in time")
    client.close()
