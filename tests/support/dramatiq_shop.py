"""Dramatiq application for tests/integrations: actors that record their runs in a file.

The environment configures it: SHOP_NSQD, SHOP_LOOKUPD, SHOP_OPTIONS and SHOP_FILE.
"""

import json
import os

import dramatiq

from nsqcy.integrations.dramatiq import NsqBroker
from support import shop_notes
from support.shop_notes import note

broker = NsqBroker(
    [each for each in os.environ["SHOP_NSQD"].split(",") if each],
    os.environ.get("SHOP_LOOKUPD", ()),
    **{"msg_timeout": 2.0} | json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
)
dramatiq.set_broker(broker)


@dramatiq.actor
def add(left: int, right: int) -> None:
    note(task="add", result=left + right)


@dramatiq.actor
def hang(gate: str) -> None:
    shop_notes.hang(gate)


@dramatiq.actor(max_retries=2, min_backoff=100, max_backoff=200)
def fail(number: int) -> None:
    note(task="fail", number=number)
    raise ValueError("never works")
