"""Soak and chaos: a private cluster under mixed load while it is hurt by a seeded schedule.

    python -m loadtest.chaos --minutes=30 --seed=1

What has to hold afterwards, and which fault is what: docs/LOADTEST.md, "Half an hour of chaos".
"""
