"""Dramatiq broker on nsqd.

    broker = NsqBroker("127.0.0.1:4150")
    dramatiq.set_broker(broker)

A queue is a topic, which all workers consume through one channel. A delayed message is a deferred
message of nsqd in the same topic, so there are no delay queues. The modules:

- broker: NsqBroker, which Dramatiq calls
- consumer: the messages of one queue, and the answers to them
- connections: the producer and the consumers of one process
"""

from nsqcy.integrations.dramatiq.broker import NsqBroker

__all__ = ["NsqBroker"]
