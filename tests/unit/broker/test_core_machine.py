"""The core compared with a slow and simple model: any history of commands, failures and restarts.

NSQCY_RUNS=20 tries many more histories.
"""

import errno
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nsqcy.base.core import Percentiles
from reference import nsq, quantile
from support.left import Remains
from support.runs import runs
from support.taken_over import hand_over
from support.worker_core import ERROR, MILLISECOND, RESPONSE, SECOND, Client, Core, mpub

PROFILE = settings(max_examples=runs(30))

TOPICS = ["a", "b", "e#ephemeral"]
CHANNELS = ["x", "y", "z#ephemeral"]
MAX_MPUB = 5_000_000  # bytes; slightly below the limit of --max-body-size
SIZES = [1, 30, 500, 6_000, 17_000, 200_000, 1_000_000]
DELAYS = [1, 700, 5_000, 100_000]
# Nanoseconds. Equal delays end in order, one nanosecond apart; in the reference, they end together.
ORDERED = 1000
STEPS = [1, 300, 999, 1_000, 2_500, 11_000, 70_000]
OUTPUT_ENOUGH = 131072
MANY = 90
KEPT_WHOLE = 499  # up to this number of latencies, a channel keeps them all
QUANTILES = (1, 0.99, 0.5)
pick = st.integers(0, 1000)
topic_names = st.sampled_from(TOPICS)
channel_names = st.sampled_from(CHANNELS)


