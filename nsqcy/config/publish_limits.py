"""The limits of a topic for publishes: nsqd's options, and the topic's policy.

Pure: refuses nothing itself. The protocol and HTTP compare publishes with these limits.
"""

from typing import NamedTuple, Protocol

from nsqcy.config.durations import MILLISECOND
from nsqcy.config.policies import Policies, TopicPolicy

NO_POLICY = TopicPolicy()


class Options(Protocol):
    """The options of nsqd that limit publishes."""

    max_msg_size: int
    max_body_size: int
    max_req_timeout: int
    max_defer_timeout: int


class PublishLimits(NamedTuple):
    """Sizes are in bytes, and the delay is in ns."""

    max_msg_size: int
    max_body_size: int
    max_defer_timeout: int

    def announced(self) -> dict[str, int]:
        """Return the limits as clients receive them, with the delay in ms."""
        return self._replace(max_defer_timeout=self.max_defer_timeout // MILLISECOND)._asdict()


def publish_limits(options: Options, policy: TopicPolicy = NO_POLICY) -> PublishLimits:
    """Return the limits of a topic with this policy."""
    size, delay = policy.max_msg_size, policy.max_defer_timeout
    if delay is None:
        delay = options.max_defer_timeout or options.max_req_timeout
    return PublishLimits(
        options.max_msg_size if size is None else size, options.max_body_size, delay
    )


def limits_of(topic: str, options: Options, policies: Policies | None) -> PublishLimits:
    """Return the limits of the topic with this name."""
    return publish_limits(options, NO_POLICY if policies is None else policies.topic(topic))
