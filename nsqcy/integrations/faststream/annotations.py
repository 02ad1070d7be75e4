"""Types for handlers' parameters that FastStream fills in, as in faststream.nats.annotations.

from nsqcy.integrations.faststream.annotations import NsqMessage

@broker.subscriber("orders")
async def bill(order: Order, message: NsqMessage) -> None: ...
"""

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger

from nsqcy.integrations.faststream import message as messages

__all__ = ["ContextRepo", "Logger", "NsqBatchMessage", "NsqMessage"]

NsqMessage = Annotated[messages.NsqMessage, Context("message")]
NsqBatchMessage = Annotated[messages.NsqBatchMessage, Context("message")]
