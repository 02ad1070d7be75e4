"""A client of a core in this process that has negotiated headers."""

import json
import struct
from typing import Any

from nsqcy.base.core import decode_headers, headers_from_text
from nsqcy.testing.wire_client import sized
from support.worker_core import MESSAGE, Client, Core, Delivery


def whole(body: bytes, encoded: bytes = b"") -> bytes:
    """Encode a message for a client that has negotiated headers."""
    return struct.pack(">H", len(encoded)) + encoded + body


class Headered(Delivery):
    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        (size,) = struct.unpack_from(">H", self.body)
        self.headers = decode_headers(self.body[2 : 2 + size])
        self.body = self.body[2 + size :]


class HeaderClient(Client):
    """A client that has negotiated headers."""

    def __init__(self, core: Core, **identity: Any) -> None:
        super().__init__(core, len(core.clients) + 1)
        wanted = {"feature_negotiation": True, "headers": True, **identity}
        answer = self.ask(b"IDENTIFY\n", sized(json.dumps(wanted).encode()))
        assert answer is not None
        assert json.loads(answer[1])["headers"] is True

    def publish_with(self, body: bytes, wanted: dict[str, str], delay: int = 0) -> Any:
        return self.publish("t", whole(body, headers_from_text(wanted)), delay)

    def delivered(self) -> list[Headered]:
        """Return the messages delivered since the last call."""
        self.look()
        found = [Headered(data) for kind, data in self.heard if kind == MESSAGE]
        self.heard = [frame for frame in self.heard if frame[0] != MESSAGE]
        return found

    def received(self) -> list[tuple[bytes, dict[str, str]]]:
        """Return the bodies and headers of these messages, and finish the messages."""
        found = self.delivered()
        for message in found:
            self.finish(message.id)
        return [(message.body, message.headers) for message in found]
