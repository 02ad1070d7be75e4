"""Subscribers and publishers as channels of an AsyncAPI document."""

from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from nsqcy.integrations.faststream.config import (
    NsqBrokerConfig,
    NsqPublisherSpecificationConfig,
    NsqSubscriberSpecificationConfig,
    valid_name,
)


class NsqSubscriberSpecification(
    SubscriberSpecification[NsqBrokerConfig, NsqSubscriberSpecificationConfig]
):
    @property
    def topic(self) -> str:
        return valid_name(f"{self._outer_config.prefix}{self.config.topic}")

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        name = self._channel_key(self.topic, split=False)
        message = Message(title=f"{name}:Message", payload=resolve_payloads(self.get_payloads()))
        return {
            name: SubscriberSpec(
                address=self.topic,
                description=self.description or f"NSQ channel: {self.config.channel}",
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class NsqPublisherSpecification(
    PublisherSpecification[NsqBrokerConfig, NsqPublisherSpecificationConfig]
):
    @property
    def topic(self) -> str:
        return valid_name(f"{self._outer_config.prefix}{self.config.topic}")

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }
