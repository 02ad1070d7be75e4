"""The comparison of the state memory with the live topics, which Core.settle() makes."""

from pathlib import Path

from nsqcy.broker.core import memory_differences
from support.worker_core import RESPONSE, Core, mpub

MANY = 30_000  # messages; freeing them takes several turns


def test_messages_of_an_emptied_channel_end_at_once(tmp_path: Path) -> None:
    core = Core(tmp_path, memfd=True, mem_queue_size=100_000)
    core.create("t").channel("c")
    consumers = [core.client().subscribe("t", "c", 2500) for _ in range(12)]
    assert core.client().ask(mpub("t", [b"x"] * MANY)) == (RESPONSE, b"OK")
    core.settle()
    assert core.pool.entries == MANY
    topic = core.topic("t")
    assert topic is not None
    topic.empty_channel("c")
    assert core.pool.entries > 0, "most messages are not freed yet"
    assert memory_differences(core.shard) == []
    core.settle()
    assert core.pool.entries == 0
    for consumer in consumers:
        consumer.transport.end()
    core.close()
