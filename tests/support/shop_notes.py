"""Notes of handlers in tests (support/shop_process.py reads them), and waiting for a file."""

import asyncio
import json
import os
import time
from collections.abc import Iterator


def note(**about: object) -> None:
    """Append one line to the file SHOP_FILE, in a single write."""
    line = json.dumps({"pid": os.getpid(), "time": time.time()} | about) + "\n"
    descriptor = os.open(os.environ["SHOP_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def hang(gate: str) -> None:
    """Block until the file exists; record the start and the end."""
    for _ in _polls(gate):
        time.sleep(0.02)


async def hang_on_loop(gate: str) -> None:
    """Wait until the file exists; record the start and the end."""
    for _ in _polls(gate):
        await asyncio.sleep(0.02)


def _polls(gate: str) -> Iterator[None]:
    note(task="hang", state="begun")
    while not os.path.exists(gate):
        yield
    note(task="hang", state="done")
