"""What is fuzzed: a module a parser.

Each has
    one(data)     feeds it; raises, or a sanitizer ends the process, when something is wrong
    seeds()       inputs that mean something, of which a campaign without a corpus begins
    COVERS        the files whose lines are to be reached, below nsqcy/ or cext/nsqcy/
    WORDS         what mutations may put in, beside bytes
and may have
    fresh(chance) a part of an input, which mutations put in as well
    sound(data)   an input with its lengths and checksums made right: without that most mutations
                  would be refused for these alone
"""

import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def load(name: str) -> Any:
    """The module of a target."""
    return importlib.import_module(f"fuzz.targets.{name}")


def mutator(target: Any, mutate: Callable[[bytes, int], bytes]) -> Callable[..., bytes]:
    """`mutate` is libFuzzer's; a target's own ways are taken now and then."""
    fresh = getattr(target, "fresh", None)
    sound = getattr(target, "sound", None)

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if fresh and chance.random() < 0.2:
            at = chance.choice(_edges(data))
            data = (data[:at] + fresh(chance) + data[at:])[:max_size]
        else:
            data = mutate(data, max_size)
        if sound and chance.random() < 0.8:
            data = sound(data)[:max_size]
        return data

    return change


def _edges(data: bytes) -> list[int]:
    """Where lines end; both ends."""
    return [0, len(data), *(at + 1 for at, byte in enumerate(data) if byte == 10)]
