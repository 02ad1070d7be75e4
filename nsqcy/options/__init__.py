"""Declarations of options: what one is, and kinds of value that are read from plain text.

Executors of Spark run these modules without the rest of nsqcy, so they import nothing of it.
"""
