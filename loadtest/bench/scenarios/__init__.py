"""The scenarios, by name."""

from loadtest.bench.scenarios import (
    beside,
    brokers,
    copies,
    curves,
    durable,
    encoded,
    first_pages,
    keys,
    latency,
    later,
    lookups,
    many,
    pages,
    replay,
    scaling,
    spark,
    strangers,
    tenants,
    throughput,
)
from loadtest.bench.speed import Scenario

SCENARIOS = {
    "batches": Scenario(throughput.batches, "MPUB, then SUB+FIN; the floor beside each", True, 12),
    "pipe": Scenario(throughput.pipe, "PUB, 100 unanswered; the floor beside it", True, 8),
    "wait": Scenario(
        throughput.wait, "PUB, 50 that wait for OK, on 1 and 2 workers; the floor", True, 22
    ),
    "through": Scenario(throughput.through, "publish and consume at once", True, 8),
    "latency": Scenario(
        latency.latency, "open loop at 1 k, 20 k and 200 k messages per second", True, 42
    ),
    "disk": Scenario(throughput.disk, "overflow to disk, and back", True, 8),
    "durable": Scenario(durable.durable, "MPUB in each class", True, 20),
    "synced": Scenario(brokers.synced, "fsync beside other brokers", True, 30),
    "copies": Scenario(
        copies.copies, "1, 2 and 3 copies; replicas of other brokers; a takeover", False, 100
    ),
    "recovery": Scenario(
        brokers.recovery, "kill -9 with logs of several sizes, beside other brokers", long=True
    ),
    "queues": Scenario(
        brokers.queues, "2,000 topics with a message each, beside other brokers", long=True
    ),
    "clients": Scenario(brokers.clients, "5,000 idle connections, beside other brokers", long=True),
    "memory": Scenario(many.queued, "memory of a queued message", True, 12),
    "idle": Scenario(many.idle, "memory of an idle connection", True, 8),
    "fanout": Scenario(many.fanout, "1, 10 and 50 channels, all copies queued", True, 30),
    "http": Scenario(throughput.http, "POST /pub on 32 keep-alive connections", True, 7),
    "requeues": Scenario(later.requeues, "every message handed back several times", False, 14),
    "deferred": Scenario(later.deferred, "a million messages due over a minute", False, 75),
    "young": Scenario(later.young, "10,000 new channels with one deferred message each", False, 25),
    "topics": Scenario(many.topics, "10,000 topics with a message each", False, 14),
    "consumers": Scenario(many.consumers, "2,000 consumers of one channel, RDY 1", False, 12),
    "bodies": Scenario(throughput.bodies, "messages of 100 KB and 1 MB", False, 10),
    "encoded": Scenario(
        encoded.encoded, "PUB, MPUB and SUB+FIN through TLS, snappy and deflate", True, 45
    ),
    "foreign": Scenario(
        encoded.foreign,
        "a TLS consumer of another worker's topic, beside one of its own",
        False,
        15,
    ),
    "replay": Scenario(replay.replay, "retention, and a reader beside consumers", False, 25),
    "scaling": Scenario(scaling.scaling, "4 topics: CPU on 2 workers over CPU on 1", False, 15),
    "hot": Scenario(
        scaling.hot,
        "one topic: 4 channels, 8 consumers, 50 publishers, 1 to 4 workers",
        False,
        40,
    ),
    "keys": Scenario(keys.keys, "channels with rules for keys, publishing once", long=True),
    "tenants": Scenario(
        tenants.tenants,
        "a tenant that floods, order, urgent messages, beside other brokers",
        long=True,
    ),
    "curves": Scenario(
        curves.curves, "cost while messages, topics, channels, ... grow; FULL", long=True
    ),
}

# Scenarios that run only on request; their rows are not on the page.
UNRECORDED = {
    "misbehaving": Scenario(
        beside.misbehaving, "latency beside abusive clients and many TLS handshakes", False, 120
    ),
    "polled": Scenario(
        beside.polled, "cost of /metrics and /stats of 1,000 topics, and latency beside", False, 120
    ),
    "restarts": Scenario(
        later.restarts, "kill -9 with a million messages deferred for a month, or a minute"
    ),
    "pages": Scenario(pages.pages, "nsqadmin's page and samples of 500 topics on many nsqds"),
    "first_pages": Scenario(
        first_pages.first_pages, "nsqadmin's pages and `nsqcy top` with 100,000 topics on one nsqd"
    ),
    "many_idle": Scenario(
        many.many_idle, "200,000 idle connections: rate of arrival, memory, heartbeats"
    ),
    "lookups": Scenario(
        lookups.lookups, "nsqlookupd with 100,000 topics of 100 nsqds: latency of lookups"
    ),
    "strangers": Scenario(
        strangers.strangers, "memory of connections before they have authenticated"
    ),
    "spark": Scenario(spark.spark, "Spark reads, writes, streams; seeks in a log of 10 GB"),
    "pipeline": Scenario(spark.pipeline, "archive, replay and rollup of nsqcy-pipeline"),
}
