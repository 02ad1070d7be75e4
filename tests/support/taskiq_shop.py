"""taskiq application of tests/integrations: tasks that write what they do to a file.

The environment configures it: SHOP_NSQD, SHOP_NSQD_HTTP and SHOP_FILE.
"""

import asyncio
import json
import os
import time

from taskiq import SimpleRetryMiddleware

from nsqcy.integrations.taskiq import NsqBroker, NsqScheduleSource

broker = NsqBroker(
    os.environ["SHOP_NSQD"],
    nsqd_http_addresses=os.environ.get("SHOP_NSQD_HTTP", ()),
    msg_timeout=float(os.environ.get("SHOP_MSG_TIMEOUT", "2")),
    max_defer=float(os.environ.get("SHOP_MAX_DEFER", "3600")),
    max_in_flight=8,
)
broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
schedule = NsqScheduleSource(broker)


def note(**about: object) -> None:
    """Append one line to the file, in a single write."""
    line = json.dumps({"pid": os.getpid(), "time": time.time()} | about) + "\n"
    descriptor = os.open(os.environ["SHOP_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@broker.task
async def add(left: int, right: int) -> int:
    note(task="add", result=left + right)
    return left + right


@broker.task
async def hang(gate: str) -> None:
    """Run until there is a file."""
    note(task="hang", state="begun")
    while not os.path.exists(gate):
        await asyncio.sleep(0.02)
    note(task="hang", state="done")


@broker.task(retry_on_error=True)
async def fail(number: int) -> None:
    note(task="fail", number=number)
    raise ValueError("never works")
