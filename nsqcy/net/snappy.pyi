from nsqcy.net.byte_layer import ByteLayer

class SnappyLayer(ByteLayer):
    @property
    def buffered(self) -> int: ...
