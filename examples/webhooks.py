"""A webhook receiver that drops duplicates.

    nsqcy up                      # in another terminal
    python examples/webhooks.py

The sender repeats an event until it gets status 200. The receiver answers 200 only after nsqd has
kept the event. nsqd keeps an event only once, even if two receivers publish it at the same time.
"""

import http.client
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nsqcy import Consumer, Error, NsqdAdmin, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        event_id = self.headers["X-Event-Id"] or ""
        # An event without a usable id is kept each time.
        usable = event_id if 0 < len(event_id.encode()) <= 255 else None
        try:
            producer.publish("webhooks", body, timeout=5, dedup_id=usable)
            status = 200
        except Error:
            status = 503  # the sender repeats the event later, with the same id
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def send(event: str) -> int:
    """Send an event as a webhook's sender does."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("POST", "/", b'{"paid": 25}', {"X-Event-Id": event})
    status = connection.getresponse().status
    connection.close()
    return status


admin = NsqdAdmin(HTTP)
# An accepted event and its id survive `kill -9` of nsqd.
admin.topic_policy("webhooks", durability="os", dedup_window="24h")
admin.create_channel("webhooks", "payments")

with Producer(TCP, headers=True) as producer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("answers:", [send(event) for event in ("evt-1", "evt-1", "evt-2", "evt-1")])
    server.shutdown()

with Consumer("webhooks", "payments", TCP, headers=True) as consumer:
    for _ in range(2):
        message = consumer.get(timeout=10)
        assert message is not None
        print("received:", message.headers["dedup-id"])
        message.finish()
    print("more:", consumer.get(timeout=0.2))
(topic,) = admin.stats("webhooks")["topics"]
print("duplicates:", topic["duplicates"])
