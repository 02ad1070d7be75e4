"""Processes: start, watch and stop workers, and pass sockets to them. Independent of topics."""
