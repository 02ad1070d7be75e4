"""Interfaces of other client libraries on top of nsqcy.client: a program changes only an import
line."""
