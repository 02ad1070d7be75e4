"""Inputs kept by fuzzing campaigns (`make fuzz`) and their seeds, replayed without a failure."""

import gc
from pathlib import Path

import pytest

from fuzz import reach, targets
from fuzz.targets import log

CORPUS = Path(__file__).parent / "corpus"
MAX_BYTES = 300_000  # small: every clone of the repository contains the corpus


@pytest.mark.parametrize("name", targets.names())
def test_inputs(name: str) -> None:
    """Replay the kept inputs and the seeds, the latter also with corrected lengths and
    checksums."""
    target = targets.load(name)
    inputs = {str(path): path.read_bytes() for path in sorted((CORPUS / name).iterdir())}
    assert inputs
    sound = getattr(target, "sound", bytes)
    for number, data in enumerate(target.seeds()):
        inputs |= {f"seed {number}": data, f"sound seed {number}": sound(data)}
        assert sound(sound(data)) == sound(data)
    # Each input may be followed by a collection, which only needs to visit what the input leaves.
    gc.collect()
    gc.freeze()
    for where, data in inputs.items():
        try:
            target.one(data)
        except BaseException as failure:
            failure.add_note(where)
            raise


def test_log_ids_are_the_same() -> None:
    """An input may use the digits of a log_id as a body length."""
    data = log.negotiated(topic_log=True) + b"LOG_META t\n"
    assert log.told(data, None) == log.told(data, None)


def test_it_is_small() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(targets.names())
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MAX_BYTES


def test_mutations() -> None:
    """The mutator of every target respects the maximum size, and depends only on the seed."""
    for name in targets.names():
        target = targets.load(name)
        change = targets.mutator(target, lambda data, maximum: data[::-1][:maximum])
        for seed, data in enumerate(target.seeds()):
            assert len(change(data, 300, seed)) <= 300
            assert change(data, 300, seed) == change(data, 300, seed)


CONTROL = """\
4
0
a
b
c
d
STARTED 0 10
FT 0 8 9 16
COV 0 1
STARTED 1 1000
FT 1 8 16 24 32
STARTED 2 20
FT 2 24
STARTED 3 5
"""


def test_the_least_that_reaches_as_much() -> None:
    """Input a reaches edges 1 and 2, b reaches 1 to 4, and c reaches 3; d crashed."""
    assert reach.minimum(CONTROL, 2000) == ["a", "c", "b"]
    assert reach.minimum(CONTROL, 100) == ["a", "c"]


def test_lines_that_are_reached() -> None:
    found = reach.lines(targets.load("headers"), [], ["spark/headers.py"])
    reached, there = found["spark/headers.py"]
    assert reached == 0 and there > 20
