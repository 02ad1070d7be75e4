"""Declarations of options, and kinds of value that are parsed from plain text.

Spark's executors run these modules without the rest of nsqcy, so the modules import nothing of it.
"""
