"""nsq_tail: prints messages from topics to stdout, one per line (nsqcy.tools.printer)."""

import sys
from collections.abc import Sequence

from nsqcy.tools import common
from nsqcy.tools.tail_options import NAME, NSQ_TAIL, resolve


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsq_tail and return the exit code."""
    return common.run(_main, NAME, argv)


def _main(argv: Sequence[str]) -> int:
    options = resolve(common.parse(NSQ_TAIL, argv))
    # asyncio and the client take longer to import than everything else, and --version does not need
    # them.
    import asyncio

    from nsqcy.tools.printer import print_topics

    asyncio.run(print_topics(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
