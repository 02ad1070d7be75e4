"""The NSQ topics and channels that represent kombu's queues and exchanges.

A queue is a topic, plus one topic for each further priority. A fanout or topic exchange is an
ephemeral topic, and so is a temporary queue on a direct exchange.
"""

import bisect
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kombu.transport import virtual

from nsqcy.integrations.kombu.settings import Options
from nsqcy.integrations.queue_names import nsq_name


@dataclass(frozen=True, slots=True)
class Source:
    """A topic and a channel that hold a queue's messages."""

    topic: str
    channel: str
    wanted: Callable[[str], bool] | None = None  # by routing key
    news: bool = False  # the subscription must not receive older messages
    step: int = 0  # index among the queue's priorities


class Topics:
    """Routes of one kombu channel. `temporary`: names of auto-delete and exclusive queues."""

    def __init__(self, channel: virtual.Channel, options: Options, temporary: set[str]) -> None:
        self._channel = channel
        self._options = options
        self._temporary = temporary

    def of_queue(self, queue: str, priority: int = 0) -> str:
        """Return the topic of a queue for messages with this priority."""
        return self._of_step(queue, self._step(priority))

    def all_of_queue(self, queue: str) -> list[str]:
        """Return the topics of a queue, in the order of its priorities."""
        return [self._of_step(queue, step) for step in self._options.priority_steps]

    def _step(self, priority: int) -> int:
        steps = self._options.priority_steps
        return steps[max(0, bisect.bisect_right(steps, priority) - 1)]

    def _of_step(self, queue: str, step: int) -> str:
        is_first = step == self._options.priority_steps[0]
        return nsq_name(self._options.topic_prefix + queue + ("" if is_first else f".p{step}"))

    def _of_broadcasts(self, exchange: str) -> str:
        return nsq_name(f"{self._options.topic_prefix}{exchange}", ephemeral=True)

    def _of_replies(self, exchange: str, routing_key: str) -> str:
        name = f"{self._options.topic_prefix}{exchange}.{routing_key}"
        return nsq_name(name, ephemeral=True)

    def of_message(self, exchange: str, routing_key: str, priority: int) -> list[str]:
        """Return the topics to which a message is published."""
        if not exchange:
            return [self.of_queue(routing_key, priority)]
        kind = self._channel.typeof(exchange)
        if kind.type == "fanout":
            return [self._of_broadcasts(exchange)]
        try:
            table = self._channel.get_table(exchange)
        except KeyError:
            table = []
        bound = [each for each in table if each[2] not in self._temporary]
        if queues := kind.lookup(bound, exchange, routing_key, None):
            return [self.of_queue(each, priority) for each in sorted(queues)]
        if kind.type == "topic":
            return [self._of_broadcasts(exchange)]
        return [self._of_replies(exchange, routing_key)]

    def sources(self, queue: str) -> list[Source]:
        """Return the topics and channels of a queue's messages."""
        is_temporary = queue in self._temporary
        own = nsq_name(f"celery-{uuid.uuid4().hex[:16]}", ephemeral=True)
        found: dict[str, Source] = {}
        patterns: dict[str, list[str]] = {}
        is_stored = False
        for binding in list(self._channel.state.queue_bindings(queue)):
            exchange, routing_key = binding.exchange, binding.routing_key
            kind = self._channel.typeof(exchange)
            if kind.type == "fanout":
                topic = self._of_broadcasts(exchange)
                found[topic] = Source(topic, own, news=True)
            elif not is_temporary:
                is_stored = True
            elif kind.type == "topic":
                topic = self._of_broadcasts(exchange)
                patterns.setdefault(topic, []).append(kind.key_to_pattern(routing_key))
                found[topic] = Source(topic, own, _matcher(kind, patterns[topic]), news=True)
            else:
                topic = self._of_replies(exchange, routing_key)
                found[topic] = Source(topic, own)
        if is_stored or not found:
            for step in self._options.priority_steps:
                topic = self._of_step(queue, step)
                found[topic] = Source(topic, nsq_name(self._options.channel), step=step)
        return list(found.values())


def _matcher(kind: Any, patterns: list[str]) -> Callable[[str], bool]:
    return lambda key: any(kind._match(each, key) for each in patterns)
