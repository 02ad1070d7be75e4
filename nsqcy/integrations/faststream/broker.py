"""The broker: connections, publishing, and everything that a FastStream application configures."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from fast_depends import dependency_provider
from faststream import AckPolicy
from faststream._internal.broker import BrokerUsecase
from faststream._internal.configs import UnderlyingDriverAnnotation
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec

import nsqcy.integrations.faststream.annotations as annotations
from nsqcy.client.aio import Message, Producer
from nsqcy.client.options import Address, Addresses, as_strings
from nsqcy.integrations.client_options import sorted_options
from nsqcy.integrations.delays import DEFAULT_MAX_DEFER
from nsqcy.integrations.faststream.config import Connections, NsqBrokerConfig
from nsqcy.integrations.faststream.logger import make_nsq_logger_state
from nsqcy.integrations.faststream.message import NsqBatchMessage, NsqMessage
from nsqcy.integrations.faststream.producer import NsqProducer
from nsqcy.integrations.faststream.registrator import NsqRegistrator, Routers
from nsqcy.integrations.faststream.response import NsqPublishCommand

OWN_OPTIONS = ("max_tries", "max_attempts", "max_in_flight", "msg_timeout", "close_timeout")
LOOKUPD_PORT = 4161
# Used in FastStream's hint about a parameter that it cannot supply.
ANNOTATIONS = {
    driver: UnderlyingDriverAnnotation(
        type_hint=hint, module="nsqcy.integrations.faststream.annotations", name=driver.__name__
    )
    for driver, hint in {
        NsqMessage: annotations.NsqMessage,
        NsqBatchMessage: annotations.NsqBatchMessage,
    }.items()
}


def _tls_options(security: BaseSecurity | None) -> dict[str, Any]:
    """Return the client's options for FastStream's security. Raises ValueError."""
    if security is None:
        return {}
    if type(security) is not BaseSecurity:
        raise ValueError(
            f"NsqBroker does not support {type(security).__name__}: use BaseSecurity for TLS, and "
            "client_options={'auth_secret': ...} for AUTH"
        )
    if not security.use_ssl:
        return {}
    return {"tls_v1": True, "tls_options": security.ssl_context}


class NsqBroker(NsqRegistrator, BrokerUsecase[Message, Producer, NsqBrokerConfig]):
    """FastStream broker on one or more nsqds, or on those that nsqlookupds report.

    - headers: send and receive message headers: content type, correlation id, reply_to and the
      program's own. Set it to False for NSQ's nsqd, which has no headers
    - msg_timeout: seconds until nsqd redelivers the messages of a process that has died
    - max_defer: nsqd's limit for deferred messages, in seconds. A longer delay is divided into
      parts
    - client_options: options of the client, for example `tls_v1`, `auth_secret`, `durability`

    - security: FastStream's BaseSecurity, for TLS

    The other parameters are FastStream's. Raises TypeError for unknown client options, and
    ValueError for other kinds of security.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        headers: bool = True,
        msg_timeout: float = 60.0,
        max_defer: float = DEFAULT_MAX_DEFER,
        client_options: dict[str, Any] | None = None,
        # FastStream
        middlewares: Sequence[Any] = (),
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        routers: Routers = (),
        ack_policy: AckPolicy = EMPTY,
        graceful_timeout: float | None = 15.0,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
        id_generator: Any = gen_cor_id,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        specification_url: str | Sequence[str] | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Sequence[Any] = (),
        security: BaseSecurity | None = None,
    ) -> None:
        nsqds, lookupds = as_strings(nsqd_tcp_addresses), as_strings(lookupd_http_addresses)
        for_consumers, for_producers = sorted_options(
            {"headers": headers} | _tls_options(security) | (client_options or {}),
            OWN_OPTIONS,
            "client_options",
        )
        connections = Connections(
            nsqds, lookupds, dict(for_consumers), dict(for_producers), msg_timeout, max_defer
        )
        if isinstance(specification_url, str):
            specification_url = [specification_url]
        producer = NsqProducer(parser, decoder, with_headers=headers, max_defer=max_defer)
        super().__init__(
            config=NsqBrokerConfig(
                producer=producer,
                connections=connections,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_nsq_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
                default_driver_annotations=ANNOTATIONS,
            ),
            specification=BrokerSpec(
                url=list(specification_url or nsqds or lookupds),
                protocol="nsq",
                protocol_version=protocol_version or "V2",
                description=description,
                tags=tags,
                security=security,
            ),
            routers=routers,
        )
        self._connections = connections

    # -- lifecycle

    async def _connect(self) -> Producer:
        producer = self._connections.producer()
        await producer.start()
        config = self.config.broker_config
        config.producer.connect(producer, config.fd_config._serializer, config.broker_codec)
        return producer

    async def start(self) -> None:
        """Connect, and start all subscribers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop all subscribers, and wait for pending publishes."""
        await super().stop(exc_type, exc_val, exc_tb)
        producer, self._connection = self._connection, None
        if producer is not None:
            self.config.broker_config.producer.disconnect()
            await producer.close()

    async def ping(self, timeout: float | None = 3.0) -> bool:
        """Return whether an nsqd, or an nsqlookupd, accepts connections."""
        addresses = [Address.parse(each) for each in self._connections.nsqds]
        addresses += [
            Address.parse(each.rpartition("//")[2], LOOKUPD_PORT)
            for each in self._connections.lookupds
        ]
        for address in addresses:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(timeout):
                    _, writer = await asyncio.open_connection(address.host, address.port)
                writer.close()
                return True
        return False

    # -- publishing

    async def publish(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: float | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
    ) -> None:
        """Publish a message; return once nsqd has confirmed it.

        - headers: their names consist of a-z, 0-9 and -
        - reply_to: topic for the result of the handler
        - delay: seconds until nsqd delivers the message
        - key: key of the message; with several nsqds, the key, or else the id, chooses the nsqd
        - dedup_id: within the topic's dedup_window, nsqd keeps one message with this id
        - priority: 0 to 9, 9 first

        Raises the errors of nsqcy.client.aio.Producer.publish().
        """
        command = NsqPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            delay=delay,
            key=key,
            dedup_id=dedup_id,
            priority=priority,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish(command, producer=self.config.producer)

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        key: str | None = None,
        priority: int | None = None,
    ) -> None:
        """Publish all messages, or none. They share their headers, key and priority."""
        command = NsqPublishCommand(
            *(messages or (None,)),
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            key=key,
            priority=priority,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish_batch(command, producer=self.config.producer)

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = 0.5,
    ) -> NsqMessage:
        """Return the handler's result; for tests with TestNsqBroker.

        With an nsqd, raises FeatureNotSupportedException: use `reply_to` instead. Raises
        TimeoutError after `timeout` seconds.
        """
        command = NsqPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            _publish_type=PublishType.REQUEST,
        )
        async with asyncio.timeout(timeout):
            result: NsqMessage = await self._basic_request(command, producer=self.config.producer)
            return result
