from nsqcy.client import *  # noqa: F403

__version__: str
NSQ_VERSION: str
