from typing import Any

from nsqcy.protocol.connection import Transport
from nsqcy.protocol.session_manager import SessionManager
from nsqcy.protocol.subscribe import Subscription

COUNTED: bool

def live() -> dict[str, int]: ...

class Session(Subscription):
    def __new__(
        cls,
        manager: SessionManager,
        transport: Transport,
        remote_address: str,
        *args: Any,
        **kwargs: Any,
    ) -> Session: ...
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    @property
    def client_id(self) -> str: ...
    def be_lenient(self, *, headers: bool = False, transfers: bool = False) -> None: ...
    def counters(self) -> dict[str, Any]: ...
