"""A separate cluster under load: an nsqlookupd, nsqds, and an nsqadmin that samples them often.

Each topic has its own traffic. `orders` are consumed, some of them at the second attempt. Some
`mails` are deferred. `invoices` pile up without a consumer. `audit` has no channel. `trouble` adds
a topic that fills every page that NSQ lacks.
"""

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, Hangup, Message, Silence
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd

INTERVAL = 0.5  # seconds between two samples
TOPICS = {
    "audit": (),
    "invoices": ("ledger",),
    "mails": ("sender",),
    "orders": ("billing", "stock"),
}
HALF_HOUR = 30 * 60 * 1000  # ms
REFUND = b'{"refund":"R-2041","amount":{"value":12.50,"currency":"EUR"},"items":["<b>mug</b>"]}'
BODIES = {topic: [f"{topic} {number}".encode() for number in range(10)] for topic in TOPICS}


class Lively:
    def __init__(
        self, lookupd: Lookupd, nsqds: list[Nsqd], admin: Admin, pause: Callable[[], float]
    ) -> None:
        self.lookupd, self.nsqds, self.admin = lookupd, nsqds, admin
        self._pause = pause
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, daemon=True),
            *(self._consumer("orders", channel) for channel in TOPICS["orders"]),
            self._consumer("mails", "sender"),
        ]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.admin.http_port}"

    @property
    def nodes(self) -> list[str]:
        return [f"127.0.0.1:{each.http_port}" for each in self.nsqds]

    @property
    def base(self) -> str:
        """Return the prefix of nsqadmin's paths."""
        return str(self.admin.options.get("base_path", ""))

    def begin(self) -> None:
        for nsqd in self.nsqds:
            for topic, channels in TOPICS.items():
                nsqd.web.create(topic, *channels)
        self.known(*TOPICS)
        for each in self._threads:
            each.start()

    def known(self, *topics: str, on: int = 0) -> None:
        """Wait until the nsqlookupd lists all nsqds (or `on` of them) for these topics."""

        def are_known() -> bool:
            nodes = self.lookupd.web.get("/nodes").json()["producers"]
            having = [each for each in nodes if {*topics} <= {*each["topics"]}]
            return len(having) == (on or len(self.nsqds))

        eventually(are_known)

    def set_policy(self, place: str, **values: object) -> None:
        answer = self.admin.web.put(f"{self.base}/api/policy/{place}", json.dumps(values).encode())
        assert answer.status == 200, answer

    def forget(self, topic: str) -> None:
        """Reset everything."""
        for nsqd in self.nsqds:
            if nsqd.web.topic(topic):
                nsqd.web.do("delete", topic)
        self.lookupd.web.do("delete", topic)

    def end(self) -> None:
        self._over.set()
        for each in self._threads:
            each.join(10)

    def _publish(self) -> None:
        with contextlib.suppress(OSError, Hangup):  # when the nsqds exit
            conns = [Conn(("127.0.0.1", each.tcp_port)) for each in self.nsqds]
            for turn in itertools.count():
                if self._over.wait(self._pause()):
                    return
                conn = conns[turn % len(conns)]
                for topic, bodies in BODIES.items():
                    conn.mpub(topic, bodies)

    def _consumer(self, topic: str, channel: str) -> threading.Thread:
        return threading.Thread(target=self._consume, args=(topic, channel), daemon=True)

    def _consume(self, topic: str, channel: str) -> None:
        with contextlib.suppress(OSError, Hangup):
            where = ("127.0.0.1", self.nsqds[0].tcp_port)
            conn = Conn(where).sub(topic, channel, rdy=50)
            while not self._over.is_set():
                with contextlib.suppress(Silence):
                    self._answer(conn, conn.message(timeout=0.2))

    def _answer(self, conn: Conn, message: Message) -> None:
        is_unlucky = message.attempts == 1 and message.body.endswith(b"7")
        if is_unlucky:
            conn.req(message, 2000 if message.body.startswith(b"mails") else 0)
        else:
            conn.fin(message)


@contextlib.contextmanager
def lively(
    home: Path, nsqds: int = 2, pause: Callable[[], float] = lambda: INTERVAL, **options: object
) -> Iterator[Lively]:
    """A cluster under load until the end of the context; the second nsqd has no consumers. `pause`
    returns the seconds between two rounds of publishes."""
    with contextlib.ExitStack() as stack:
        lookupd = stack.enter_context(Lookupd())
        daemons = []
        for number in range(nsqds):
            data = home / f"nsqd{number}"
            data.mkdir()
            daemon = Nsqd(
                data,
                workers=1,
                broadcast_address="127.0.0.1",
                lookupd_tcp_address=lookupd.tcp_address,
                e2e_processing_latency_percentile="0.5,0.99",
            )
            stack.callback(daemon.destroy)
            daemons.append(daemon.start())
        settings = {
            "lookupd_http_address": lookupd.http_address,
            "history_interval": f"{round(INTERVAL * 1000)}ms",
        }
        admin = stack.enter_context(Admin(**(settings | options)))
        found = Lively(lookupd, daemons, admin, pause)
        stack.callback(found.end)
        found.begin()
        yield found


@contextlib.contextmanager
def trouble(live: Lively) -> Iterator[None]:
    """Create `refunds` on the first nsqd. `bank` has messages in every state, including two dead
    ones. `report` is paused with unread messages. A reader of the topic's log is far behind."""
    nsqd = live.nsqds[0]
    nsqd.web.create("refunds", "bank", "report")
    nsqd.web.create("refunds-dead", "look")
    live.known("refunds", "refunds-dead", on=1)
    live.set_policy("refunds", retention_time="1h")
    live.set_policy(
        "refunds/bank", max_attempts=1, dead_letter_topic="refunds-dead", msg_timeout="10m"
    )
    nsqd.web.do("pause", "refunds", "report")
    try:
        with nsqd.connect() as consumer, nsqd.connect() as reader:
            consumer.identify(client_id="teller")
            consumer.sub("refunds", "bank", 1)
            for body in (REFUND, b"R-2042"):
                nsqd.web.pub("refunds", body)
                consumer.req(consumer.message())
            nsqd.web.await_counts("refunds-dead", "look", depth=2)
            nsqd.web.pub("refunds", REFUND)
            consumer.message()
            consumer.rdy(0)
            nsqd.web.pub("refunds", REFUND, headers={"X-Nsq-Trace": "4bf92f35"})
            nsqd.web.pub("refunds", bytes(range(64)))
            nsqd.web.mpub("refunds", [b"R-2044 was paid twice", *[b"R"] * 10])
            nsqd.web.pub("refunds", b"R-2045", defer=HALF_HOUR)
            reader.negotiate(topic_log=True)
            log_id = nsqd.web.get("/topic/log", topic="refunds").json()["log_id"]
            reader.send(f"LOG_CURSOR refunds {log_id} lake 1\n".encode())
            assert reader.expect_json()["name"] == "lake"
            nsqd.web.await_counts("refunds", "bank", depth=13, deferred_count=1)
            yield
    finally:
        for topic in ("refunds", "refunds-dead"):
            live.forget(topic)
