"""The `nsqcy` command (nsqcy.cli.main)."""

import sys

from nsqcy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
