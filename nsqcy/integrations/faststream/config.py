"""Configuration of the broker, its subscribers and its publishers."""

from dataclasses import dataclass, field
from typing import Any

from faststream import AckPolicy
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.producer import ProducerUnset

from nsqcy.client.aio import Producer
from nsqcy.integrations.queue_names import nsq_name
from nsqcy.names import EPHEMERAL, is_ephemeral


def valid_name(name: str) -> str:
    """Return a valid topic or channel name; it may end with #ephemeral."""
    if not name:
        return name  # the client rejects an empty name
    return nsq_name(name.removesuffix(EPHEMERAL), ephemeral=is_ephemeral(name))


@dataclass(frozen=True, slots=True)
class Connections:
    """The nsqds of a broker, and the client's options for consumers and producers."""

    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    consumer_options: dict[str, Any]
    producer_options: dict[str, Any]
    msg_timeout: float
    max_defer: float

    def producer(self) -> Producer:
        return Producer(self.nsqds, self.lookupds, **self.producer_options)


@dataclass(kw_only=True)
class NsqBrokerConfig(BrokerConfig):
    """Configuration of a broker, which its routers share."""

    producer: Any = field(default_factory=ProducerUnset)  # the broker's NsqProducer
    connections: Connections | None = None


@dataclass(kw_only=True)
class NsqSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topic: str
    channel: str


@dataclass(kw_only=True)
class NsqSubscriberConfig(SubscriberUsecaseConfig):
    _outer_config: NsqBrokerConfig = field(default_factory=NsqBrokerConfig)

    topic: str
    channel: str
    max_in_flight: int
    max_workers: int

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's policy, or the broker's; by default, a failure requeues."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class NsqPublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


@dataclass(kw_only=True)
class NsqPublisherConfig(PublisherUsecaseConfig):
    _outer_config: NsqBrokerConfig = field(default_factory=NsqBrokerConfig)

    topic: str
    headers: dict[str, str]
    reply_to: str
    delay: float | None
    priority: int | None
    batch: bool
