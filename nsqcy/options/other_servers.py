"""Recognizes servers other than nsqd by the first bytes that they send.

Owns the texts that identify the server and the port to use; the text for HTTP begins like NSQ's.
Independent of connections.
"""

# How each server begins its response to a client of nsqd. nsqlookupd's responses have no frame
# type. A TLS server sends an alert, because the client's first bytes are not a TLS record.
_OPENINGS = {
    b"HTTP": "unexpected HTTP response from {address}, a nsqd TCP endpoint is required: use nsqd's "
    "TCP port (4150 by default)",
    b"\x00\x00\x00\x0eE_BA": "{address}: nsqlookupd answered: use nsqd's TCP port (4150 by "
    "default), or query nsqlookupd through its HTTP port (4161 by default)",
    b"\x15\x03": "{address}: a TLS server answered: use nsqd's TCP port (4150 by default)",
}
LONGEST = max(map(len, _OPENINGS))


def recognized(opening: bytes, address: object) -> str | None:
    """Return the error for a server that begins with these bytes; None if it may be nsqd."""
    for start, text in _OPENINGS.items():
        if opening.startswith(start):
            return text.format(address=address)
    return None
