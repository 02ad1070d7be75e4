"""nsqcy: a drop-in NSQ for Python shops.

Owns two version numbers: nsqcy's own, and that of the NSQ release that it is compatible with.
Clients and test harnesses read the second one to determine what the daemon can do.
"""

__version__ = "0.1.0"
NSQ_VERSION = "1.3.0"
