"""Whether tests run under AddressSanitizer (`make asan`; docs/TESTING.md)."""

import os

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
