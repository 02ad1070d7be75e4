"""Read dead letters, and return them to the channel that they came from.

    nsqcy up                      # in another terminal
    python examples/worker.py     # in a third terminal; orders that fail become dead letters
    python examples/dead_letters.py

The headers of a dead letter state its origin, its number of attempts, and why it was moved.
"""

import os

from nsqcy import NsqdAdmin

admin = NsqdAdmin(os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151"))

# View the messages without consuming them.
for message in admin.peek("orders-dead", "inspect"):
    headers = message.headers
    print(
        f"from {headers['origin-topic']}/{headers['origin-channel']}: "
        f"{headers['attempts']} attempts, reason {headers['reason']}: {message.body!r}"
    )

# Once the cause is fixed, return all of them. nsqd does this in the background.
print(f"messages to put back: {admin.redrive('orders-dead', 'inspect')}")
