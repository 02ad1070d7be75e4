"""docs/REPLICATION.md: the first minute, as readers type it."""

import re
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from support.doc_examples import Block, Reader, steps
from support.etcd_process import needs_etcd
from support.up_process import BUDGET, Up

pytestmark = [needs_etcd, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "REPLICATION.md"
PORTS = re.compile(r"node\d: +TCP on 127.0.0.1:(\d+), HTTP on 127.0.0.1:(\d+),")
USUAL = (4150, 4151, 4250, 4251, 4350, 4351)


def test_the_first_minute(tmp_path: Path) -> None:
    (_, start), *then = steps(PAGE.read_text())
    assert start.text == "nsqcy up --nodes=3 2> up.log &\n"
    up = Up(tmp_path, "--nodes=3", "--copies-lease=3s", "--copies-timeout=2s")
    try:
        nodes = up.serving_nodes()
        real = [int(port) for pair in PORTS.findall(up.said()) for port in pair]
        ports = dict(zip(USUAL, real, strict=True)) | {4161: up.lookupd.port}
        assert start.is_what(f"[1] 1\n{up.said()}", ports), up.said()
        reader = Reader(tmp_path, ports=ports)

        def typed(block: Block) -> bool:
            try:
                reader.type(block)
            except AssertionError:
                return False
            return True

        for word, block in then:
            if word == "kill":
                nodes[0].process.kill()
            elif "status" in block.text:  # a copy that joins takes a moment
                eventually(lambda block=block: typed(block), BUDGET)
            else:
                reader.type(block, BUDGET)
    finally:
        up.destroy()
