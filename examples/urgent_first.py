"""Urgent messages first: a password reset does not wait for a newsletter.

    nsqcy up                      # in another terminal
    python examples/urgent_first.py

nsqd delivers the highest priority first. Newsletters keep a share of the deliveries, so they do
not starve. The priority comes from the JSON body; a message without one has the priority 0.
"""

import json
import os

from nsqcy import Consumer, NsqdAdmin, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")
NEWSLETTERS, RESETS = 200, 100

admin = NsqdAdmin(HTTP)
admin.topic_policy("push", priority="json:/priority")
admin.channel_policy("push", "senders", urgent_first=True, priority_share=0.1)
admin.create_channel("push", "senders")

with Producer(TCP, codec="json") as producer:
    for _ in range(NEWSLETTERS):
        producer.publish("push", {"text": "newsletter"})
    for _ in range(RESETS):
        producer.publish("push", {"text": "password reset", "priority": 9})

texts: list[str] = []
with Consumer("push", "senders", TCP) as consumer:
    while len(texts) < NEWSLETTERS + RESETS:
        message = consumer.get(timeout=10)
        assert message is not None
        texts.append(json.loads(message.body)["text"])
        message.finish()

last = len(texts) - texts[::-1].index("password reset")
share = texts[:last].count("newsletter") / last
print(f"deliveries until the last password reset: {last}")
print(f"share of newsletters among them: {share:.0%}")
