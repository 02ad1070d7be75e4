"""Load tests with locust, against any NSQ cluster: docs/LOADTEST.md.

    locust -f loadtest/swarm/locustfile.py --headless -u 20 -t 60s      a running cluster
    python -m loadtest.swarm                                            a private cluster

Measures NSQ under the load of real clients, message by message, with latencies measured from each
message's due time and a ledger of published and delivered messages. To measure a daemon's maximum
throughput, use loadtest.bench: the clients here take more CPU time than nsqd does.
"""
