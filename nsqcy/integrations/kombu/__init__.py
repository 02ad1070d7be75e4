"""kombu transport, which runs Celery on nsqd.

    app = Celery("shop", broker="nsqcy://10.0.0.1:4150,10.0.0.2:4150")

A queue is a topic, which all workers consume through one channel. nsqd stores unacknowledged
messages; the transport touches them while a task is running. A task with an ETA is a deferred
message.

Owns the mapping of kombu's operations to nsqcy.client, whose threads do all I/O.
"""

from nsqcy.integrations.kombu.channel import Channel
from nsqcy.integrations.kombu.transport import Transport

__all__ = ["Channel", "Transport"]
