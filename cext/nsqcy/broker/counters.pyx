"""The counters of topics and channels, for a process that takes over from a running one.

A process that replaces a dead one begins to count at 0. Counters that are 0 are not packed, because
the clients wait for every byte of JSON.
"""


cdef dict without_zeros(dict counters):
    return {name: count for name, count in counters.items() if count}


cdef dict counters_of_channel(Channel channel):
    ledger = channel.ledger()
    taken = [channel.taken[0], channel.taken[1], channel.taken[2]]
    return without_zeros({
        "messages": channel.message_count,
        "damaged": ledger["dropped"]["damaged"],
        "taken": taken if any(taken) else 0,
        "finished": channel.finish_count,
        "requeued": channel.requeue_count,
        "timed_out": channel.timeout_count,
        "sampled": channel.sampled_count,
        "overflow": channel.dropped_count,
        "full": channel.full_count,
        "emptied": channel.emptied_count,
        "expired": channel.expired_count,
        "cancelled": channel.cancelled_count,
        "dead_lettered": channel.dead_lettered_count,
        "attempts": channel.exhausted_count,
        "redriven": channel.redriven_count,
    })


cdef int restore_channel_counters(Channel channel, counters) except -1:
    cdef int64_t damaged
    channel.taken[0], channel.taken[1], channel.taken[2] = counters.get("taken", (0, 0, 0))
    channel.finish_count = counters.get("finished", 0)
    channel.requeue_count = counters.get("requeued", 0)
    channel.timeout_count = counters.get("timed_out", 0)
    channel.sampled_count = counters.get("sampled", 0)
    channel.dropped_count = counters.get("overflow", 0)
    channel.full_count = counters.get("full", 0)
    channel.emptied_count = counters.get("emptied", 0)
    channel.expired_count = counters.get("expired", 0)
    channel.cancelled_count = counters.get("cancelled", 0)
    channel.dead_lettered_count = counters.get("dead_lettered", 0)
    channel.exhausted_count = counters.get("attempts", 0)
    channel.redriven_count = counters.get("redriven", 0)
    channel.born_seq = channel.window.fanout.seq - <uint64_t>counters.get("messages", 0)
    # The ledger explains as many messages as before.
    damaged = channel.ledger()["dropped"]["damaged"]
    channel.cursor.carried += <uint64_t>(<int64_t>counters.get("damaged", 0) - damaged)
    return 0


def pack_counters(Shard shard not None):
    """Return the counters of all topics and channels, as JSON can contain them."""
    cdef Topic topic
    cdef Channel channel
    return {
        topic.name: without_zeros({
            "messages": topic.message_count,
            "bytes": topic.message_bytes,
            "full": topic.full_count,
            "overflow": topic.dropped_count,
            "expired": topic.expired_count,
            "duplicates": topic.duplicate_count,
            "early": topic.early_count,
            "channels": {
                channel.name: counters_of_channel(channel)
                for channel in topic.channels.values()},
        })
        for topic in shard.topics.values()}


def restore_counters(Shard shard not None, packed not None):
    """Continue to count, when all topics have been loaded. Topics and channels that do not exist
    are left out."""
    cdef Topic topic
    cdef Channel channel
    for name, counters in packed.items():
        topic = shard.find(name.encode())
        if topic is None:
            continue
        topic.message_count = counters.get("messages", 0)
        topic.message_bytes = counters.get("bytes", 0)
        topic.full_count = counters.get("full", 0)
        topic.dropped_count = counters.get("overflow", 0)
        topic.expired_count = counters.get("expired", 0)
        topic.duplicate_count = counters.get("duplicates", 0)
        topic.early_count = counters.get("early", 0)
        for channel_name, found in counters.get("channels", {}).items():
            channel = topic.channels.get(channel_name)
            if channel is not None:
                restore_channel_counters(channel, found)
