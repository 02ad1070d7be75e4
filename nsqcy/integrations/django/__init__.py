"""Django app: a producer per process, publishing after the commit, and a worker command.

    INSTALLED_APPS = [..., "nsqcy.integrations.django"]
    NSQCY = {"NSQD_TCP_ADDRESSES": ["127.0.0.1:4150"]}

Handlers belong in `consumers.py` of an app; `manage.py nsqcy_consume` runs them.
"""

from nsqcy.integrations.django.handlers import consumer
from nsqcy.integrations.django.publishing import producer, publish_on_commit

__all__ = ["consumer", "producer", "publish_on_commit"]
