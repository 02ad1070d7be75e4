"""Cost of acknowledging a publish only once its messages are safe."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.speed import Result, Settings, consume, publish, touch_memory

CLASSES = ("memory", "os", "fsync")
IN_MEMORY = {"tmpfs", "ramfs"}
BUILD = Path(__file__).parents[3] / "build" / "bench"


def durable(settings: Settings) -> Iterator[Result]:
    """Measure the classes alternately, each on its own nsqd; published messages are consumed in
    between."""
    if settings.target is not None:
        raise NotOffered("nobody knows which class its topics are of")
    with on_disk() as folder, ExitStack() as stack:
        nsqds = {
            name: stack.enter_context(settings.nsqd(durability=name, data_path=made(folder, name)))
            for name in CLASSES
        }
        for _ in classes(settings, nsqds):
            pass  # warm-up: the daemon recycles memory afterwards
        # The page cache takes new memory for each file; the cost of obtaining it from the host must
        # not be measured.
        touch_memory(4 * settings.count(1_000_000) * settings.size)
        for _ in settings.rounds():
            yield from classes(settings, nsqds)


def classes(settings: Settings, nsqds: dict[str, Daemon]) -> Iterator[Result]:
    messages = settings.count(1_000_000)
    first: Result | None = None
    for name, nsqd in nsqds.items():
        with settings.topic(nsqd) as topic:
            result = publish(settings, nsqd, topic, messages, f"MPUB x200, 2 conn, {name}")
            consume(nsqd, topic, messages)
        first = first or result
        yield told(result, name, result.rate / first.rate, "{:.2f} x the rate of class memory")


def told(result: Result, durability: str, ratio: float, note: str) -> Result:
    result.durability = durability
    result.figures["ratio"] = ratio
    result.order = "ratio"
    result.note = note.format(ratio)
    return result


@contextmanager
def on_disk() -> Iterator[Path]:
    """Return a directory on a disk, where a sync really writes. The directory for temporary files
    may be in memory."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for place in (tempfile.gettempdir(), str(BUILD)):
        words = ["stat", "--file-system", "--format=%T", place]
        kind = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        if kind not in IN_MEMORY:
            with tempfile.TemporaryDirectory(prefix="nsqcy-bench-", dir=place) as folder:
                yield Path(folder)
            return
    raise NotOffered("no folder is on a disk")


def made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name
