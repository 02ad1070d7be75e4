"""Simulation of nsqcy.copies: nodes, disks, a registry and a network under a seeded scheduler.

`python -m simulation --help` runs many schedules.
"""
