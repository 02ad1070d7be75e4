from typing import NamedTuple

class FormatError(Exception): ...

DAMAGE_TEXTS: dict[int, str]

def topic_directory(topic: str) -> str: ...
def parse_journal(
    data: bytes, path: str = "journal"
) -> tuple[list[bytes], bytes | None, int | None]: ...
def crc32c(data: bytes, crc: int = 0, *, software: bool = False) -> int: ...

class Footer(NamedTuple):
    records: int
    first_seq: int
    last_seq: int
    first_time: int
    last_time: int
    max_id: int
    data_end: int
