"""taskiq application for tests/integrations: tasks that record their runs in a file.

The environment configures it: SHOP_NSQD, SHOP_OPTIONS and SHOP_FILE.
"""

import json
import os
import signal

from taskiq import TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource

from nsqcy.integrations.taskiq import NsqBroker, NsqScheduleSource
from support import shop_notes
from support.shop_notes import note

broker = NsqBroker(
    os.environ["SHOP_NSQD"],
    **{"msg_timeout": 2.0} | json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
)
source = NsqScheduleSource(broker)
scheduler = TaskiqScheduler(broker, [LabelScheduleSource(broker)])


@broker.task
async def add(left: int, right: int) -> int:
    note(task="add", result=left + right)
    return left + right


@broker.task
async def hang(gate: str) -> None:
    await shop_notes.hang_on_loop(gate)


@broker.task
async def crash() -> None:
    """Kill the worker process; taskiq starts another."""
    note(task="crash")
    os.kill(os.getpid(), signal.SIGKILL)


@broker.task(schedule=[{"interval": 1}])
async def tick() -> None:
    note(task="tick")
