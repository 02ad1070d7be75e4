"""What was measured, and capacities are computed from. Written by `make conf`, from
docs/benchmarks.json and docs/PERFORMANCE.md."""

from nsqcy.capacity.figure import Figure

MACHINE = "Intel(R) Xeon(R) Processor, 2 cores, 2026-11-21"
PUBLISH = Figure(0.0842, "µs", "MPUB x200, 2 conn")
PUBLISH_OVERFLOW = Figure(0.2765, "µs", "MPUB x200, to disk")
PUBLISH_OS = Figure(0.2189, "µs", "MPUB x200, 2 conn, os")
PUBLISH_FSYNC = Figure(0.3419, "µs", "MPUB x200, 2 conn, fsync")
PUBLISH_ALONE = Figure(4.288, "µs", "PUB, wait for OK, 50 conn, 1 worker")
PUBLISH_TLS = Figure(0.3358, "µs", "MPUB x200, 1 conn, tls")
DELIVER = Figure(0.1151, "µs", "SUB+FIN RDY 2500, 2 conn")
DELIVER_OVERFLOW = Figure(0.2381, "µs", "SUB+FIN, from disk")
DELIVER_ALONE = Figure(8.152, "µs", "2,000 consumers with RDY 1")
DELIVER_TLS = Figure(0.3613, "µs", "SUB+FIN RDY 2500, 1 conn, tls")
LARGE = Figure(75.33, "µs", "bodies of 100 KB, in and out")
DEFER = Figure(1.551, "µs", "DPUB, 1,000,000 deferred")
DUE = Figure(32.8, "µs", "... due over 60 s")
SLOW = Figure(55.36, "µs", "latency at 1 k msg/s")
STEADY = Figure(17.43, "µs", "latency at 20 k msg/s")
FAST = Figure(2.482, "µs", "latency at 200 k msg/s")
WORKERS = Figure(1.189, "x", "4 topics, 2 workers")
PROCESSES = Figure(62279680, "B", "latency at 1 k msg/s")
QUEUED = Figure(240.2, "B", "messages queued")
CONNECTION = Figure(1652, "B", "idle subscribed connections")
TOPIC = Figure(6447, "B", "10,000 new topics")
CHANNEL = Figure(9651, "B", "10,000 channels, 1 deferred each")
DEFERRED = Figure(58, "B", "a deferred message, PERFORMANCE.md")
DEFERRED_JOURNAL = Figure(48, "B", "a deferred message in the journal, PERFORMANCE.md")
IN_FLIGHT = Figure(80, "B", "a message in flight, PERFORMANCE.md")
TLS_CONNECTION = Figure(27400, "B", "an idle TLS connection, PERFORMANCE.md")
