"""The counters of topics and channels, for a process that takes over from a running one.

A process that replaces a dead one begins to count at 0.
"""


cdef dict counters_of_channel(Channel channel):
    ledger = channel.ledger()
    return {
        "messages": channel.message_count,
        "damaged": ledger["dropped"]["damaged"],
        "taken": [channel.taken[0], channel.taken[1], channel.taken[2]],
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
    }


cdef int restore_channel_counters(Channel channel, counters) except -1:
    cdef int64_t damaged
    channel.taken[0], channel.taken[1], channel.taken[2] = counters["taken"]
    channel.finish_count = counters["finished"]
    channel.requeue_count = counters["requeued"]
    channel.timeout_count = counters["timed_out"]
    channel.sampled_count = counters["sampled"]
    channel.dropped_count = counters["overflow"]
    channel.full_count = counters["full"]
    channel.emptied_count = counters["emptied"]
    channel.expired_count = counters["expired"]
    channel.cancelled_count = counters["cancelled"]
    channel.dead_lettered_count = counters["dead_lettered"]
    channel.exhausted_count = counters["attempts"]
    channel.redriven_count = counters["redriven"]
    channel.born_seq = channel.window.fanout.seq - <uint64_t>counters["messages"]
    # The ledger explains as many messages as before.
    damaged = channel.ledger()["dropped"]["damaged"]
    channel.cursor.carried += <uint64_t>(<int64_t>counters["damaged"] - damaged)
    return 0


def pack_counters(Shard shard not None):
    """Return the counters of all topics and channels, as JSON can contain them."""
    cdef Topic topic
    cdef Channel channel
    return {
        topic.name: {
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
        }
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
        topic.message_count = counters["messages"]
        topic.message_bytes = counters["bytes"]
        topic.full_count = counters["full"]
        topic.dropped_count = counters["overflow"]
        topic.expired_count = counters["expired"]
        topic.duplicate_count = counters["duplicates"]
        topic.early_count = counters["early"]
        for channel_name, found in counters["channels"].items():
            channel = topic.channels.get(channel_name)
            if channel is not None:
                restore_channel_counters(channel, found)
