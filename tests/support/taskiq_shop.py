"""taskiq application of tests/integrations: tasks that write what they do to a file.

The environment configures it: SHOP_NSQD, SHOP_OPTIONS and SHOP_FILE.
"""

import asyncio
import json
import os
import signal
import time

from taskiq import TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource

from nsqcy.integrations.taskiq import NsqBroker, NsqScheduleSource

broker = NsqBroker(
    os.environ["SHOP_NSQD"],
    **{"msg_timeout": 2.0} | json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
)
source = NsqScheduleSource(broker)
scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])


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


@broker.task
async def crash() -> None:
    """Kill the worker's process; taskiq starts another."""
    note(task="crash")
    os.kill(os.getpid(), signal.SIGKILL)


@broker.task(schedule=[{"interval": 1}])
async def tick() -> None:
    note(task="tick")
