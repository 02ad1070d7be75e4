"""Types of handler parameters that FastStream supplies, as in faststream.nats.annotations.

from nsqcy.integrations.faststream.annotations import NsqMessage

@broker.subscriber("orders")
async def bill(order: Order, message: NsqMessage) -> None: ...
"""

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger

from nsqcy.integrations.faststream.message import NsqBatchMessage as Batch
from nsqcy.integrations.faststream.message import NsqMessage as Message

__all__ = ["ContextRepo", "Logger", "NsqBatchMessage", "NsqMessage"]

NsqMessage = Annotated[Message, Context("message")]
NsqBatchMessage = Annotated[Batch, Context("message")]
