"""The state memory of a core, compared with its topics (nsqcy.broker.core.memory_differences)."""

from nsqcy.broker.core import Shard, discarded_differences, memory_differences


def check_memory(shard: Shard) -> None:
    """Check that a process that died now would leave exactly what the shard has."""
    if not shard.pool.state.memfd:
        return
    differences = memory_differences(shard)
    assert not differences, "\n".join(differences)


def check_discarded(shard: Shard) -> None:
    """Check that a process that died now would leave none of the messages that are being freed."""
    differences = discarded_differences(shard)
    assert not differences, "\n".join(differences)
