"""Registration of subscribers and publishers, which the broker and its routers share."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from faststream import AckPolicy
from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError

from nsqcy.integrations.faststream.config import (
    NsqBrokerConfig,
    NsqPublisherConfig,
    NsqPublisherSpecificationConfig,
    NsqSubscriberConfig,
    NsqSubscriberSpecificationConfig,
)
from nsqcy.integrations.faststream.publisher import NsqTopicPublisher
from nsqcy.integrations.faststream.specification import (
    NsqPublisherSpecification,
    NsqSubscriberSpecification,
)
from nsqcy.integrations.faststream.subscriber import (
    ChannelSubscriber,
    NsqBatchSubscriber,
    NsqSubscriber,
)

DEFAULT_CHANNEL = "faststream"
DEFAULT_BATCH = 100


class NsqRegistrator(Registrator[Any, NsqBrokerConfig]):
    """Collection of subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        channel: str = DEFAULT_CHANNEL,
        *,
        batch: bool = False,
        max_in_flight: int | None = None,
        max_workers: int = 1,
        within: float = 0.1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> ChannelSubscriber:
        """Return a decorator for handlers of a channel's messages.

        - channel: subscribers of the same channel share its messages; each channel gets all of them
        - batch: pass lists of up to `max_in_flight` messages; waits at most `within` seconds
          after a list's first message
        - max_in_flight: maximum number of unanswered messages; default: `max_workers`, or 100 with
          `batch`
        - max_workers: maximum number of handlers that run concurrently
        - ack_policy: the default is NACK_ON_ERROR, which requeues a message whose handler fails

        The other parameters are FastStream's. Raises SetupError.
        """
        if batch and max_workers != 1:
            raise SetupError("a batch subscriber runs one handler at a time: omit max_workers")
        outer = cast(NsqBrokerConfig, self.config)
        config = NsqSubscriberConfig(
            topic=topic,
            channel=channel,
            max_in_flight=max_in_flight or (DEFAULT_BATCH if batch else max_workers),
            max_workers=max_workers,
            no_reply=no_reply,
            _outer_config=outer,
            _ack_policy=ack_policy,
        )
        calls: CallsCollection[Any] = CallsCollection()
        specification = NsqSubscriberSpecification(
            outer,
            NsqSubscriberSpecificationConfig(
                topic=topic,
                channel=channel,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
            calls,
        )
        subscriber: ChannelSubscriber
        if batch:
            subscriber = NsqBatchSubscriber(config, specification, calls, within=within)
        else:
            subscriber = NsqSubscriber(config, specification, calls)
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser, decoder_=decoder, dependencies_=dependencies, codec_=codec
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        delay: float | None = None,
        priority: int | None = None,
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> NsqTopicPublisher:
        """Return a publisher to a topic, which also decorates handlers.

        - headers: headers of all messages
        - delay: seconds until nsqd delivers a message
        - priority: priority of all messages, 0 to 9, 9 first
        - batch: a handler's result is a list of messages

        The other parameters are FastStream's.
        """
        outer = cast(NsqBrokerConfig, self.config)
        specification = NsqPublisherSpecification(
            outer,
            NsqPublisherSpecificationConfig(
                topic=topic,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        config = NsqPublisherConfig(
            topic=topic,
            headers=headers or {},
            reply_to=reply_to,
            delay=delay,
            priority=priority,
            batch=batch,
            _outer_config=outer,
        )
        publisher = NsqTopicPublisher(config, specification)
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(self, router: Registrator[Any, Any], **options: Any) -> None:
        """Add the subscribers and publishers of a router. Raises SetupError."""
        if not isinstance(router, NsqRegistrator):
            raise SetupError(f"the router must be an NsqRouter, not a {type(router).__name__}")
        super().include_router(router, **options)

    def include_routers(self, *routers: Registrator[Any, Any]) -> None:
        for each in routers:
            self.include_router(each)


Routers = Iterable[NsqRegistrator]
