from nsqcy.channels.channel_cursor import ChannelCursor

class Deferral(ChannelCursor):
    @property
    def deferred_count(self) -> int: ...
    @property
    def cancelled_count(self) -> int: ...
    def upcoming(
        self, limit: int, after: tuple[int, int] | None
    ) -> list[tuple[tuple[int, int], int, int, int, int, int]]: ...
