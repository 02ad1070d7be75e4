"""Processes: start, watch, feed sockets to and stop workers. Knows no topic."""
