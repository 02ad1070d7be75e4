"""Soak and chaos test: a private cluster under mixed load, with faults from a seeded schedule.

    python -m loadtest.chaos --minutes=30 --seed=1

For the guarantees and the faults, see "Half an hour of chaos" in docs/LOADTEST.md.
"""
