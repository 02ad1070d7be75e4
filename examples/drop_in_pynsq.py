"""A pynsq program on nsqcy's client: only the import is different.

    nsqcy up                      # in another terminal
    python examples/drop_in_pynsq.py
    curl -d hello 'http://127.0.0.1:4151/pub?topic=greetings'

docs/COMPATIBILITY.md lists what differs from pynsq.
"""

import os

from nsqcy.compat import pynsq as nsq  # before: import nsq

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")


def handler(message: nsq.Message) -> bool:
    print(message.body.decode(), flush=True)
    return True  # finish; False requeues


nsq.Reader("greetings", "pynsq", handler, nsqd_tcp_addresses=[TCP])

if __name__ == "__main__":
    nsq.run()
