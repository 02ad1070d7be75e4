"""taskiq broker on nsqd.

    broker = NsqBroker("127.0.0.1:4150")

A queue is a topic, which all workers consume through one channel. A task with the label `delay` is
a deferred message of nsqd. A message is finished when taskiq acknowledges its task. The modules:

- broker: NsqBroker, which taskiq calls
- inbox: the messages that a worker process has received, and the answers to them
- schedules: tasks that run once at a given time
- labels: the labels of taskiq that this package reads and sets
"""

from nsqcy.integrations.taskiq.broker import NsqBroker
from nsqcy.integrations.taskiq.schedules import NsqScheduleSource

__all__ = ["NsqBroker", "NsqScheduleSource"]
