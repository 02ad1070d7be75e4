"""Message headers: a trace id that travels with a message.

    nsqcy up                      # in another terminal
    python examples/headers.py

Producers and consumers must request headers. A consumer that does not request them receives only
the body, so clients without support for headers can read the same topic.
"""

import os
import uuid

from nsqcy import Consumer, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")

trace_id = uuid.uuid4().hex
with Producer(TCP, headers=True) as producer:
    producer.publish("payments", b'{"amount": 25}', headers={"trace-id": trace_id})

with Consumer("payments", "ledger", TCP, headers=True) as consumer:
    for message in consumer:
        print("the same trace id:", message.headers["trace-id"] == trace_id)
        message.finish()
        break
