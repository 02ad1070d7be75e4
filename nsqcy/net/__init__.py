"""Addresses, listening sockets, and a connection's layers: TLS and compression."""
