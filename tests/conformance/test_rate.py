"""The rate of a channel, for all of its consumers together. NSQ has none."""

import time

import pytest
from conftest import Starter
from talk import Conn

pytestmark = pytest.mark.ours

BURST = 0.01  # seconds of the rate that may come at once


def received(conns: list[Conn], count: int) -> float:
    """Receive so many messages, whoever gets them; the seconds from the first to the last."""
    first = 0.0
    for number in range(count):
        message = conns[number % len(conns)].message()
        conns[number % len(conns)].fin(message)
        first = first or time.monotonic()
    return time.monotonic() - first


@pytest.mark.parametrize("rate", [100.0, 12.5])
def test_ten_consumers_share_it(nsqd: Starter, rate: float) -> None:
    file = nsqd.path / "nsqd.ini"
    file.write_text(f"[nsqd]\n[channel t*/slow]\nrate = {rate}\n")
    daemon = nsqd(args=(f"--config={file}",))
    daemon.web.create("t", "slow", "other")
    daemon.web.mpub("t", [b"%d" % number for number in range(500)])
    conns = [daemon.connect().sub("t", "slow", rdy=5) for _ in range(10)]
    count = max(30, int(rate))
    # Whose turn it is first is not known, so that the first one that is looked at may be the tenth.
    assert received(conns, count) >= (count - 11) / rate - BURST
    other = daemon.connect().sub("t", "other", rdy=500)
    assert len(other.take(500)) == 500
