"""A small, constant load on copied nsqds: publishers that continue after every failure, and
consumers that discover the nsqds through nsqlookupd."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Self

from loadtest.soak.ledger import Marks
from nsqcy.client import Consumer, Error
from nsqcy.testing.http_requests import eventually
from support.client_libraries import Consumer as Program
from support.copied_nsqds import POLL, SYNC_BUDGET, CopiedNsqds
from support.delivery_tally import (
    PATIENCE,
    RUN,
    PlainPublisher,
    PoolPublisher,
    Publisher,
    Tally,
)

TOPIC = "orders"
CHANNELS = ("billing", "audit")
PAUSE = 0.1  # seconds between publishes, or runs of them
SLICE = 5  # messages that each publisher must get accepted after a fault
LOOKUP_INTERVAL = 0.5  # seconds between the consumers' queries to nsqlookupd


class _Pool(PoolPublisher):
    """Continues after failed publishes; their messages may be delivered or not."""

    pause = PAUSE

    def step(self) -> None:
        bodies = [self.next_body() for _ in range(RUN)]
        sent = [self._producer.publish_nowait(self._topic, body) for body in bodies]
        for future, body in zip(sent, bodies, strict=True):
            try:
                future.result(PATIENCE)
            except (Error, FutureTimeout) as error:
                self.hides(error)
            else:
                self.is_accepted(body)


class _Plain(PlainPublisher):
    """Publishes each message once, and uses the next nsqd after a failure."""

    pause = PAUSE

    def step(self) -> None:
        body = self.next_body()
        if self._publish(body):
            self.is_accepted(body)
        else:
            self._hang_up()
            self._addresses.append(self._addresses.pop(0))


class CopiesLoad:
    """The publishers, the consumers, and the tally of their messages."""

    def __init__(
        self,
        cluster: CopiedNsqds,
        channels: Sequence[str] = CHANNELS,
        libraries: Sequence[str] = (),
    ) -> None:
        """
        channels: those with a consumer of nsqcy
        libraries: other client libraries; each consumes a channel with the name of the library
        """
        self.tally = Tally()
        self._cluster = cluster
        self._channels = (*channels, *libraries)
        self._own_channels = channels
        self._libraries = libraries
        self._programs: dict[str, Program] = {}
        self._counted: Counter[str] = Counter()
        """Number of each program's messages that are in the tally."""
        self._publishers: list[Publisher] = []
        self._consumers: list[Consumer] = []

    def __enter__(self) -> Self:
        for node in self._cluster.nodes:
            node.web.create(TOPIC, *self._channels)
        self._consumers = [self._consumer(channel) for channel in self._own_channels]
        self._programs = {
            each: Program(
                each, None, TOPIC, each, lookupds=self._cluster.lookup.http_address, rdy=50
            )
            for each in self._libraries
        }
        addresses = [node.tcp_address for node in self._cluster.nodes]
        self._publishers = [
            _Pool(self.tally, "pool", TOPIC, nsqd_tcp_addresses=addresses),
            _Plain(self.tally, "plain", TOPIC, [node.address for node in self._cluster.nodes]),
        ]
        for each in self._publishers:
            each.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError):
            self._end_publishing()
        for consumer in self._consumers:
            consumer.close(graceful=False)
        for program in self._programs.values():
            program.destroy()

    def _consumer(self, channel: str) -> Consumer:
        consumer = Consumer(
            TOPIC,
            channel,
            lookupd_http_addresses=[self._cluster.lookup.http_address],
            lookupd_poll_interval=LOOKUP_INTERVAL,
            max_in_flight=50,
            max_tries=0,
            message_handler=lambda message: self.tally.receives(channel, message.body),
        )
        consumer.start()
        return consumer

    def goes_on(self) -> None:
        """Check that every publisher gets some messages accepted from now on."""
        for publisher, goal in [(each, each.accepted + SLICE) for each in self._publishers]:
            eventually(
                lambda p=publisher, g=goal: p.accepted >= g or p.error, SYNC_BUDGET, interval=POLL
            )
            assert publisher.error is None, publisher.error

    def delivers(self) -> None:
        """Check that every channel receives all messages accepted so far."""
        for channel in self._channels:
            outstanding = self._lost(channel)
            eventually(
                lambda c=channel, o=outstanding: not self._lost(c) & o, SYNC_BUDGET, interval=POLL
            )

    def _lost(self, channel: str) -> Marks:
        """Return the accepted messages that a channel has not received so far."""
        if channel in self._programs:
            bodies = self._programs[channel].bodies()
            for body in bodies[self._counted[channel] :]:
                self.tally.receives(channel, body)
            self._counted[channel] = len(bodies)
        return self.tally.lost(channel)

    def _end_publishing(self) -> None:
        publishers, self._publishers = self._publishers, []
        for each in publishers:
            each.end()
            assert each.error is None, (each.name, each.error)

    def verify(self) -> str:
        """Stop publishing, and check that every channel received all accepted messages, and no
        others. Return a report."""
        self._end_publishing()
        for channel in self._channels:
            with contextlib.suppress(AssertionError):
                eventually(lambda c=channel: not self._lost(c), SYNC_BUDGET, interval=POLL)
        accounts = [self.tally.account(channel) for channel in self._channels]
        assert not any(each.lost or each.unexpected for each in accounts), accounts
        again = {each.channel: each.duplicates for each in accounts}
        return f"{accounts[0].published} messages accepted, delivered again: {again}"
