"""Fuzzing targets: one module for each parser.

Each module has
    one(data)     runs an input; it raises, or a sanitizer ends the process, if something is wrong
    seeds()       meaningful inputs, with which a campaign without a corpus begins
    COVERS        files whose coverage is reported, below nsqcy/ or cext/nsqcy/
    WORDS         words that mutations may insert
and may have
    fresh(chance) returns a part of an input, which mutations may insert
    sound(data)   returns an input with correct lengths and checksums: most mutations would be
                  refused without them
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
    """Return the module of a target."""
    return importlib.import_module(f"fuzz.targets.{name}")


def mutator(target: Any, mutate: Callable[[bytes, int], bytes]) -> Callable[..., bytes]:
    """Return a mutator that uses libFuzzer's `mutate`, and sometimes the target's own mutations."""
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
    """Return the ends of the lines, the start and the end."""
    return [0, len(data), *(at + 1 for at, byte in enumerate(data) if byte == 10)]
