"""Runs a handler that returns None, on tornado's loop or until SIGTERM."""

import os
import signal
import sys
from typing import Any

import nsq
import tornado.ioloop

ADDRESS, TOPIC, HOW = sys.argv[1:]


def handle(message: Any) -> None:
    print(message.body.decode())
    if HOW == "tornado":
        tornado.ioloop.IOLoop.current().call_later(0.05, tornado.ioloop.IOLoop.current().stop)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


reader = nsq.Reader(TOPIC, "c", handle, nsqd_tcp_addresses=ADDRESS)
writer = nsq.Writer(ADDRESS)
answer = writer.pub(TOPIC, b"at once")
if HOW == "tornado":
    tornado.ioloop.IOLoop.current().start()
else:
    nsq.run()
print(answer.result())