class Consumer:
    """A subscribed client and its counterpart in the model."""

    def __init__(self, client: Client, twin: nsq.Client, topic: str, channel: str) -> None:
        self.client = client
        self.twin = twin
        self.topic = topic
        self.channel = channel


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="core"))
        self.generation = 0
        self.number = 0
        self.topics: dict[str, nsq.Topic] = {}
        self.consumers: list[Consumer] = []
        self.bodies: dict[str, set[bytes]] = {}
        self.refused: set[bytes] = set()
        self.dropped: dict[tuple[str, str], int] = {}
        self.pending: nsq.Message | None = None

    @initialize(
        mem_queue_size=st.sampled_from([0, 3, 20, 10000]),
        budget=st.sampled_from([1 << 40, 300_000, 0]),
        file_bytes=st.sampled_from([100 << 20, 60_000]),
        timeout=st.sampled_from([5, 900]),
        hold_new=st.sampled_from([0, 0, 1 << 62]),
        snapshot_budget=st.sampled_from([1, 4096]),
        memfd=st.booleans(),
    )
    def begin(
        self,
        mem_queue_size: int,
        budget: int,
        file_bytes: int,
        timeout: int,
        hold_new: int,
        snapshot_budget: int,
        memfd: bool,
    ) -> None:
        self.mem_queue_size = mem_queue_size
        self.max_msg_timeout = timeout * SECOND
        self.hold_new = hold_new
        self.settings: dict[str, Any] = {
            "mem_queue_size": mem_queue_size,
            "budget": budget,
            "max_msg_timeout": self.max_msg_timeout,
            "hold_new": hold_new,
            "snapshot_budget": snapshot_budget,
            "memfd": memfd,
            "percentiles": Percentiles(QUANTILES, 1 << 62),
            "log_options": {
                "max_bytes_per_file": file_bytes,
                "sync_every": 2500,
                "sync_timeout": 2 * SECOND,
            },
        }
        path = self.base / "0"
        path.mkdir()
        self.core = Core(path, **self.settings)
        self.producer = self.core.client()

    # -- actions of both sides --

    def model(self, topic: str) -> nsq.Topic:
        if topic not in self.topics:
            self.topics[topic] = nsq.Topic(
                topic, self.mem_queue_size, self.max_msg_timeout, held=bool(self.hold_new)
            )
        return self.topics[topic]

    def body(self, topic: str, size: int) -> bytes:
        self.number += 1
        body = b"%d:" % self.number
        body += b"." * (size - len(body))
        self.bodies.setdefault(topic, set()).add(body)
        return body

    def settle(self) -> None:
        """Let the daemon finish its turns, then check their results."""
        self.core.settle()
        self.compare()

    def compare(self) -> None:
        self.note_drops()
        self.note_deliveries()
        assert set(self.topics) == {key.decode() for key in self.core.shard.topics}
        for name, topic in self.topics.items():
            found = self.core.topic(name)
            assert set(topic.channels) == set(found.channels)
            counters = found.counters()
            assert counters["depth"] == len(topic.backlog), name
            assert counters["message_count"] == topic.message_count, name
            assert counters["message_bytes"] == topic.message_bytes, name
            assert counters["paused"] == topic.paused
            if topic.channels:
                values = [each for channel in topic.channels.values() for each in channel.latencies]
                self.compare_latency(counters, values)
            for channel in topic.channels.values():
                self.compare_channel(name, channel)

    def compare_channel(self, topic: str, channel: nsq.Channel) -> None:
        found = self.core.counters(topic, channel.name)
        expected = {
            "depth": len(channel.waiting),
            "in_flight_count": len(channel.in_flight),
            "deferred_count": len(channel.deferred),
            "message_count": channel.message_count,
            "requeue_count": channel.requeue_count,
            "timeout_count": channel.timeout_count,
            "client_count": len(channel.clients),
            "paused": channel.paused,
        }
        assert {key: found[key] for key in expected} == expected, (topic, channel.name)
        self.compare_latency(found, channel.latencies)
        assert channel.balance(), (topic, channel.name)
        assert self.core.topic(topic).channels[channel.name].ledger() == {
            "received": channel.message_count + channel.carried,
            "finished": channel.finish_count,
            "queued": len(channel.waiting),
            "in_flight": len(channel.in_flight),
            "deferred": len(channel.deferred),
            "dropped": {
                "attempts": 0,
                "cancelled": channel.cancelled_count,
                "damaged": channel.missing_count,
                "emptied": channel.lost_count,
                "full": 0,
                "overflow": channel.dropped_count,
            },
            "dead_lettered": 0,
            "redriven": 0,
            "expired": 0,
            "sampled": 0,
        }

    def compare_latency(self, found: dict[str, Any], values: list[int]) -> None:
        latency = found["e2e_processing_latency"]
        if len(values) <= KEPT_WHOLE:
            assert latency == quantile.summary(values, QUANTILES)
        assert latency["count"] == len(values)
        assert latency["percentiles"][0]["value"] == quantile.exact(values, 1)

    def note_drops(self) -> None:
        """Read each ephemeral channel's number of drops from nsqd; the model checks that they were
        necessary."""
        for name, topic in self.topics.items():
            for channel in topic.channels.values():
                if channel.ephemeral:
                    self.note_dropped(name, channel)
                channel.arrived.clear()

    def note_dropped(self, topic: str, channel: nsq.Channel) -> None:
        now = self.core.topic(topic).channels[channel.name].dropped_count
        count = now - self.dropped.get((topic, channel.name), 0)
        self.dropped[topic, channel.name] = now
        if not count:
            return
        big = sum(len(copy.message.body) for copy in channel.arrived) > OUTPUT_ENOUGH // 2
        channel.drop_newest(count)
        if big:
            # Which messages were dropped depends on when the consumers had room again.
            self.core.topic(topic).channels[channel.name].empty()
            channel.empty()
            self.core.settle()
            for consumer in self.consumers_of(topic, channel.name):
                consumer.client.messages()

    def consumers_of(self, topic: str, channel: str) -> list[Consumer]:
        return [each for each in self.consumers if (each.topic, each.channel) == (topic, channel)]

    def note_deliveries(self) -> None:
        for name, topic in self.topics.items():
            for channel in topic.channels.values():
                self.note_delivered(channel, self.consumers_of(name, channel.name))

    def note_delivered(self, channel: nsq.Channel, consumers: list[Consumer]) -> None:
        got = [(each, each.client.messages()) for each in consumers]
        left = [(each, messages) for each, messages in got if messages]
        assert not (left and channel.paused), "a paused channel delivers"
        while left:
            for consumer, messages in left:  # noqa: B007, used after the loop
                if channel.waiting and channel.may_deliver(messages[0].body):
                    break
            first = messages.pop(0)
            assert channel.waiting, f"{first} is not waiting in {channel.name}"
            assert consumer.twin.in_flight < consumer.twin.ready, "more than its ready count"
            channel.deliver(
                consumer.twin, first.id, first.body, first.attempts, first.timestamp, self.core.now
            )
            left = [(each, messages) for each, messages in left if messages]
        if channel.waiting and not channel.paused:
            for each in consumers:
                room = len(each.client.known) < OUTPUT_ENOUGH
                assert not (room and each.twin.in_flight < each.twin.ready), "the channel is stuck"

    # -- publishing --

    def publish(self, topic: str, size: int, delay: int) -> None:
        message = nsq.Message(self.body(topic, size), self.core.wall, delay * MILLISECOND)
        answer = self.producer.publish(topic, message.body, delay)
        self.core.settle()
        self.model(topic)
        self.published(topic, [message], answer)

    def published(
        self, topic: str, messages: list[nsq.Message], answer: tuple[int, bytes] | None
    ) -> None:
        """Update the model: the first messages were accepted; all of them if the answer is OK."""
        model = self.model(topic)
        accepted = self.core.topic(topic).message_count - model.message_count
        if answer == (RESPONSE, b"OK"):
            assert accepted == len(messages)
        else:
            assert answer is not None and answer[0] == ERROR
            assert answer[1].split(b" ")[0] in (b"E_PUB_FAILED", b"E_DPUB_FAILED", b"E_MPUB_FAILED")
            assert accepted < len(messages)
            self.refused.update(message.body for message in messages[accepted:])
            assert self.producer.closed
            self.producer = self.core.client()
        for message in messages[:accepted]:
            model.publish(message, self.core.now)
        self.compare()

    @rule(topic=topic_names, size=st.sampled_from(SIZES))
    def pub(self, topic: str, size: int) -> None:
        self.publish(topic, size, 0)

    @rule(topic=topic_names, size=st.sampled_from(SIZES[:5]), delay=st.sampled_from(DELAYS))
    def dpub(self, topic: str, size: int, delay: int) -> None:
        self.publish(topic, size, delay)

    @rule(
        topic=topic_names,
        sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=8).filter(
            lambda sizes: sum(sizes) < MAX_MPUB
        ),
    )
    def mpub(self, topic: str, sizes: list[int]) -> None:
        self.publish_all(topic, sizes)

    def publish_all(self, topic: str, sizes: list[int]) -> None:
        bodies = [self.body(topic, size) for size in sizes]
        messages = [nsq.Message(body, self.core.wall) for body in bodies]
        answer = self.producer.ask(mpub(topic, bodies))
        self.core.settle()
        self.published(topic, messages, answer)

    @rule(
        topic=topic_names,
        other=pick,
        steps=st.lists(
            st.tuples(st.sampled_from(["pub", "pub", "dpub", "fin", "req", "rdy"]), pick),
            min_size=2,
            max_size=8,
        ),
    )
    def commands_of_one_turn(self, topic: str, other: int, steps: list[tuple[str, int]]) -> None:
        """Send several commands before anything is delivered or written."""
        waiting: list[nsq.Message] = []
        for what, number in steps:
            if what in ("pub", "dpub"):
                self.send_publish(topic, SIZES[number % 4], 700 * (what == "dpub"), waiting)
            elif self.consumers:
                self.send_command(what, self.consumer(other), number)
        self.core.settle()
        for message in waiting:
            assert self.producer.answer() == (RESPONSE, b"OK")
            self.model(topic).publish(message, self.core.now)
        self.compare()

    def send_publish(self, topic: str, size: int, delay: int, waiting: list[nsq.Message]) -> None:
        message = nsq.Message(self.body(topic, size), self.core.wall, delay * MILLISECOND)
        head = f"DPUB {topic} {delay}\n" if delay else f"PUB {topic}\n"
        self.producer.send(head.encode(), len(message.body).to_bytes(4, "big"), message.body)
        model = self.model(topic)
        if waiting or self.producer.answer() is None:
            waiting.append(message)
        else:
            model.publish(message, self.core.now)

    def send_command(self, what: str, consumer: Consumer, number: int) -> None:
        channel = self.channel_of(consumer)
        held = self.held(consumer)
        if what == "rdy":
            consumer.twin.ready = number % 4
            consumer.client.ready(consumer.twin.ready)
        elif what == "fin" and held:
            consumer.client.finish(held[number % len(held)])
            assert channel.finish(consumer.twin, held[number % len(held)], self.core.wall)
        elif what == "req" and held and not channel.ephemeral:
            id = held[number % len(held)]
            consumer.client.requeue(id)
            channel.requeue(consumer.twin, id, 0, self.core.now)

    @rule(
        topic=topic_names,
        sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
        nth=st.integers(1, 3),
        times=st.integers(1, 4),
        at_once=st.booleans(),
    )
    def pub_to_a_full_disk(
        self, topic: str, sizes: list[int], nth: int, times: int, at_once: bool
    ) -> None:
        self.core.io.fault("pwrite", nth, errno.ENOSPC, times)
        if at_once:
            self.publish_all(topic, sizes)
        else:
            for size in sizes:
                self.publish(topic, size, 0)
        self.core.io.clear_faults()
        self.settle()

    # -- consuming --

    @rule(
        topic=topic_names,
        channel=channel_names,
        ready=st.sampled_from([0, 1, 2, 2500]),
        timeout=st.sampled_from([1000, 2000, 4000]),
    )
    def subscribe(self, topic: str, channel: str, ready: int, timeout: int) -> None:
        if len(self.consumers) >= 5:
            return
        client = self.core.client(msg_timeout=timeout)
        client.subscribe(topic, channel, ready)
        twin = nsq.Client(timeout * MILLISECOND, ready)
        self.model(topic).channel(channel, self.core.now).clients.append(twin)
        self.consumers.append(Consumer(client, twin, topic, channel))
        self.settle()

    @rule(topic=topic_names, channel=channel_names)
    def create_channel(self, topic: str, channel: str) -> None:
        self.core.create(topic).channel(channel)
        self.model(topic).channel(channel, self.core.now)
        self.settle()

    def consumer(self, which: int) -> Consumer:
        return self.consumers[which % len(self.consumers)]

    def channel_of(self, consumer: Consumer) -> nsq.Channel:
        return self.topics[consumer.topic].channels[consumer.channel]

    def held(self, consumer: Consumer) -> list[bytes]:
        return [
            id
            for id, copy in self.channel_of(consumer).in_flight.items()
            if copy.client is consumer.twin
        ]

    @precondition(lambda self: self.consumers)
    @rule(which=pick, ready=st.sampled_from([0, 1, 2, 5, 2500]))
    def ready(self, which: int, ready: int) -> None:
        consumer = self.consumer(which)
        consumer.client.ready(ready)
        consumer.twin.ready = ready
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick, message=pick, every=st.booleans())
    def finish(self, which: int, message: int, every: bool) -> None:
        consumer = self.consumer(which)
        held = self.held(consumer)
        if held and not every:
            held = [held[message % len(held)]]
        for id in held:
            consumer.client.finish(id)
            assert self.channel_of(consumer).finish(consumer.twin, id, self.core.wall)
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick, other=pick, message=pick)
    def finish_what_another_holds(self, which: int, other: int, message: int) -> None:
        consumer = self.consumer(which)
        own = self.held(consumer)  # may include the same messages, through another channel
        held = [id for id in self.held(self.consumer(other)) if id not in own]
        if not held:
            return
        consumer.client.finish(held[message % len(held)])
        answer = consumer.client.answer()
        assert answer is not None and answer[1].startswith(b"E_FIN_FAILED ")
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick, message=pick, delay=st.sampled_from([0, 0, 1, 800, 30_000]))
    def requeue(self, which: int, message: int, delay: int) -> None:
        consumer = self.consumer(which)
        channel = self.channel_of(consumer)
        held = self.held(consumer)
        if not held:
            return
        id = held[message % len(held)]
        full = len(channel.waiting) >= self.mem_queue_size
        consumer.client.requeue(id, delay)
        copy = channel.requeue(consumer.twin, id, delay * MILLISECOND, self.core.now)
        if channel.ephemeral and not delay and full:
            channel.drop([copy])
            self.dropped[consumer.topic, channel.name] = (
                self.core.topic(consumer.topic).channels[channel.name].dropped_count
            )
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick, message=pick)
    def touch(self, which: int, message: int) -> None:
        consumer = self.consumer(which)
        held = self.held(consumer)
        if not held:
            return
        id = held[message % len(held)]
        consumer.client.touch(id)
        assert self.channel_of(consumer).touch(consumer.twin, id, self.core.now)
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick, room=st.sampled_from([None, None, 0, 7, 40, 20_000]))
    def read_output(self, which: int, room: int | None) -> None:
        self.consumer(which).client.transport.full = room
        self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick)
    def leave(self, which: int) -> None:
        consumer = self.consumer(which)
        consumer.client.transport.full = None
        self.settle()
        consumer.client.transport.end()
        self.consumers.remove(consumer)
        channel = self.channel_of(consumer)
        channel.clients.remove(consumer.twin)
        if channel.ephemeral and not channel.clients:
            self.forget_channel(consumer.topic, channel.name)
        self.settle()
        assert consumer.client.closed

    @rule(milliseconds=st.sampled_from(STEPS))
    def advance(self, milliseconds: int) -> None:
        after = self.core.now + milliseconds * MILLISECOND
        deferred = [
            copy
            for topic in self.topics.values()
            for channel in topic.channels.values()
            for copy in channel.deferred
        ]
        if any(copy.due <= after < copy.due + ORDERED for copy in deferred):
            after += ORDERED
        self.core.advance(after - self.core.now)
        for name, topic in self.topics.items():
            for channel in topic.channels.values():
                back = channel.expire(self.core.now)
                if channel.ephemeral and back:
                    self.note_overflow(name, channel, back)
        self.settle()

    def note_overflow(self, topic: str, channel: nsq.Channel, back: list[nsq.Copy]) -> None:
        """Record that an ephemeral channel had no room for some requeued messages."""
        real = self.core.topic(topic).channels[channel.name]
        count = real.dropped_count - self.dropped.get((topic, channel.name), 0)
        self.dropped[topic, channel.name] = real.dropped_count
        if count == len(back):
            channel.drop(back)
        elif count:
            # The daemon may keep any of these messages.
            channel.drop(back[:count])
            real.empty()
            channel.empty()
            for consumer in self.consumers_of(topic, channel.name):
                consumer.client.messages()

    # -- administration --

    @precondition(lambda self: self.topics)
    @rule(which=pick, paused=st.booleans())
    def pause_topic(self, which: int, paused: bool) -> None:
        topic = self.topics[sorted(self.topics)[which % len(self.topics)]]
        self.core.topic(topic.name).pause(paused)
        topic.pause(paused, self.core.now)
        self.settle()

    @precondition(lambda self: any(topic.held for topic in self.topics.values()))
    @rule(which=pick)
    def end_hold(self, which: int) -> None:
        held = [topic for topic in self.topics.values() if topic.held]
        topic = held[which % len(held)]
        self.core.topic(topic.name).end_hold()
        topic.end_hold(self.core.now)
        self.settle()

    @precondition(lambda self: self.topics)
    @rule(which=pick)
    def empty_topic(self, which: int) -> None:
        topic = self.topics[sorted(self.topics)[which % len(self.topics)]]
        self.core.topic(topic.name).empty()
        topic.backlog.clear()
        self.settle()

    @precondition(lambda self: self.topics)
    @rule(which=pick)
    def delete_topic(self, which: int) -> None:
        name = sorted(self.topics)[which % len(self.topics)]
        self.core.shard.delete_topic(name.encode())
        for channel in list(self.topics[name].channels):
            self.forget_channel(name, channel)
        self.topics.pop(name, None)
        self.settle()

    def a_channel(self, which: int) -> tuple[str, nsq.Channel] | None:
        found = [
            (name, channel)
            for name, topic in sorted(self.topics.items())
            for channel in topic.channels.values()
        ]
        return found[which % len(found)] if found else None

    @rule(which=pick, paused=st.booleans())
    def pause_channel(self, which: int, paused: bool) -> None:
        found = self.a_channel(which)
        if found:
            self.core.topic(found[0]).pause_channel(found[1].name, paused)
            found[1].paused = paused
            self.settle()

    @rule(which=pick)
    def empty_channel(self, which: int) -> None:
        found = self.a_channel(which)
        if found:
            self.core.topic(found[0]).channels[found[1].name].empty()
            found[1].empty()
            self.settle()

    @rule(which=pick, message=pick)
    def delete_message(self, which: int, message: int) -> None:
        """Drop a waiting message, whose id is known from an earlier delivery."""
        found = self.a_channel(which)
        known = [each for each in found[1].waiting if each.message.id] if found else []
        if not found or not known:
            return
        copy = known[message % len(known)]
        results: list[str | None] = []
        channel = self.core.topic(found[0]).channels[found[1].name]
        assert channel.take_out(int(copy.message.id or b"", 16), True, results.append)
        found[1].take_out(copy)
        self.settle()
        assert results == [None]

    @rule(which=pick)
    def delete_channel(self, which: int) -> None:
        found = self.a_channel(which)
        if found:
            assert self.core.topic(found[0]).delete_channel(found[1].name)
            self.forget_channel(found[0], found[1].name)
            self.settle()

    def forget_channel(self, topic: str, channel: str) -> None:
        del self.topics[topic].channels[channel]
        self.dropped.pop((topic, channel), None)
        for consumer in self.consumers_of(topic, channel):
            consumer.client.transport.full = None
            self.consumers.remove(consumer)
        if self.topics[topic].ephemeral and not self.topics[topic].channels:
            del self.topics[topic]

    # -- stragglers --

    @precondition(lambda self: self.consumers)
    @rule(which=pick, keep=st.integers(6, 40))
    def leave_stragglers(self, which: int, keep: int) -> None:
        """Publish many messages and leave a few unfinished, so their blocks are worth
        compacting."""
        consumer = self.consumer(which)
        channel = self.channel_of(consumer)
        self.read_output(which, None)
        self.ready(which, 2500)
        self.publish_all(consumer.topic, [20_000] * MANY)
        for i, id in enumerate(self.held(consumer)):
            if i % keep:
                consumer.client.finish(id)
                assert channel.finish(consumer.twin, id, self.core.wall)
        self.settle()
        self.advance(1000)

    # -- exit and restart --

    def start(self) -> None:
        durable = [topic for topic in self.topics.values() if not topic.ephemeral]
        self.topics = {topic.name: topic for topic in durable}
        for topic in durable:
            topic.channels = {
                name: channel for name, channel in topic.channels.items() if not channel.ephemeral
            }
            topic.message_count = topic.message_bytes = 0
            topic.held = False
            self.core.shard.load_topic(
                topic.name.encode(),
                topic.paused,
                {name: channel.paused for name, channel in topic.channels.items()},
            )
        self.consumers = []
        self.dropped = {}
        self.producer = self.core.client()

    @rule(asleep=st.sampled_from([0, 2, 200]))
    def restart(self, asleep: int) -> None:
        """Exit cleanly, and start with a different clock."""
        old = self.core
        old.save()
        passed = asleep * SECOND + ORDERED
        wall = old.wall + passed
        self.core = Core(old.path, now=5_000_000 * SECOND, wall=wall, **self.settings)
        self.start()
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.restart(self.core.now - old.now - passed)
        self.core.settle()
        for topic in self.topics.values():
            topic.fan_out(self.core.now)
            for channel in topic.channels.values():
                channel.expire(self.core.now)
        self.compare()

    @precondition(lambda self: self.settings["memfd"])
    @rule()
    def die(self) -> None:
        """Kill the process between two turns; the next one finds its memory and its files."""
        old = self.core
        self.generation += 1
        remains = Remains(old, self.base / str(self.generation))
        old.close()
        self.core = remains.next_core(**self.settings)
        self.start()
        remains.end(self.core)
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.restart(0)
        self.core.settle()
        for topic in self.topics.values():
            topic.fan_out(self.core.now)
            for channel in topic.channels.values():
                channel.expire(self.core.now)
        self.compare()

    @precondition(lambda self: self.settings["memfd"])
    @rule()
    def hand_over(self) -> None:
        """Another process takes over all messages and all clients."""
        self.generation += 1
        self.core = hand_over(self.core, self.base / str(self.generation), **self.settings)
        for topic in self.topics.values():
            topic.held = False
            for channel in topic.channels.values():
                channel.hand_over()
        self.core.settle()
        for topic in self.topics.values():
            topic.fan_out(self.core.now)
            for channel in topic.channels.values():
                channel.expire(self.core.now)
        self.compare()

    @rule(
        topic=topic_names,
        sizes=st.lists(st.sampled_from(SIZES[:5]), max_size=4),
        written=st.booleans(),
    )
    def crash(self, topic: str, sizes: list[int], written: bool) -> None:
        """End the process during publishing: messages on disk are redelivered, perhaps twice, and
        no others are."""
        for size in sizes:
            body = self.body(topic, size)
            self.producer.send(f"PUB {topic}\n".encode(), len(body).to_bytes(4, "big"), body)
        self.model(topic)
        if written:
            self.core.manager.run_turn(self.core.now, self.core.wall)
            self.core.io.drain_now()
        old = self.core
        self.generation += 1
        path = self.base / str(self.generation)
        shutil.copytree(old.path, path)
        old.close()
        self.core = Core(path, now=7_000_000 * SECOND, wall=old.wall + SECOND, **self.settings)
        self.start()
        for name, topic_model in list(self.topics.items()):
            self.drain(name, topic_model)
        self.compare()

    def drain(self, name: str, topic: nsq.Topic) -> None:
        """After a crash, consume everything, and check that it was published exactly once."""
        self.core.topic(name).pause(False)
        self.topics[name] = fresh = nsq.Topic(name, self.mem_queue_size, self.max_msg_timeout)
        for channel in list(self.core.topic(name).channels) or ["x"]:
            client = self.core.client(msg_timeout=3000)
            client.subscribe(name, channel, 2500)
            self.core.topic(name).pause_channel(channel, False)
            ids: set[bytes] = set()
            latencies: list[int] = []
            for _ in range(100):
                self.core.advance(3600 * SECOND)
                messages = client.messages()
                for message in messages:
                    assert message.body in self.bodies.get(name, ()), message
                    assert message.body not in self.refused, message
                    assert message.id not in ids, message
                    ids.add(message.id)
                    client.finish(message.id)
                    latencies.append(self.core.wall - message.timestamp)
                if not messages:
                    break
            client.transport.end()
            self.core.settle()
            counters = self.core.counters(name, channel)
            assert counters["depth"] == counters["in_flight_count"] == 0, (name, channel)
            assert counters["deferred_count"] == counters["timeout_count"] == 0
            twin = fresh.channel(channel, self.core.now)
            ledger = self.core.topic(name).channels[channel].ledger()
            assert ledger["finished"] == len(ids)
            twin.message_count = counters["message_count"]
            twin.carried = ledger["received"] - twin.message_count
            twin.finish_count = len(ids)
            twin.missing_count = ledger["dropped"]["damaged"]
            assert twin.missing_count >= 0
            twin.latencies = latencies
        assert self.core.counters(name)["depth"] == 0

    def teardown(self) -> None:
        if hasattr(self, "core"):
            self.core.close()
        shutil.rmtree(self.base)


CoreMachine.TestCase.settings = settings(
    PROFILE,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
test_any_history = pytest.mark.slow(CoreMachine.TestCase)
