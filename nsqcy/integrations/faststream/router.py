"""Routers: subscribers and publishers that a broker includes, with a prefix for their topics."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faststream import AckPolicy
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY

from nsqcy.integrations.faststream.config import NsqBrokerConfig
from nsqcy.integrations.faststream.registrator import NsqRegistrator, Routers


class NsqPublisher(ArgsContainer):
    """Arguments of NsqRouter.publisher(), for a route."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(topic=topic, **options)


class NsqRoute(SubscriberRoute):
    """A handler, and the arguments of NsqRouter.subscriber()."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[NsqPublisher] = (),
        **options: Any,
    ) -> None:
        super().__init__(call, topic=topic, publishers=publishers, **options)


class NsqRouter(NsqRegistrator, BrokerRouter[Any, NsqBrokerConfig]):
    """Router for `NsqBroker.include_router()`. The prefix is prepended to the names of its
    topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[NsqRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Routers = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=NsqBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
