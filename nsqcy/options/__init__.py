"""Option declarations, and kinds of value that are parsed from plain text.

Spark's executors run these modules without the rest of nsqcy, so they import nothing else from
nsqcy.
"""
