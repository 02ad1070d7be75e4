from collections.abc import Mapping

from nsqcy.protocol.forwarding import Forwarder

class Routing(Forwarder):
    @property
    def pub_counts(self) -> Mapping[str, int]: ...
