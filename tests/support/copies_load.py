"""A small, constant load on copied nsqds: publishers that continue after every failure, and
consumers that discover the nsqds through nsqlookupd."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from loadtest.soak.ledger import Marks
from nsqcy.client import Consumer
from nsqcy.testing.http_requests import eventually
from support.client_libraries import Consumer as Program
from support.copied_nsqds import POLL, SYNC_BUDGET, CopiedNsqds
from support.delivery_tally import (
    PlainPublisher,
    PoolPublisher,
    Publisher,
    Tally,
)

TOPIC = "orders"
CHANNELS = ("billing", "audit")
PAUSE = 0.1  # seconds between publishes, or runs of them
SLICE = 5  # messages per publisher that nsqds must accept after a fault
LOOKUP_INTERVAL = 0.5  # seconds between the consumers' queries to nsqlookupd


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
        plain = [node.address for node in self._cluster.nodes]
        how: dict[str, Any] = {"continues": True, "pause": PAUSE}
        self._publishers = [
            PoolPublisher(self.tally, "pool", TOPIC, nsqd_tcp_addresses=addresses, **how),
            PlainPublisher(self.tally, "plain", TOPIC, plain, **how),
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
        """Check that nsqds accept more messages from every publisher."""
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
