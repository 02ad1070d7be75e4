"""What is measured, by name."""

from dataclasses import dataclass

from loadtest.bench.scenarios import encoded, latency, later, many, scaling, throughput
from loadtest.bench.speed import Runs


@dataclass(frozen=True)
class Scenario:
    runs: Runs
    about: str
    quick: bool = False  # one of those that run when none is named


SCENARIOS = {
    "batches": Scenario(throughput.batches, "MPUB, then SUB+FIN; the floor beside each", True),
    "pipe": Scenario(throughput.pipe, "PUB, 100 unanswered; the floor beside it", True),
    "wait": Scenario(
        throughput.wait, "PUB, 50 that wait for OK, on 1 and 2 workers; the floor", True
    ),
    "through": Scenario(throughput.through, "publish and consume at once", True),
    "latency": Scenario(
        latency.latency, "open loop at 1 k, 20 k and 200 k messages a second", True
    ),
    "disk": Scenario(throughput.disk, "overflow to disk, and back", True),
    "memory": Scenario(many.queued, "memory of a queued message", True),
    "idle": Scenario(many.idle, "memory of an idle connection", True),
    "fanout": Scenario(many.fanout, "1, 10 and 50 channels, all copies queued", True),
    "http": Scenario(throughput.http, "POST /pub on 32 keep-alive connections", True),
    "requeues": Scenario(later.requeues, "every message handed back several times"),
    "deferred": Scenario(later.deferred, "a million messages due over a minute"),
    "young": Scenario(later.young, "10,000 new channels with one deferred message each"),
    "topics": Scenario(many.topics, "10,000 topics with a message each"),
    "consumers": Scenario(many.consumers, "2,000 consumers of one channel, RDY 1"),
    "bodies": Scenario(throughput.bodies, "messages of 100 KB and 1 MB"),
    "tls": Scenario(encoded.tls, "publish and consume through TLS"),
    "snappy": Scenario(encoded.snappy, "publish and consume through snappy"),
    "foreign": Scenario(encoded.foreign, "a TLS consumer of another worker's topic"),
    "workers": Scenario(scaling.workers, "1, 4 and 16 topics on 1, 2 and 4 workers"),
    "scaling": Scenario(scaling.scaling, "4 topics: CPU on 2 workers over CPU on 1"),
    "hot": Scenario(
        scaling.hot, "one topic: 4 channels, 8 consumers, 50 publishers, 1 to 4 workers"
    ),
}
