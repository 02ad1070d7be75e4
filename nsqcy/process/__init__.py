"""Processes: starts, watches and stops workers, and passes sockets to them. Independent of
topics."""
