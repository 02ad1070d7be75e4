"""Benchmarks of an nsqd: how fast, at which cost in CPU and memory.

python -m loadtest.bench [speed] [--help]     messages a second, CPU a message, latency;
                                              --help has the list of scenarios
python -m loadtest.bench all [--help]         that, and other brokers beside it: docs/BENCHMARKS.md
python -m loadtest.bench memory [--help]      bytes a message, a topic, a connection
"""
