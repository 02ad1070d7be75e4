"""Processes: start, watch and stop workers, and pass sockets to them. Knows no topic."""
