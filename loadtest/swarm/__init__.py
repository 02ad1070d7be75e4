"""Load tests with locust, against any NSQ cluster: docs/LOADTEST.md.

    locust -f loadtest/swarm/locustfile.py --headless -u 20 -t 60s      a cluster that runs
    python -m loadtest.swarm                                            a private one

What an NSQ does under the load of real clients, message by message, with latencies from when each
was due and a ledger of what was published and delivered. For the most a daemon can do there is
loadtest.bench: these clients cost more CPU time than nsqd does.
"""
