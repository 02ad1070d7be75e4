"""One run: load on a daemon, and cycles in which some of its processes are killed and restarted.

The seed determines the kills and the clients' actions; their results depend on the machine.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psutil

from crash.checker import Findings, check
from crash.clients import HttpPublisher, Subscriber, TcpPublisher
from crash.history import Created, Died, Event, story
from loadtest.many_clients import Loop, owners
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd, free_port

TOPICS = ["a", "b", "c"]  # in the order of their placement at startup
CHANNELS = ["x", "y"]
NAMES = len(TOPICS) * (1 + len(CHANNELS))
SYNC_TIMEOUT_MS = 200
OPTIONS = {
    "max_bytes_per_file": 300_000,  # a few segments in each cycle
    "msg_timeout": "2s",  # messages of a dead consumer time out soon
    "sync_timeout": f"{SYNC_TIMEOUT_MS}ms",
    "log_level": "warn",
}
# Small journals are written at the next full second, so at most a second later. A busy machine may
# add a delay.
CHECKPOINT = SYNC_TIMEOUT_MS / 1000 + 1.0 + 5.0
MAX_LOAD = 0.5
MAX_START = 0.4
MIN_LIFE = 0.05
LATE_CHANNEL = "z"
BRIEF_CHANNEL = "w"
DEATHS_IN_A_ROW = 3  # repeated deaths of a worker delay each restart further
STORIES = 3


def fixed_addresses() -> dict[str, object]:
    """Return options that keep the daemon's addresses across restarts. The daemon logs too little
    to announce its ports."""
    return {
        "announced": False,
        "tcp_address": f"127.0.0.1:{free_port()}",
        "http_address": f"127.0.0.1:{free_port()}",
    }


class Trial:
    """Daemon under load, and its history."""

    publisher_kinds: ClassVar[tuple[type[TcpPublisher | HttpPublisher], ...]] = (
        TcpPublisher,
        HttpPublisher,
    )
    subscriber_kind: ClassVar[type[Subscriber]] = Subscriber

    def __init__(self, daemon: Nsqd, workers: int, seed: int) -> None:
        self.daemon = daemon
        self.seed = seed
        self.random = random.Random(seed)
        self.owner = owners(workers, TOPICS)
        self.events: list[Event] = []
        self.deaths = [0] * workers  # number since the master was started
        for topic in TOPICS:
            for channel in CHANNELS:
                self.create(topic, channel)
        # A message of class memory may be lost if its topic and channels are not yet in nsqd.dat.
        eventually(lambda: (daemon.data / "nsqd.dat").read_text().count('"name"') == NAMES)
        self.pids = daemon.workers()
        log = self.events.append
        self.publishers = [
            kind(daemon, log, topic, f"{kind.__name__}-{topic}-{seed}")
            for topic in TOPICS
            for kind in self.publisher_kinds
        ]
        self.subscribers: list[Subscriber] = []
        self.reading: list[Loop] = []
        self.late = list(TOPICS)  # topics that may still receive another channel

    def create(self, topic: str, channel: str) -> None:
        self.daemon.web.create(topic, channel)
        self.events.append(Created(time.monotonic(), topic, channel))

    # load

    @contextmanager
    def load(self) -> Iterator[None]:
        """Publish and consume until the block ends, then drain every channel."""
        for topic in TOPICS:
            for channel in CHANNELS:
                self.subscribe(topic, channel)
        writing = [Loop(each.step) for each in self.publishers]
        yield
        for loop in writing:
            loop.stop()
        for each in self.subscribers:
            each.patient = False
        eventually(self.is_drained, 60)
        for loop in self.reading:
            loop.stop()
        for client in [*self.publishers, *self.subscribers]:
            client.hang_up()

    def subscribe(self, topic: str, channel: str) -> None:
        seed = f"{topic}-{channel}-{self.seed}"
        self.subscribers.append(
            self.subscriber_kind(self.daemon, self.events.append, topic, channel, seed)
        )
        self.reading.append(Loop(self.subscribers[-1].step))

    def is_drained(self) -> bool:
        """Return whether nothing is queued, in flight or deferred."""
        figures = [self.daemon.web.counts(topic) for topic in TOPICS]
        if not all(figures):
            return False  # a topic's worker is restarting
        channels = [channel for each in figures for channel in each["channels"]]
        return not any(each["depth"] for each in [*figures, *channels]) and not any(
            each["in_flight_count"] or each["deferred_count"] for each in channels
        )

    def await_progress(self) -> None:
        """Wait until each publisher gets another answer and each channel another delivery."""
        clients = [*self.publishers, *self.subscribers]
        before = [client.progress for client in clients]
        eventually(
            lambda: all(c.progress > was for c, was in zip(clients, before, strict=True)), 30
        )

    # deaths

    def cycle(self) -> None:
        """Wait for progress, then kill something and let it recover."""
        self.await_progress()
        time.sleep(self.random.uniform(0, MAX_LOAD))
        self.strike()

    def cycle_with_a_new_channel(self) -> None:
        """Run a cycle right after creating a channel. Its first consumer connects after the
        recovery, because SUB would create a missing channel."""
        self.await_progress()
        topic = self.late.pop(self.random.randrange(len(self.late)))
        self.create(topic, LATE_CHANNEL)
        time.sleep(self.random.uniform(0, MIN_LIFE))
        self.strike()
        self.subscribe(topic, LATE_CHANNEL)

    def cycle_with_answered_changes(self) -> None:
        """Pause a channel, and later delete it, right before a process is killed: neither is
        undone."""
        self.await_progress()
        web, topic = self.daemon.web, self.random.choice(TOPICS)
        web.create(topic, BRIEF_CHANNEL)
        web.do("pause", topic, BRIEF_CHANNEL)
        self.strike()
        assert self.channels(topic)[BRIEF_CHANNEL]["paused"], self.seed
        self.daemon.web.do("delete", topic, BRIEF_CHANNEL)
        self.strike()
        assert BRIEF_CHANNEL not in self.channels(topic), self.seed

    def channels(self, topic: str) -> dict[str, Any]:
        """Return a topic's channels, once its worker is up."""
        found = eventually(lambda: self.daemon.web.topic(topic), 30)
        return {channel["channel_name"]: channel for channel in found["channels"]}

    def strike(self) -> None:
        kind = self.random.choice(["worker", "worker", "master", "all", "starting"])
        victim = self.random.randrange(len(self.pids))
        if kind == "worker" and self.deaths[victim] < DEATHS_IN_A_ROW:
            self.kill_worker(victim)
        elif kind == "master":
            self.kill_master()
        else:
            self.kill_all()
            if kind == "starting":
                self.kill_a_start()
            self.start()

    def kill_worker(self, index: int) -> None:
        pid = self.pids[index]
        ports = {each.raddr.port for each in psutil.Process(pid).net_connections() if each.raddr}
        its = frozenset(topic for topic in TOPICS if self.owner[topic] == index)
        cut_off = [each for each in self.subscribers if each.topic in its or each.port in ports]

        def successors() -> list[int]:
            return [pid for pid in self.daemon.workers() if pid not in self.pids]

        with self.death(its, cut_off):
            os.kill(pid, signal.SIGKILL)
        self.pids[index] = eventually(successors, 20)[0]
        self.deaths[index] += 1

    def kill_master(self) -> None:
        """Kill the master: the workers save their state, and the next nsqd waits for them."""
        with self.death(saved=True):
            self.daemon.kill()
        self.start()

    def kill_all(self) -> None:
        with self.death():
            os.killpg(self.daemon.process.pid, signal.SIGKILL)
            self.daemon.wait()

    def kill_a_start(self) -> None:
        with self.death():
            self.daemon.launch()
            time.sleep(self.random.uniform(0, MAX_START))
            os.killpg(self.daemon.process.pid, signal.SIGKILL)
            self.daemon.wait()

    def restart(self) -> None:
        """Stop the daemon cleanly and start it again."""
        with self.death(saved=True):
            self.daemon.stop()
        self.start()

    @contextmanager
    def death(
        self,
        topics: frozenset[str] = frozenset(TOPICS),
        cut_off: list[Subscriber] | None = None,
        saved: bool = False,
    ) -> Iterator[None]:
        """Record the death of processes once everything that they sent has been read. Until then,
        answers of consumers go to the dead processes and have no effect."""
        began = time.monotonic()
        # The consumers of a killed worker can connect to another one at once.
        conns = {each: each.conn for each in cut_off or ()}
        yield
        if cut_off is None:
            conns = {each: each.conn for each in self.subscribers}
        eventually(lambda: not any(conn and each.conn is conn for each, conn in conns.items()))
        self.events.append(Died(time.monotonic(), began, topics, saved))

    def start(self) -> None:
        self.daemon.start()
        self.pids = self.daemon.workers()
        self.deaths = [0] * len(self.pids)

    # the end

    def findings(self, *, keeps: bool) -> dict[tuple[str, str], Findings]:
        """Return the checker's findings; if a guarantee is violated, fail with the events of the
        messages involved."""
        findings = check(self.events, checkpoint=CHECKPOINT, keeps=keeps)
        told = [
            f"{topic}/{channel}: {len(messages)} {name}, as\n{story(self.events, topic, message)}"
            for (topic, channel), found in findings.items()
            for name, messages in found.broken().items()
            for message in messages[:STORIES]
        ]
        assert not told, "\n".join(told)
        return findings
