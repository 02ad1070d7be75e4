"""nsqcy: a drop-in NSQ for Python shops.

Owns the two version numbers: our own, and the NSQ version we are compatible with, which clients
and harnesses read to decide what the daemon can do.
"""

__version__ = "0.1.0"
NSQ_VERSION = "1.3.0"
