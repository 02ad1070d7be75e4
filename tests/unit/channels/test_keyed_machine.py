"""Channels with rules for keys, compared with a slow and simple model: any history of commands,
policy changes and restarts.

NSQCY_RUNS=20 tries many more histories.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nsqcy.config.policies import Policies
from reference.keyed import Channel, Message, Rules
from reference.nsq import check
from support.left import Remains
from support.runs import runs
from support.taken_over import hand_over
from support.worker_core import MILLISECOND, RESPONSE, SECOND, Client, Core, mpub

PROFILE = settings(max_examples=runs(60))

SOURCES = {"key": "json:/k", "priority": "json:/p"}
TIMEOUT = 10  # seconds
STEPS = [1, 300, 999, 1_500, 4_000, 11_000]  # milliseconds
MAX_TRIES = 2000  # of deliveries, to find an order that the rules allow
ROOM_OF_A_KEY = 250  # bytes, in an index
INDEX_BYTES = [1 << 40, 1 << 40, 1 << 40, 0, 1_000, 1_100, 1_300, 2_000, 2_200]
PADDING = [0, 0, 0, 3_000, 60_000]  # bytes
pick = st.integers(0, 1000)
keys = st.sampled_from(["a", "b", "c", None])
rules = st.builds(
    Rules,
    order=st.booleans(),
    fair=st.booleans(),
    in_flight_per_key=st.sampled_from([0, 0, 1, 2]),
    key_rate=st.sampled_from([0.0, 0.0, 0.5, 7.0]),
    depth_per_key=st.sampled_from([0, 0, 0, 2]),
    urgent_first=st.booleans(),
    priority_share=st.sampled_from([0.1, 0.05, 0.0]),
    max_depth=st.sampled_from([0, 0, 0, 4]),
    max_attempts=st.sampled_from([0, 0, 2]),
    dead_letters=st.booleans(),
).map(lambda each: each._replace(urgent_first=each.urgent_first and not each.order))


def values_of(rules: Rules) -> dict[str, Any]:
    """Return the policy with these rules."""
    return {
        "order": "key" if rules.order else "",
        "fair": rules.fair,
        "in_flight_per_key": rules.in_flight_per_key,
        "key_rate": rules.key_rate,
        "depth_per_key": rules.depth_per_key,
        "urgent_first": rules.urgent_first,
        "priority_share": rules.priority_share,
        "max_depth": rules.max_depth,
        "on_full": "drop-oldest",
        "max_attempts": rules.max_attempts,
        "dead_letter_topic": "dead" if rules.dead_letters else "",
    }


class Consumer:
    def __init__(self, client: Client, ready: int) -> None:
        self.client = client
        self.ready = ready
        self.held: dict[int, bytes] = {}  # number -> id


class KeyedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="keyed"))
        self.number = 0
        self.generation = 0
        self.restarts = 0
        self.consumers: list[Consumer] = []
        self.messages: dict[int, Message] = {}
        self.ids: dict[int, int] = {}
        self.damaged = 0
        self.is_exact = True
        self.tries = 0

    @initialize(
        rules=rules,
        mem_queue_size=st.sampled_from([0, 3, 10000]),
        budget=st.sampled_from([1 << 40, 300_000, 0]),
        durability=st.sampled_from(["memory", "os"]),
        ttl=st.sampled_from([0, 0, 0, 20]),
        file_bytes=st.sampled_from([100 << 20, 60_000]),
        snapshot_budget=st.sampled_from([1, 4096]),
        retention=st.sampled_from([0, 1 << 60]),
        index_bytes=st.sampled_from(INDEX_BYTES),
        memfd=st.booleans(),
    )
    def begin(
        self,
        rules: Rules,
        mem_queue_size: int,
        budget: int,
        durability: str,
        ttl: int,
        file_bytes: int,
        snapshot_budget: int,
        retention: int,
        index_bytes: int,
        memfd: bool = False,
    ) -> None:
        self.retention = retention
        self.far = index_bytes < 1 << 40
        self.ttl = ttl * SECOND
        self.max_attempts = rules.max_attempts
        self.reads = budget < 1 << 40
        rules = self.adapted(rules)
        self.durability = durability
        self.policies = Policies(
            sections=[
                (
                    "t",
                    {
                        "durability": durability,
                        "ttl": self.ttl,
                        "retention_time": retention,
                        **SOURCES,
                    },
                )
            ],
        )
        self.policies.set("t/c", values_of(rules))
        self.settings: dict[str, Any] = {
            "mem_queue_size": mem_queue_size,
            "budget": budget,
            "policies": self.policies,
            "snapshot_budget": snapshot_budget,
            "key_index_bytes": index_bytes,
            "memfd": memfd,
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
        self.core.create("t").channel("c")
        self.core.create("dead").channel("d")
        self.model = Channel(rules, self.core.now, self.core.wall, far=self.far)

    def adapted(self, rules: Rules) -> Rules:
        """If records are read from disk or again, the messages above a limit are dropped before or
        after a read: then the model does not know which are dropped. A message that is too old
        blocks its key until the dead-letter topic has it; the model does not know when that is."""
        rules = rules._replace(max_attempts=self.max_attempts)
        if self.reads or self.far:
            rules = rules._replace(max_depth=0, depth_per_key=0)
        if self.ttl:
            rules = rules._replace(max_depth=0, depth_per_key=0, dead_letters=False)
        return rules

    @property
    def channel(self) -> Any:
        topic = self.core.topic("t")
        assert topic is not None
        return topic.channels["c"]

    # -- comparison --

    def settle(self) -> None:
        self.core.settle()
        self.compare()

    def compare(self) -> None:
        self.note_deliveries()
        self.check_stuck()
        self.model.drop_oldest()
        assert not [line for line in self.core.log.lines if "Error" in line], self.core.log.lines
        counters = self.core.counters("t", "c")
        assert counters["in_flight_count"] == len(self.model.in_flight)
        if not self.ttl:
            assert counters["deferred_count"] == len(self.model.deferred)
            dropped_later = sum(map(self.model.is_exhausted, self.model.waiting))
            self.is_exact = self.is_exact and not dropped_later
            maximum = len(self.model.waiting)
            minimum = maximum if self.is_exact else maximum - dropped_later
            assert minimum <= counters["depth"] <= maximum, self.channel.ledger()
            ledger = self.channel.ledger()
            assert ledger["dropped"]["damaged"] == self.damaged, ledger
            if self.is_exact:
                gone = ledger["dead_lettered"] + ledger["dropped"]["attempts"]
                assert gone == self.model.gone

    def note_deliveries(self) -> None:
        """Apply the deliveries to the model. The order among consumers is not known: apply any
        that the rules allow."""
        left: list[list[int]] = []
        for consumer in self.consumers:
            left.append([])
            for delivery in consumer.client.messages():
                number = json.loads(delivery.body)["n"]
                message = self.messages[number]
                check(delivery.attempts == message.attempts + 1, f"attempt {delivery.attempts}")
                check(len(consumer.held) < consumer.ready, "more than its ready count")
                consumer.held[number] = delivery.id
                self.ids[number] = int(delivery.id, 16)
                left[-1].append(number)
        self.tries = 0
        reasons: list[str] = []
        check(self.explains(left, 0, reasons), "; ".join(reasons))

    def explains(self, left: list[list[int]], turn: int, reasons: list[str]) -> bool:
        """Apply deliveries in an order that the rules allow, if there is one. nsqd serves the
        consumers in turn, which is tried first."""
        if not any(left):
            return True
        for i in range(len(left)):
            which = (turn + i) % len(left)
            if not left[which] or self.tries > MAX_TRIES:
                continue
            self.tries += 1
            consumer = self.consumers[which]
            number = left[which][0]
            message = self.messages[number]
            reason = self.model.may_deliver(message)
            if reason is not None:
                reasons.append(f"message {number} to {consumer.client.number}: {reason}")
                continue
            before = self.model.snapshot()
            self.model.deliver(message, consumer, self.core.now + TIMEOUT * SECOND)
            rest = [each[j == which :] for j, each in enumerate(left)]
            if self.explains(rest, which + 1, reasons):
                return True
            self.model.restore(before, message)
        return False

    def check_stuck(self) -> None:
        candidates = self.model.candidates()
        room = self.core.scheduler.key_room
        keys = self.channel.keys
        if keys is not None and keys.short:
            check(room.used + ROOM_OF_A_KEY > room.limit, "the scan waits, although there is room")
        elif candidates and not self.model.paused:
            for each in self.consumers:
                check(len(each.held) >= each.ready, f"the channel is stuck: {candidates}")

    def forget_held(self) -> None:
        """Forget the messages that have timed out, or were dropped."""
        for each in self.consumers:
            each.held = {
                number: id
                for number, id in each.held.items()
                if self.messages[number] in self.model.in_flight
                and self.messages[number].client is each
            }

    # -- publishing --

    def new_message(self, key: str | None, priority: int, padding: int) -> tuple[Message, bytes]:
        self.number += 1
        expires = self.core.wall + self.ttl if self.ttl else None
        message = Message(self.number, key, priority, self.core.wall, expires)
        message.seq = self.number
        self.messages[self.number] = message
        head = {"k": key, "p": priority} if key is not None else {"none": 0, "p": priority}
        text = json.dumps({**head, "n": self.number, "x": "." * padding}, separators=(",", ":"))
        return message, text.encode()

    @rule(key=keys, priority=st.integers(0, 2), padding=st.sampled_from(PADDING))
    def publish(self, key: str | None, priority: int, padding: int) -> None:
        message, body = self.new_message(key, priority if key else 0, padding)
        assert self.producer.publish("t", body) == (RESPONSE, b"OK")
        self.core.settle()
        self.model.publish(message)
        self.compare()

    @rule(
        wanted=st.lists(st.tuples(keys, st.integers(0, 2)), min_size=2, max_size=12),
        padding=st.sampled_from(PADDING[:4]),
    )
    def publish_many(self, wanted: list[tuple[str | None, int]], padding: int) -> None:
        self.publish_all(wanted, padding)

    def publish_all(self, wanted: list[tuple[str | None, int]], padding: int) -> None:
        made = [self.new_message(key, priority if key else 0, padding) for key, priority in wanted]
        # All arrive before the next is delivered.
        assert self.producer.ask(mpub("t", [body for _, body in made])) == (RESPONSE, b"OK")
        self.core.settle()
        for message, _ in made:
            message.born = message.place = self.model.arrive()
            self.model.waiting.append(message)
        self.model.update()
        self.compare()

    @precondition(lambda self: self.far)
    @rule(key=keys, others=st.sampled_from(["", "abc"]), count=st.sampled_from([10, 30]))
    def flood(self, key: str | None, others: str, count: int) -> None:
        """One key has more messages than the index."""
        self.publish_all([(key, 0), *((each, 0) for each in others)] * count, 0)

    @rule(key=keys, priority=st.integers(0, 2), delay=st.sampled_from([1, 700, 5_000, 30_000]))
    def publish_later(self, key: str | None, priority: int, delay: int) -> None:
        message, body = self.new_message(key, priority if key else 0, 0)
        message.delayed = True
        assert self.producer.publish("t", body, delay) == (RESPONSE, b"OK")
        self.core.settle()
        self.model.publish(message, delay * MILLISECOND)
        self.compare()

    # -- consuming --

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(ready=st.sampled_from([0, 1, 2, 5, 2500]))
    def subscribe(self, ready: int) -> None:
        client = self.core.client(msg_timeout=TIMEOUT * 1000)
        client.subscribe("t", "c")
        self.consumers.append(Consumer(client, ready))
        client.ready(ready)
        self.settle()

    def consumer(self, which: int) -> Consumer:
        return self.consumers[which % len(self.consumers)]

    @precondition(lambda self: self.consumers)
    @rule(which=pick, ready=st.sampled_from([0, 1, 3, 2500]))
    def ready(self, which: int, ready: int) -> None:
        consumer = self.consumer(which)
        consumer.ready = ready
        consumer.client.ready(ready)
        self.settle()

    def held(self, which: int, message: int) -> tuple[Consumer, Message, bytes] | None:
        consumer = self.consumer(which)
        if not consumer.held:
            return None
        number = sorted(consumer.held)[message % len(consumer.held)]
        return consumer, self.messages[number], consumer.held[number]

    @precondition(lambda self: self.consumers)
    @rule(which=pick, message=pick)
    def finish(self, which: int, message: int) -> None:
        found = self.held(which, message)
        if found is not None:
            consumer, held, id = found
            consumer.client.finish(id)
            del consumer.held[held.number]
            self.model.finish(held)
            self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick)
    def finish_all(self, which: int) -> None:
        consumer = self.consumer(which)
        for number, id in list(consumer.held.items()):
            consumer.client.finish(id)
            self.core.settle()
            del consumer.held[number]
            self.model.finish(self.messages[number])
            self.compare()

    @precondition(lambda self: self.consumers)
    @rule(which=pick, message=pick, delay=st.sampled_from([0, 0, 1, 3_000, 40_000]))
    def requeue(self, which: int, message: int, delay: int) -> None:
        found = self.held(which, message)
        if found is not None:
            consumer, held, id = found
            consumer.client.requeue(id, delay)
            del consumer.held[held.number]
            self.model.requeue(held, delay * MILLISECOND)
            self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick, message=pick)
    def touch(self, which: int, message: int) -> None:
        found = self.held(which, message)
        if found is not None:
            found[0].client.touch(found[2])
            found[1].due = self.core.now + TIMEOUT * SECOND
            self.settle()

    @precondition(lambda self: self.consumers)
    @rule(which=pick)
    def disconnect(self, which: int) -> None:
        consumer = self.consumer(which)
        consumer.client.transport.end()
        self.consumers.remove(consumer)
        self.model.disconnect(consumer, self.model.rules.order)
        self.settle()

    @rule(ms=st.sampled_from(STEPS))
    def advance(self, ms: int) -> None:
        """Let time pass, one event at a time."""
        left = ms * MILLISECOND
        while left:
            due = [each.due for each in (*self.model.in_flight, *self.model.deferred)]
            due += [int(each) + 1 for each in self.model.next_send.values()]
            step = min([left, *(each - self.core.now for each in due if each > self.core.now)])
            self.core.now += step
            self.core.wall += step
            self.core.scheduler.now, self.core.scheduler.wall = self.core.now, self.core.wall
            self.core.settle()
            self.model.advance(step)
            self.forget_held()
            self.compare()
            left -= step

    # -- administration --

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        topic = self.core.topic("t")
        assert topic is not None
        topic.pause_channel("c", paused)
        self.model.paused = paused
        self.settle()

    @rule()
    def empty(self) -> None:
        self.channel.empty()
        self.model.empty()
        self.forget_held()
        self.settle()

    @rule(key=st.sampled_from("abc"), paused=st.booleans())
    def pause_key(self, key: str, paused: bool) -> None:
        if not self.model.rules.keyed:
            return
        topic = self.core.topic("t")
        assert topic is not None
        topic.pause_key("c", key.encode(), paused)
        self.model.pause_key(key, paused)
        self.settle()

    @rule(key=st.sampled_from("abc"))
    def empty_key(self, key: str) -> None:
        """A message that is too old may be dropped as such before. While the scan waits for room,
        the records after it wait, too."""
        keys = self.channel.keys
        if not self.model.rules.keyed or (keys is not None and keys.short):
            return
        topic = self.core.topic("t")
        assert topic is not None
        before = self.channel.ledger()["dropped"]["emptied"]
        dropped = sum(each.key == key for each in self.model.waiting)
        topic.empty_key("c", key.encode())
        self.model.empty_key(key)
        self.settle()
        if not self.ttl and self.is_exact:
            assert self.channel.ledger()["dropped"]["emptied"] - before == dropped

    @rule(message=pick)
    def delete(self, message: int) -> None:
        """Drop a waiting message, whose id is known from an earlier delivery. One that was out of
        attempts at an exit leaves as such."""
        known = [
            each
            for each in self.model.waiting
            if each.number in self.ids and not self.model.is_exhausted(each)
        ]
        if not known or self.ttl:
            return
        wanted = known[message % len(known)]
        results: list[str | None] = []
        assert self.channel.take_out(self.ids[wanted.number], True, results.append)
        self.model.delete(wanted)
        self.settle()
        assert results == [None]

    @precondition(lambda self: self.retention and not self.is_on_disk())
    @rule(back=st.integers(0, 20))
    def seek(self, back: int) -> None:
        """Move the channel to an earlier record: messages that are still in the log come again,
        without a delay."""
        topic = self.core.topic("t")
        assert topic is not None
        wanted = max(1, topic.log_facts()["fanout_seq"] - back)
        seq = topic.seek("c", wanted)
        assert seq == wanted
        self.model.empty()
        self.forget_held()
        self.core.settle()
        again = sorted(self.messages.values(), key=lambda each: each.seq)
        for each in again[seq - 1 :]:
            fresh = Message(each.number, each.key, each.priority, each.published, each.expires)
            fresh.seq, fresh.delayed = each.seq, each.delayed
            fresh.born = fresh.place = self.model.arrive()
            self.messages[each.number] = fresh
            self.model.waiting.append(fresh)
        self.model.update()
        self.compare()

    def is_on_disk(self) -> bool:
        """Return whether a seek may read records, so that the model does not know which messages
        above a limit are dropped, or which keys wait."""
        rules = self.model.rules
        matters = rules.max_depth or rules.depth_per_key or rules.fair or rules.urgent_first
        return bool(matters) and self.restarts > 0

    @rule(rules=rules)
    def change_policy(self, rules: Rules) -> None:
        self.change(self.adapted(rules))

    def change(self, rules: Rules) -> None:
        self.policies.set("t/c", values_of(rules))
        self.core.shard.policies_changed("t/c")
        self.model.change(rules)
        self.settle()

    # -- exit and restart --

    @precondition(lambda self: self.durability == "os" and not self.ttl)
    @rule(ready=st.sampled_from([1, 3, 2500]))
    def kill(self, ready: int) -> None:
        """End the process: what was finished since the last checkpoint may come again, in order;
        what was not finished comes."""
        old = self.core
        self.generation += 1
        self.restarts += 1
        path = self.base / str(self.generation)
        shutil.copytree(old.path, path)
        for each in old.clients:
            if not each.closed:
                each.transport.end()
        old.settle()
        old.close()
        unfinished = {each.number for each in self.model.all()}
        self.core = Core(path, now=7_000_000 * SECOND, wall=old.wall + SECOND, **self.settings)
        self.core.shard.load_topic(b"t", False, {"c": False})
        self.core.shard.load_topic(b"dead", False, {"d": False})
        self.consumers = []
        self.producer = self.core.client()
        for key in sorted(self.model.paused_keys) if self.model.rules.keyed else ():
            topic = self.core.topic("t")
            assert topic is not None
            assert topic.channels["c"].paused_keys.keys() == {
                each.encode() for each in self.model.paused_keys
            }
            topic.pause_key("c", key.encode(), False)
            self.model.paused_keys.remove(key)
        missing = unfinished - self.drain(ready) - self.buried()
        # Messages that were in flight count for the limits again.
        assert len(missing) <= self.channel.ledger()["dropped"]["full"]
        self.core.advance(10 * SECOND)  # no key is left that its rate blocks
        self.model = Channel(
            self.model.rules,
            self.core.now,
            self.core.wall,
            paused=False,
            paused_keys=self.model.paused_keys,
            arrivals=self.model.arrivals,
            far=self.far,
        )
        ledger = self.channel.ledger()
        self.damaged = ledger["dropped"]["damaged"]
        self.model.gone = ledger["dead_lettered"] + ledger["dropped"]["attempts"]
        self.compare()

    def buried(self) -> set[int]:
        """Return the messages that the crash may have left without another attempt."""
        if not self.max_attempts:
            return set()
        return {each.number for each in self.model.all() if each.attempts}

    def drain(self, ready: int) -> set[int]:
        """Consume everything, and check the order of each key; return what was received."""
        client = self.core.client(msg_timeout=TIMEOUT * 1000).subscribe("t", "c", ready)
        received: list[int] = []
        rules = self.model.rules
        for _ in range(1000):
            messages = client.messages()
            keys = [self.messages[json.loads(each.body)["n"]].key for each in messages]
            keys = [each for each in keys if each is not None]
            if rules.order:
                assert len(keys) == len(set(keys)), "two messages of a key are in flight"
            if rules.in_flight_per_key:
                assert all(keys.count(each) <= rules.in_flight_per_key for each in keys)
            for each in messages:
                received.append(json.loads(each.body)["n"])
                client.finish(each.id)
            self.core.settle()
            counters = self.core.counters("t", "c")
            if not (counters["depth"] or counters["in_flight_count"] or counters["deferred_count"]):
                break
            if not messages:
                self.core.advance(SECOND)
        else:
            raise AssertionError(f"not all messages come: {counters}")
        delayed = {each.number for each in self.messages.values() if each.delayed}
        for key in "abc" if rules.order else "":
            of_key = [n for n in received if self.messages[n].key == key and n not in delayed]
            assert of_key == sorted(of_key), f"key {key} came as {of_key}"
        client.transport.end()
        self.core.settle()
        return set(received)

    def limits_off(self) -> None:
        """Messages in flight wait after a restart, but limits drop them before or after their
        records are read."""
        rules = self.model.rules
        if (rules.max_depth or rules.depth_per_key) and (
            self.model.in_flight or self.model.deferred
        ):
            self.change(rules._replace(max_depth=0, depth_per_key=0))

    @rule(asleep=st.sampled_from([0, 2, 200]))
    def restart(self, asleep: int) -> None:
        self.limits_off()
        old = self.core
        self.disconnect_all()
        old.save()
        passed = asleep * SECOND + 1000  # later than any due time of equal delays
        wall = old.wall + passed
        self.core = Core(old.path, now=5_000_000 * SECOND, wall=wall, **self.settings)
        for name in ("t", "dead"):
            channel = {"c": self.model.paused} if name == "t" else {"d": False}
            self.core.shard.load_topic(name.encode(), False, channel)
        self.begin_again(self.core.now - old.now - passed)

    @precondition(lambda self: self.settings["memfd"])
    @rule()
    def die(self) -> None:
        """Kill the process between two turns; the next one finds its memory and its files."""
        self.limits_off()
        old = self.core
        self.disconnect_all()
        self.generation += 1
        remains = Remains(old, self.base / f"left{self.generation}")
        old.close()
        self.core = remains.next_core(**self.settings)
        remains.load(self.core)
        remains.end(self.core)
        self.begin_again(0)

    @precondition(lambda self: self.settings["memfd"] and self.model.rules.keyed)
    @rule()
    def hand_over(self) -> None:
        """Another process takes over all messages and all consumers."""
        self.limits_off()
        self.generation += 1
        self.core = hand_over(self.core, self.base / f"left{self.generation}", **self.settings)
        self.restarts += 1
        self.model.hand_over()
        self.core.settle()
        self.model.now, self.model.wall = self.core.now, self.core.wall
        self.model.advance(0)
        self.compare()

    def disconnect_all(self) -> None:
        """A message that is out of attempts is dead-lettered before the process ends."""
        for each in self.consumers:
            each.client.transport.end()
            self.model.disconnect(each, self.model.rules.order)
        self.core.settle()

    def begin_again(self, passed: int) -> None:
        """The messages are those of the process before. `passed`: jump of the monotonic clock."""
        self.restarts += 1
        self.model.restart(passed)
        self.damaged = self.model.gone = 0
        self.consumers = []
        self.producer = self.core.client()
        self.core.settle()
        self.model.now, self.model.wall = self.core.now, self.core.wall
        self.model.advance(0)
        self.compare()

    def teardown(self) -> None:
        if hasattr(self, "core"):
            for each in self.core.clients:
                if not each.closed:
                    each.transport.end()
            self.core.settle()
            self.core.close()
        shutil.rmtree(self.base)


KeyedMachine.TestCase.settings = settings(
    PROFILE,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
test_any_history = pytest.mark.slow(KeyedMachine.TestCase)


# -- histories that once failed --

USUAL: dict[str, Any] = {
    "mem_queue_size": 10000,
    "budget": 1 << 40,
    "durability": "os",
    "ttl": 0,
    "file_bytes": 100 << 20,
    "snapshot_budget": 4096,
    "retention": 0,
    "index_bytes": 1 << 40,
}


@pytest.fixture
def machine():
    made = KeyedMachine()
    yield made
    made.teardown()


def test_a_deletion_ends_with_a_delivery(machine):
    """The messages that it puts back need no room in the index, which was full."""
    small = {**USUAL, "index_bytes": 400, "mem_queue_size": 0, "file_bytes": 60_000}
    machine.begin(**small, rules=Rules(order=True, fair=True, in_flight_per_key=2, key_rate=0.5))
    wanted = ["ba-", "b", "a-", "accb-cabc-ac", "cbb-cb-cb", "a", "cbbb-abb"]
    for i, keys in enumerate(wanted):
        if i == 3:
            machine.subscribe(ready=2)
            machine.disconnect(which=0)
            machine.subscribe(ready=2500)
        padding = 3000 if i in (2, 3, 6) else 0
        many = [(None if each == "-" else each, 0) for each in keys]
        machine.publish_all(padding=padding, wanted=many)
    machine.delete(message=621)


def test_a_deletion_ends_although_messages_are_out_of_attempts(machine):
    """They leave the channel during the search, which counted them."""
    machine.begin(**USUAL, rules=Rules(fair=True, max_attempts=2, dead_letters=True))
    machine.publish_many(padding=0, wanted=[(each, 0) for each in "abcabca"])
    for ready in (7, 5):
        machine.subscribe(ready=ready)
        machine.restart(asleep=0)
    machine.delete(message=0)
    machine.subscribe(ready=2500)


def test_a_message_that_came_back_follows_records_that_are_gone(machine):
    """Its key is beyond the index, but no record before it waits any more."""
    small = {**USUAL, "index_bytes": 0, "file_bytes": 60_000, "snapshot_budget": 1}
    machine.begin(**small, rules=Rules(order=True, fair=True, key_rate=7.0, max_attempts=2))
    machine.flood(count=10, key=None, others="abc")
    machine.publish_many(padding=3000, wanted=[("c", 2), (None, 0), (None, 2), ("c", 0)])
    machine.subscribe(ready=5)
    machine.restart(asleep=200)
    machine.flood(count=10, key="b", others="abc")
    machine.flood(count=30, key=None, others="")
    machine.kill(ready=2500)
