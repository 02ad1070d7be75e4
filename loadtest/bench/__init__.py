"""Benchmarks of nsqd: speed, CPU time and memory.

python -m loadtest.bench [speed] [--help]     messages per second, CPU per message, latency;
                                              --help has the list of scenarios
python -m loadtest.bench all [--help]         the same, and other brokers: docs/BENCHMARKS.md
python -m loadtest.bench memory               memory per message, topic and connection
python -m loadtest.bench clients [--help]     Python clients, one process each
python -m loadtest.bench tasks [--help]       Celery on nsqd, Redis and RabbitMQ
"""
