"""How many instructions a message takes: a guard against work that slips into the hot paths.

python -m loadtest.perfcheck [--help]     counts under callgrind, and compares with figures.json

No clock is in it: the same build counts the same on a busy machine.
"""
