"""FastStream application of tests/integrations: a handler that writes what it does to a file.

The environment configures it: SHOP_NSQD and SHOP_FILE.
"""

import asyncio
import json
import os
import time

from faststream import FastStream

from nsqcy.integrations.faststream import NsqBroker

broker = NsqBroker(os.environ["SHOP_NSQD"], msg_timeout=2.0)
app = FastStream(broker)


def note(**about: object) -> None:
    """Append one line to the file, in a single write."""
    line = json.dumps({"pid": os.getpid(), "time": time.time()} | about) + "\n"
    descriptor = os.open(os.environ["SHOP_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@broker.subscriber("gates", "hang")
async def hang(gate: str) -> None:
    """Run until there is a file."""
    note(task="hang", state="begun")
    while not os.path.exists(gate):
        await asyncio.sleep(0.02)
    note(task="hang", state="done")
