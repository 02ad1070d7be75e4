from nsqcy.channels.unfinished import UnfinishedMessages

class Undeliverable(UnfinishedMessages):
    @property
    def dead_letter_topic(self) -> str: ...
    @property
    def dead_lettered_count(self) -> int: ...
