"""FastStream application for tests/integrations: a handler that records its runs in a file.

The environment configures it: SHOP_NSQD and SHOP_FILE.
"""

import os

from faststream import FastStream

from nsqcy.integrations.faststream import NsqBroker
from support import shop_notes

broker = NsqBroker(os.environ["SHOP_NSQD"], msg_timeout=2.0)
app = FastStream(broker)


@broker.subscriber("gates", "hang")
async def hang(gate: str) -> None:
    await shop_notes.hang_on_loop(gate)
