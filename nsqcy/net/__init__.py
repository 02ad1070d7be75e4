"""Addresses, listening sockets, and byte layers between a socket and its protocol."""
