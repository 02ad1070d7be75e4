"""Parts of a load test, as received from another of its processes."""

import json
from typing import Any


def over_the_wire(taken: Any) -> Any:
    """Encode and decode as a worker does: bytes and integers are kept, tuples become lists."""
    return json.loads(
        json.dumps(taken, default=lambda found: {"bytes": found.hex()}),
        object_hook=lambda found: bytes.fromhex(found["bytes"]) if "bytes" in found else found,
    )
