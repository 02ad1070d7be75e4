"""Interfaces of other client libraries on top of nsqcy.client: a program only needs to change an
import line."""
