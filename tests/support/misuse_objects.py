"""Creates objects of every class of a compiled module, with mostly wrong arguments, and calls and
reads all of their members. Prints each step before taking it, so after a crash, the last printed
step is the cause."""

import importlib
import inspect
import itertools
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

ARGUMENTS = (None, 0, -1, 7, b"", b"abc", "", "abc", bytearray(64), [], {}, 0.5)
MAX_BYTES = 400  # maximum calls of one method
FOR_USERS = {"nsqcy.client.codec"}
SKIPPED = {"wait_parked"}  # waits for a thread that was never started


def arguments() -> Iterator[tuple[Any, ...]]:
    for count in range(4):
        yield from itertools.islice(itertools.product(ARGUMENTS, repeat=count), MAX_BYTES)


def made(kind: type) -> Iterator[Any]:
    """Yield one object for each number of arguments that its class accepts."""
    for count in range(5):
        for given in itertools.islice(itertools.product(ARGUMENTS, repeat=count), 3000):
            try:
                yield kind(*given)
                break
            except Exception:
                continue
    if kind.__module__ in FOR_USERS:
        try:
            yield kind.__new__(kind)  # around __init__
        except Exception:
            return


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def use(thing: Any, name: str) -> None:
    say(type(thing).__name__, name)
    try:
        found = getattr(thing, name)
    except Exception:
        return
    if not callable(found) or isinstance(found, type):
        return
    for given in arguments():
        try:
            found(*given)
        except Exception:
            continue


def main() -> None:
    module = importlib.import_module(sys.argv[1])
    for name, found in sorted(vars(module).items()):
        if name.startswith("__") or getattr(found, "__module__", None) != module.__name__:
            continue
        if not inspect.isclass(found):
            if callable(found):
                use(types.SimpleNamespace(**{name: found}), name)
            continue
        say("class", name)
        for thing in made(found):
            for each in sorted(set(dir(thing)) - SKIPPED):
                if not each.startswith("__") or each in ("__repr__", "__len__", "__iter__"):
                    use(thing, each)


main()
