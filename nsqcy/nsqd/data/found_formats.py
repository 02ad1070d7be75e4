"""The numbers of the formats in a data path, and the versions of nsqcy that read them.

Owns the report of `nsqcy data check` about versions. Reads the start of every file, and nothing
else; damaged files have no number. nsqcy.formats owns the numbers that this version reads.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nsqcy import __version__, formats
from nsqcy.broker.core import ids_number
from nsqcy.formats import FORMATS, Format
from nsqcy.names import is_valid_name
from nsqcy.nsqd.copies import file_formats
from nsqcy.nsqd.copies.copy_files import FOLDER
from nsqcy.nsqd.data.importer import DONE, MANIFEST
from nsqcy.nsqd.master import metadata, metadata_changes, policy_file
from nsqcy.storage import state_file
from nsqcy.storage.core import journal_number, segment_number

TOPICS_SHOWN = 10
_SUFFIX = ".topic"
_SEGMENT_HEADER, _JOURNAL_HEADER, _IDS_HEADER = 64, 32, 16


class NumberedFile(NamedTuple):
    """A file, its format and its number; `topic` is empty if it belongs to no topic."""

    format: Format
    number: int
    path: str
    topic: str = ""

    @property
    def loss(self) -> str:
        """The topic or file that a version loses if it cannot read the file."""
        return f"topic {self.topic}" if self.topic else self.path


@dataclass
class NumberFound:
    """A number of a format, and its files."""

    format: str
    number: int
    supported: str  # the numbers that this version reads
    files: int = 0


@dataclass
class TooNew:
    """Files that an earlier version does not read."""

    format: str
    number: int
    loses: list[str] = field(default_factory=list)  # topics, or other files


@dataclass
class EarlierVersion:
    """An earlier version, and what it would not read."""

    version: str
    too_new: list[TooNew] = field(default_factory=list)


@dataclass
class FormatsFound:
    """The formats in a data path. `since` is the first version that reads all numbers; it is None
    if this version does not read all of them."""

    numbers: list[NumberFound] = field(default_factory=list)
    since: str | None = None
    earlier: list[EarlierVersion] = field(default_factory=list)  # newest first
    unsupported: list[str] = field(default_factory=list)


def find(data_path: str) -> FormatsFound:
    """Return the formats in a data path."""
    return judge(files_in(Path(data_path)))


def judge(
    files: Iterable[NumberedFile],
    known: Sequence[Format] = FORMATS,
    version: str = __version__,
) -> FormatsFound:
    """Compare files with the numbers that this version and the earlier ones read.

    known: all formats, with the version that introduced each of their numbers
    """
    found = FormatsFound()
    counts: dict[tuple[str, int], NumberFound] = {}
    earlier = {each: EarlierVersion(each) for each in _before(version, known)}
    too_new: dict[tuple[str, str, int], dict[str, None]] = {}
    first: tuple[int, ...] = ()
    for file in files:
        name, number = file.format.name, file.number
        if (name, number) not in counts:
            counts[name, number] = NumberFound(name, number, file.format.numbers)
        counts[name, number].files += 1
        if not file.format.reads(number):
            found.unsupported.append(f"{file.path}: {file.format.refusal(number)}")
            continue
        since = file.format.since[number - 1]
        first = max(first, _key(since))
        for each in earlier:
            if _key(each) < _key(since):
                too_new.setdefault((each, name, number), {})[file.loss] = None
    for (each, name, number), losses in sorted(too_new.items()):
        earlier[each].too_new.append(TooNew(name, number, sorted(losses)))
    found.numbers = sorted(counts.values(), key=lambda each: (each.format, each.number))
    found.earlier = list(earlier.values())
    if not found.unsupported:
        found.since = ".".join(map(str, first or _key(formats.FIRST)))
    return found


def lines(found: FormatsFound, version: str = __version__) -> Iterator[str]:
    """Yield the report as text, without the unsupported files."""
    if not found.numbers:
        return
    yield "formats: " + ", ".join(f"{each.format} {each.number}" for each in found.numbers)
    if found.since is not None:
        until = "" if found.since == version else f" to {version}"
        yield f"versions that read these formats: {found.since}{until}"
    for each in found.earlier:
        if each.too_new:
            yield f"version {each.version} would lose: {'; '.join(map(_loss, each.too_new))}"


def _loss(found: TooNew) -> str:
    shown = ", ".join(found.loses[:TOPICS_SHOWN])
    more = len(found.loses) - TOPICS_SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return f"{shown}{rest} ({found.format} format version {found.number})"


def _before(version: str, known: Iterable[Format]) -> list[str]:
    """Return the earlier versions that introduced a number, newest first."""
    versions = {each for one in known for each in one.since if _key(each) < _key(version)}
    return sorted(versions, key=_key, reverse=True)


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


# -- the files


def files_in(data_path: Path) -> Iterator[NumberedFile]:
    """Yield the files of known formats that have an intact number."""
    for name, each in (
        (policy_file.FILE, formats.POLICIES),
        (os.path.join(DONE, MANIFEST), formats.MANIFEST),
    ):
        yield from _json_file(data_path, name, each)
    if (data_path / metadata.FILE).is_file():
        yield NumberedFile(formats.METADATA, 1, metadata.FILE)
    yield from _json_file(data_path, metadata_changes.FILE, formats.CHANGES, in_first_line=True)
    for folder in sorted(data_path.glob(f"*{_SUFFIX}/")):
        yield from _topic(data_path, folder)
    for each, number, path in file_formats.numbers(data_path / FOLDER):
        yield NumberedFile(each, number, str(path.relative_to(data_path)))
    for folder in sorted(data_path.glob(f"{FOLDER}/*/*/*{_SUFFIX}/")):
        yield from _topic(data_path, folder)


def _json_file(
    data_path: Path, name: str, each: Format, *, in_first_line: bool = False
) -> Iterator[NumberedFile]:
    try:
        content = (data_path / name).read_bytes()
        if in_first_line:
            content = content.partition(b"\n")[0]
        state_file.check(content)
        number: Any = json.loads(content)["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if type(number) is int:
        yield NumberedFile(each, number, name)


def _topic(data_path: Path, folder: Path) -> Iterator[NumberedFile]:
    topic = folder.name.removesuffix(_SUFFIX)
    if not is_valid_name(topic):
        return
    for path in sorted(folder.iterdir()):
        if path.suffix == ".seg":
            each, number = formats.SEGMENT, segment_number(_start(path, _SEGMENT_HEADER))
        elif path.suffix == ".ids":
            each, number = formats.IDS, ids_number(_start(path, _IDS_HEADER))
        elif path.name == "journal":
            each, number = formats.JOURNAL, journal_number(_start(path, _JOURNAL_HEADER))
        else:
            continue
        if number is not None:
            yield NumberedFile(each, number, str(path.relative_to(data_path)), topic)


def _start(path: Path, size: int) -> bytes:
    """Return the start of a file; empty if it cannot be read, which the audit reports."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""
