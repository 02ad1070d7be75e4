"""The latencies and errors of `nsqcy bench`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.cli.bench import Tally, bucket, upper
from nsqcy.cli.main import main
from support.fake_lookup_http import LookupPages
from support.fake_nsqd import MockNsqd


@given(latencies=st.lists(st.integers(1, 10**11), min_size=1), share=st.floats(0.01, 1))
def test_percentiles_are_near_the_sorted_latencies(latencies: list[int], share: float) -> None:
    tally = Tally()
    for each in latencies:
        tally.add(each)
    rank = next(n for n in range(len(latencies)) if n + 1 >= share * len(latencies))
    exact = sorted(latencies)[rank]
    assert exact <= tally.percentile(share) + 1
    assert tally.percentile(share) <= 1.13 * exact + 1


def test_nothing_has_no_latency() -> None:
    assert Tally().percentile(0.5) == 0
    assert upper(bucket(1)) == 1


def test_a_missing_token_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    nsqd = MockNsqd(settings={"auth_required": True})
    with LookupPages(("127.0.0.1", nsqd.port)) as pages:
        assert main(["bench", "-l", pages.address, "--duration=60s"]) == 1
    nsqd.close()
    said = capsys.readouterr()
    assert said.out == ""
    assert "no publish succeeded: " in said.err
    assert "requires AUTH" in said.err
    assert "NSQCY_AUTH_TOKEN" in said.err
