"""Interfaces of other client libraries on top of nsqcy.client: a program needs to change only an
import line."""
