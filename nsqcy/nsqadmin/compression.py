"""Response compression."""

import gzip
import zlib
from collections.abc import Callable

from nsqcy.http.parser import Bytes, Head, Reply

LEVEL = 5


def _deflate(body: Bytes) -> bytes:
    """Compress without a zlib header: NSQ does so, and browsers accept it."""
    compressor = zlib.compressobj(LEVEL, wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


def _gzip(body: Bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)


_ENCODINGS: dict[str, Callable[[Bytes], bytes]] = {"gzip": _gzip, "deflate": _deflate}


def compressed(head: Head, reply: Reply) -> Reply:
    """Return the reply in the first supported encoding on the client's list, or unchanged."""
    accepted = (each.strip() for each in head.header("Accept-Encoding").split(","))
    encoding = next((each for each in accepted if each in _ENCODINGS), "")
    is_encoded = any(name.lower() == "content-encoding" for name, _ in reply.headers)
    if not encoding or is_encoded or not reply.body:
        return reply
    return Reply(
        reply.status,
        _ENCODINGS[encoding](reply.body),
        reply.content_type,
        nsq=reply.nsq,
        headers=[*reply.headers, ("Content-Encoding", encoding), ("Vary", "Accept-Encoding")],
        logged=reply.logged,
    )
