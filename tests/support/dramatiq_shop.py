"""Dramatiq application of tests/integrations: actors that write what they do to a file.

The environment configures it: SHOP_NSQD, SHOP_LOOKUPD, SHOP_OPTIONS and SHOP_FILE.
"""

import json
import os
import time

import dramatiq

from nsqcy.integrations.dramatiq import NsqBroker

broker = NsqBroker(
    [each for each in os.environ["SHOP_NSQD"].split(",") if each],
    os.environ.get("SHOP_LOOKUPD", ()),
    **{"msg_timeout": 2.0} | json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
)
dramatiq.set_broker(broker)


def note(**about: object) -> None:
    """Append one line to the file, in a single write."""
    line = json.dumps({"pid": os.getpid(), "time": time.time()} | about) + "\n"
    descriptor = os.open(os.environ["SHOP_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@dramatiq.actor
def add(left: int, right: int) -> None:
    note(task="add", result=left + right)


@dramatiq.actor
def hang(gate: str) -> None:
    """Run until there is a file."""
    note(task="hang", state="begun")
    while not os.path.exists(gate):
        time.sleep(0.02)
    note(task="hang", state="done")


@dramatiq.actor(max_retries=2, min_backoff=100, max_backoff=200)
def fail(number: int) -> None:
    note(task="fail", number=number)
    raise ValueError("never works")
