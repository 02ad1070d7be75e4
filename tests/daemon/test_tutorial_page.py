"""docs/start/tutorial.md, as readers type it, in one terminal."""

import shutil
from pathlib import Path

import pytest

from support.doc_examples import Block, Reader, steps
from support.nsqd_process import free_port
from support.up_process import PORTS, Up

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "start" / "tutorial.md"
USUAL = (4150, 4151, 4160, 4161, 4171)


def test_the_tutorial(tmp_path: Path) -> None:
    if not shutil.which("pkill"):
        pytest.skip("pkill is not installed")
    ports = {port: free_port() for port in USUAL}
    flags = [f"{flag}=127.0.0.1:{ports[port]}" for flag, port in zip(PORTS, USUAL, strict=True)]
    reader = Reader(tmp_path, ports=ports)
    running: list[Up] = []

    def step(word: str, block: Block) -> None:
        if word == "daemon":
            assert block.text == "nsqcy up 2> up.log &\n"
            running.append(Up(tmp_path, *flags, ports=()).serving())
            assert block.is_what(f"[1] 1\n{running[-1].said()}", ports), running[-1].said()
        elif word == "kill":
            command = block.text.splitlines()[0].replace("$!", str(running[-1].process.pid))
            reader.type(Block("sh", command, ""))
            assert running[-1].wait() == 1
            fatal = [line for line in running[-1].log().splitlines() if "FATAL" in line]
            assert block.is_what("\n".join(fatal), ports), fatal
        elif word == "stop":
            running[-1].process.terminate()
            assert running[-1].wait() == 0
            shutil.rmtree(tmp_path / "data")
        elif word == "worker.py":
            reader.save(word, block)
        elif word == "until-ctrl-c":
            reader.type_until_ctrl_c(block)
        else:
            if "peek" in block.text:  # nsqd moves the dead letter a moment after the last error
                running[-1].nsqd.await_counts("orders-dead", "inspect", depth=1)
            reader.type(block)

    try:
        for word, block in steps(PAGE.read_text()):
            step(word, block)
    finally:
        for each in running:
            each.destroy()
