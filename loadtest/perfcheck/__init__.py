"""Instructions that a message takes: a guard against work that slips into the hot paths.

python -m loadtest.perfcheck [--help] counts under callgrind, and compares with figures.json

It uses no clock: the same build counts the same on a busy machine.
"""
