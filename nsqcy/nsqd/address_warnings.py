"""Warnings about nsqd's own addresses: valid values that are probably a mistake.

Reads options only, without opening sockets.
"""

import re
from collections.abc import Iterator

from nsqcy.config.loader import Settings
from nsqcy.net.address_hints import connect_hint, is_no_path, listen_hint

_WILDCARDS = ("0.0.0.0", "::", "[::]")
_STATSD_PORT = 8125


def suspicious_addresses(settings: Settings) -> Iterator[str]:
    for flag, name in (("--tcp-address", "tcp_address"), ("--http-address", "http_address")):
        text = str(settings[name])
        if is_no_path(text):
            hint = listen_hint(text)
            yield f"{flag} {text} is the path of a unix socket{hint}{settings.where(name)}"
    name = "broadcast_address"
    text = str(settings[name])
    if re.fullmatch("[^:]+:[0-9]+", text):
        yield (
            f"--broadcast-address {text} contains a port: set only the host, and set the ports"
            f" with --broadcast-tcp-port and --broadcast-http-port{settings.where(name)}"
        )
    if text in _WILDCARDS:
        yield (
            f"--broadcast-address {text} is not an address to which clients can connect: set it to"
            f" this machine's name or address{settings.where(name)}"
        )
    name = "statsd_address"
    text = str(settings[name])
    if text and ":" not in text:
        hint = connect_hint(text, _STATSD_PORT)
        yield f"--statsd-address {text} has no port{hint}{settings.where(name)}"
