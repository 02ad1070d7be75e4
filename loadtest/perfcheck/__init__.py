"""Instructions per message: a guard against additional work in the hot paths.

`python -m loadtest.perfcheck [--help]` counts under callgrind, and compares with figures.json.

It uses no clock: the same build gives the same counts even on a busy machine.
"""
