"""Interfaces of other client libraries over nsqcy.client: a program only changes an import line."""
