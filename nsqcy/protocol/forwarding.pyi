from collections.abc import Mapping
from typing import Any

from nsqcy.ipc.core import StreamEnd
from nsqcy.protocol.auth import Authorizer

def live() -> dict[str, int]: ...

class ForwardingStream(StreamEnd): ...

class Forwarder(Authorizer):
    @property
    def pub_counts(self) -> Mapping[str, int]: ...
    def adopt_hello(self, hello: Mapping[str, Any]) -> None: ...
