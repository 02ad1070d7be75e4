"""The numbers of the formats of the copies' small files.

Owns only where each file contains its number. Damaged files are left to their readers.
"""

from collections.abc import Iterator
from pathlib import Path

from nsqcy import formats
from nsqcy.formats import Format
from nsqcy.nsqd.copies.copy_files import FACTS
from nsqcy.nsqd.copies.file_list import LIST
from nsqcy.nsqd.copies.readable import small_files
from nsqcy.storage import state_file

_BY_NAME = {FACTS: formats.COPY, LIST: formats.FILE_LIST, "machine.json": formats.MACHINE}


def numbers(folder: Path) -> Iterator[tuple[Format, int, Path]]:
    """Yield the format, its number and the path of each small file that is intact. Blocks.

    folder: directory for all workers' copies
    """
    for path in small_files(folder):
        each = _BY_NAME.get(path.name, formats.NODE)
        try:
            with path.open("rb") as file:
                content = file.readline().rstrip() if each is formats.FILE_LIST else file.read()
            state_file.check(content)
            number = state_file.parse_object(content).get("format", 1 if each.is_implied else None)
        except (OSError, ValueError, RecursionError):
            continue
        if type(number) is int:
            yield each, number, path
