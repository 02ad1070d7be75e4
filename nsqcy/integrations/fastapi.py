"""A producer and consumers that run as long as a FastAPI or Starlette app.

    nsq = NsqLifespan("127.0.0.1:4150")
    app = FastAPI(lifespan=nsq)

    @app.post("/orders")
    async def create(producer: Annotated[Producer, Depends(get_producer)]) -> None:
        await producer.publish("orders", b"1")

Imports only Starlette, so apps without FastAPI can use it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

from starlette.requests import HTTPConnection
from starlette.types import Lifespan

from nsqcy.client.aio import Consumer, Producer
from nsqcy.client.bodies import Codec
from nsqcy.client.options import Addresses
from nsqcy.integrations.web.settings import Settings, checked_addresses, checked_options
from nsqcy.integrations.web.subscriptions import H, HandlerKeywords, Subscriptions

STATE = "nsqcy_producer"  # name of the producer in the lifespan's state


class NsqLifespan:
    """The lifespan of an app with a producer, and with a consumer for each registered handler.

    When the app stops, consumers close first: handlers that are running may finish, and publish,
    for up to close_timeout seconds.

    Options, including `codec`, are those of the client, for the producer and for all consumers.
    Raises ValueError and TypeError for invalid options.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        codec: Codec | None = None,
        **options: Any,
    ) -> None:
        self._codec = codec
        self._settings = Settings(
            *checked_addresses(nsqd_tcp_addresses, lookupd_http_addresses, "NsqLifespan"),
            *checked_options(options, "NsqLifespan"),
        )
        self._subscriptions = Subscriptions(blocking=False)
        self._producer: Producer | None = None

    def consumer(
        self,
        topic: str,
        channel: str,
        *,
        concurrency: int | None = None,
        **options: Unpack[HandlerKeywords],
    ) -> Callable[[H], H]:
        """Return a decorator: the function handles the messages of a channel while the app runs.

        The function may be a coroutine function. Its result answers the message, as in Consumer.
        Options, `codec` and `dead_letter_topic` are those of Consumer, and override those of the
        NsqLifespan. Raises ValueError and TypeError.
        """
        return self._subscriptions.registering(topic, channel, concurrency, options)

    @property
    def producer(self) -> Producer:
        """The app's producer, for handlers and background tasks.

        Raises RuntimeError if the app is not running.
        """
        if self._producer is None:
            raise RuntimeError("there is no producer: the app's lifespan is not running")
        return self._producer

    def __call__(self, app: Any) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        return self._running(app, None)

    def around(self, lifespan: Lifespan[Any]) -> Lifespan[Any]:
        """Return a lifespan that runs another one inside: the producer starts before it and closes
        after it, and handlers run only while its resources are open."""
        return lambda app: self._running(app, lifespan)

    @asynccontextmanager
    async def _running(
        self, app: Any, inner: Lifespan[Any] | None
    ) -> AsyncIterator[Mapping[str, Any]]:
        async with (
            self._producing() as producer,
            (inner or _nothing)(app) as state,
            self._consuming(),
        ):
            yield {**(state or {}), STATE: producer}

    @asynccontextmanager
    async def _producing(self) -> AsyncIterator[Producer]:
        if self._producer is not None:
            raise RuntimeError("the lifespan is running: create one NsqLifespan for each app")
        settings = self._settings
        async with Producer(
            settings.nsqds, settings.lookupds, codec=self._codec, **settings.producer
        ) as producer:
            self._producer = producer
            try:
                yield producer
            finally:
                self._producer = None

    @asynccontextmanager
    async def _consuming(self) -> AsyncIterator[None]:
        consumers = self._consumers()
        try:
            for consumer in consumers:
                await consumer.start()
            yield
        finally:
            await asyncio.gather(*(consumer.close() for consumer in consumers))

    def _consumers(self) -> list[Consumer]:
        settings = self._settings
        found = []
        for each in self._subscriptions:
            options: Any = settings.consumer | each.options
            parameters: Any = {"codec": self._codec, **each.parameters}
            found.append(
                Consumer(
                    each.topic,
                    each.channel,
                    settings.nsqds,
                    settings.lookupds,
                    each.handler,
                    concurrency=each.concurrency,
                    **parameters,
                    **options,
                )
            )
        return found


async def get_producer(connection: HTTPConnection) -> Producer:
    """Return the app's producer, as a dependency: `Annotated[Producer, Depends(get_producer)]`.

    Without FastAPI, call it with the request or the websocket. Raises RuntimeError if the app has
    no NsqLifespan, or was started without its lifespan.
    """
    producer: Producer | None = getattr(connection.state, STATE, None)
    if producer is None:
        raise RuntimeError(
            "the app has no producer: pass an NsqLifespan as its lifespan; in tests, use "
            "`with TestClient(app)`"
        )
    return producer


@asynccontextmanager
async def _nothing(app: Any) -> AsyncIterator[None]:
    yield
