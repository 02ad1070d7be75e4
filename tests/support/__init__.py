"""Helpers that tests share: `from support.wire_client import Conn`."""
