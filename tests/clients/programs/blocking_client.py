"""A consumer using nsqcy.client, with threads."""

import sys
import threading

from common import arguments, emit, sources, upgrades

from nsqcy.client import Consumer

args = arguments()
with Consumer(
    args.topic,
    args.channel,
    max_in_flight=args.rdy,
    max_tries=0,
    heartbeat_interval=args.heartbeat,
    auth_secret=args.secret,
    **sources(args),
    **upgrades(args),
) as consumer:

    def close_at_end() -> None:
        sys.stdin.buffer.read()
        consumer.close()

    threading.Thread(target=close_at_end, daemon=True).start()
    for message in consumer:
        emit(message.timestamp, message.attempts, message.id, message.body)
        message.finish()
