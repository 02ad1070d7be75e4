"""Checks the results and errors of a gnsq producer. Arguments: ADDRESS TOPIC."""

import logging
import sys
from typing import Any

import gevent
import gnsq

ADDRESS, TOPIC = sys.argv[1:]
logging.disable()


def attempt(publish: Any, *args: Any, **options: Any) -> None:
    try:
        with gevent.Timeout(10):
            print(publish(*args, **options))
    except Exception as error:
        kinds = [each.__name__ for each in type(error).__mro__ if each.__name__.startswith("NSQ")]
        print(kinds or type(error).__name__)


def connected() -> None:
    """Wait for the reconnect: the refused command has closed the connection."""
    gevent.sleep(0.1)


producer = gnsq.Producer([ADDRESS], max_backoff_duration=0.01)
attempt(producer.publish, TOPIC, b"x")
producer.start()
attempt(producer.publish, TOPIC, b"1")
attempt(producer.publish, TOPIC, b"2", defer=10)
attempt(producer.multipublish, TOPIC, [b"3", b"4"])
attempt(lambda: producer.publish(TOPIC, b"5", raise_error=False).get())
attempt(producer.publish, TOPIC, b"x", defer=-1)
connected()
attempt(lambda: producer.publish(TOPIC, b"x", defer=-1, raise_error=False).get())
connected()
attempt(producer.publish, TOPIC, b"6")
print(producer.is_running)
producer.close()
print(producer.is_running)
attempt(producer.publish, TOPIC, b"x")
attempt(producer.start)
attempt(gnsq.Producer)

lonely = gnsq.Producer("127.0.0.1:1")
lonely.start()
attempt(lonely.publish, TOPIC, b"x", block=False)
attempt(lonely.publish, TOPIC, b"x", timeout=0.1)
lonely.close()
