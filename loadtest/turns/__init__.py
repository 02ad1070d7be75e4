"""The longest iteration of every daemon's event loop, for every command and route.

    python -m loadtest.turns [--small] [--only nsqd:publishing]

prints a table: each command or route with the largest input that is allowed, and the CPU time of
the longest iteration. tests/daemon/test_longest_turns.py runs it with less state.
"""
