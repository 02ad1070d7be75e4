"""Golden conversations whose worker is replaced between any two pieces of input: no client
notices.

The worker runs in this process (see support/taken_over.py). With two workers, the topic is on the
other one, and either of them may be replaced.
"""

import itertools
import random
import time
from pathlib import Path

import pytest

from golden.script import Script, conversations, octets, pieces, read
from golden.test_golden import check
from nsqcy.testing.wire_client import Frame
from support.taken_over import RawClient, Workers

SPLITS = 3


class Replay:
    def __init__(self, workers: Workers, topic: bytes, chance: random.Random) -> None:
        self.workers = workers
        self.chance = chance
        self.names = {"topic": topic}
        self.client = RawClient(workers.cores[0])
        self.heard: list[Frame] = []

    def replace(self) -> None:
        self.workers.settle()
        self.workers.replace(self.chance.randrange(len(self.workers.cores)))

    def send(self, text: str, cut: str) -> None:
        for piece in pieces(octets(text, self.names), cut, self.chance):
            self.client.look()
            if self.client.closed:
                return
            self.client.transport.feed(piece)
            # At rest in the middle of a turn's work, or after it.
            if self.chance.random() < 0.5:
                self.workers.settle()
            self.replace()

    def expect(self, text: str) -> None:
        self.workers.settle()
        self.heard += itertools.starmap(Frame, self.client.frames())
        if text == "eof":
            assert not self.heard and self.client.closed
        else:
            assert self.heard, f"no answer, instead of {text}"
            check(self.heard.pop(0), text, self.names)

    def run(self, script: Script, cut: str) -> None:
        for side, text in script:
            if side == ">":
                self.send(text, cut)
            else:
                self.expect(text)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("path", conversations(), ids=lambda path: path.stem)
def test_conversation(tmp_path: Path, path: Path, count: int) -> None:
    script = read(path)
    workers = Workers(tmp_path, count, wall=time.time_ns())
    try:
        for seed in range(SPLITS):
            topic = f"t{seed}".encode()
            replay = Replay(workers, topic, random.Random(seed))
            workers.place(topic, count - 1)
            try:
                replay.run(script, "whole" if seed == 0 else "random")
            except BaseException as failure:
                failure.add_note(f"split with seed {seed}")
                raise
            replay.client.look()
            if not replay.client.closed:
                replay.client.transport.end()
            workers.settle()
    finally:
        workers.close()
