"""Soak and chaos: a private cluster under mixed load, with faults from a seeded schedule.

    python -m loadtest.chaos --minutes=30 --seed=1

For the guarantees and the faults see docs/LOADTEST.md, "Half an hour of chaos".
"""
