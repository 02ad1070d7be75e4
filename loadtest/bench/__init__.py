"""Benchmarks of an nsqd: how fast, at which cost in CPU and memory.

python -m loadtest.bench [speed] [--help]     messages per second, CPU per message, latency;
                                              --help has the list of scenarios
python -m loadtest.bench all [--help]         that, and other brokers beside it: docs/BENCHMARKS.md
python -m loadtest.bench memory [--help]      bytes per message, a topic, a connection
"""
